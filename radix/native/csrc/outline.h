// The tree's largest parts, what is small folded into the rest of its parent: the compiled twin of ../../outline.py.
#pragma once

#include "tree.h"

// As `Limits` in ../../outline.py.
struct OutlineLimits {
  int64_t under, max_nodes, max_depth, share, max_victims;
};

// Keeps its memory from one outline to the next. All passes go along arrays, since following pointers from node to node
// waits for memory at each.
class Outliner {
 public:
  // Appends the entries, each the values that `Column` in ../../outline.py names. O(nodes that the tree has ever had).
  void write(const Tree& tree, const OutlineLimits& limits, std::vector<int64_t>& out);

 private:
  // A node with all that is below it, at the node's own index.
  struct Part {
    const Node* node;
    int32_t above, open_children, num_nodes, entry;
    int64_t tokens, held, hits, victim;
    double used_s;
  };
  struct Leaf {
    double rank;
    uint64_t serial;
    int32_t index;
  };

  void collect(const Tree& tree);
  void mark_victims(int64_t max_victims);
  void sum_up();
  void take_in(Part& part, const Part& below) const;
  void find_inside(const Tree& tree, const OutlineLimits& limits);
  void select(const OutlineLimits& limits);
  void write_entry(const Tree& tree, const Part& part, int64_t above, std::vector<int64_t>& out) const;

  std::vector<Part> parts_;
  std::vector<Leaf> leaves_;
  std::vector<Part> rests_;
  std::vector<int32_t> selected_, depths_;
  std::vector<int8_t> is_inside_;
  int32_t top_ = -1;
  int64_t num_tokens_ = 0;
};
