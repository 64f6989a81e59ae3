// The code for machines with AVX512; compiled for that and called only there.

#if defined(__x86_64__)
#include "numbers.h"
#include "vectors_avx512.h"

#include "attention_kernel.h"
#include "matmul_kernel.h"

const rlboost::Isa rlboost::kAvx512{"avx512", attend_split, merge, write, read, multiply, false};
#endif
