// Chooses tokens from logits by thresholds: nothing is sorted but the few tokens that share a bucket with a cut.
//
// A row's choice depends on its own logits, parameters and uniform number only. Sums are double, in one fixed order.

#include <algorithm>
#include <cmath>
#include <vector>

#include "api.h"
#include "simd.h"
#include "threads.h"

namespace {

constexpr int BUCKETS = 1024;
// How far below the best token, in units of temperature, those are looked for that are kept; further only if need be.
constexpr float REACHES[] = {5, 12, INFINITY};
constexpr int64_t STRETCH = 256;  // tokens whose weights are summed together

// Mirrored in kernels/sampler.py. `top_k` 0 keeps all.
struct Row {
  int64_t seed, position;
  int32_t top_k, is_greedy;
  float temperature;
  double top_p, min_p;
};

struct Token {
  float below;  // how far its logit lies below the best one, in units of temperature
  float weight;
  int32_t id;
};

bool is_before(const Token& a, const Token& b) { return a.below < b.below || (a.below == b.below && a.id < b.id); }

struct Scratch {
  std::vector<float> weights;
  std::vector<double> stretches;
  std::vector<Token> tokens, sorted;
};

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// In [0, 1), the same numbers as `uniforms` of model_runner/sampler.py.
double uniform(int64_t seed, int64_t position) {
  constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
  uint64_t state = mixed(static_cast<uint64_t>(seed) + GOLDEN);
  state = mixed(state ^ (static_cast<uint64_t>(position) * GOLDEN));
  return static_cast<double>(state >> 11) * 0x1p-53;
}

// The first token with the largest logit; -1 where that isn't finite or a logit is no number.
int64_t best_token(const float* logits, int64_t size) {
  Floats most = all(-INFINITY), nothing = zeros();
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) {
    const Floats v = load(logits + i);
    most = max(most, v);
    nothing = add(nothing, mul(sub(v, v), zeros()));  // NaN from NaN, and from infinities: looked at below
  }
  float peak = largest(most);
  bool is_suspect = std::isnan(sum(nothing));
  for (; i < size; i++) {
    is_suspect |= std::isnan(logits[i]);
    peak = std::max(peak, logits[i]);
  }
  if (is_suspect)
    for (int64_t j = 0; j < size; j++)
      if (std::isnan(logits[j])) return -1;
  if (!std::isfinite(peak)) return -1;
  for (i = 0; i + LANES <= size; i += LANES)
    if (largest(load(logits + i)) == peak) break;
  while (logits[i] != peak) i++;
  return i;
}

// Weights exp(-below) of all tokens, their sum over stretches, and the whole sum.
double weigh(const float* logits, int64_t size, float scaled_peak, float temperature, Scratch& s) {
  s.weights.resize(static_cast<size_t>(size));
  s.stretches.clear();
  double total = 0;
  for (int64_t first = 0; first < size; first += STRETCH) {
    const int64_t end = std::min(first + STRETCH, size);
    Floats so_far = zeros();
    float last = 0;
    int64_t i = first;
    for (; i + LANES <= end; i += LANES) {
      const Floats below = sub(all(scaled_peak), div(load(logits + i), all(temperature)));
      // What is so far away weighs nothing: a masked token must never be drawn.
      const Floats weight = choose(is_less(below, all(86.0f)), exponential(sub(zeros(), below)), zeros());
      store(s.weights.data() + i, weight);
      so_far = add(so_far, weight);
    }
    for (; i < end; i++) {
      const float below = scaled_peak - logits[i] / temperature;
      s.weights[static_cast<size_t>(i)] = below < 86.0f ? exponential(-below) : 0.0f;
      last += s.weights[static_cast<size_t>(i)];
    }
    s.stretches.push_back(static_cast<double>(sum(so_far)) + static_cast<double>(last));
    total += s.stretches.back();
  }
  return total;
}

// Where the cumulated weights pass `uniform` of their sum, in the order of ids.
int64_t draw_whole(int64_t size, double total, double u, const Scratch& s) {
  const double threshold = u * total;
  double passed = 0;
  size_t stretch = 0;
  while (stretch + 1 < s.stretches.size() && passed + s.stretches[stretch] <= threshold) passed += s.stretches[stretch++];
  int64_t found = -1;
  for (int64_t i = static_cast<int64_t>(stretch) * STRETCH; i < size; i++) {
    const double weight = static_cast<double>(s.weights[static_cast<size_t>(i)]);
    if (weight > 0) found = i;
    passed += weight;
    if (passed > threshold && found >= 0) return found;
  }
  for (int64_t i = size - 1; found < 0 && i >= 0; i--)
    if (s.weights[static_cast<size_t>(i)] > 0) found = i;  // sums that round apart: the last token with a weight
  return found;
}

// Draw among a head of the tokens in order of weight: at most top_k, those that have less than top_p of the whole mass
// before them, and min_p of the best one's weight. -1 if tokens further than `reach` could be among them.
int64_t draw_head(const float* logits, int64_t size, const Row& row, float scaled_peak, double total, double u,
                  float reach, Scratch& s) {
  s.tokens.clear();
  const float lightest_near = std::exp(-reach) * 0.99f;
  for (int64_t i = 0; i < size; i++) {
    if (i % LANES == 0 && i + LANES <= size && largest(load(s.weights.data() + i)) <= lightest_near) {
      i += LANES - 1;
      continue;
    }
    const float weight = s.weights[static_cast<size_t>(i)];
    if (weight == 0 || weight < lightest_near) continue;
    const float below = scaled_peak - logits[i] / row.temperature;
    if (below <= reach) s.tokens.push_back({below, weight, static_cast<int32_t>(i)});
  }
  float furthest = 0;
  for (const Token& token : s.tokens) furthest = std::max(furthest, token.below);
  const float scale = furthest > 0 ? (BUCKETS - 1) / furthest : 0.0f;
  const auto bucket_of = [&](const Token& token) { return static_cast<int>(token.below * scale); };
  int64_t counts[BUCKETS] = {};
  double masses[BUCKETS] = {};
  for (const Token& token : s.tokens) {
    counts[bucket_of(token)]++;
    masses[bucket_of(token)] += static_cast<double>(token.weight);
  }
  const auto sort_bucket = [&](int bucket) {
    s.sorted.clear();
    for (const Token& token : s.tokens)
      if (bucket_of(token) == bucket) s.sorted.push_back(token);
    std::sort(s.sorted.begin(), s.sorted.end(), is_before);
  };
  const int64_t top_k = row.top_k > 0 ? row.top_k : size;
  const double most = row.top_p >= 1 ? INFINITY : row.top_p * total;
  const auto is_kept = [&](const Token& token, int64_t rank, double before) {
    return rank == 0 || (rank < top_k && before < most && static_cast<double>(token.weight) >= row.min_p);
  };
  // Buckets that are kept whole, then the part of one that is cut. The best token weighs 1.
  int64_t rank = 0;
  double kept = 0;
  int cut = 0;
  for (; cut < BUCKETS; cut++) {
    const double lightest = std::exp(-static_cast<double>(cut + 2) / (scale > 0 ? scale : 1.0f));
    const bool is_light = row.min_p > 0 && (scale == 0 || lightest < row.min_p * 1.001);
    if (rank + counts[cut] > top_k || kept + masses[cut] >= most || is_light) {
      sort_bucket(cut);
      size_t i = 0;
      while (i < s.sorted.size() && is_kept(s.sorted[i], rank, kept)) {
        kept += static_cast<double>(s.sorted[i++].weight);
        rank++;
      }
      if (i < s.sorted.size()) break;
      continue;
    }
    rank += counts[cut];
    kept += masses[cut];
  }
  if (cut == BUCKETS && static_cast<int64_t>(s.tokens.size()) < size && reach < 86.0f && rank < top_k) return -1;
  const double threshold = u * kept;
  double passed = 0;
  int64_t left = rank, found = s.tokens.empty() ? -1 : 0;
  int bucket = 0;
  for (; bucket < cut && passed + masses[bucket] <= threshold && left > counts[bucket]; bucket++) {
    passed += masses[bucket];
    left -= counts[bucket];
  }
  sort_bucket(bucket);
  for (const Token& token : s.sorted) {
    if (left-- <= 0) break;
    found = token.id;
    passed += static_cast<double>(token.weight);
    if (passed > threshold) break;
  }
  return found;
}

int64_t choose_token(const float* logits, int64_t size, const Row& row, Scratch& s) {
  const int64_t best = best_token(logits, size);
  if (best < 0 || row.is_greedy) return best;
  const float scaled_peak = logits[best] / row.temperature;
  if (!std::isfinite(scaled_peak)) return -1;  // no weight could be told from another
  const double u = uniform(row.seed, row.position);
  const double total = weigh(logits, size, scaled_peak, row.temperature, s);
  if (row.top_k <= 0 && row.top_p >= 1 && row.min_p <= 0) return draw_whole(size, total, u, s);
  for (const float reach : REACHES) {
    const int64_t token = draw_head(logits, size, row, scaled_peak, total, u, reach, s);
    if (token >= 0) return token;
  }
  return best;
}

}  // namespace

// A token for each row of logits [count][size]; -1 where a row has no usable ones.
AXIL_API void axil_sample(const float* logits, int64_t count, int64_t size, const Row* rows, int64_t* tokens) {
  parallel(count, [&](int64_t i) {
    static thread_local Scratch scratch;
    tokens[i] = choose_token(logits + i * size, size, rows[i], scratch);
  });
}

// The logarithm of the sum of exponentials of each row, and its `top` largest logits, largest first, with their ids
// (among equals the lower id first).
AXIL_API void axil_top_logits(const float* logits, int64_t count, int64_t size, int64_t top, float* log_masses,
                              float* values, int64_t* ids) {
  parallel(count, [&](int64_t row) {
    const float* const x = logits + row * size;
    Floats most = all(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) most = max(most, load(x + i));
    float peak = largest(most);
    for (; i < size; i++) peak = std::max(peak, x[i]);
    double mass = 0;
    for (int64_t first = 0; first < size; first += STRETCH) {
      const int64_t end = std::min(first + STRETCH, size);
      Floats part = zeros();
      for (i = first; i + LANES <= end; i += LANES) part = add(part, exponential(sub(load(x + i), all(peak))));
      mass += static_cast<double>(sum(part));
      for (; i < end; i++) mass += static_cast<double>(exponential(x[i] - peak));
    }
    log_masses[row] = static_cast<float>(static_cast<double>(peak) + std::log(mass));
    // A heap with the least of the best so far on top, which few tokens pass.
    static thread_local std::vector<Token> heap;
    heap.clear();
    const auto consider = [&](int64_t id) {
      const Token token{-x[id], 0, static_cast<int32_t>(id)};
      if (static_cast<int64_t>(heap.size()) == top) {
        if (!is_before(token, heap.front())) return;
        std::pop_heap(heap.begin(), heap.end(), is_before);
        heap.pop_back();
      }
      heap.push_back(token);
      std::push_heap(heap.begin(), heap.end(), is_before);
    };
    i = 0;
    if (top > 0) {
      for (; i + LANES <= size; i += LANES) {
        const bool is_full = static_cast<int64_t>(heap.size()) == top;
        if (is_full && !(largest(load(x + i)) > -heap.front().below)) continue;
        for (int64_t j = i; j < i + LANES; j++) consider(j);
      }
      for (; i < size; i++) consider(i);
    }
    std::sort(heap.begin(), heap.end(), is_before);
    for (size_t j = 0; j < heap.size(); j++) {
      values[row * top + static_cast<int64_t>(j)] = -heap[j].below;
      ids[row * top + static_cast<int64_t>(j)] = heap[j].id;
    }
  });
}
