// Products of bfloat16 on machines with AVX512_BF16; compiled for that and called only there. All
// else they do as other machines with AVX512.

#if defined(__x86_64__)
#include "attention.h"

#if defined(__AVX512BF16__)
#include "numbers.h"
#include "vectors_avx512.h"

#include "pairs_avx512_bf16.h"
#include "matmul_kernel.h"

namespace {

void multiply_bfloat16(const Product& p, const Patch& part, float* scratch) {
  if (p.type != Type::kBfloat16) return rlboost::kAvx512.multiply(p, part, scratch);
  multiply_from<Pair, Bfloat16>(p, part, scratch);
}

const rlboost::Isa kIsa{"avx512_bf16",         rlboost::kAvx512.attend_split,
                        rlboost::kAvx512.merge, rlboost::kAvx512.write,
                        rlboost::kAvx512.read,  multiply_bfloat16,
                        true};

}  // namespace

const rlboost::Isa* const rlboost::kAvx512Bf16 = &kIsa;
#else
const rlboost::Isa* const rlboost::kAvx512Bf16 = nullptr;
#endif
#endif
