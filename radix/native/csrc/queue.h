// The leaves that may give up pages, the first to go at the head: the compiled twin of ../../eviction.
#pragma once

#include <algorithm>
#include <vector>

#include "node.h"

// As `formula_of` in ../core.py numbers them.
enum class Formula : int32_t { kRecency, kCost };

class Policy {
 public:
  // kRecency: the last use, later by `turnover` for each unit of weight and by `protection` for what was found again.
  // kCost: the clock at the last use, and uses times weight times a cost that doubles in `attention_tokens` of depth.
  Policy(Formula formula, double turnover, double protection, double attention_tokens)
      : formula_(formula), turnover_(turnover), protection_(protection), attention_tokens_(attention_tokens) {}

  double moment(int64_t num_pages) {
    if (formula_ == Formula::kRecency) clock_ += num_pages ? static_cast<double>(num_pages) : kTick;
    return clock_;
  }

  double rank(const Node& node, double weight) const {
    if (formula_ == Formula::kRecency) {
      const double rank = node.used_at + weight * turnover_;
      return node.hits ? rank + protection_ : rank;
    }
    const double cost = 1 + node.end() / attention_tokens_;
    return node.used_at + static_cast<double>(1 + node.hits) * (1 + weight) * cost;
  }

  void evicted(double rank) {
    if (formula_ == Formula::kCost) clock_ = std::max(clock_, rank);
  }

 private:
  static constexpr double kTick = 1.0 / 1024;
  Formula formula_;
  double turnover_, protection_, attention_tokens_;
  double clock_ = 0.0;
};

// A lazy heap, as in ../../eviction/queue.py: an entry counts as long as its node still names its serial number.
class EvictionQueue {
 public:
  explicit EvictionQueue(Policy policy) : policy(policy) {}

  void add(Node* node) {
    if (!node->queued_as && node->is_candidate()) push(heap_, entry(node));
  }

  Node* head() {
    drop_wishes();
    while (!heap_.empty()) {
      const Entry first = heap_.front();
      if (first.node->queued_as != first.serial) {
        pop(heap_);
      } else if (!first.node->is_candidate()) {
        pop(heap_);
        first.node->queued_as = 0;
      } else if (rank(*first.node) > first.rank) {
        pop(heap_);
        push(heap_, entry(first.node));
      } else {
        head_rank = first.rank;
        return first.node;
      }
    }
    return nullptr;
  }

  void clear() {
    heap_.clear();
    wishes_.clear();
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (const Entry& each : heap_)
      if (each.node->queued_as == each.serial) visit(each.node);
  }

  int64_t num_bytes() const {
    return static_cast<int64_t>((heap_.capacity() + wishes_.capacity()) * sizeof(Entry));
  }

  double rank(const Node& node) const {
    if (node.is_donor) return kDonor + node.used_at;
    const double weight = static_cast<double>(node.priority);
    return policy.rank(node, node.keep_until_s > now_s ? weight + kKeepWeight : weight);
  }

  Policy policy;
  double now_s = 0.0;
  double head_rank = 0.0;

 private:
  static constexpr double kDonor = -1e18;
  static constexpr double kKeepWeight = 4.0;

  struct Entry {
    double rank;
    uint64_t serial;
    Node* node;
  };

  static bool is_after(const Entry& one, const Entry& other) {
    return one.rank != other.rank ? one.rank > other.rank : one.serial > other.serial;
  }

  static void push(std::vector<Entry>& heap, const Entry& entry) {
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), is_after);
  }

  static void pop(std::vector<Entry>& heap) {
    std::pop_heap(heap.begin(), heap.end(), is_after);
    heap.pop_back();
  }

  Entry entry(Node* node) {
    node->queued_as = ++serial_;
    if (node->keep_until_s > now_s) push(wishes_, {node->keep_until_s, serial_, node});
    return {rank(*node), serial_, node};
  }

  void drop_wishes() {
    while (!wishes_.empty() && wishes_.front().rank <= now_s) {
      const Entry wish = wishes_.front();
      pop(wishes_);
      if (wish.node->queued_as == wish.serial) push(heap_, entry(wish.node));
    }
  }

  std::vector<Entry> heap_;
  std::vector<Entry> wishes_;
  uint64_t serial_ = 0;
};
