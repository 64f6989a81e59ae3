// Attention of rows to the tokens of one split, written once over vectors of sixteen floats.
//
// A translation unit includes one of the vectors_*.h and then this file, and exports an `Isa`.
// Everything is in an unnamed namespace and nothing of the C++ library with code in it is
// included: the linker keeps one copy of an inline function, and if it came from a unit compiled
// for AVX-512 the others would stop running on machines without.
//
// The operations of a row, whatever is computed beside it: for every block of 16 tokens it sees,
// 16 products q·k (each: sixteen running sums over the head's elements, then halved four times),
// the largest score so far, weights 2^(score - largest), then for every element one running sum
// over the tokens in order. `block` is instantiated for 1, 2 and 4 rows at once, which share loads
// and nothing else.

#include <cfloat>
#include <type_traits>

#include "attention.h"

namespace {

using namespace rlboost;

constexpr float kNothing = -FLT_MAX;  // the largest of no scores; finite, so a difference is not NaN

// 2^x for x <= 127 to about one unit in the last place; 0 below 2^-126.
INLINE Floats exp2(Floats x) {
  const Floats magic = broadcast(0x1.8p23f);  // adding it rounds to an integer
  x = max(broadcast(-127.0f), x);  // in this order, so that NaN stays NaN
  const Floats shifted = add(x, magic);
  const Floats r = sub(x, sub(shifted, magic));
  Floats p = broadcast(0x1.41fbbap-13f);  // least relative error on [-1/2, 1/2], with p(0) = 1
  p = fma(p, r, broadcast(0x1.5f3e54p-10f));
  p = fma(p, r, broadcast(0x1.3b2d4cp-7f));
  p = fma(p, r, broadcast(0x1.c6aee8p-5f));
  p = fma(p, r, broadcast(0x1.ebfbdcp-3f));
  p = fma(p, r, broadcast(0x1.62e430p-1f));
  p = fma(p, r, broadcast(1.0f));
  return mul(p, power_of_two(shifted));
}

// Source: Cephes, tanhf.
INLINE Floats tanh(Floats x) {
  const Floats size = magnitude(x), one = broadcast(1.0f), zero = broadcast(0.0f);
  const Floats e = exp2(mul(size, broadcast(-0x1.715476p+1f)));  // exp(-2 |x|)
  const Floats far = div(sub(one, e), add(one, e));
  const Floats z = mul(x, x);
  Floats p = broadcast(-5.70498872745e-3f);
  p = fma(p, z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  const Floats near = fma(mul(p, z), x, x);
  return if_less(size, broadcast(0.625f), near, if_less(x, zero, sub(zero, far), far));
}

// The order of a head's elements in the vectors of queries and sums is that in which `load32` and
// `load16` give keys and values: their own, except that bfloat16 is widened two lanes at a time, even
// elements first, which costs one operation for sixteen numbers. Calls move(element, place).
template <class T, class Move>
INLINE void each_element(int64_t D, Move move) {
  int64_t d = 0;
  if constexpr (std::is_same_v<T, Bfloat16>) {
    for (; D % 16 == 0 && d + 32 <= D; d += 32) {
      for (int i = 0; i < 16; ++i) {
        move(d + 2 * i, d + i);
        move(d + 2 * i + 1, d + 16 + i);
      }
    }
  }
  for (; d < D; ++d) move(d, d);
}

// What a row of a tile works with; row r has its part of each at r times its size.
struct Rows {
  const float* q;    // [width], times q_factor, in the order of `each_element`
  float* weighted;   // [width], in that order too
  float* maximum;    // [1]
  float* total;      // [16]: lane i has the weights of tokens at i modulo 16
  int64_t width;
};
INLINE Rows from_row(const Rows& rows, int64_t r) {
  return {rows.q + r * rows.width, rows.weighted + r * rows.width, rows.maximum + r,
          rows.total + r * 16, rows.width};
}

// A block's keys and values, one pointer per token; D elements each, a multiple of 16.
template <class T>
struct Block {
  const T* k[kBlockTokens];
  const T* v[kBlockTokens];
};

// Where the next block's keys are, to be fetched while this one is computed: a little at a time,
// as the processor stops when it has more lines under way than it can count. Values follow keys.
struct Ahead {
  const char* k[kBlockTokens];
  int64_t bytes;  // of a token's keys, and of its values
};

// Asks for lines from `at` on, to the second-level cache.
INLINE void prefetch(const char* at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

// `kTokens` products with each of R rows, row after row in `sums`.
template <class T, int R, int kTokens>
INLINE void products(const Rows& rows, const T* const* k, int64_t D, Partial* sums) {
  constexpr int kAtOnce = kSums / R < 1 ? 1 : (kSums / R < kTokens ? kSums / R : kTokens);
  for (int t0 = 0; t0 < kTokens; t0 += kAtOnce) {
    Floats sum[R][kAtOnce];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < kAtOnce; ++t) sum[r][t] = broadcast(0.0f);
    int64_t d = 0;
    for (; d + 32 <= D; d += 32) {
      Floats first[R], second[R];
      for (int r = 0; r < R; ++r) {
        first[r] = load(rows.q + r * rows.width + d);
        second[r] = load(rows.q + r * rows.width + d + 16);
      }
      for (int t = 0; t < kAtOnce; ++t) {
        Floats x, y;
        load32(k[t0 + t] + d, x, y);
        for (int r = 0; r < R; ++r) sum[r][t] = fma(first[r], x, sum[r][t]);
        for (int r = 0; r < R; ++r) sum[r][t] = fma(second[r], y, sum[r][t]);
      }
    }
    if (d < D) {
      for (int t = 0; t < kAtOnce; ++t) {
        const Floats x = load16(k[t0 + t] + d);
        for (int r = 0; r < R; ++r)
          sum[r][t] = fma(load(rows.q + r * rows.width + d), x, sum[r][t]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < kAtOnce; ++t) sums[r * kTokens + t0 + t] = begin_sum(sum[r][t]);
  }
}

// Adds weight times value for kVectors vectors of each of R rows, token after token.
template <class T, int R, int kVectors>
INLINE void add_values(const Rows& rows, const T* const* v, int first, int last, int64_t d,
                       const float (*weights)[kBlockTokens], const float* correction,
                       const Ahead* ahead) {
  Floats sum[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < kVectors; ++i)
      sum[r][i] = mul(load(rows.weighted + r * rows.width + d + 16 * i), broadcast(correction[r]));
  for (int t = first; t < last; ++t) {
    if (ahead != nullptr)
      prefetch(ahead->k[t] + ahead->bytes + d * sizeof(T), kVectors * 16 * sizeof(T));
    Floats x[kVectors];
    if constexpr (kVectors == 1) {
      x[0] = load16(v[t] + d);
    } else {
      for (int i = 0; i < kVectors; i += 2) load32(v[t] + d + 16 * i, x[i], x[i + 1]);
    }
    for (int r = 0; r < R; ++r) {
      const Floats weight = broadcast(weights[r][t]);
      for (int i = 0; i < kVectors; ++i) sum[r][i] = fma(weight, x[i], sum[r][i]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < kVectors; ++i)
      store(rows.weighted + r * rows.width + d + 16 * i, sum[r][i]);
}

// R rows that all see tokens [first, last) of a block, and of the block nothing else.
template <class T, int R>
INLINE void block(const Problem& p, const Rows& rows, const Block<T>& tokens, int64_t D, int first,
                  int last, const Ahead* ahead) {
  Floats z[R], scores[R];
  for (int i = 0; i < R; ++i) {
    Partial sums[16];
    if (ahead != nullptr)
      for (int t = i * (16 / R); t < (i + 1) * (16 / R); ++t) prefetch(ahead->k[t], ahead->bytes);
    products<T, R, 16 / R>(rows, tokens.k + i * (16 / R), D, sums);
    z[i] = finish_sums(sums);
  }
  by_row<R>(z, scores);

  alignas(64) float weights[R][kBlockTokens];
  float correction[R];
  for (int r = 0; r < R; ++r) {
    if (p.cap > 0) scores[r] = mul(tanh(scores[r]), broadcast(p.cap));
    const float before = rows.maximum[r];
    const float most = largest(keep(scores[r], first, last, kNothing));
    const float now = most > before ? most : before;
    // What is not seen may be NaN, so weights are chosen and not multiplied by 0.
    const Floats weight = keep(exp2(sub(scores[r], broadcast(now))), first, last, 0.0f);
    store(weights[r], weight);
    correction[r] = 1.0f;
    if (now != before) {
      const Floats factor = exp2(broadcast(before - now));
      alignas(64) float lanes[16];
      store(lanes, factor);
      correction[r] = lanes[0];
      rows.maximum[r] = now;
      store(rows.total + 16 * r, mul(load(rows.total + 16 * r), factor));
    }
    store(rows.total + 16 * r, add(load(rows.total + 16 * r), weight));
  }

  constexpr int kVectors = kSums >= 16 ? 4 : 2;
  int64_t d = 0;
  for (; d + 16 * kVectors <= D; d += 16 * kVectors)
    add_values<T, R, kVectors>(rows, tokens.v, first, last, d, weights, correction, ahead);
  if (kVectors == 4 && d + 32 <= D) {
    add_values<T, R, 2>(rows, tokens.v, first, last, d, weights, correction, ahead);
    d += 32;
  }
  if (d < D) add_values<T, R, 1>(rows, tokens.v, first, last, d, weights, correction, ahead);
}

template <class T>
INLINE void block_of_rows(const Problem& p, const Rows& rows, int64_t num_rows,
                          const Block<T>& tokens, int64_t D, int first, int last,
                          const Ahead* ahead) {
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4, ahead = nullptr)
    block<T, 4>(p, from_row(rows, r), tokens, D, first, last, ahead);
  if (r + 2 <= num_rows) {
    block<T, 2>(p, from_row(rows, r), tokens, D, first, last, ahead);
    r += 2;
    ahead = nullptr;
  }
  if (r < num_rows) block<T, 1>(p, from_row(rows, r), tokens, D, first, last, ahead);
}

// Rows of a tile against a block at absolute position `start`. Row i of the tile sees up to its
// own position, so on the diagonal and at the end of a window each has its own part.
template <class T>
void block_of_tile(const Problem& p, const Tile& tile, const Rows& rows, const Block<T>& tokens,
                   int64_t D, int64_t start, const Ahead* ahead) {
  const int64_t group = p.H / p.K;
  const Span oldest = span(p, tile.visible), newest = span(p, tile.visible + tile.num_rows - 1);
  if (newest.first <= start && start + kBlockTokens <= oldest.last) {
    block_of_rows(p, rows, tile.num_rows * group, tokens, D, 0, kBlockTokens, ahead);
    return;
  }
  for (int64_t i = 0; i < tile.num_rows; ++i) {
    const Span seen = span(p, tile.visible + i);
    const int64_t first = seen.first > start ? seen.first - start : 0;
    const int64_t last = seen.last - start < kBlockTokens ? seen.last - start : kBlockTokens;
    if (first < last) {
      block_of_rows(p, from_row(rows, i * group), group, tokens, D, static_cast<int>(first),
                    static_cast<int>(last), i == 0 ? ahead : nullptr);
    }
  }
}

// Elements from the start of the pool to the keys of tokens [start, start + 16) of a sequence.
// From `last` on the last one is repeated, so that no page beyond it is touched.
INLINE void locate(const Problem& p, int64_t sequence, int64_t start, int64_t last,
                   int64_t* offsets) {
  const int32_t* pages = p.page_indices + sequence * p.M;
  const int64_t token_size = 2 * p.K * p.D;
  int64_t index = start / p.L, slot = start % p.L;
  int64_t page = 0;
  for (int t = 0; t < kBlockTokens; ++t) {
    if (t > 0 && start + t >= last) {
      offsets[t] = offsets[t - 1];
      continue;
    }
    if (t == 0 || slot == p.L) {
      if (t > 0) {
        ++index;
        slot = 0;
      }
      page = pages[index];
      page = page < 0 ? 0 : (page < p.P ? page : p.P - 1);
    }
    offsets[t] = (page * p.L + slot) * token_size;
    ++slot;
  }
}

// The block's keys and values as float32 in the order of `each_element`, filled up with zeros to `width`.
template <class T>
INLINE void unpack(const Block<T>& tokens, int64_t D, int64_t width, float* memory,
                   Block<float>& out, const Ahead* ahead) {
  for (int t = 0; t < 2 * kBlockTokens; ++t) {
    if (ahead != nullptr) {
      const int i = t % kBlockTokens;
      prefetch(ahead->k[i] + (t < kBlockTokens ? 0 : ahead->bytes), ahead->bytes);
    }
    const T* from = t < kBlockTokens ? tokens.k[t] : tokens.v[t - kBlockTokens];
    float* to = memory + t * width;
    if (D == width) {
      int64_t d = 0;
      for (; d + 32 <= D; d += 32) {
        Floats x, y;
        load32(from + d, x, y);
        store(to + d, x);
        store(to + d + 16, y);
      }
      if (d < D) store(to + d, load16(from + d));
    } else {
      for (int64_t d = 0; d < width; ++d) to[d] = d < D ? to_float(from[d]) : 0.0f;
    }
    (t < kBlockTokens ? out.k[t] : out.v[t - kBlockTokens]) = to;
  }
}

template <class Q, class T>
INLINE void load_queries(const Problem& p, const Tile& tile, int64_t width, float* out) {
  const int64_t group = p.H / p.K;
  for (int64_t h = 0; h < tile.num_heads; ++h) {
    for (int64_t i = 0; i < tile.num_rows; ++i) {
      for (int64_t g = 0; g < group; ++g, out += width) {
        const int64_t row = (tile.row + i) * p.H + (tile.head + h) * group + g;
        const Q* from = static_cast<const Q*>(p.q) + row * p.D;
        for (int64_t d = p.D; d < width; ++d) out[d] = 0.0f;
        each_element<T>(p.D, [&](int64_t d, int64_t at) INLINE_LAMBDA {
          out[at] = to_float(from[d]) * p.q_factor;
        });
      }
    }
  }
}

template <class T>
void attend_split_of(const Problem& p, const Tile& tile, int64_t split, int64_t until,
                     float* scratch, Softmax out) {
  const int64_t group = p.H / p.K, w = width(p), num_rows = softmax_rows(p, tile);
  float* const queries = scratch;
  float* const totals = queries + num_rows * w;
  float* const unpacked = totals + num_rows * 16;

  switch (p.q_type) {
    case Type::kFloat32: load_queries<float, T>(p, tile, w, queries); break;
    case Type::kBfloat16: load_queries<Bfloat16, T>(p, tile, w, queries); break;
    case Type::kFloat16: load_queries<Float16, T>(p, tile, w, queries); break;
    default: break;  // queries have no other type
  }
  for (int64_t i = 0; i < num_rows * w; ++i) out.weighted[i] = 0.0f;
  for (int64_t i = 0; i < num_rows * 16; ++i) totals[i] = 0.0f;
  for (int64_t r = 0; r < num_rows; ++r) out.maximum[r] = kNothing;

  const Span oldest = span(p, tile.visible), newest = span(p, tile.visible + tile.num_rows - 1);
  const int64_t begin = split * kSplitTokens, end = begin + kSplitTokens;
  const int64_t first = (oldest.first > begin ? oldest.first : begin) / kBlockTokens * kBlockTokens;
  const int64_t last = newest.last < end ? newest.last : end;
  const int64_t stop = newest.last < until ? newest.last : until;

  // Heads that are no whole vectors are copied to memory with zeros behind them; narrow ones that
  // many rows will read are widened once for all.
  const bool copied = p.D != w || (sizeof(T) < 4 && tile.num_rows * group > 8);
  const T* const pool = static_cast<const T*>(p.kv_pages);
  const Rows all{queries, out.weighted, out.maximum, totals, w};
  int64_t here[kBlockTokens], next[kBlockTokens];
  Ahead ahead;
  ahead.bytes = p.D * static_cast<int64_t>(sizeof(T));
  if (first < last) locate(p, tile.sequence, first, stop, here);
  for (int64_t start = first; start < last; start += kBlockTokens) {
    const bool more = start + kBlockTokens < stop;
    if (more) locate(p, tile.sequence, start + kBlockTokens, stop, next);
    for (int64_t h = 0; h < tile.num_heads; ++h) {
      Block<T> tokens;
      for (int t = 0; t < kBlockTokens; ++t) {
        tokens.k[t] = pool + here[t] + (tile.head + h) * 2 * p.D;
        tokens.v[t] = tokens.k[t] + p.D;
      }
      if (more)
        for (int t = 0; t < kBlockTokens; ++t)
          ahead.k[t] = reinterpret_cast<const char*>(pool + next[t] + (tile.head + h) * 2 * p.D);
      const Rows rows = from_row(all, h * tile.num_rows * group);
      if (copied) {
        Block<float> wide;
        unpack(tokens, p.D, w, unpacked, wide, more ? &ahead : nullptr);
        block_of_tile(p, tile, rows, wide, w, start, nullptr);
      } else {
        block_of_tile(p, tile, rows, tokens, p.D, start, more ? &ahead : nullptr);
      }
    }
    for (int t = 0; t < kBlockTokens; ++t) here[t] = next[t];
  }

  for (int64_t r = 0; r < num_rows; ++r) {
    Partial sums[16];
    for (int i = 0; i < 16; ++i) sums[i] = begin_sum(load(totals + 16 * r));
    alignas(64) float lanes[16];
    store(lanes, finish_sums(sums));
    out.total[r] = lanes[0];
  }
}

void attend_split(const Problem& p, const Tile& tile, int64_t split, int64_t until, float* scratch,
                  Softmax out) {
  switch (p.kv_type) {
    case Type::kFloat32: return attend_split_of<float>(p, tile, split, until, scratch, out);
    case Type::kBfloat16: return attend_split_of<Bfloat16>(p, tile, split, until, scratch, out);
    case Type::kFloat16: return attend_split_of<Float16>(p, tile, split, until, scratch, out);
    case Type::kFloat8E4M3:
      return attend_split_of<Float8E4M3>(p, tile, split, until, scratch, out);
    case Type::kFloat8E5M2:
      return attend_split_of<Float8E5M2>(p, tile, split, until, scratch, out);
  }
}

void merge(const Problem& p, const Tile& tile, Softmax earlier, Softmax later) {
  const int64_t w = width(p);
  for (int64_t r = 0; r < softmax_rows(p, tile); ++r) {
    if (later.total[r] == 0) continue;  // saw nothing there
    const bool first = earlier.total[r] == 0;
    const float a = earlier.maximum[r], b = later.maximum[r], most = a > b ? a : b;
    alignas(64) float lanes[16] = {first ? kNothing : a - most, first ? 0.0f : b - most};
    store(lanes, exp2(load(lanes)));
    const Floats old = broadcast(first ? 0.0f : lanes[0]), added = broadcast(lanes[1]);
    for (int64_t d = 0; d < w; d += 16) {
      float* at = earlier.weighted + r * w + d;
      store(at, fma(load(later.weighted + r * w + d), added, mul(load(at), old)));
    }
    earlier.maximum[r] = first ? b : most;
    earlier.total[r] = (first ? 0.0f : earlier.total[r] * lanes[0]) + later.total[r] * lanes[1];
  }
}

template <class Q, class T>
void write_as(const Problem& p, const Tile& tile, Softmax softmax) {
  const int64_t group = p.H / p.K, w = width(p);
  int64_t r = 0;
  for (int64_t h = 0; h < tile.num_heads; ++h) {
    for (int64_t i = 0; i < tile.num_rows; ++i) {
      for (int64_t g = 0; g < group; ++g, ++r) {
        const int64_t row = (tile.row + i) * p.H + (tile.head + h) * group + g;
        const float total = softmax.total[r];
        const float factor = total == 0 ? 0.0f : p.v_scale / total;
        Q* to = static_cast<Q*>(p.out) + row * p.D;
        const float* from = softmax.weighted + r * w;
        each_element<T>(p.D, [&](int64_t d, int64_t at) INLINE_LAMBDA {
          assign(to[d], from[at] * factor);
        });
        if (p.lse != nullptr) {
          const double bits = __builtin_log2(static_cast<double>(total)) + softmax.maximum[r];
          p.lse[row] = total == 0 ? -__builtin_inff() : static_cast<float>(bits * 0x1.62e42fefa39efp-1);
        }
      }
    }
  }
}

template <class T>
void write_from(const Problem& p, const Tile& tile, Softmax softmax) {
  switch (p.q_type) {
    case Type::kFloat32: return write_as<float, T>(p, tile, softmax);
    case Type::kBfloat16: return write_as<Bfloat16, T>(p, tile, softmax);
    case Type::kFloat16: return write_as<Float16, T>(p, tile, softmax);
    default: return;
  }
}

void write(const Problem& p, const Tile& tile, Softmax softmax) {
  if (p.kv_type == Type::kBfloat16) return write_from<Bfloat16>(p, tile, softmax);
  return write_from<float>(p, tile, softmax);
}

uint64_t read(const char* data, size_t bytes) {
  typedef uint64_t Words __attribute__((vector_size(64), aligned(1)));
  Words sums[4] = {};
  for (size_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(data + i + 64 * j + 2048, 0, 3);
      Words words;
      __builtin_memcpy(&words, data + i + 64 * j, sizeof words);
      sums[j] ^= words;
    }
  }
  uint64_t out = 0;
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 8; ++i) out ^= sums[j][i];
  return out;
}

}  // namespace
