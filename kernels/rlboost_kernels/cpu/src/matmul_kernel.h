// Rows times a matrix, for the instruction set whose vectors were included before.

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "matmul.h"

namespace {

using rlboost::kChain;
using rlboost::kRegion;
using rlboost::Patch;
using rlboost::Product;

constexpr int64_t kColumns = 16 * kProductVectors;  // of a panel
constexpr int64_t kAhead = 16;  // rows of a matrix fetched ahead of their use

// One chain for each element of R rows and 16 * C columns: tile [R, 16 * C].
//
// With `ahead`, rows of w are fetched before their turn.
template <int R, int C, bool ahead>
void chains(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t count,
            float* tile) {
  Floats sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = broadcast(0.0f);
  for (int64_t k = 0; k < count; ++k) {
    if constexpr (ahead)
      for (int c = 0; c < C; ++c) __builtin_prefetch(w + (k + kAhead) * w_stride + 16 * c, 0, 3);
    Floats row[C];
    for (int c = 0; c < C; ++c) row[c] = load(w + k * w_stride + 16 * c);
    for (int r = 0; r < R; ++r) {
      const Floats factor = broadcast(x[r * x_stride + k]);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(factor, row[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(tile + (r * C + c) * 16, sums[r][c]);
}

template <int R, bool ahead>
void chains_of(int64_t rows, const float* x, int64_t x_stride, const float* w, int64_t w_stride,
               int64_t count, float* tile) {
  if (rows == R)
    return chains<R, kProductVectors, ahead>(x, x_stride, w, w_stride, count, tile);
  if constexpr (R > 1) chains_of<R - 1, ahead>(rows, x, x_stride, w, w_stride, count, tile);
}

// The same for one row and several panels: enough chains side by side to hide how long each takes.
constexpr int kWide = kSums / kProductVectors > 4 ? 4 : kSums / kProductVectors;

// Sixteen entries in a row, as float32.
template <class T>
INLINE void copy16(const T* from, float* to) {
  store(to, load16(from));
}

// Four by four entries, rows to columns of a panel.
INLINE void turn4(const float* from, int64_t stride, float* to) {
#if defined(__SSE__)
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + stride);
  __m128 c = _mm_loadu_ps(from + 2 * stride), d = _mm_loadu_ps(from + 3 * stride);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + kColumns, b);
  _mm_storeu_ps(to + 2 * kColumns, c);
  _mm_storeu_ps(to + 3 * kColumns, d);
#else
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) to[i * kColumns + j] = from[j * stride + i];
#endif
}
template <class T>
INLINE void turn4(const T* from, int64_t stride, float* to) {
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) to[i * kColumns + j] = to_float(from[j * stride + i]);
}

// Entries [k, k + count) of columns [n, n + num) to panels of kColumns, one after another, each
// [count, kColumns]; what a panel has beyond `num` is zero.
template <class T>
void pack(const Product& p, int64_t k, int64_t count, int64_t n, int64_t num, float* to) {
  const T* const w = static_cast<const T*>(p.w);
  const int64_t whole = num / 16 * 16;
  if (!p.transposed) {
    for (int64_t i = 0; i < count; ++i) {
      const T* const from = w + (k + i) * p.N + n;
      if (i + kAhead < count)
        for (int64_t j = 0; j < num; j += 64 / static_cast<int64_t>(sizeof(T)))
          __builtin_prefetch(from + kAhead * p.N + j, 0, 3);
      for (int64_t j = 0; j < num; j += 16) {
        float* const at = to + j / kColumns * count * kColumns + i * kColumns + j % kColumns;
        if (j < whole) {
          copy16(from + j, at);
        } else {
          for (int64_t l = 0; l < 16; ++l) at[l] = j + l < num ? to_float(from[j + l]) : 0.0f;
        }
      }
    }
  } else {
    int64_t j = 0;
    for (; j + 4 <= num; j += 4) {
      const T* const from = w + (n + j) * p.K + k;
      float* const at = to + j / kColumns * count * kColumns + j % kColumns;
      int64_t i = 0;
      for (; i + 4 <= count; i += 4) turn4(from + i, p.K, at + i * kColumns);
      for (; i < count; ++i)
        for (int64_t l = 0; l < 4; ++l) at[i * kColumns + l] = to_float(from[l * p.K + i]);
    }
    for (; j < num; ++j) {
      const T* const from = w + (n + j) * p.K + k;
      float* const at = to + j / kColumns * count * kColumns + j % kColumns;
      for (int64_t i = 0; i < count; ++i) at[i * kColumns] = to_float(from[i]);
    }
    for (int64_t j = num; j % 16 != 0; ++j) {
      float* const at = to + j / kColumns * count * kColumns + j % kColumns;
      for (int64_t i = 0; i < count; ++i) at[i * kColumns] = 0.0f;
    }
  }
  for (int64_t j = (num + 15) / 16 * 16; j % kColumns != 0; j += 16) {
    float* const at = to + j / kColumns * count * kColumns + j % kColumns;
    for (int64_t i = 0; i < count; ++i) store(at + i * kColumns, broadcast(0.0f));
  }
}

template <class X, class Out>
void multiply_as(const Product& p, const Patch& part, float* scratch) {
  float* const packed = scratch;
  float* const sums = packed + kChain * kRegion;  // [num_rows, kRegion]
  const float* x = reinterpret_cast<const float*>(p.x) + part.row * p.K;
  if constexpr (sizeof(X) != sizeof(float)) {
    float* const wide = sums + part.num_rows * kRegion;
    const X* const from = static_cast<const X*>(p.x) + part.row * p.K;
    for (int64_t i = 0; i < part.num_rows * p.K; ++i) wide[i] = to_float(from[i]);
    x = wide;
  }
  // As equal as possible: a block of one row costs as much as one of several.
  const int64_t blocks = (part.num_rows + kProductRows - 1) / kProductRows;
  // One block reads the matrix once: there is nothing to be gained from packing whole panels.
  const bool in_place = sizeof(X) == sizeof(float) && !p.transposed && blocks == 1;
  const int64_t unpacked = in_place ? part.num_columns / kColumns * kColumns : 0;
  for (int64_t k = 0; k < p.K; k += kChain) {
    const int64_t count = p.K - k < kChain ? p.K - k : kChain;
    if (unpacked < part.num_columns)
      pack<X>(p, k, count, part.column + unpacked, part.num_columns - unpacked, packed);
    int64_t n = 0;
    if (part.num_rows == 1) {
      for (; n + kWide * kColumns <= unpacked; n += kWide * kColumns) {
        alignas(64) float tile[kWide * kColumns];
        chains<1, kWide * kProductVectors, true>(
            x + k, p.K, reinterpret_cast<const float*>(p.w) + k * p.N + part.column + n, p.N, count,
            tile);
        for (int64_t c = 0; c < kWide * kColumns; c += 16) {
          const Floats chain = load(tile + c);
          store(sums + n + c, k == 0 ? chain : add(load(sums + n + c), chain));
        }
      }
    }
    for (; n < part.num_columns; n += kColumns) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t row = part.num_rows * b / blocks, end = part.num_rows * (b + 1) / blocks;
        alignas(64) float tile[kProductRows * kColumns];
        if (n < unpacked)
          chains_of<kProductRows, true>(
              end - row, x + row * p.K + k, p.K,
              reinterpret_cast<const float*>(p.w) + k * p.N + part.column + n, p.N, count, tile);
        else
          chains_of<kProductRows, false>(end - row, x + row * p.K + k, p.K,
                                         packed + (n - unpacked) * count, kColumns, count, tile);
        for (int64_t r = row; r < end; ++r) {
          for (int64_t c = 0; c < kColumns; c += 16) {
            float* const at = sums + r * kRegion + n + c;
            const Floats chain = load(tile + (r - row) * kColumns + c);
            store(at, k == 0 ? chain : add(load(at), chain));
          }
        }
      }
    }
  }
  for (int64_t r = 0; r < part.num_rows; ++r) {
    Out* const to = static_cast<Out*>(p.out) + (part.row + r) * p.N + part.column;
    for (int64_t c = 0; c < part.num_columns; ++c) assign(to[c], sums[r * kRegion + c]);
  }
}

template <class X>
void multiply_from(const Product& p, const Patch& part, float* scratch) {
  if (p.out_type == Type::kFloat32) return multiply_as<X, float>(p, part, scratch);
  multiply_as<X, X>(p, part, scratch);
}

void multiply(const Product& p, const Patch& part, float* scratch) {
  switch (p.type) {
    case Type::kFloat32: return multiply_from<float>(p, part, scratch);
    case Type::kBfloat16: return multiply_from<Bfloat16>(p, part, scratch);
    case Type::kFloat16: return multiply_from<Float16>(p, part, scratch);
    default: return;  // the planner lets no other through
  }
}

}  // namespace
