// Sixteen floats in one AVX-512 register. See attention_kernel.h for what is asked of them.

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace {

struct Floats {
  __m512 v;
};

// Independent running sums that fit the registers beside their operands.
constexpr int kSums = 16;

// Rows and vectors of a product's running sums, likewise.
constexpr int kProductRows = 12, kProductVectors = 2;

INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
INLINE Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
INLINE Floats add(Floats x, Floats y) { return {_mm512_add_ps(x.v, y.v)}; }
INLINE Floats sub(Floats x, Floats y) { return {_mm512_sub_ps(x.v, y.v)}; }
INLINE Floats mul(Floats x, Floats y) { return {_mm512_mul_ps(x.v, y.v)}; }
INLINE Floats div(Floats x, Floats y) { return {_mm512_div_ps(x.v, y.v)}; }
INLINE Floats fma(Floats x, Floats y, Floats z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
INLINE Floats max(Floats x, Floats y) { return {_mm512_max_ps(x.v, y.v)}; }
INLINE Floats magnitude(Floats x) { return {_mm512_abs_ps(x.v)}; }
INLINE Floats if_less(Floats x, Floats y, Floats yes, Floats no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), no.v, yes.v)};
}

INLINE Floats keep(Floats x, int first, int last, float other) {
  const __mmask16 kept = static_cast<__mmask16>(((1u << last) - 1) & ~((1u << first) - 1));
  return {_mm512_mask_blend_ps(kept, _mm512_set1_ps(other), x.v)};
}

INLINE Floats power_of_two(Floats integral_plus_magic) {
  const __m512i bits = _mm512_castps_si512(integral_plus_magic.v);
  const __m512i biased = _mm512_add_epi32(bits, _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

INLINE float largest(Floats x) { return _mm512_reduce_max_ps(x.v); }

INLINE void load32(const float* p, Floats& x, Floats& y) {
  x = load(p);
  y = load(p + 16);
}
INLINE void load32(const Bfloat16* p, Floats& x, Floats& y) {
  const __m512i pairs = _mm512_loadu_si512(p);
  x.v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  y.v = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
INLINE Floats load16(const float* p) { return load(p); }
INLINE Floats load16(const Bfloat16* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
INLINE Floats load16(const Float16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
INLINE Floats load16(const Float8E5M2* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8))};
}
// By way of float16, 2^-8 times as much: sign, exponent and fraction moved to their places there.
INLINE Floats load16(const Float8E4M3* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i placed = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i number = _mm256_and_si256(placed, _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i all = _mm256_set1_epi16(0x3f80);
  const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(placed, all), all);
  const __m256i halves = _mm256_mask_blend_epi16(nan, number, _mm256_set1_epi16(0x7e00));
  return mul({_mm512_cvtph_ps(halves)}, broadcast(0x1p8f));
}
template <class T>
INLINE void load32(const T* p, Floats& x, Floats& y) {  // of the other types
  x = load16(p);
  y = load16(p + 16);
}

// A sum on its way to one number; here nothing has been added up yet.
using Partial = __m512;
INLINE Partial begin_sum(Floats x) { return x.v; }

// Lane i of the result is the sum of the lanes of s[i]: 16 lanes to 8, 4, 2, 1 by halves.
INLINE Floats finish_sums(const Partial* s) {
  __m512 quarter[4];
  for (int j = 0; j < 4; ++j) {
    const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(s[j], s[j + 4], 0x44),
                                     _mm512_shuffle_f32x4(s[j], s[j + 4], 0xee));
    const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(s[j + 8], s[j + 12], 0x44),
                                      _mm512_shuffle_f32x4(s[j + 8], s[j + 12], 0xee));
    quarter[j] = _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                               _mm512_shuffle_f32x4(low, high, 0xdd));
  }
  const __m512 left = _mm512_add_ps(_mm512_shuffle_ps(quarter[0], quarter[1], 0x44),
                                    _mm512_shuffle_ps(quarter[0], quarter[1], 0xee));
  const __m512 right = _mm512_add_ps(_mm512_shuffle_ps(quarter[2], quarter[3], 0x44),
                                     _mm512_shuffle_ps(quarter[2], quarter[3], 0xee));
  return {_mm512_add_ps(_mm512_shuffle_ps(left, right, 0x88),
                        _mm512_shuffle_ps(left, right, 0xdd))};
}

// From R vectors that hold 16/R tokens of each of R rows, to one vector of tokens per row.
template <int R>
INLINE void by_row(const Floats* z, Floats* rows) {
  if constexpr (R == 1) {
    rows[0] = z[0];
  } else if constexpr (R == 2) {
    rows[0].v = _mm512_shuffle_f32x4(z[0].v, z[1].v, 0x44);
    rows[1].v = _mm512_shuffle_f32x4(z[0].v, z[1].v, 0xee);
  } else {
    static_assert(R == 4);
    const __m512 a = _mm512_shuffle_f32x4(z[0].v, z[1].v, 0x44);
    const __m512 b = _mm512_shuffle_f32x4(z[2].v, z[3].v, 0x44);
    const __m512 c = _mm512_shuffle_f32x4(z[0].v, z[1].v, 0xee);
    const __m512 d = _mm512_shuffle_f32x4(z[2].v, z[3].v, 0xee);
    rows[0].v = _mm512_shuffle_f32x4(a, b, 0x88);
    rows[1].v = _mm512_shuffle_f32x4(a, b, 0xdd);
    rows[2].v = _mm512_shuffle_f32x4(c, d, 0x88);
    rows[3].v = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

}  // namespace
