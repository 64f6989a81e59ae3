// Sixteen floats in four vectors of four, in the vector extensions of GCC and Clang: SSE2 on
// x86-64, NEON on aarch64. See attention_kernel.h for what is asked of them.
//
// Where the machine has no fused multiply-add in its base instruction set, products are rounded
// before they are added; elsewhere every operation gives the bits of its AVX counterparts.

namespace {

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

struct Floats {
  Four x[4];
};

constexpr int kSums = 2;

// Rows and vectors of a product's running sums, likewise.
constexpr int kProductRows = 2, kProductVectors = 1;

INLINE Four four(float x) { return Four{x, x, x, x}; }
INLINE Four load_four(const float* p) {
  Four x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
INLINE Four choose(FourInts mask, Four yes, Four no) {
  return (Four)((mask & (FourInts)yes) | (~mask & (FourInts)no));
}
INLINE Four fma_four(Four x, Four y, Four z) {
#if defined(__FP_FAST_FMAF)
  Four out;
  for (int i = 0; i < 4; ++i) out[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return out;
#else
  return x * y + z;
#endif
}

template <class F>
INLINE Floats each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}

INLINE Floats load(const float* p) {
  return each([=](int i) INLINE_LAMBDA { return load_four(p + 4 * i); });
}
INLINE void store(float* p, Floats v) { __builtin_memcpy(p, &v, sizeof v); }
INLINE Floats broadcast(float v) {
  return each([=](int) INLINE_LAMBDA { return four(v); });
}
INLINE Floats add(Floats v, Floats w) {
  return each([&](int i) INLINE_LAMBDA { return v.x[i] + w.x[i]; });
}
INLINE Floats sub(Floats v, Floats w) {
  return each([&](int i) INLINE_LAMBDA { return v.x[i] - w.x[i]; });
}
INLINE Floats mul(Floats v, Floats w) {
  return each([&](int i) INLINE_LAMBDA { return v.x[i] * w.x[i]; });
}
INLINE Floats div(Floats v, Floats w) {
  return each([&](int i) INLINE_LAMBDA { return v.x[i] / w.x[i]; });
}
INLINE Floats fma(Floats u, Floats v, Floats w) {
  return each([&](int i) INLINE_LAMBDA { return fma_four(u.x[i], v.x[i], w.x[i]); });
}
INLINE Floats if_less(Floats v, Floats w, Floats yes, Floats no) {
  return each([&](int i) INLINE_LAMBDA {
    return choose((FourInts)(v.x[i] < w.x[i]), yes.x[i], no.x[i]);
  });
}
INLINE Floats max(Floats v, Floats w) { return if_less(w, v, v, w); }
INLINE Floats magnitude(Floats v) {
  return each([&](int i) INLINE_LAMBDA { return (Four)((FourInts)v.x[i] & 0x7fffffff); });
}

INLINE Floats keep(Floats v, int first, int last, float other) {
  return each([&](int i) INLINE_LAMBDA {
    const FourInts lane = FourInts{0, 1, 2, 3} + 4 * i;
    return choose((lane >= first) & (lane < last), v.x[i], four(other));
  });
}

INLINE Floats power_of_two(Floats integral_plus_magic) {
  return each([&](int i) INLINE_LAMBDA {
    typedef uint32_t FourBits __attribute__((vector_size(16)));
    return (Four)(((FourBits)integral_plus_magic.x[i] + 127u) << 23);
  });
}

INLINE float largest(Floats v) {
  float lanes[16], most = v.x[0][0];
  store(lanes, v);
  for (float lane : lanes) most = lane > most ? lane : most;
  return most;
}

INLINE float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  __builtin_memcpy(&out, &wide, sizeof out);
  return out;
}

INLINE void load32(const float* p, Floats& v, Floats& w) {
  v = load(p);
  w = load(p + 16);
}
INLINE void load32(const Bfloat16* p, Floats& v, Floats& w) {
  // The even elements lie in the low halves of 32-bit words on a little-endian machine.
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  for (int i = 0; i < 4; ++i) {
    FourInts pairs;
    __builtin_memcpy(&pairs, p + 8 * i, sizeof pairs);
    typedef uint32_t FourBits __attribute__((vector_size(16)));
    v.x[i] = (Four)((FourBits)pairs << 16);
    w.x[i] = (Four)((FourBits)pairs & 0xffff0000u);
  }
}
INLINE Floats load16(const float* p) { return load(p); }
INLINE Floats load16(const Bfloat16* p) {
  return each([=](int i) INLINE_LAMBDA {
    const Bfloat16* at = p + 4 * i;
    return Four{widen(at[0].bits), widen(at[1].bits), widen(at[2].bits), widen(at[3].bits)};
  });
}
template <class T>
INLINE Floats load16(const T* p) {  // of the other types
  return each([=](int i) INLINE_LAMBDA {
    const T* at = p + 4 * i;
    return Four{to_float(at[0]), to_float(at[1]), to_float(at[2]), to_float(at[3])};
  });
}
template <class T>
INLINE void load32(const T* p, Floats& v, Floats& w) {
  v = load16(p);
  w = load16(p + 16);
}

// Sixteen lanes have become four.
using Partial = Four;
INLINE Partial begin_sum(Floats v) { return (v.x[0] + v.x[2]) + (v.x[1] + v.x[3]); }

INLINE Floats finish_sums(const Partial* s) {
  return each([=](int i) INLINE_LAMBDA {
    const Four a = s[4 * i], b = s[4 * i + 1], c = s[4 * i + 2], d = s[4 * i + 3];
    const Four left = Four{a[0], a[1], b[0], b[1]} + Four{a[2], a[3], b[2], b[3]};
    const Four right = Four{c[0], c[1], d[0], d[1]} + Four{c[2], c[3], d[2], d[3]};
    return Four{left[0], left[2], right[0], right[2]} + Four{left[1], left[3], right[1], right[3]};
  });
}

template <int R>
INLINE void by_row(const Floats* z, Floats* rows) {
  constexpr int kFours = 4 / R;  // of each row in each vector
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < 4; ++i) rows[r].x[i] = z[i / kFours].x[r * kFours + i % kFours];
}

}  // namespace
