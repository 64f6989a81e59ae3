// The types of floating point numbers of 16 and of 8 bits, one number at a time.

#pragma once

#include <cstdint>

#define INLINE static inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace {

struct Bfloat16 {
  uint16_t bits;
};
// Two neighbours of a sum as an instruction takes them: the upper half is added first.
struct Pair {
  Bfloat16 second, first;
};
struct Float16 {
  uint16_t bits;
};
struct Float8E4M3 {  // bias 7, no infinity; its one NaN has all bits set but the sign
  uint8_t bits;
};
struct Float8E5M2 {  // the upper half of a Float16
  uint8_t bits;
};

INLINE float from_bits(uint32_t bits) {
  float out;
  __builtin_memcpy(&out, &bits, sizeof out);
  return out;
}
INLINE uint32_t to_bits(float x) {
  uint32_t out;
  __builtin_memcpy(&out, &x, sizeof out);
  return out;
}

INLINE float to_float(float x) { return x; }
INLINE float to_float(Bfloat16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }
INLINE float to_float(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t rest = x.bits & 0x7fff;
  // Exponent and fraction in their new places; 2^112 then corrects the bias, denormals included.
  const uint32_t scaled = to_bits(from_bits(rest << 13) * 0x1p112f);
  const uint32_t special = 0x7f800000u | (rest << 13);  // infinity and NaN
  return from_bits(sign | (rest >= 0x7c00 ? special : scaled));
}
INLINE float to_float(Float8E5M2 x) {
  return to_float(Float16{static_cast<uint16_t>(x.bits << 8)});
}
INLINE float to_float(Float8E4M3 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80) << 24, rest = x.bits & 0x7f;
  const uint32_t scaled = to_bits(from_bits(rest << 20) * 0x1p120f);  // as for Float16
  return from_bits(sign | (rest == 0x7f ? 0x7fc00000u : scaled));
}

// To the nearest, ties to even.
INLINE void assign(float& out, float x) { out = x; }
INLINE void assign(Bfloat16& out, float x) {
  const uint32_t bits = to_bits(x);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  out.bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded >> 16);
}
INLINE void assign(Float16& out, float x) {
  const uint32_t bits = to_bits(x), rest = bits & 0x7fffffff;
  uint32_t half;
  if (rest > 0x7f800000) {
    half = 0x7e00;  // NaN
  } else if (rest >= 0x477ff000) {
    half = 0x7c00;  // 65520 and more round to infinity
  } else if (rest < 0x38800000) {
    // Below 2^-14: adding 1/2 leaves the bits of a denormal at the end, rounded by the addition.
    half = to_bits(from_bits(rest) + 0.5f) - 0x3f000000;
  } else {
    half = (rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13;
  }
  out.bits = static_cast<uint16_t>(((bits >> 16) & 0x8000) | half);
}

}  // namespace
