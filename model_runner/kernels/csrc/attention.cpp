// Causal attention over the paged pool, for any mix of decoding rows and chunks of prefill.
//
// A tile is a few neighbouring new tokens of one row. For each kv head its queries (tokens x query heads of that kv
// head) meet the row's positions in splits that begin at multiples of SPLIT. The softmax over one split gives a partial
// (what weights are relative to, their sum, weighted values), and partials are merged in the order of their positions. So
// the order of a token's sums depends on its position only: not on the tile that it came in, on the batch, or on whether
// the splits of a tile were done by one thread (many tiles) or by several (few).
#include <algorithm>
#include <optional>
#include <utility>

#include "api.h"
#include "attention_amx.h"
#include "attention_tiles.h"
#include "lines.h"
#include "threads.h"

namespace {

constexpr int SPLIT = 256;
constexpr int64_t MOST_ASKED = 8;  // tokens whose places are asked for before the first is stored
constexpr int TILE_ROWS = AXIL_AMX ? 96 : 48;  // queries of a tile, where one token has not more
constexpr float MASKED = -1e30f;
constexpr float LOG2_E = 1.44269504f;
constexpr float SLACK = 8.0f;

// A piece of a step's work, to be done for each kv head; filled by `axil_attention_plan`.
struct Item {
  int32_t first_token, num_tokens;  // of the batch
  int32_t position;                 // of the first token
  int32_t first_page;               // of the row's, in the list of pages
  int32_t begin, end;               // the positions to look at; `begin` is a multiple of SPLIT
  int32_t row_length;               // positions stored by the end of the step
  int32_t partial;                  // where to put the partial; -1: the item is the whole tile
};

struct Tile {
  int32_t first_token, num_tokens, first_partial, num_partials;
};

// What the layers of a step share. Python fills it: the order and types are those of `_Step` there.
struct Step {
  const int32_t* pages;
  const int64_t* slots;
  int64_t num_tokens, num_heads, num_kv_heads, head_dim, page_tokens;
  float scale, softcap;  // softcap 0: none
};

int64_t padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Give `body` whole vectors up to `padded_dim`, with how much of each the head fills.
template <class Body>
AXIL_INLINE void in_padded(int64_t head_dim, int64_t padded_dim, const Body& body) {
  for (int64_t d = 0; d < padded_dim; d += LANES)
    body(d, static_cast<int>(std::clamp<int64_t>(head_dim - d, 0, LANES)));
}

// Whether products are those of the tile registers.
template <class Stored>
constexpr bool IS_IN_REGISTERS = AXIL_AMX && std::is_same_v<Stored, Bf16>;

struct Queries {
  int count;           // tokens x query heads of one kv head
  int group;           // query heads of one kv head
  int32_t position;    // of the first token
  int64_t window;      // 0: none
  int first_seen(int r) const {
    const int at = position + r / group;
    return window > 0 && at + 1 > window ? static_cast<int>(at + 1 - window) : 0;
  }
  int end_seen(int r) const { return position + r / group + 1; }
#if AXIL_AMX
  int num_tiles() const { return (count + MOST_ROWS - 1) / MOST_ROWS; }
  int tile_rows() const { return (count + num_tiles() - 1) / num_tiles(); }
  int room() const { return num_tiles() * tile_rows(); }  // what stands behind the last query is not looked at
#else
  int room() const { return count; }
#endif
};

// From one query's scores, which are logarithms to the base of two, to weights. The weights' sums by lane go into
// `totals`. Weights are relative to 2^`reference`, which moves to the largest score so far where one is so much larger
// that its weight would be beyond 2^SLACK; what went before is then rescaled. (FlashAttention 4 waits likewise.) Lanes
// outside of [first, end) get the weight 0; where `Count` is a constant there are none.
template <class Stored, class Count>
AXIL_INLINE void weigh(Count count, int first, int end, const float* scores, typename KvLayout<Stored>::Query* weights,
                       float* sums, int64_t dim, float& reference, float* totals) {
  Floats top = all(reference);
  for (int j = 0; j < count; j += LANES)
    top = max(top, load(scores + j));  // a NaN is passed over here, and shows in the weights
  Floats total = load(totals);
  if (is_any_less(all(reference + SLACK), top)) {
    const float moved = largest(top);
    const Floats shrink = power_of_two(all(reference - moved));
    total = mul(total, shrink);
    for (int64_t d = 0; d < dim; d += LANES) store(sums + d, mul(load(sums + d), shrink));
    reference = moved;
  }
  const Floats one = all(reference);
  for (int j = 0; j < count; j += LANES) {
    Floats weight = power_of_two(sub(load(scores + j), one));
    if constexpr (std::is_same_v<Count, int>) weight = choose(lanes(first - j, end - j), weight, zeros());
    total = add(total, weight);
    store(weights + j, weight);
  }
  store(totals, total);
}

// The weights of one query over [start, start + count). Positions that the query doesn't see get the weight 0.
template <class Stored>
AXIL_INLINE void softmax(const Queries& queries, int r, int start, int count, float softcap, float* scores,
                         typename KvLayout<Stored>::Query* weights, float* sums, int64_t dim, float& reference,
                         float* totals) {
  const int first = std::max(queries.first_seen(r) - start, 0), end = std::min(queries.end_seen(r) - start, count);
  if (end <= first) {
    for (int j = 0; j < count; j += LANES) store(weights + j, zeros());
    return;
  }
  if (softcap > 0)
    for (int j = 0; j < count; j += LANES)
      store(scores + j, mul(hyperbolic_tangent(mul(load(scores + j), all(1 / softcap))), all(softcap * LOG2_E)));
  if (first == 0 && end == GROUP) {
    const std::integral_constant<int, GROUP> whole;
    weigh<Stored>(whole, first, end, scores, weights, sums, dim, reference, totals);
    return;
  }
  for (int j = 0; j < count; j += LANES)
    store(scores + j, choose(lanes(first - j, end - j), load(scores + j), all(MASKED)));
  weigh<Stored>(count, first, end, scores, weights, sums, dim, reference, totals);
}

// Where the blocks of one item's kv head lie, and those of what is most likely looked at next.
template <class Stored>
struct Blocks {
  const KvPool<Stored>& pool;
  const int32_t* pages;
  int64_t kv_head;
  int begin, end;  // of the positions

  const uint32_t* at(int position) const {
    const int64_t page = pages[position / pool.page_tokens];
    return reinterpret_cast<const uint32_t*>(pool.block(page, position % pool.page_tokens, kv_head));
  }
};

template <class Stored>
Blocks<Stored> blocks_of(const KvPool<Stored>& pool, const Step& step, const Item& item, int64_t kv_head,
                         int64_t window) {
  const Queries queries{0, 1, item.position, window};  // no query of the item sees what lies before the first one's
  const int begin = std::max(item.begin, queries.first_seen(0) / GROUP * GROUP);
  return {pool, step.pages + item.first_page, kv_head, begin, item.end};
}

template <class Stored>
struct Partials {
  float* reference;  // [queries]: what weights are relative to, as a logarithm to the base of two
  float* total;      // [queries]
  float* sums;       // [queries][dim]
};

// The partials of all queries over positions [begin, end), which lie in one split of those of `own`.
template <class Stored>
void attend_split(const Blocks<Stored>& own, const Blocks<Stored>& next, const Step& step, const Queries& queries,
                  const typename KvLayout<Stored>::Query* q, int begin, int end, int row_length, float* scores,
                  typename KvLayout<Stored>::Query* weights, float* totals, uint32_t* last_values, const Partials<Stored>& out) {
  using L = KvLayout<Stored>;
  const int64_t dim = own.pool.head_dim;
  std::fill_n(out.reference, queries.count, MASKED);
  std::fill_n(totals, queries.count * LANES, 0.0f);
  std::fill_n(out.sums, queries.count * dim, 0.0f);
  const auto later_than = [&](int at, int start) {
    if (at + GROUP < own.end) return own.at(at + GROUP);
    const int there = next.begin + at - start;
    return there < next.end ? next.at(there) : own.at(at);
  };
  const auto weigh_all = [&](int start, int num_blocks) {
    for (int r = 0; r < queries.count; r++)
      softmax<Stored>(queries, r, start, num_blocks * BLOCK, step.softcap, scores + r * GROUP, weights + r * GROUP,
                      out.sums + r * dim, dim, out.reference[r], totals + r * LANES);
  };
  for (int start = std::max(begin, own.begin); start < end; start += GROUP) {
    const uint32_t *blocks[GROUP_BLOCKS], *later_blocks[GROUP_BLOCKS];
    int num_blocks = 0;
    for (int at = start; at < std::min(start + GROUP, end); at += BLOCK) {
      blocks[num_blocks] = own.at(at);
      later_blocks[num_blocks] = later_than(at, start);
      num_blocks++;
    }
    // What stands behind the row's end is anybody's, NaN included, and a weight of 0 does not make it 0.
    const int stored = std::min(num_blocks * BLOCK, row_length - start);
#if AXIL_AMX
    if constexpr (IS_IN_REGISTERS<Stored>) {
      const uint32_t *values[GROUP_BLOCKS], *later_values[GROUP_BLOCKS];
      for (int b = 0; b < num_blocks; b++) {
        values[b] = blocks[b] + BLOCK_PAIRS * dim;
        later_values[b] = later_blocks[b] + BLOCK_PAIRS * dim;
      }
      if (stored < num_blocks * BLOCK) {
        const uint32_t* const from = values[num_blocks - 1];
        const int64_t whole = stored % BLOCK / 2 * dim, half = stored % 2 * dim;
        std::copy_n(from, whole, last_values);
        for (int64_t i = whole; i < whole + half; i++) last_values[i] = from[i] & 0xffffu;
        std::fill(last_values + whole + half, last_values + BLOCK_PAIRS * dim, 0u);
        values[num_blocks - 1] = last_values;
      }
      const int rows = queries.tile_rows();
      for (int r = 0; r < queries.count; r += rows) {
        if (r == 0) score_in_registers<true>(q, dim, blocks, later_blocks, num_blocks, scores);
        else score_in_registers<false>(q + r * dim, dim, blocks, later_blocks, num_blocks, scores + r * GROUP);
      }
      weigh_all(start, num_blocks);
      for (int r = 0; r < queries.count; r += rows) {
        if (r == 0) weigh_in_registers<true>(weights, values, later_values, num_blocks, out.sums, dim);
        else weigh_in_registers<false>(weights + r * GROUP, values, later_values, num_blocks, out.sums + r * dim, dim);
      }
      continue;
    }
#endif
    const uint32_t *words[GROUP / L::STEP], *later_words[GROUP / L::STEP];
    for (int b = 0; b < num_blocks; b++)
      for (int t = 0; t < BLOCK / L::STEP; t++) {
        const int64_t values = (BLOCK / L::STEP + t) * dim;  // behind the keys
        words[b * (BLOCK / L::STEP) + t] = blocks[b] + values;
        later_words[b * (BLOCK / L::STEP) + t] = later_blocks[b] + values;
      }
    const int num_words = (stored + L::STEP - 1) / L::STEP;
    if (stored % L::STEP != 0) {
      for (int64_t d = 0; d < dim; d++) last_values[d] = words[num_words - 1][d] & 0xffffu;
      words[num_words - 1] = last_values;
    }
    in_rows(queries.count, [&](auto rows, int r) AXIL_ALWAYS {
      constexpr int R = decltype(rows)::value;
      const auto* some = q + r * dim;
      if (r == 0) score_rows<Stored, R, true>(some, dim, blocks, later_blocks, num_blocks, scores);
      else score_rows<Stored, R, false>(some, dim, blocks, later_blocks, num_blocks, scores + r * GROUP);
    });
    weigh_all(start, num_blocks);
    in_rows(queries.count, [&](auto rows, int r) AXIL_ALWAYS {
      constexpr int R = decltype(rows)::value;
      if (r == 0) weigh_rows<Stored, R, true>(weights, words, later_words, num_words, out.sums, dim);
      else weigh_rows<Stored, R, false>(weights + r * GROUP, words, later_words, num_words, out.sums + r * dim, dim);
    });
  }
  for (int r = 0; r < queries.count; r++) out.total[r] = sum(load(totals + r * LANES));
}

// Take a partial of later positions into one of earlier ones.
AXIL_INLINE void merge(float& reference, float& total, float* sums, float later_reference, float later_total,
                       const float* later_sums, int64_t dim) {
  const float top = std::max(reference, later_reference);
  const float own = power_of_two(reference - top), other = power_of_two(later_reference - top);
  reference = top;
  total = total * own + later_total * other;
  for (int64_t d = 0; d < dim; d += LANES)
    store(sums + d, fma(load(later_sums + d), all(other), mul(load(sums + d), all(own))));
}

AXIL_INLINE void write_mean(const float* sums, float total, float* out, int64_t head_dim) {
  in_vectors(head_dim, [&](int64_t d, int n) { store_some(out + d, div(load_some(sums + d, n), all(total)), n); });
}

// Floats that the partial of one query takes in memory: sums, then reference and total.
int64_t partial_floats(int64_t dim) { return dim + 16; }

template <class Stored>
void attend(const Blocks<Stored>& blocks, const Blocks<Stored>& next, const Step& step, const Item& item, int64_t window,
            const float* q, int64_t q_stride, float* partials, float* out) {
  using Query = typename KvLayout<Stored>::Query;
  static thread_local Lines<float> memory;
  const int64_t dim = blocks.pool.head_dim, group = step.num_heads / step.num_kv_heads, kv_head = blocks.kv_head;
  const Queries queries{static_cast<int>(item.num_tokens * group), static_cast<int>(group), item.position, window};
  const size_t n = queries.count, room = queries.room(), num_last = IS_IN_REGISTERS<Stored> ? BLOCK / 2 * dim : dim;
  float* unused = memory.room_for(static_cast<int64_t>(room * (3 * dim + 2 * GROUP + LANES + 4) + num_last + 11 * 16));
  const auto take = [&](size_t count) { return std::exchange(unused, unused + (count + 15) / 16 * 16); };
  Query* own_q = reinterpret_cast<Query*>(take(room * dim));
  float* scores = take(room * GROUP);
  Query* weights = reinterpret_cast<Query*>(take(room * GROUP));
  float* totals = take(n * LANES);
  uint32_t* last_values = reinterpret_cast<uint32_t*>(take(num_last));
  const Partials<Stored> running{take(n), take(n), take(room * dim)};
  const Partials<Stored> later{take(n), take(n), take(room * dim)};
#if AXIL_AMX
  std::optional<Tiles> registers;
  if constexpr (IS_IN_REGISTERS<Stored>) registers.emplace(shapes_for(queries.tile_rows(), dim));
#endif
  const float factor = step.scale * (step.softcap > 0 ? 1.0f : LOG2_E);
  for (int i = 0; i < item.num_tokens; i++)
    for (int64_t g = 0; g < group; g++) {
      const float* head = q + (item.first_token + i) * q_stride + (kv_head * group + g) * step.head_dim;
      Query* own = own_q + (i * group + g) * dim;
      in_padded(step.head_dim, dim, [&](int64_t d, int n) { store(own + d, mul(load_some(head + d, n), all(factor))); });
    }
  for (int begin = item.begin; begin < item.end; begin += SPLIT) {
    const bool is_first = begin == item.begin;
    attend_split(blocks, next, step, queries, own_q, begin, std::min(begin + SPLIT, item.end), item.row_length, scores,
                 weights, totals, last_values, is_first ? running : later);
    if (!is_first)
      for (size_t r = 0; r < n; r++)
        merge(running.reference[r], running.total[r], running.sums + r * dim, later.reference[r], later.total[r],
              later.sums + r * dim, dim);
  }
  for (int i = 0; i < item.num_tokens; i++)
    for (int64_t g = 0; g < group; g++) {
      const int64_t r = i * group + g, head = kv_head * group + g;
      if (item.partial < 0) {
        write_mean(running.sums + r * dim, running.total[r],
                   out + ((item.first_token + i) * step.num_heads + head) * step.head_dim, step.head_dim);
        continue;
      }
      float* partial = partials + ((item.partial + i) * step.num_heads + head) * partial_floats(dim);
      memcpy(partial, running.sums + r * dim, dim * sizeof(float));
      partial[dim] = running.reference[r];
      partial[dim + 1] = running.total[r];
    }
}

void merge_tile(const Step& step, const Tile& tile, int64_t head, int64_t dim, float* partials, float* out) {
  for (int i = 0; i < tile.num_tokens; i++) {
    const auto partial = [&](int number) {
      return partials + ((tile.first_partial + number * tile.num_tokens + i) * step.num_heads + head) * partial_floats(dim);
    };
    float* first = partial(0);
    for (int number = 1; number < tile.num_partials; number++) {
      const float* later = partial(number);
      merge(first[dim], first[dim + 1], first, later[dim], later[dim + 1], later, dim);
    }
    write_mean(first, first[dim + 1], out + ((tile.first_token + i) * step.num_heads + head) * step.head_dim,
               step.head_dim);
  }
}

// Where a token's K and V of one head go. A word of K is a line away from the next one.
template <class Stored>
struct KvPlace {
  Stored *keys, *values;
  int64_t at;  // of the block's positions

  KvPlace(const KvPool<Stored>& pool, int64_t slot, int64_t head) {
    constexpr int STEP = KvLayout<Stored>::STEP;
    const int64_t page = slot / pool.page_tokens, offset = slot % pool.page_tokens;
    at = offset % BLOCK;
    keys = pool.block(page, offset, head);
    values = keys + BLOCK * pool.head_dim + at / STEP * STEP * pool.head_dim + at % STEP;
  }

  void ask(int64_t dim) const {
    constexpr int STEP = KvLayout<Stored>::STEP;
    for (int64_t d = 0; d < dim; d += STEP) ask_for(keys + (d / STEP * BLOCK + at) * STEP);
    for (int64_t d = 0; d < dim; d += 64 / sizeof(Stored) / STEP) ask_for(values + d * STEP);
  }
};

template <class Stored>
void put_kv(const KvPool<Stored>& pool, const Step& step, int64_t token, const float* k, const float* v) {
  constexpr int STEP = KvLayout<Stored>::STEP;
  const int64_t dim = pool.head_dim;
  for (int64_t h = 0; h < step.num_kv_heads; h++) {
    const auto [keys, values, at] = KvPlace<Stored>(pool, step.slots[token], h);
    in_padded(step.head_dim, dim, [&](int64_t d, int n) {
      alignas(64) Stored some_k[LANES], some_v[LANES];
      store(some_k, load_some(k + h * step.head_dim + d, n));
      store(some_v, load_some(v + h * step.head_dim + d, n));
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i += STEP)
        memcpy(keys + ((d + i) / STEP * BLOCK + at) * STEP, some_k + i, STEP * sizeof(Stored));
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) values[(d + i) * STEP] = some_v[i];
    });
  }
}

template <class Stored>
void forward(const Step& step, Stored* memory, int64_t window, const Item* items, int64_t num_items, const Tile* tiles,
             int64_t num_tiles, const float* q, int64_t q_stride, const float* k, int64_t k_stride, const float* v,
             int64_t v_stride, float* partials, float* out) {
  const KvPool<Stored> pool{memory, step.num_kv_heads, padded(step.head_dim), step.page_tokens};
  parallel_ranges(step.num_tokens, 2, [&](int64_t begin, int64_t end) {
    // The blocks of rows that decode have left the caches since the step before.
    const int64_t num_asked = end - begin <= MOST_ASKED ? end - begin : 0;
    for (int64_t i = 0; i < num_asked * step.num_kv_heads; i++)
      KvPlace<Stored>(pool, step.slots[begin + i / step.num_kv_heads], i % step.num_kv_heads).ask(pool.head_dim);
    for (int64_t token = begin; token < end; token++)
      put_kv(pool, step, token, k + token * k_stride, v + token * v_stride);
  });
  // Head by head, so that rows with common pages read them one soon after the other.
  const int64_t num_pieces = num_items * step.num_kv_heads;
  const auto blocks_at = [&](int64_t piece) {
    return blocks_of(pool, step, items[piece % num_items], piece / num_items, window);
  };
  parallel(num_pieces, [&](int64_t piece) {
    const int64_t next = std::min(piece + num_threads(), num_pieces - 1);
    attend(blocks_at(piece), blocks_at(next), step, items[piece % num_items], window, q, q_stride, partials, out);
  });
  parallel_ranges(num_tiles * step.num_heads, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      merge_tile(step, tiles[i / step.num_heads], i % step.num_heads, pool.head_dim, partials, out);
  });
}

}  // namespace

// The elements that one layer's page takes.
AXIL_API int64_t axil_page_elements(int64_t num_kv_heads, int64_t head_dim, int64_t page_tokens) {
  return 2 * page_tokens * num_kv_heads * padded(head_dim);
}

AXIL_API int64_t axil_partial_floats(int64_t head_dim) { return partial_floats(padded(head_dim)); }

// Cut the rows of a batch into items, those with most work first, and tiles to be merged, of which there are some only
// if the tiles are too few to keep all threads busy whole. `sizes` says for how many items and tiles there is room, and gets
// how many there are, and partials; where they don't fit, what is written of them is of no use.
AXIL_API void axil_attention_plan(int64_t num_rows, const int32_t* extend_lens, const int32_t* prefix_lens,
                                  const int32_t* qo_indptr, const int32_t* kv_indptr, int64_t num_heads,
                                  int64_t num_kv_heads, int64_t window, Item* items, Tile* tiles, int64_t* sizes) {
  const int tile_tokens = std::max<int>(1, static_cast<int>(TILE_ROWS / (num_heads / num_kv_heads)));
  int64_t num_whole = 0;
  for (int64_t b = 0; b < num_rows; b++) num_whole += (extend_lens[b] + tile_tokens - 1) / tile_tokens;
  const bool is_split = num_threads() > 1 && num_whole * num_kv_heads < 4 * num_threads();
  int64_t num_items = 0, num_tiles = 0, num_partials = 0;
  const auto put_item = [&](const Item& item) {
    if (num_items < sizes[0]) items[num_items] = item;
    num_items++;
  };
  for (int64_t b = 0; b < num_rows; b++) {
    const int row_length = prefix_lens[b] + extend_lens[b];
    for (int start = 0; start < extend_lens[b]; start += tile_tokens) {
      const int count = std::min(tile_tokens, extend_lens[b] - start), position = prefix_lens[b] + start;
      const int first_seen = window > 0 && position + 1 > window ? static_cast<int>(position + 1 - window) : 0;
      const int begin = first_seen / SPLIT * SPLIT, end = position + count;
      const Item whole{qo_indptr[b] + start, count, position, kv_indptr[b], begin, end, row_length, -1};
      const int num_splits = (end - begin + SPLIT - 1) / SPLIT;
      if (!is_split || num_splits == 1) {
        put_item(whole);
        continue;
      }
      if (num_tiles < sizes[1])
        tiles[num_tiles] = {whole.first_token, count, static_cast<int32_t>(num_partials), num_splits};
      num_tiles++;
      for (int at = begin; at < end; at += SPLIT) {
        Item part = whole;
        part.begin = at;
        part.end = std::min(at + SPLIT, end);
        part.partial = static_cast<int32_t>(num_partials);
        put_item(part);
        num_partials += count;
      }
    }
  }
  const auto work = [](const Item& item) { return int64_t{item.num_tokens} * (item.end - item.begin); };
  const auto has_more = [&](const Item& a, const Item& b) { return work(a) > work(b); };
  if (num_items <= sizes[0]) std::stable_sort(items, items + num_items, has_more);
  sizes[0] = num_items;
  sizes[1] = num_tiles;
  sizes[2] = num_partials;
}

// Store the new tokens' K and V in one layer's pool, then attend. q, k and v are float32 with the given elements from
// token to token; `out` is [tokens][heads][head_dim].
AXIL_API void axil_attention_forward(const Step* step, void* pool, int32_t is_bf16, int64_t window, const Item* items,
                                     int64_t num_items, const Tile* tiles, int64_t num_tiles, const float* q,
                                     int64_t q_stride, const float* k, int64_t k_stride, const float* v,
                                     int64_t v_stride, float* partials, float* out) {
  if (is_bf16)
    forward(*step, static_cast<Bf16*>(pool), window, items, num_items, tiles, num_tiles, q, q_stride, k, k_stride, v,
            v_stride, partials, out);
  else
    forward(*step, static_cast<float*>(pool), window, items, num_items, tiles, num_tiles, q, q_stride, k, k_stride, v,
            v_stride, partials, out);
}
