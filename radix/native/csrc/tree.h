// The radix tree over the pool: the compiled twin of ../../tree.py, ../../pins.py and ../../pure.py, operation by operation.
#pragma once

#include <unordered_map>

#include "node.h"
#include "queue.h"

struct Position {
  Node* node;
  int32_t depth;
};

struct Fork {
  int32_t page = -1, depth = 0, num_tokens = 0;
};

// Tokens in a row, in the caller's memory.
struct Tokens {
  const int32_t* data;
  int64_t count;

  Tokens from(int64_t first) const { return {data + first, count - first}; }
  Tokens upto(int64_t stop) const { return {data, std::min(stop, count)}; }
};

// Pages that have left the tree, all behind `above` (-1: a root), which ends at `depth`.
struct Loss {
  int32_t above, depth;
  Pages pages;
};

class Tree {
 public:
  Tree(int32_t num_pages, int32_t page_tokens, int32_t fork_look, uint64_t seed, Pool& pool, Policy policy)
      : pool(pool), queue(policy), page_tokens_(page_tokens), fork_look_(fork_look), children_(page_tokens, seed),
        home_(num_pages) {}

  // Looking.
  Position match(Node* root, Tokens query) const;
  Fork look_for_fork(Position at, Tokens rest) const;
  Position follow(Position at, Tokens rest) const;
  bool goes_on(Position at, const int32_t* first_page) const;
  void pages_to(Position at, int32_t* out) const;
  int32_t page_of(Position at) const { return at.depth ? at.node->pages[(at.depth - at.node->start) / page_tokens_ - 1] : -1; }
  Position position_at(int32_t root_id, int32_t page, int32_t depth) const {
    return {page < 0 ? root_of(root_id) : home_[page], depth};
  }
  Node* root_of(int32_t root_id) const { return root_id < 0 ? nullptr : roots_[root_id]; }
  Node* home(int32_t page) const { return home_[page]; }
  uint64_t digest(const Node* node) const { return children_.digest(node); }
  int32_t page_tokens() const { return page_tokens_; }
  // All nodes ever, by their index; those that are gone have neither a parent nor a root.
  template <typename Visit>
  void each_node(Visit visit) const {
    store_.each(visit);
  }

  // Growing.
  int32_t make_root();
  Position insert(Position at, Tokens query, const int32_t* pages, Pages& duplicates);
  bool insert_donor(Position at, Tokens tail, int32_t page);
  void touch(Node* node) {
    node->used_at = queue.policy.moment(0);
    node->used_s = queue.now_s;
  }

  // Pinning.
  void pin(int32_t page, int32_t depth);
  void unpin(int32_t page, int32_t depth);
  int64_t pages_held_by_one(int32_t page, int32_t depth) const;
  int64_t unpinned_pages(int32_t page, int32_t depth) const;

  // Shrinking.
  int64_t evict(int64_t num_pages);
  int64_t detach_all();
  bool forget(int32_t page);

  void count_held(int64_t first, int64_t stop, int64_t* times);
  std::vector<Node*> all_nodes() const;
  int64_t num_bytes() const;

  Pool& pool;
  EvictionQueue queue;
  int64_t evictable_pages = 0;
  int64_t version = 0;
  int64_t generation = 0;
  bool is_watched = false;
  std::vector<Loss> losses;
  bool is_observed = false;
  Pages removed;  // the same pages, for the observer
  std::vector<int32_t> dropped_roots;
  // Where pages entered last: behind which page, and at which token of what was inserted; -1 when none did.
  int32_t grown_page = -1;
  int64_t grown_offset = -1;

 private:
  struct ForkKey {
    const Node* parent;
    int32_t token;
    bool operator==(const ForkKey& other) const { return parent == other.parent && token == other.token; }
  };
  struct ForkHash {
    size_t operator()(const ForkKey& key) const {
      return (reinterpret_cast<uintptr_t>(key.parent) ^ static_cast<uint32_t>(key.token)) * 0x9E3779B97F4A7C15u >> 7;
    }
  };

  int64_t whole_pages(int64_t num_tokens) const { return num_tokens - num_tokens % page_tokens_; }
  int32_t pages_before(const Node* node, int32_t depth) const {
    return (depth - node->start + page_tokens_ - 1) / page_tokens_;
  }
  Node* make_node();
  void recycle(Node* node);
  void settle(Node* node, const int32_t* pages, int64_t count) {
    for (int64_t i = 0; i < count; ++i) home_[pages[i]] = node;
  }
  void free_pages(const int32_t* pages, int64_t count) {
    settle(nullptr, pages, count);
    pool.free(pages, count, TREE);
  }
  void link(Node* child);
  void unlink(Node* child);
  Node* last_fork(const Node* parent, int32_t token) const {
    const auto found = forks_.find({parent, token});
    return found == forks_.end() ? nullptr : found->second;
  }
  Node* append(Node* node, Tokens key, const int32_t* pages, int64_t offset);
  Node* grow(Node* node, Tokens key, const int32_t* pages, int64_t num_pages);
  void add_child(Node* child);
  void drop_superseded(Node* node, Tokens page);
  Node* split(Node* node, int32_t depth);
  void shrink_pins(Node* node);
  int64_t detach(Node* top);
  void remove(Node* node);
  void join_only_child(Node* upper);
  void drop_root_if_empty(Node* node);
  void tell_lost(const int32_t* pages, int64_t count, const Node* above);

  static constexpr int64_t kJoinedBytes = 1 << 18;

  int32_t page_tokens_, fork_look_;
  Children children_;
  std::unordered_map<ForkKey, Node*, ForkHash> forks_;  // the last of the children that begin with a token
  std::vector<Node*> home_;
  std::vector<Node*> roots_;
  std::vector<int32_t> spare_roots_;
  NodeStore store_;
  std::vector<Node*> spare_;
  Pages freed_;
  int64_t visit_ = 0;
  int64_t num_roots_made_ = 0;
};
