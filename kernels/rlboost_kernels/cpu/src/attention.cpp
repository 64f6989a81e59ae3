// The XLA call of ragged paged attention: makes the metadata safe, cuts the work, shares it out.

#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "calls.h"

namespace ffi = xla::ffi;

namespace rlboost {
namespace {

// A helper is called for as many nanoseconds of work as waking it may cost.
constexpr double kWorkPerHelper = 20e3;

// Rough cost on one core, from the figures of the benchmark: a product and sum of sixteen lanes,
// and a byte from memory.
constexpr double kNanosecondsPerElement = 0.06;
constexpr double kNanosecondsPerByte = 0.08;

constexpr int64_t kRowsAtOnce = 64;  // query heads of a tile for each key head; 16 was slower by 4-12 %

int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }

// A tile that several threads may have splits of.
struct Job {
  Tile tile;
  int64_t first_split, last_split;
  double nanoseconds;
  bool apart = false;          // each split by itself
  float* partials = nullptr;   // then: a softmax for each
  std::atomic<int64_t>* left = nullptr;  // and how many are not done
};

struct Piece {
  int64_t job, first_split, last_split;
};

double cost(const Problem& p, const Tile& t) {
  const Span newest = span(p, t.visible + t.num_rows - 1);
  const double tokens = static_cast<double>(newest.last - span(p, t.visible).first);
  const double elements = tokens * 2 * static_cast<double>(t.num_heads * p.D);
  const double bytes = elements * static_cast<double>(bytes_of(p.kv_type));
  const double rows = static_cast<double>(t.num_rows * (p.H / p.K));
  return std::max(elements * rows * kNanosecondsPerElement, bytes * kNanosecondsPerByte);
}

// Tiles of rows that see something. `ends[s]` is where the rows of sequence s end, or past the
// end of q if the sequence is not in use.
std::vector<Job> jobs_of(const Problem& p, int64_t num_rows, int64_t num_sequences,
                         const int32_t* kv_lens, const int32_t* cu_q_lens) {
  std::vector<Job> jobs;
  jobs.reserve(static_cast<size_t>(num_sequences));
  const int64_t group = p.H / p.K;
  const int64_t rows_at_once = std::max<int64_t>(1, kRowsAtOnce / group);
  int64_t row = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    const int64_t end = cu_q_lens[s + 1];
    const int64_t stop = std::min(end, num_rows);
    // Row i sees kv_lens - (end - 1 - i) tokens; those before the first visible one see nothing.
    row = std::max(row, std::min(stop, end - kv_lens[s]));
    while (row < stop) {
      Tile tile{s, row, kv_lens[s] - (end - 1 - row), std::min(rows_at_once, stop - row), 0, p.K};
      row += tile.num_rows;
      // One row streams its tokens once, all heads together. Many rows come back to a block's keys
      // and values, so there one head is enough for the caches, and for the threads a piece.
      const int64_t heads = tile.num_rows > 1 ? 1 : p.K;
      for (; tile.head < p.K; tile.head += heads) {
        tile.num_heads = heads;
        const int64_t first = span(p, tile.visible).first / kSplitTokens;
        const int64_t last = span(p, tile.visible + tile.num_rows - 1).last;
        const int64_t splits = (last + kSplitTokens - 1) / kSplitTokens;
        if (first < splits) jobs.push_back({tile, first, splits, cost(p, tile)});
      }
    }
  }
  return jobs;
}

// One row of a short sequence in as many jobs as there are threads for: by heads.
void cut_by_heads(const Problem& p, int64_t threads, std::vector<Job>& jobs) {
  const int64_t parts = std::min(p.K, threads / std::max<int64_t>(1, static_cast<int64_t>(jobs.size())));
  if (parts < 2) return;
  std::vector<Job> cut;
  for (const Job& job : jobs) {
    for (int64_t i = 0; i < parts; ++i) {
      Job part = job;
      part.tile.head = job.tile.head + job.tile.num_heads * i / parts;
      part.tile.num_heads = job.tile.head + job.tile.num_heads * (i + 1) / parts - part.tile.head;
      if (part.tile.num_heads > 0) cut.push_back(part);
    }
  }
  jobs = std::move(cut);
}

void clear_unseen(const Problem& p, int64_t num_rows, const std::vector<Job>& jobs) {
  const size_t row_bytes = static_cast<size_t>(p.H * p.D * bytes_of(p.q_type));
  const auto clear = [&](int64_t from, int64_t to) {
    if (from >= to) return;
    std::memset(static_cast<char*>(p.out) + static_cast<size_t>(from) * row_bytes, 0,
                static_cast<size_t>(to - from) * row_bytes);
    if (p.lse != nullptr) std::fill(p.lse + from * p.H, p.lse + to * p.H, -HUGE_VALF);
  };
  int64_t row = 0;
  for (const Job& job : jobs) {
    clear(row, job.tile.row);
    row = job.tile.row + job.tile.num_rows;
  }
  clear(row, num_rows);
}

void attend(ffi::ThreadPool& pool, const Problem& p, int64_t num_rows, int64_t num_sequences,
            const int32_t* kv_lens, const int32_t* cu_q_lens) {
  const Isa& isa = active_isa();
  std::vector<Job> jobs = jobs_of(p, num_rows, num_sequences, kv_lens, cu_q_lens);
  clear_unseen(p, num_rows, jobs);
  if (jobs.empty()) return;

  double nanoseconds = 0;
  for (const Job& job : jobs) nanoseconds += job.nanoseconds;
  int64_t threads = pool.num_threads();
  threads = std::clamp<int64_t>(static_cast<int64_t>(nanoseconds / kWorkPerHelper), 1,
                                std::max<int64_t>(1, threads));

  // Jobs that would keep one thread busy while the others are done are cut at their splits.
  int64_t num_pieces = 0, num_floats = 0, num_apart = 0;
  if (threads > 1) {
    for (Job& job : jobs) {
      job.apart = job.last_split - job.first_split > 1 &&
                  job.nanoseconds * 4 * static_cast<double>(threads) > nanoseconds;
      if (job.apart) {
        ++num_apart;
        num_pieces += job.last_split - job.first_split;
        num_floats +=
            (job.last_split - job.first_split) * rounded(softmax_floats(p, job.tile));
      } else {
        ++num_pieces;
      }
    }
    if (num_apart == 0 && num_pieces < 2 * threads) cut_by_heads(p, 2 * threads, jobs);
  }

  Scratch shared;
  float* memory = num_floats > 0 ? shared.at_least(num_floats) : nullptr;
  std::unique_ptr<std::atomic<int64_t>[]> left(new std::atomic<int64_t>[num_apart + 1]);
  std::vector<Piece> pieces;
  pieces.reserve(std::max<size_t>(jobs.size(), static_cast<size_t>(num_pieces)));
  for (size_t j = 0, apart = 0; j < jobs.size(); ++j) {
    Job& job = jobs[j];
    const int64_t index = static_cast<int64_t>(j);
    if (!job.apart) {
      pieces.push_back({index, job.first_split, job.last_split});
      continue;
    }
    job.partials = memory;
    memory += (job.last_split - job.first_split) * rounded(softmax_floats(p, job.tile));
    job.left = &left[apart++];
    *job.left = job.last_split - job.first_split;
    for (int64_t s = job.first_split; s < job.last_split; ++s) pieces.push_back({index, s, s + 1});
  }

  share(pool, static_cast<int64_t>(pieces.size()), threads - 1, [&](int64_t i) {
    static thread_local Scratch scratch;
    const Piece& piece = pieces[static_cast<size_t>(i)];
    const Job& job = jobs[static_cast<size_t>(piece.job)];
    const int64_t size = rounded(softmax_floats(p, job.tile));
    float* own = scratch.at_least(rounded(scratch_floats(p, job.tile)) + 2 * size);
    const auto softmax = [&](float* at) { return softmax_at(p, job.tile, at); };
    const int64_t until = piece.last_split * kSplitTokens;

    if (!job.apart) {
      float* const later = own + size;
      float* const rest = later + size;
      isa.attend_split(p, job.tile, piece.first_split, until, rest, softmax(own));
      for (int64_t s = piece.first_split + 1; s < piece.last_split; ++s) {
        isa.attend_split(p, job.tile, s, until, rest, softmax(later));
        isa.merge(p, job.tile, softmax(own), softmax(later));
      }
      isa.write(p, job.tile, softmax(own));
      return;
    }
    const auto partial = [&](int64_t s) {
      return softmax(job.partials + (s - job.first_split) * size);
    };
    isa.attend_split(p, job.tile, piece.first_split, until, own, partial(piece.first_split));
    if (job.left->fetch_sub(1) > 1) return;
    for (int64_t s = job.first_split + 1; s < job.last_split; ++s)
      isa.merge(p, job.tile, partial(job.first_split), partial(s));
    isa.write(p, job.tile, partial(job.first_split));
  });
}

// `q_factor` and `cap` as in Problem. An `lse` without elements is not wanted.
ffi::Error attention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer kv_pages,
                     ffi::BufferR1<ffi::S32> kv_lens, ffi::BufferR2<ffi::S32> page_indices,
                     ffi::BufferR1<ffi::S32> cu_q_lens, ffi::BufferR1<ffi::S32> num_seqs,
                     ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> lse,
                     float q_factor, float cap, float v_scale, int64_t window) {
  const auto q_shape = q.dimensions(), pool_shape = kv_pages.dimensions();
  const int64_t S = kv_lens.dimensions()[0];
  Problem p{};
  if (q_shape.size() != 3 || pool_shape.size() != 4 || q_shape[2] != pool_shape[3] ||
      pool_shape[2] < 2 || pool_shape[2] % 2 != 0 || q_shape[1] % (pool_shape[2] / 2) != 0 ||
      page_indices.dimensions()[0] != S || cu_q_lens.dimensions()[0] != S + 1 ||
      num_seqs.dimensions()[0] != 1 || !same_shape(out->dimensions(), q_shape) || window < 1 ||
      !type_of(q.element_type(), p.q_type) || !type_of(kv_pages.element_type(), p.kv_type) ||
      bytes_of(p.q_type) < 2 || out->element_type() != q.element_type()) {
    return ffi::Error::InvalidArgument("ragged_paged_attention: arguments do not fit together");
  }
  p.q = q.untyped_data();
  p.kv_pages = kv_pages.untyped_data();
  p.page_indices = page_indices.typed_data();
  p.out = out->untyped_data();
  p.lse = lse->element_count() == 0 ? nullptr : lse->typed_data();
  p.H = q_shape[1];
  p.K = pool_shape[2] / 2;
  p.D = q_shape[2];
  p.P = pool_shape[0];
  p.L = pool_shape[1];
  p.M = page_indices.dimensions()[1];
  p.q_factor = q_factor;
  p.cap = cap;
  p.v_scale = v_scale;
  p.window = window;
  const int64_t used = std::clamp<int64_t>(num_seqs.typed_data()[0], 0, S);
  attend(pool, p, q_shape[0], used, kv_lens.typed_data(), cu_q_lens.typed_data());
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rlboost

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(rlboost_ragged_paged_attention, rlboost::attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("q_factor")
                                  .Attr<float>("cap")
                                  .Attr<float>("v_scale")
                                  .Attr<int64_t>("window"));

#pragma GCC visibility pop
