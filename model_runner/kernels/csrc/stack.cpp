// All layers of a decoder in one call: the same functions in the same order as when Python calls them one by one, so
// every bit is the same. What is saved is the way through Python between them, which is long where a layer's weights
// have just driven the interpreter out of the caches.
#include <cstddef>

#include "api.h"
#include "lines.h"

struct Weight;  // here only passed on, as the next three
struct Step;
struct Item;
struct Tile;

AXIL_API void axil_add_norm(float*, const float*, const void*, int32_t, float, float*, int64_t, int64_t);
AXIL_API void axil_rotate_heads(float*, const float*, const float*, const void*, const void*, int32_t, float, int64_t,
                                int64_t, int64_t, int64_t);
AXIL_API void axil_linear(const Weight*, const void*, int32_t, int64_t, float*);
AXIL_API void axil_attention_forward(const Step*, void*, int32_t, int64_t, const Item*, int64_t, const Tile*, int64_t,
                                     const float*, int64_t, const float*, int64_t, const float*, int64_t, float*,
                                     float*);

namespace {

// These mirror `stack.py`.
struct Norm {
  const void* weight;  // null: there is none
  int32_t is_bf16;
  float eps;
};

struct Layer {
  Norm input, query, key, attention_output, mlp, mlp_output;
  const Weight *qkv, *output, *gate_up, *down;
  void* pool;
  int64_t window;  // 0: none
  int32_t work, is_local;
};

struct Work {  // of one window
  const Item* items;
  int64_t num_items;
  const Tile* tiles;
  int64_t num_tiles;
  float* partials;
};

struct Shape {
  int64_t num_layers, hidden, inner, num_heads, num_kv_heads, head_dim;
  int32_t is_kv_bf16;
};

struct Angles {
  const float *cosines, *sines;
};

}  // namespace

// Run all layers over the hidden states [tokens][hidden], in place. `angles` are those of layers without and with a
// window; `work` is indexed by the layers.
AXIL_API void axil_run_layers(const Shape* shape, const Layer* layers, const Step* step, const Work* work,
                              const Angles* angles, float* hidden, int64_t tokens) {
  const Shape& s = *shape;
  const int64_t heads = s.num_heads * s.head_dim, kv_heads = s.num_kv_heads * s.head_dim, width = heads + 2 * kv_heads;
  static Lines<float> normed, qkv, attended, projected, inner;
  const auto room = [&](Lines<float>& memory, int64_t columns) { return memory.room_for(tokens * columns); };
  float *const x = room(normed, s.hidden), *const q = room(qkv, width), *const out = room(attended, heads);
  float *const y = room(projected, s.hidden), *const u = room(inner, s.inner);
  const auto norm = [&](float* rows, const float* added, const Norm& n, float* to) {
    axil_add_norm(rows, added, n.weight, n.is_bf16, n.eps, to, tokens, s.hidden);
  };
  const auto linear = [&](const Weight* weight, const float* rows, float* to) { axil_linear(weight, rows, 0, tokens, to); };
  const float* added = nullptr;  // of the layer before, still to be added
  for (const Layer* layer = layers; layer < layers + s.num_layers; layer++) {
    norm(hidden, added, layer->input, x);
    linear(layer->qkv, x, q);
    const Angles& turn = angles[layer->is_local];
    axil_rotate_heads(q, turn.cosines, turn.sines, layer->query.weight, layer->key.weight, layer->query.is_bf16,
                      layer->query.eps, tokens, s.num_heads, s.num_kv_heads, s.head_dim);
    const Work& w = work[layer->work];
    axil_attention_forward(step, layer->pool, s.is_kv_bf16, layer->window, w.items, w.num_items, w.tiles, w.num_tiles,
                           q, width, q + heads, width, q + heads + kv_heads, width, w.partials, out);
    linear(layer->output, out, y);
    if (layer->attention_output.weight) norm(y, nullptr, layer->attention_output, y);
    norm(hidden, y, layer->mlp, x);
    linear(layer->gate_up, x, u);
    linear(layer->down, u, y);
    if (layer->mlp_output.weight) norm(y, nullptr, layer->mlp_output, y);
    added = y;
  }
  if (added)
    for (int64_t i = 0; i < tokens * s.hidden; i++) hidden[i] += added[i];
}
