// What the XLA calls share: XLA's own threads, their arithmetic, and memory to work in.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "attention.h"
#include "xla/ffi/api/ffi.h"

namespace rlboost {

// Rounding to the nearest with denormal numbers, as IEEE 754 has it, for as long as this lives. XLA
// flushes them to zero, and not on all of its threads: the bits of a sum would depend on where it
// was computed, and small float16 numbers would be lost on their way through float32.
class IeeeArithmetic {
 public:
#if defined(__x86_64__)
  IeeeArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // the state at power-up
  ~IeeeArithmetic() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  IeeeArithmetic() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~IeeeArithmetic() { __asm__ volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_;
#else
  IeeeArithmetic() {}  // what XLA does there is not known to us
#endif
};

// Before a thread goes to sleep; a tenth of a millisecond at most.
constexpr int kLooks = 2000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

// Calls work(i) for 0 <= i < count on this thread and on up to `helpers` of the pool's.
//
// This thread works too and waits only for calls that have begun, so it does not matter whether
// the pool's threads are busy, or whether this is one of them.
template <class Work>
void share(xla::ffi::ThreadPool& pool, int64_t count, int64_t helpers, const Work& work) {
  helpers = helpers < count - 1 ? helpers : count - 1;
  if (helpers <= 0) {
    const IeeeArithmetic ieee;
    for (int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  struct State {
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;
  };
  // A helper may start when all is over and `work` is gone: it then finds no call left.
  auto state = std::make_shared<State>();
  const auto run = [state, count, &work] {
    const IeeeArithmetic ieee;
    for (int64_t i; (i = state->next.fetch_add(1)) < count;) {
      work(i);
      if (state->done.fetch_add(1) + 1 == count) {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->finished.notify_all();
      }
    }
  };
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([run] { run(); });
  run();
  // The others end within microseconds as a rule, and waking from a sleep takes as long.
  for (int looks = 0; looks < kLooks && state->done.load() != count; ++looks) pause();
  if (state->done.load() == count) return;
  std::unique_lock<std::mutex> lock(state->mutex);
  state->finished.wait(lock, [&] { return state->done.load() == count; });
}

// Memory that grows, without keeping what is in it, and is aligned to 64 bytes.
class Scratch {
 public:
  float* at_least(int64_t count) {
    if (count > size_) {
      data_.reset();
      data_.reset(static_cast<float*>(
          ::operator new(static_cast<size_t>(count) * sizeof(float), std::align_val_t{64})));
      size_ = count;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* data) const { ::operator delete(data, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

inline int64_t bytes_of(Type type) {
  switch (type) {
    case Type::kFloat32: return 4;
    case Type::kBfloat16:
    case Type::kFloat16: return 2;
    default: return 1;
  }
}

inline bool type_of(xla::ffi::DataType type, Type& out) {
  switch (type) {
    case xla::ffi::F32: out = Type::kFloat32; return true;
    case xla::ffi::BF16: out = Type::kBfloat16; return true;
    case xla::ffi::F16: out = Type::kFloat16; return true;
    case xla::ffi::F8E4M3FN: out = Type::kFloat8E4M3; return true;
    case xla::ffi::F8E5M2: out = Type::kFloat8E5M2; return true;
    default: return false;
  }
}

inline bool same_shape(xla::ffi::Span<const int64_t> a, xla::ffi::Span<const int64_t> b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

}  // namespace rlboost
