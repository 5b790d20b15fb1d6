// Changes logits as requests ask for it, before a token is chosen: what model_runner/logit_rules.py does in torch, with
// the same operations in the same order, so with the same bits. Knows no rows that outlive the call.

#include <cmath>
#include <cstring>

#include "api.h"
#include "threads.h"

namespace {

// Mirrored in kernels/logit_rules.py. Ids are below the vocabulary's size: requests with others were refused.
struct Changes {
  const int64_t* seen;   // each id once
  const float* counts;   // how often each stands in the output
  int64_t num_seen;
  const int64_t* biased;
  const float* biases;
  int64_t num_biased;
  const int64_t* forbidden;
  int64_t num_forbidden;
  float repetition, frequency, presence;
};

void change(float* logits, const Changes& c) {
  for (int64_t i = 0; i < c.num_seen; i++) {
    float& logit = logits[c.seen[i]];
    logit = logit < 0 ? logit * c.repetition : logit / c.repetition;
    logit -= c.frequency * c.counts[i];
    if (c.counts[i] > 0) logit -= c.presence;
  }
  for (int64_t i = 0; i < c.num_biased; i++) logits[c.biased[i]] += c.biases[i];
  for (int64_t i = 0; i < c.num_forbidden; i++) logits[c.forbidden[i]] = -INFINITY;
}

}  // namespace

// Copy logits [count][size] to `out`, each row with its changes.
AXIL_API void axil_change_logits(const float* logits, int64_t count, int64_t size, const Changes* changes, float* out) {
  parallel(count, [&](int64_t row) {
    memcpy(out + row * size, logits + row * size, sizeof(float) * static_cast<size_t>(size));
    change(out + row * size, changes[row]);
  });
}
