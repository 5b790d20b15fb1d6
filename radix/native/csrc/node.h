// One edge of the radix tree with its pages: the compiled twin of ../../node.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "pool.h"

// How many leases end at a depth.
struct End {
  int32_t depth, count;
};

struct Node {
  Node* parent = nullptr;
  int32_t start = 0;
  bool is_donor = false;
  bool is_detached = false;
  int32_t root_id = -1;
  int32_t index = -1;  // among all nodes ever
  int64_t made = 0;  // of a root: when, among roots
  std::vector<int32_t> key;
  Pages pages;

  int32_t pinned_children = 0;
  int32_t pinned_pages = 0;
  std::vector<End> ends;

  double used_at = 0.0;
  double used_s = 0.0;
  double keep_until_s = 0.0;
  int64_t hits = 0;
  int64_t priority = 0;
  uint64_t queued_as = 0;

  // Children in the order in which they came, and among them those that begin with the same token.
  int32_t num_children = 0;
  Node *first_child = nullptr, *last_child = nullptr;
  Node *earlier = nullptr, *later = nullptr;
  Node *earlier_fork = nullptr, *later_fork = nullptr;
  uint64_t hash = 0;
  Node* next_in_bucket = nullptr;
  int64_t visit = 0;

  int32_t end() const { return start + static_cast<int32_t>(key.size()); }
  int32_t num_pages() const { return static_cast<int32_t>(pages.size()); }
  bool is_pinned() const { return !ends.empty() || pinned_children > 0; }

  // Whether the last page may be evicted now.
  bool is_candidate() const { return !num_children && !is_detached && pinned_pages < num_pages(); }

  // Be worth at least as much as `other`, whose every use was a use of this node too.
  void inherit(const Node& other) {
    used_at = std::max(used_at, other.used_at);
    used_s = std::max(used_s, other.used_s);
    hits = std::max(hits, other.hits);
    priority = std::max(priority, other.priority);
    keep_until_s = std::max(keep_until_s, other.keep_until_s);
  }

  int32_t deepest_end() const {
    int32_t depth = start;
    for (const End& each : ends) depth = std::max(depth, each.depth);
    return depth;
  }
};

// All nodes ever, where they stay: an entry of the queue may name one that is gone. Side by side, so that a look at all
// of them runs through memory.
class NodeStore {
 public:
  Node* add() {
    const int64_t place = count_++ % kChunkNodes;
    if (!place) chunks_.push_back(std::make_unique<Node[]>(kChunkNodes));
    Node* node = &chunks_.back()[place];
    node->index = static_cast<int32_t>(count_ - 1);
    return node;
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (int64_t i = 0; i < count_; ++i) visit(chunks_[i / kChunkNodes][i % kChunkNodes]);
  }

  int64_t num_bytes() const { return static_cast<int64_t>(chunks_.size() * kChunkNodes * sizeof(Node)); }

 private:
  static constexpr int64_t kChunkNodes = 256;
  std::vector<std::unique_ptr<Node[]>> chunks_;
  int64_t count_ = 0;
};

// The number of equal tokens at the start of two runs.
inline int32_t common_tokens(const int32_t* ours, int64_t num_ours, const int32_t* theirs, int64_t num_theirs) {
  const int64_t count = std::min(num_ours, num_theirs);
  if (!std::memcmp(ours, theirs, count * sizeof(int32_t))) return static_cast<int32_t>(count);
  return static_cast<int32_t>(std::mismatch(ours, ours + count, theirs).first - ours);
}

// Children by parent and first page. The key of a donor is shorter than a page.
class Children {
 public:
  Children(int32_t page_tokens, uint64_t seed) : page_tokens_(page_tokens), seed_(seed | 1), buckets_(64) {}

  Node* find(const Node* parent, const int32_t* page, int32_t num_tokens) const {
    const uint64_t hash = hash_of(parent, page, num_tokens);
    for (Node* node = buckets_[hash & (buckets_.size() - 1)]; node; node = node->next_in_bucket)
      if (node->hash == hash && is_first_page(node, parent, page, num_tokens)) return node;
    return nullptr;
  }

  void add(Node* node) {
    if (++count_ > buckets_.size()) grow();
    node->hash = hash_of(node->parent, node->key.data(), first_tokens(node));
    Node*& bucket = buckets_[node->hash & (buckets_.size() - 1)];
    node->next_in_bucket = bucket;
    bucket = node;
  }

  void remove(Node* node) {
    Node** place = &buckets_[node->hash & (buckets_.size() - 1)];
    while (*place != node) place = &(*place)->next_in_bucket;
    *place = node->next_in_bucket;
    --count_;
  }

  int64_t num_bytes() const { return static_cast<int64_t>(buckets_.size() * sizeof(Node*)); }

  // Tells the first pages of nodes apart, whatever they hang under, and tells nothing of their tokens.
  uint64_t digest(const Node* node) const { return hash_of(nullptr, node->key.data(), first_tokens(node)); }

 private:
  uint64_t hash_of(const Node* parent, const int32_t* page, int32_t num_tokens) const {
    uint64_t hash = (reinterpret_cast<uintptr_t>(parent) + static_cast<uint64_t>(num_tokens)) * seed_;
    for (int32_t i = 0; i < num_tokens; ++i) {
      hash = (hash ^ static_cast<uint32_t>(page[i])) * seed_;
      hash ^= hash >> 29;
    }
    return hash ^ hash >> 32;
  }

  int32_t first_tokens(const Node* node) const {
    return std::min(page_tokens_, static_cast<int32_t>(node->key.size()));
  }

  bool is_first_page(const Node* node, const Node* parent, const int32_t* page, int32_t num_tokens) const {
    return node->parent == parent && first_tokens(node) == num_tokens &&
           !std::memcmp(node->key.data(), page, num_tokens * sizeof(int32_t));
  }

  void grow() {
    std::vector<Node*> old(buckets_.size() * 2);
    old.swap(buckets_);
    for (Node* node : old)
      while (node) {
        Node* next = node->next_in_bucket;
        Node*& bucket = buckets_[node->hash & (buckets_.size() - 1)];
        node->next_in_bucket = bucket;
        bucket = node;
        node = next;
      }
  }

  int32_t page_tokens_;
  uint64_t seed_;
  std::vector<Node*> buckets_;
  size_t count_ = 0;
};
