#include "outline.h"

namespace {

constexpr int64_t kNoVictim = -1;

int64_t held_tokens(const Node* node, int32_t page_tokens) {
  return std::min<int64_t>(static_cast<int64_t>(node->pinned_pages) * page_tokens, node->key.size());
}

int64_t milliseconds(double seconds) { return static_cast<int64_t>(seconds * 1000); }

int64_t first_page(const Node* node) { return node->pages.empty() ? -1 : node->pages[0]; }

}  // namespace

void Outliner::write(const Tree& tree, const OutlineLimits& limits, std::vector<int64_t>& out) {
  collect(tree);
  mark_victims(limits.max_victims);
  sum_up();
  find_inside(tree, limits);
  select(limits);
  rests_.assign(selected_.size(), Part{nullptr, -1, 0, 0, -1, 0, 0, 0, kNoVictim, 0.0});
  for (const Part& part : parts_)
    if (part.num_nodes && part.entry < 0 && part.above >= 0 && parts_[part.above].entry >= 0)
      take_in(rests_[parts_[part.above].entry], part);
  for (const int32_t i : selected_) {
    const int32_t above = i == top_ ? -1 : parts_[i].above;
    write_entry(tree, parts_[i], above < 0 ? -1 : parts_[above].entry, out);
  }
  for (size_t i = 0; i < rests_.size(); ++i) {
    const Part& rest = rests_[i];
    if (!rest.num_nodes) continue;
    const int64_t start = parts_[selected_[i]].node->end();
    out.insert(out.end(), {static_cast<int64_t>(i), -1, -1, start, rest.tokens, rest.tokens, rest.num_nodes, rest.held,
                           rest.hits, milliseconds(rest.used_s), rest.victim, 0});
  }
}

void Outliner::collect(const Tree& tree) {
  parts_.clear();
  leaves_.clear();
  tree.each_node([&](const Node& node) {
    const bool is_there = !node.is_detached && (node.parent || node.root_id >= 0);
    const int32_t above = node.parent ? node.parent->index : -1;
    parts_.push_back({&node, above, node.num_children, is_there, -1, is_there ? static_cast<int64_t>(node.key.size()) : 0,
                      held_tokens(&node, tree.page_tokens()), node.hits, kNoVictim, node.used_s});
    if (is_there && node.queued_as && node.is_candidate())
      leaves_.push_back({tree.queue.rank(node), node.queued_as, node.index});
  });
}

void Outliner::mark_victims(int64_t max_victims) {
  const size_t count = std::min(leaves_.size(), static_cast<size_t>(max_victims));
  const auto is_sooner = [](const Leaf& one, const Leaf& other) {
    return one.rank != other.rank ? one.rank < other.rank : one.serial < other.serial;
  };
  std::nth_element(leaves_.begin(), leaves_.begin() + count, leaves_.end(), is_sooner);
  std::sort(leaves_.begin(), leaves_.begin() + count, is_sooner);
  for (size_t i = 0; i < count; ++i) parts_[leaves_[i].index].victim = static_cast<int64_t>(i);
}

// From each leaf upwards, as far as all that is below has been added.
void Outliner::sum_up() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].num_nodes || parts_[i].node->num_children) continue;
    int32_t below = static_cast<int32_t>(i);
    while (parts_[below].above >= 0) {
      Part& part = parts_[parts_[below].above];
      take_in(part, parts_[below]);
      if (--part.open_children) break;
      below = parts_[below].above;
    }
  }
}

void Outliner::take_in(Part& part, const Part& below) const {
  part.num_nodes += below.num_nodes;
  part.tokens += below.tokens;
  part.held += below.held;
  part.hits += below.hits;
  part.used_s = std::max(part.used_s, below.used_s);
  if (below.victim == kNoVictim) return;
  part.victim = part.victim == kNoVictim ? below.victim : std::min(part.victim, below.victim);
}

// Which parts the outline is of: all, or those under one node.
void Outliner::find_inside(const Tree& tree, const OutlineLimits& limits) {
  enum : int8_t { kUnknown, kInside, kOutside };
  top_ = -1;
  num_tokens_ = 0;
  is_inside_.clear();
  if (limits.under < 0) {
    for (const Part& part : parts_)
      if (part.above < 0) num_tokens_ += part.tokens;
    return;
  }
  is_inside_.assign(parts_.size(), kUnknown);
  const Node* top = tree.home(static_cast<int32_t>(limits.under));
  if (top && !top->is_detached) {
    top_ = top->index;
    num_tokens_ = parts_[top_].tokens;
    is_inside_[top_] = kInside;
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    int32_t known = static_cast<int32_t>(i);
    while (known >= 0 && is_inside_[known] == kUnknown) known = parts_[known].above;
    const int8_t answer = known >= 0 ? is_inside_[known] : static_cast<int8_t>(kOutside);
    for (int32_t each = static_cast<int32_t>(i); each != known; each = parts_[each].above) is_inside_[each] = answer;
  }
  for (int8_t& each : is_inside_) each = each == kInside;
}

// The largest parts; of roots alike, those used last. What is above a part is larger, so that nothing is chosen without it.
void Outliner::select(const OutlineLimits& limits) {
  selected_.clear();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!part.num_nodes || (!is_inside_.empty() && !is_inside_[i])) continue;
    if (part.above < 0 || part.tokens * limits.share >= num_tokens_) selected_.push_back(static_cast<int32_t>(i));
  }
  const auto comes_first = [&](int32_t one, int32_t other) {
    const Part &ours = parts_[one], &theirs = parts_[other];
    if (ours.tokens != theirs.tokens) return ours.tokens > theirs.tokens;
    if (ours.node->start != theirs.node->start) return ours.node->start < theirs.node->start;
    if (first_page(ours.node) != first_page(theirs.node)) return first_page(ours.node) < first_page(theirs.node);
    return ours.used_s > theirs.used_s;
  };
  const size_t count = std::min(selected_.size(), static_cast<size_t>(limits.max_nodes));
  std::nth_element(selected_.begin(), selected_.begin() + count, selected_.end(), comes_first);
  selected_.resize(count);
  std::sort(selected_.begin(), selected_.end(), comes_first);
  size_t kept = 0;
  depths_.clear();
  for (const int32_t i : selected_) {
    const int32_t above = i == top_ ? -1 : parts_[i].above;
    if (above >= 0 && parts_[above].entry < 0) continue;
    const int32_t depth = above < 0 ? 0 : depths_[parts_[above].entry] + 1;
    if (depth > limits.max_depth) continue;
    depths_.push_back(depth);
    parts_[i].entry = static_cast<int32_t>(kept);
    selected_[kept++] = i;
  }
  selected_.resize(kept);
}

void Outliner::write_entry(const Tree& tree, const Part& part, int64_t above, std::vector<int64_t>& out) const {
  const Node* node = part.node;
  const int64_t digest = node->key.empty() ? 0 : static_cast<int64_t>(tree.digest(node));
  out.insert(out.end(), {above, first_page(node), node->root_id, node->start, static_cast<int64_t>(node->key.size()),
                         part.tokens, 1, held_tokens(node, tree.page_tokens()), part.hits, milliseconds(part.used_s),
                         part.victim, digest});
}
