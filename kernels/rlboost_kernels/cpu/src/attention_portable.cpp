// The code that runs on every machine.

#include "numbers.h"
#include "vectors_portable.h"

#include "attention_kernel.h"
#include "matmul_kernel.h"

const rlboost::Isa rlboost::kPortable{"portable", attend_split, merge, write, read, multiply, false};
