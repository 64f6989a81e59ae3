// Rows times a matrix on CPU: what the planner hands to the code of an instruction set.
//
// An element of the result is a sum over k of x[m, k] * w[k, n]: chains of fused multiply-adds over
// kChain entries at absolute positions, each from zero, added up in order. Nothing of that depends
// on the number of rows, or on which thread has which piece. Instructions that take two entries of
// bfloat16 at a time add them in the same order, and differ in one thing: to them what is smaller
// than 2^-126, of operands and sums of a chain, is zero.

#pragma once

#include <cstdint>

#include "attention.h"

namespace rlboost {

constexpr int64_t kChain = 512;
constexpr int64_t kBlock = 128;  // entries packed at once, a divisor of kChain
constexpr int64_t kRegion = 128;  // columns packed at once: with kBlock entries 64 KiB
constexpr int64_t kPanel = 32;  // columns of a matrix that was packed beforehand; even

struct Product {
  const void* x;  // [M, K]
  // [K, N], [N, K] if `transposed`, [N / kPanel, K, kPanel] if `panels`, or with `pairs`, too, of
  // two entries each: [N / kPanel, K / 2, kPanel]
  const void* w;
  void* out;      // [M, N]
  Type type;      // of x and w; not of 8 bits
  Type out_type;  // the same, or float32
  int64_t M, K, N;
  bool transposed, panels;  // not both
  bool pairs;  // only with `panels`, in bfloat16, and where Isa::pairs
};

// Part of a result: at most kRegion columns.
struct Patch {
  int64_t row, num_rows, column, num_columns;
  int64_t next_column;  // where this thread is likely to go on; N and more: nowhere
};

inline int64_t multiply_floats(const Product& p, const Patch& part) {
  const int64_t wide = p.type == Type::kFloat32 ? 0 : part.num_rows * p.K;
  return kBlock * kRegion + 2 * part.num_rows * kRegion + (wide + 15) / 16 * 16;
}

}  // namespace rlboost
