// Sixteen floats in two AVX registers. See attention_kernel.h for what is asked of them.
//
// Every operation gives the bits of its AVX-512 counterpart.

#include <immintrin.h>

namespace {

struct Floats {
  __m256 a, b;
};

constexpr int kSums = 4;

// Rows and vectors of a product's running sums, likewise.
constexpr int kProductRows = 6, kProductVectors = 1;

INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
INLINE Floats broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Floats add(Floats x, Floats y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
INLINE Floats sub(Floats x, Floats y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
INLINE Floats mul(Floats x, Floats y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
INLINE Floats div(Floats x, Floats y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
INLINE Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE Floats max(Floats x, Floats y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
INLINE Floats magnitude(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
INLINE Floats if_less(Floats x, Floats y, Floats yes, Floats no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}

INLINE __m256 lanes_between(__m256i lane, int first, int last) {
  return _mm256_castsi256_ps(
      _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                          _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane)));
}
INLINE Floats keep(Floats x, int first, int last, float other) {
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  const __m256 out = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(out, x.a, lanes_between(low, first, last)),
          _mm256_blendv_ps(out, x.b, lanes_between(high, first, last))};
}

INLINE __m256 power_of_two(__m256 integral_plus_magic) {
  const __m256i bits = _mm256_castps_si256(integral_plus_magic);
  const __m256i biased = _mm256_add_epi32(bits, _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
INLINE Floats power_of_two(Floats x) { return {power_of_two(x.a), power_of_two(x.b)}; }

INLINE float largest(Floats x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

INLINE __m256 widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
INLINE void load32(const float* p, Floats& x, Floats& y) {
  x = load(p);
  y = load(p + 16);
}
INLINE void load32(const Bfloat16* p, Floats& x, Floats& y) {
  const __m256i* pairs = reinterpret_cast<const __m256i*>(p);
  const __m256i a = _mm256_loadu_si256(pairs), b = _mm256_loadu_si256(pairs + 1);
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  x = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
       _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  y = {_mm256_castsi256_ps(_mm256_and_si256(a, odd)),
       _mm256_castsi256_ps(_mm256_and_si256(b, odd))};
}
INLINE Floats load16(const float* p) { return load(p); }
INLINE Floats load16(const Bfloat16* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
}
INLINE Floats widen_float16(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
INLINE Floats load16(const Float16* p) {
  return widen_float16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
INLINE Floats load16(const Float8E5M2* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return widen_float16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}
// By way of float16, 2^-8 times as much: sign, exponent and fraction moved to their places there.
INLINE Floats load16(const Float8E4M3* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i placed = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i number = _mm256_and_si256(placed, _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i all = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(placed, all), all);
  const __m256i halves = _mm256_blendv_epi8(number, _mm256_set1_epi16(0x7e00), nan);
  return mul(widen_float16(halves), broadcast(0x1p8f));
}
template <class T>
INLINE void load32(const T* p, Floats& x, Floats& y) {  // of the other types
  x = load16(p);
  y = load16(p + 16);
}

// Sixteen lanes have become eight.
using Partial = __m256;
INLINE Partial begin_sum(Floats x) { return _mm256_add_ps(x.a, x.b); }

INLINE Floats finish_sums(const Partial* s) {
  __m256 half[2];
  for (int k = 0; k < 2; ++k) {
    const Partial* t = s + 8 * k;
    __m256 four[4];
    for (int j = 0; j < 4; ++j) {
      four[j] = _mm256_add_ps(_mm256_permute2f128_ps(t[j], t[j + 4], 0x20),
                              _mm256_permute2f128_ps(t[j], t[j + 4], 0x31));
    }
    const __m256 left = _mm256_add_ps(_mm256_shuffle_ps(four[0], four[1], 0x44),
                                      _mm256_shuffle_ps(four[0], four[1], 0xee));
    const __m256 right = _mm256_add_ps(_mm256_shuffle_ps(four[2], four[3], 0x44),
                                       _mm256_shuffle_ps(four[2], four[3], 0xee));
    half[k] = _mm256_add_ps(_mm256_shuffle_ps(left, right, 0x88),
                            _mm256_shuffle_ps(left, right, 0xdd));
  }
  return {half[0], half[1]};
}

template <int R>
INLINE void by_row(const Floats* z, Floats* rows) {
  if constexpr (R == 1) {
    rows[0] = z[0];
  } else if constexpr (R == 2) {
    rows[0] = {z[0].a, z[1].a};
    rows[1] = {z[0].b, z[1].b};
  } else {
    static_assert(R == 4);
    for (int pair = 0; pair < 2; ++pair) {
      __m256 part[4];
      for (int j = 0; j < 4; ++j) part[j] = pair ? z[j].b : z[j].a;
      rows[2 * pair] = {_mm256_permute2f128_ps(part[0], part[1], 0x20),
                        _mm256_permute2f128_ps(part[2], part[3], 0x20)};
      rows[2 * pair + 1] = {_mm256_permute2f128_ps(part[0], part[1], 0x31),
                            _mm256_permute2f128_ps(part[2], part[3], 0x31)};
    }
  }
}

}  // namespace
