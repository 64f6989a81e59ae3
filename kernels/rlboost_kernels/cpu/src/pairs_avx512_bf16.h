// Sixteen pairs of bfloat16 in one AVX-512 register, and how rows and matrices become pairs.
//
// VDPBF16PS adds the product of the upper halves to a sum and then that of the lower ones, each
// with one rounding, as two fused multiply-adds would. So an entry of an even number is an upper
// half, and the next one the lower half beside it. Unlike those it takes denormal operands for
// zero, and makes zero of a denormal sum, whatever the control register says.

#include "matmul.h"

namespace {

struct Pairs {
  __m512bh v;
};

INLINE Pairs load16(const Pair* p) { return {(__m512bh)_mm512_loadu_si512(p)}; }
INLINE Pairs broadcast(Pair x) {
  int bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return {(__m512bh)_mm512_set1_epi32(bits)};
}
INLINE Floats fma(Pairs x, Pairs y, Floats z) { return {_mm512_dpbf16_ps(z.v, x.v, y.v)}; }

// The pair of an entry and the next one, which lie so in memory; the last of an odd number of
// entries has a zero for neighbour.
INLINE Pair pair_at(const Bfloat16* entry, bool last) {
  return {last ? Bfloat16{0} : entry[1], entry[0]};
}

// The rows of a patch as pairs, one after another.
template <class Stored>
const Pair* rows_of(const rlboost::Product& p, const rlboost::Patch& part, Pair* memory) {
  const int64_t whole = p.K / 2, count = (p.K + 1) / 2;
  for (int64_t r = 0; r < part.num_rows; ++r) {
    const Stored* const from = static_cast<const Stored*>(p.x) + (part.row + r) * p.K;
    Pair* const to = memory + r * count;
    for (int64_t i = 0; i < whole; ++i) to[i] = pair_at(from + 2 * i, false);
    if (whole < count) to[whole] = pair_at(from + 2 * whole, true);
  }
  return memory;
}

// Sixteen columns of two neighbouring rows.
INLINE void pair16(const Bfloat16* first, const Bfloat16* second, Pair* to) {
  const auto words = [](const Bfloat16* p) INLINE_LAMBDA {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  const __m512i upper = _mm512_slli_epi32(words(first), 16);
  _mm512_storeu_si512(to, _mm512_or_si512(upper, words(second)));
}

// Four pairs of each of four columns that lie in memory as rows do, to rows of a panel.
INLINE void turn4(const Bfloat16* from, int64_t stride, Pair* to) {
  const auto pairs = [&](int64_t j) INLINE_LAMBDA {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j * stride));
    return _mm_castsi128_ps(_mm_rol_epi32(words, 16));
  };
  __m128 a = pairs(0), b = pairs(1), c = pairs(2), d = pairs(3);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  float* const at = reinterpret_cast<float*>(to);
  _mm_storeu_ps(at, a);
  _mm_storeu_ps(at + rlboost::kPanel, b);
  _mm_storeu_ps(at + 2 * rlboost::kPanel, c);
  _mm_storeu_ps(at + 3 * rlboost::kPanel, d);
}

// Pairs [k, k + count) of columns [n, n + num) to panels of kPanel, one after another, each
// [count, kPanel]; what a panel has beyond `num` is zero.
template <class Stored>
void pack(const rlboost::Product& p, int64_t k, int64_t count, int64_t n, int64_t num, Pair* to) {
  using rlboost::kPanel;
  const Stored* const w = static_cast<const Stored*>(p.w);
  const int64_t whole = p.K / 2 - k < count ? p.K / 2 - k : count;  // pairs of two entries
  const auto place = [=](int64_t i, int64_t j) {
    return to + j / kPanel * count * kPanel + i * kPanel + j % kPanel;
  };
  if (p.transposed) {
    const auto column = [=](int64_t i, int64_t j) { return w + (n + j) * p.K + 2 * (k + i); };
    const int64_t fours = whole / 4 * 4;
    for (int64_t j = 0; j + 4 <= num; j += 4)
      for (int64_t i = 0; i < fours; i += 4) turn4(column(i, j), p.K, place(i, j));
    for (int64_t j = 0; j < num; ++j)
      for (int64_t i = j < num / 4 * 4 ? fours : 0; i < count; ++i)
        *place(i, j) = pair_at(column(i, j), i == whole);
  } else {
    const int64_t stride = p.panels ? kPanel : p.N, panel = p.panels ? p.K * kPanel : kPanel;
    for (int64_t j = 0; j < num; j += 16) {
      const Stored* from = w + 2 * k * stride + (n + j) / kPanel * panel + (n + j) % kPanel;
      Pair* at = place(0, j);
      const int64_t width = num - j < 16 ? num - j : 16;
      for (int64_t i = 0; i < count; ++i, from += 2 * stride, at += kPanel) {
        if (i < whole && width == 16) {
          pair16(from, from + stride, at);
        } else {
          for (int64_t l = 0; l < width; ++l)
            at[l] = {i < whole ? from[stride + l] : Stored{0}, from[l]};
        }
      }
    }
  }
  for (int64_t j = num; j % kPanel != 0; ++j)
    for (int64_t i = 0; i < count; ++i) *place(i, j) = Pair{};
}

}  // namespace
