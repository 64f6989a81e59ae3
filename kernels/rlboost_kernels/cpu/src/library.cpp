// Which instruction set is in use, and the small XLA calls: writing into the pool, copying pages, and reading
// memory from end to end as a measure of what is possible.

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "attention.h"
#include "calls.h"

namespace ffi = xla::ffi;

namespace rlboost {
namespace {

#if defined(__x86_64__)
// Bit 5 of EAX of leaf 7, subleaf 1, which older compilers have no name for.
bool has_avx512_bf16() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
         __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
#endif

const Isa* supported_isa(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool best = std::strcmp(name, "") == 0;
  const bool bf16 = avx512 && kAvx512Bf16 != nullptr && has_avx512_bf16();
  if (bf16 && (best || std::strcmp(name, kAvx512Bf16->name) == 0)) return kAvx512Bf16;
  if (avx512 && (best || std::strcmp(name, kAvx512.name) == 0)) return &kAvx512;
  if (avx2 && (best || std::strcmp(name, kAvx2.name) == 0)) return &kAvx2;
  if (best) return &kPortable;
#endif
  return std::strcmp(name, "") == 0 || std::strcmp(name, kPortable.name) == 0 ? &kPortable
                                                                               : nullptr;
}

const Isa* chosen = &kPortable;

// `out` is `kv_pages`, which XLA has copied first if the caller did not donate it.
ffi::Error update(ffi::AnyBuffer kv_pages, ffi::AnyBuffer k, ffi::AnyBuffer v,
                  ffi::BufferR1<ffi::S32> slots, ffi::Result<ffi::AnyBuffer> out) {
  const auto pool_shape = kv_pages.dimensions(), shape = k.dimensions();
  if (pool_shape.size() != 4 || shape.size() != 3 || !same_shape(v.dimensions(), shape) ||
      shape[0] != slots.dimensions()[0] || 2 * shape[1] != pool_shape[2] ||
      shape[2] != pool_shape[3] || !same_shape(out->dimensions(), pool_shape) ||
      k.element_type() != kv_pages.element_type() || v.element_type() != k.element_type() ||
      out->element_type() != k.element_type()) {
    return ffi::Error::InvalidArgument("update_kv_pages: arguments do not fit together");
  }
  char* const pool = static_cast<char*>(out->untyped_data());
  if (pool != kv_pages.untyped_data())
    std::memcpy(pool, kv_pages.untyped_data(), kv_pages.size_bytes());
  const int64_t num_slots = pool_shape[0] * pool_shape[1], K = shape[1];
  const size_t head = static_cast<size_t>(shape[2]) * ffi::ByteWidth(k.element_type());
  const char* from_k = static_cast<const char*>(k.untyped_data());
  const char* from_v = static_cast<const char*>(v.untyped_data());
  for (int64_t t = 0; t < shape[0]; ++t) {
    const int64_t slot = slots.typed_data()[t];
    if (slot < 0 || slot >= num_slots) continue;
    char* to = pool + static_cast<size_t>(slot * 2 * K) * head;
    for (int64_t h = t * K; h < (t + 1) * K; ++h, to += 2 * head) {
      std::memcpy(to, from_k + static_cast<size_t>(h) * head, head);
      std::memcpy(to + head, from_v + static_cast<size_t>(h) * head, head);
    }
  }
  return ffi::Error::Success();
}

// Likewise.
ffi::Error copy_pages(ffi::AnyBuffer kv_pages, ffi::BufferR1<ffi::S32> source,
                      ffi::BufferR1<ffi::S32> destination, ffi::Result<ffi::AnyBuffer> out) {
  const auto shape = kv_pages.dimensions();
  const int64_t count = source.dimensions()[0], P = shape.size() == 4 ? shape[0] : 0;
  if (P < 1 || destination.dimensions()[0] != count || !same_shape(out->dimensions(), shape) ||
      out->element_type() != kv_pages.element_type()) {
    return ffi::Error::InvalidArgument("copy_kv_pages: arguments do not fit together");
  }
  char* const pool = static_cast<char*>(out->untyped_data());
  if (pool != kv_pages.untyped_data())
    std::memcpy(pool, kv_pages.untyped_data(), kv_pages.size_bytes());
  const size_t page = kv_pages.size_bytes() / static_cast<size_t>(P);
  const auto inside = [P](int64_t i) { return i >= 0 && i < P; };
  std::vector<char> pages;
  for (int64_t i = 0; i < count; ++i) {
    if (!inside(destination.typed_data()[i])) continue;
    const int64_t from = std::clamp<int64_t>(source.typed_data()[i], 0, P - 1);
    const char* const start = pool + static_cast<size_t>(from) * page;
    pages.insert(pages.end(), start, start + page);
  }
  const char* next = pages.data();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t to = destination.typed_data()[i];
    if (!inside(to)) continue;
    std::memcpy(pool + static_cast<size_t>(to) * page, next, page);
    next += page;
  }
  return ffi::Error::Success();
}

// Reads `data` once, in pieces of a megabyte, on all threads.
ffi::Error linear_read(ffi::ThreadPool pool, ffi::AnyBuffer data,
                       ffi::ResultBuffer<ffi::U32> out) {
  constexpr size_t kPiece = 1 << 20;
  const size_t size = data.size_bytes() / 256 * 256;
  const char* from = static_cast<const char*>(data.untyped_data());
  std::atomic<uint64_t> all{0};
  const int64_t pieces = static_cast<int64_t>((size + kPiece - 1) / kPiece);
  share(pool, pieces, pool.num_threads() - 1, [&](int64_t i) {
    const size_t start = static_cast<size_t>(i) * kPiece;
    all.fetch_xor(active_isa().read(from + start, size - start < kPiece ? size - start : kPiece));
  });
  out->typed_data()[0] = static_cast<uint32_t>(all.load() ^ (all.load() >> 32));
  return ffi::Error::Success();
}

}  // namespace

const Isa& active_isa() { return *chosen; }

}  // namespace rlboost

#pragma GCC visibility push(default)

// Chooses the instruction set called `name`, or the best one for "". Returns the name of the one
// in use, or null if this machine does not have it. To be called before anything else.
extern "C" const char* rlboost_use_isa(const char* name) {
  const rlboost::Isa* isa = rlboost::supported_isa(name);
  if (isa == nullptr) return nullptr;
  rlboost::chosen = isa;
  return isa->name;
}

// Digest of the sources this library was compiled from.
extern "C" const char* rlboost_sources() {
  return RLBOOST_SOURCES;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(rlboost_update_kv_pages, rlboost::update,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rlboost_copy_kv_pages, rlboost::copy_pages,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rlboost_linear_read, rlboost::linear_read,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::U32>>());

#pragma GCC visibility pop
