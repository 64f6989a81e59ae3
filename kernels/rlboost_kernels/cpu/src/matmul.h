// Rows times a matrix on CPU: what the planner hands to the code of an instruction set.
//
// An element of the result is a sum over k of x[m, k] * w[k, n]: chains of fused multiply-adds over
// kChain entries at absolute positions, each from zero, added up in order. Nothing of that depends
// on the number of rows, or on which thread has which piece.

#pragma once

#include <cstdint>

#include "attention.h"

namespace rlboost {

constexpr int64_t kChain = 512;
constexpr int64_t kRegion = 128;  // columns packed at once: with kChain entries 256 KiB

struct Product {
  const void* x;  // [M, K]
  const void* w;  // [K, N], or [N, K] if `transposed`
  void* out;      // [M, N]
  Type type;      // of x and w; not of 8 bits
  Type out_type;  // the same, or float32
  int64_t M, K, N;
  bool transposed;
};

// Part of a result: at most kRegion columns.
struct Patch {
  int64_t row, num_rows, column, num_columns;
};

inline int64_t multiply_floats(const Product& p, const Patch& part) {
  const int64_t wide = p.type == Type::kFloat32 ? 0 : part.num_rows * p.K;
  return kChain * kRegion + part.num_rows * kRegion + (wide + 15) / 16 * 16;
}

}  // namespace rlboost
