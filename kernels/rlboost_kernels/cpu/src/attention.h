// Ragged paged attention on CPU: what the planner hands to the code of an instruction set.
//
// A call is cut into tiles (some rows of one sequence, some heads) and a tile into splits
// (kSplitTokens tokens at absolute positions). A split is computed from nothing into a `Softmax`,
// and the splits of a row are merged in ascending order. Blocks of kBlockTokens tokens inside a
// split start at absolute positions too. So the operations behind a row's result, and their order,
// depend on its own position and options only; which thread ran what cannot show.

#pragma once

#include <cstddef>
#include <cstdint>

namespace rlboost {

constexpr int kBlockTokens = 16;  // one vector of scores
constexpr int64_t kSplitTokens = 512;

enum class Type : int { kFloat32, kBfloat16, kFloat16, kFloat8E4M3, kFloat8E5M2 };

// The arguments of one call. All sizes and values have been made safe by the planner, except page
// indices, which are clamped where they are read.
struct Problem {
  const void* q;                // [T, H, D]
  const void* kv_pages;         // [P, L, 2*K, D]
  const int32_t* page_indices;  // [S, M]
  void* out;                    // [T, H, D]
  float* lse;                   // [T, H], or null
  Type q_type, kv_type;  // queries have 16 bits at least
  int64_t H, K, D, P, L, M;
  float q_factor;  // makes a score out of q·k: in units of ln 2, or of the soft cap
  float cap;       // the soft cap in units of ln 2; 0 for none
  float v_scale;
  int64_t window;  // most tokens a row sees
};

// Rows of one sequence and heads, computed together.
struct Tile {
  int64_t sequence;
  int64_t row;         // of q: the first one
  int64_t visible;     // tokens up to and with the first row; each later row sees one more
  int64_t num_rows;
  int64_t head, num_heads;  // key heads
};

// The tokens [first, last) that a row of `visible` tokens attends to; none beyond the page table.
struct Span {
  int64_t first, last;
};
inline Span span(const Problem& p, int64_t visible) {
  const int64_t held = p.M * p.L;
  const int64_t last = visible < held ? visible : held;
  const int64_t first = visible > p.window ? visible - p.window : 0;
  return {first < last ? first : last, last};
}

// Softmax of rows over some tokens. Row (h, i, g) of a tile, for its key head h, row i and the
// group's query head g, is the ((h * num_rows + i) * group + g)th.
struct Softmax {
  float* weighted;  // [rows, width]: sum of weight * value
  float* maximum;   // [rows]: of the scores, in units of ln 2
  float* total;     // [rows]: sum of weights; 0 where no token was seen
};

inline int64_t width(const Problem& p) { return (p.D + 15) / 16 * 16; }
inline int64_t softmax_rows(const Problem& p, const Tile& t) {
  return t.num_heads * t.num_rows * (p.H / p.K);
}
inline int64_t softmax_floats(const Problem& p, const Tile& t) {
  return softmax_rows(p, t) * (width(p) + 2);
}
inline Softmax softmax_at(const Problem& p, const Tile& t, float* memory) {
  const int64_t rows = softmax_rows(p, t);
  return {memory, memory + rows * width(p), memory + rows * (width(p) + 1)};
}
// Scratch of `attend_split`, in floats.
inline int64_t scratch_floats(const Problem& p, const Tile& t) {
  return softmax_rows(p, t) * (width(p) + 16) + 2 * kBlockTokens * width(p);
}

// The code of one instruction set.
struct Product;
struct Patch;

struct Isa {
  const char* name;
  // Fills `out` from the tokens of split `split`. `until` is where this thread will stop reading,
  // at the end of this split or a later one. All memory is aligned to 64 bytes.
  void (*attend_split)(const Problem&, const Tile&, int64_t split, int64_t until, float* scratch,
                       Softmax out);
  // Adds a later split to the earlier ones.
  void (*merge)(const Problem&, const Tile&, Softmax earlier, Softmax later);
  // Divides by the total and writes the rows of `out` and `lse`.
  void (*write)(const Problem&, const Tile&, Softmax);
  // Some function of all bytes, as fast as they can be read; `bytes` is a multiple of 256.
  uint64_t (*read)(const char* data, size_t bytes);
  // See matmul.h; `scratch` has multiply_floats.
  void (*multiply)(const Product&, const Patch&, float* scratch);
  bool pairs;  // whether products of bfloat16 take two entries at a time
};

extern const Isa kPortable;
#if defined(__x86_64__)
extern const Isa kAvx2;
extern const Isa kAvx512;
extern const Isa* const kAvx512Bf16;  // null where the compiler does not know it
#endif

const Isa& active_isa();

}  // namespace rlboost
