// The XLA call of a product of rows and a matrix: cuts the work and shares it out.

#include "matmul.h"

#include <algorithm>
#include <cstring>

#include "calls.h"

namespace ffi = xla::ffi;

namespace rlboost {
namespace {

constexpr double kWorkPerHelper = 20e3;
constexpr double kNanosecondsPerProduct = 0.02;
constexpr double kNanosecondsPerByte = 0.08;
constexpr int64_t kMostRows = 240;  // of a patch

void multiply(ffi::ThreadPool& pool, const Product& p) {
  const double size = static_cast<double>(p.K * p.N);
  const double nanoseconds = std::max(size * static_cast<double>(p.M) * kNanosecondsPerProduct,
                                      size * 4 * kNanosecondsPerByte);
  const int64_t threads = std::clamp<int64_t>(static_cast<int64_t>(nanoseconds / kWorkPerHelper), 1,
                                              std::max<int64_t>(1, pool.num_threads()));
  const int64_t bands = (p.M + kMostRows - 1) / kMostRows;
  int64_t columns = kRegion;
  while (columns > 32 && bands * ((p.N + columns - 1) / columns) < 2 * threads) columns /= 2;
  const int64_t across = (p.N + columns - 1) / columns;
  share(pool, bands * across, threads - 1, [&](int64_t i) {
    static thread_local Scratch scratch;
    const int64_t band = i / across, column = i % across * columns;
    const int64_t row = p.M * band / bands;
    const Patch part{row, p.M * (band + 1) / bands - row, column, std::min(columns, p.N - column),
                     column + threads * columns};
    active_isa().multiply(p, part, scratch.at_least(multiply_floats(p, part)));
  });
}

ffi::Error matmul(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer w,
                  ffi::Result<ffi::AnyBuffer> out, bool transposed) {
  const auto rows = x.dimensions(), matrix = w.dimensions(), result = out->dimensions();
  Product p{};
  p.panels = matrix.size() == 3;
  p.pairs = p.panels && matrix[2] == 2 * kPanel;
  if (rows.size() != 2 || result.size() != 2 || matrix.size() < 2 || matrix.size() > 3 ||
      (p.panels && (transposed || (matrix[2] != kPanel && !p.pairs))))
    return ffi::Error::InvalidArgument("matmul: wrong number of axes");
  const int64_t K = p.pairs ? 2 * matrix[1] : matrix[transposed || p.panels ? 1 : 0];
  const int64_t N = p.panels ? matrix[0] * kPanel : matrix[transposed ? 0 : 1];
  if (rows[1] != K || result[0] != rows[0] || result[1] != N || w.element_type() != x.element_type() ||
      !type_of(x.element_type(), p.type) || bytes_of(p.type) < 2 ||
      !type_of(out->element_type(), p.out_type) ||
      (p.out_type != p.type && p.out_type != Type::kFloat32) ||
      (p.pairs && (p.type != Type::kBfloat16 || !active_isa().pairs))) {
    return ffi::Error::InvalidArgument("matmul: arguments do not fit together");
  }
  p.x = x.untyped_data();
  p.w = w.untyped_data();
  p.out = out->untyped_data();
  p.M = rows[0];
  p.K = K;
  p.N = N;
  p.transposed = transposed;
  if (p.K == 0) std::memset(p.out, 0, out->size_bytes());
  else if (p.M > 0 && p.N > 0) multiply(pool, p);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rlboost

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(rlboost_matmul, rlboost::matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("transposed"));

#pragma GCC visibility pop
