// Rows times a matrix, for the instruction set whose vectors were included before.

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <type_traits>

#include "matmul.h"

namespace {

using rlboost::kBlock;
using rlboost::kChain;
using rlboost::kPanel;
using rlboost::kRegion;
using rlboost::Patch;
using rlboost::Product;
using rlboost::Type;

constexpr int64_t kColumns = 16 * kProductVectors;  // of a panel
constexpr int64_t kLine = 64;  // bytes

// Cache lines to be fetched while something else is computed: `rows` of them, 2^shift lines each.
struct Fetch {
  const char* from;
  int64_t stride, rows;  // stride in bytes
  int shift;
};

INLINE void fetch_line(const Fetch& f, int64_t i) {
  if ((i >> f.shift) < f.rows)
    __builtin_prefetch(f.from + (i >> f.shift) * f.stride + i % (1 << f.shift) * kLine, 0, 2);
}

// Where a piece of a matrix lies: entry k of column j at first[k * stride + j / kPanel * panel +
// j % kPanel]. Of rows one after another, `panel` is kPanel.
template <class W>
struct Matrix {
  const W* first;
  int64_t stride, panel;

  Matrix at(int64_t k, int64_t j) const {
    return {first + k * stride + j / kPanel * panel + j % kPanel, stride, panel};
  }
};

// Chains go from unit to unit: an entry as float32, or a Pair where the vectors have them.
template <class Unit>
constexpr int64_t kEntries = 1;
template <>
constexpr int64_t kEntries<Pair> = 2;

template <class Unit>
int64_t units(int64_t entries) {
  return (entries + kEntries<Unit> - 1) / kEntries<Unit>;
}

// Goes on with one chain for each element of R rows and 16 * C columns, or begins it. Meanwhile
// fetches kFetched lines for each unit, from number `line` on.
template <int R, int C, int kFetched, class Unit, class W>
void chains(const Unit* x, int64_t x_stride, const Matrix<W>& w, int64_t count, bool begin,
            float* out, const Fetch& fetch, int64_t line) {
  Floats sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      sums[r][c] = begin ? broadcast(0.0f) : load(out + r * kRegion + 16 * c);
  for (int64_t k = 0; k < count; ++k) {
    for (int i = 0; i < kFetched; ++i) fetch_line(fetch, line + k * kFetched + i);
    decltype(load16(w.first)) row[C];
    for (int c = 0; c < C; ++c)
      row[c] = load16(w.first + k * w.stride + 16 * c / kPanel * w.panel + 16 * c % kPanel);
    for (int r = 0; r < R; ++r) {
      const auto factor = broadcast(x[r * x_stride + k]);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(factor, row[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(out + r * kRegion + 16 * c, sums[r][c]);
}

template <int R, int kFetched, class Unit, class W>
void chains_of(int64_t rows, const Unit* x, int64_t x_stride, const Matrix<W>& w, int64_t count,
               bool begin, float* out, const Fetch& fetch, int64_t line) {
  if (rows == R)
    return chains<R, kProductVectors, kFetched>(x, x_stride, w, count, begin, out, fetch, line);
  if constexpr (R > 1)
    chains_of<R - 1, kFetched>(rows, x, x_stride, w, count, begin, out, fetch, line);
}

// The rows of a patch times 16 * kProductVectors columns, in blocks of rows that are as equal as
// possible: a block of one row costs as much as one of several. The first fetches.
template <int kFetched, class Unit, class W>
void panel_of(int64_t num_rows, const Unit* x, int64_t x_stride, const Matrix<W>& w, int64_t count,
              bool begin, float* out, const Fetch& fetch, int64_t line) {
  const int64_t blocks = (num_rows + kProductRows - 1) / kProductRows;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t row = num_rows * b / blocks, end = num_rows * (b + 1) / blocks;
    const Unit* const from = x + row * x_stride;
    float* const to = out + row * kRegion;
    if (b == 0)
      chains_of<kProductRows, kFetched>(end - row, from, x_stride, w, count, begin, to, fetch, line);
    else
      chains_of<kProductRows, 0>(end - row, from, x_stride, w, count, begin, to, fetch, 0);
  }
}

// For one row several panels at once: enough chains side by side to hide how long each takes.
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

// What `pack` will read for the entries [k, k + count) of columns from `column` on.
template <class T>
Fetch fetch_of(const Product& p, int64_t k, int64_t count, int64_t column, int64_t columns) {
  constexpr int64_t size = sizeof(T);
  if (column >= p.N) return {nullptr, 0, 0, 0};
  columns = p.N - column < columns ? p.N - column : columns;
  if (p.panels) {
    int shift = 0;
    while (kLine << shift < count * kPanel * size) ++shift;
    return {static_cast<const char*>(p.w) + (column / kPanel * p.K + k) * kPanel * size,
            p.K * kPanel * size, (columns + kPanel - 1) / kPanel, shift};
  }
  const int64_t first = p.transposed ? column * p.K + k : k * p.N + column;
  const int64_t width = (p.transposed ? count : columns) * size;
  int shift = 0;
  while (kLine << shift < width) ++shift;
  return {static_cast<const char*>(p.w) + first * size, (p.transposed ? p.K : p.N) * size,
          p.transposed ? columns : count, shift};
}

// The rows of a patch as float32, one after another: where they are, or in `memory`.
template <class Stored>
const float* rows_of(const Product& p, const Patch& part, float* memory) {
  const Stored* const from = static_cast<const Stored*>(p.x) + part.row * p.K;
  if constexpr (sizeof(Stored) == sizeof(float)) return from;
  else {
    for (int64_t i = 0; i < part.num_rows * p.K; ++i) memory[i] = to_float(from[i]);
    return memory;
  }
}

template <class Unit, class Stored, class Out>
void multiply_as(const Product& p, const Patch& part, float* scratch) {
  // Of a matrix that is read where it is.
  using Lying = std::conditional_t<kEntries<Unit> == 1, Stored, Unit>;
  static_assert(sizeof(Unit) == sizeof(float));
  Unit* const packed = reinterpret_cast<Unit*>(scratch);
  float* const chain = scratch + kBlock * kRegion;       // [num_rows, kRegion]
  float* const total = chain + part.num_rows * kRegion;  // the same, of chains that are done
  const Unit* const x =
      rows_of<Stored>(p, part, reinterpret_cast<Unit*>(total + part.num_rows * kRegion));
  constexpr int kFetched = kColumns * sizeof(Lying) < kLine ? 1 : kColumns * sizeof(Lying) / kLine;
  constexpr int64_t kMost = kChain / kEntries<Unit>;
  const int64_t K = units<Unit>(p.K);
  // What was packed is read where it is. So are rows that are read once or twice: packing would
  // take longer than it gains.
  bool in_place = p.pairs;
  if constexpr (kEntries<Unit> == 1)
    in_place = p.panels || (!p.transposed && part.num_rows <= 2 * kProductRows);
  const int64_t stride = p.panels ? kPanel : p.N, panel = p.panels ? K * kPanel : kPanel;
  const Matrix<Lying> w =
      Matrix<Lying>{static_cast<const Lying*>(p.w), stride, panel}.at(0, part.column);
  const int64_t unpacked = in_place ? part.num_columns / kColumns * kColumns : 0;
  for (int64_t k = 0; k < K; k += kBlock) {
    const int64_t count = K - k < kBlock ? K - k : kBlock;
    const bool begin = k % kMost == 0;
    if (begin && k > 0)
      for (int64_t i = 0; i < part.num_rows * kRegion; i += 16)
        store(total + i, k == kMost ? load(chain + i) : add(load(total + i), load(chain + i)));
    const int64_t next = k + kBlock;
    const Fetch fetch =
        next < K ? fetch_of<Stored>(p, next * kEntries<Unit>,
                                    (K - next < kBlock ? K - next : kBlock) * kEntries<Unit>,
                                    part.column, part.num_columns)
                 : fetch_of<Stored>(p, 0, (K < kBlock ? K : kBlock) * kEntries<Unit>,
                                    part.next_column, part.num_columns);
    if (unpacked < part.num_columns)
      pack<Stored>(p, k, count, part.column + unpacked, part.num_columns - unpacked, packed);
    const Unit* const rows = x + k;
    int64_t n = 0;
    for (; part.num_rows == 1 && n + kWide * kColumns <= unpacked; n += kWide * kColumns)
      chains<1, kWide * kProductVectors, kWide * kFetched>(rows, K, w.at(k, n), count, begin,
                                                           chain + n, fetch,
                                                           n / kColumns * count * kFetched);
    for (; n < unpacked; n += kColumns)
      panel_of<kFetched>(part.num_rows, rows, K, w.at(k, n), count, begin, chain + n, fetch,
                         n / kColumns * count * kFetched);
    for (; n < part.num_columns; n += kColumns)
      panel_of<kFetched>(part.num_rows, rows, K,
                         Matrix<Unit>{packed + (n - unpacked) * count, kColumns, kPanel}, count,
                         begin, chain + n, fetch, n / kColumns * count * kFetched);
  }
  const bool several = p.K > kChain;
  for (int64_t r = 0; r < part.num_rows; ++r) {
    Out* const to = static_cast<Out*>(p.out) + (part.row + r) * p.N + part.column;
    for (int64_t c = 0; c < part.num_columns; ++c) {
      const float newest = chain[r * kRegion + c];
      assign(to[c], several ? total[r * kRegion + c] + newest : newest);
    }
  }
}

template <class Unit, class Stored>
void multiply_from(const Product& p, const Patch& part, float* scratch) {
  if (p.out_type == Type::kFloat32) return multiply_as<Unit, Stored, float>(p, part, scratch);
  multiply_as<Unit, Stored, Stored>(p, part, scratch);
}

[[maybe_unused]] void multiply(const Product& p, const Patch& part, float* scratch) {
  switch (p.type) {
    case Type::kFloat32: return multiply_from<float, float>(p, part, scratch);
    case Type::kBfloat16: return multiply_from<float, Bfloat16>(p, part, scratch);
    case Type::kFloat16: return multiply_from<float, Float16>(p, part, scratch);
    default: return;  // the planner lets no other through
  }
}

}  // namespace
