#include "tree.h"

#include <iterator>
#include <unordered_set>

namespace {

// Appends with little room to spare: keys are most of what a cached token costs.
void extend(std::vector<int32_t>& run, const int32_t* more, int64_t count) {
  const size_t needed = run.size() + count;
  if (needed > run.capacity()) run.reserve(run.empty() ? needed : needed + needed / 8);
  run.insert(run.end(), more, more + count);
}

void cut_front(std::vector<int32_t>& run, int64_t count) { std::vector<int32_t>(run.begin() + count, run.end()).swap(run); }

}  // namespace

// --- looking

Position Tree::match(Node* root, Tokens query) const { return follow({root, 0}, query); }

Position Tree::follow(Position at, Tokens rest) const {
  Node* node = at.node;
  int64_t depth = at.depth, offset = 0;
  while (offset < rest.count) {
    if (depth == node->end()) {
      if (rest.count - offset < page_tokens_) break;
      Node* child = children_.find(node, rest.data + offset, page_tokens_);
      if (!child) break;
      node = child;
    }
    const int64_t skipped = depth - node->start;
    const int64_t run = whole_pages(common_tokens(node->key.data() + skipped, node->key.size() - skipped,
                                                  rest.data + offset, rest.count - offset));
    offset += run;
    depth += run;
    if (depth < node->end()) break;
  }
  return {node, static_cast<int32_t>(depth)};
}

bool Tree::goes_on(Position at, const int32_t* first_page) const {
  const Node* node = at.node;
  if (at.depth == node->end()) return children_.find(node, first_page, page_tokens_) != nullptr;
  return !std::memcmp(node->key.data() + (at.depth - node->start), first_page, page_tokens_ * sizeof(int32_t));
}

Fork Tree::look_for_fork(Position at, Tokens rest) const {
  const Node* node = at.node;
  rest = rest.upto(page_tokens_);
  if (rest.count <= 0) return {};
  if (at.depth < node->end()) {
    const int32_t skipped = at.depth - node->start;
    const int32_t run = common_tokens(node->key.data() + skipped, page_tokens_, rest.data, rest.count);
    return run ? Fork{node->pages[skipped / page_tokens_], at.depth + page_tokens_, run} : Fork{};
  }
  Fork best;
  const Node* child = last_fork(node, rest.data[0]);
  for (int32_t looked = 0; child && looked < fork_look_; ++looked, child = child->earlier_fork) {
    const int64_t first = std::min<int64_t>(page_tokens_, child->key.size());
    const int32_t run = common_tokens(child->key.data(), first, rest.data, rest.count);
    if (run > best.num_tokens) best = {child->pages[0], std::min(at.depth + page_tokens_, child->end()), run};
  }
  return best;
}

void Tree::pages_to(Position at, int32_t* out) const {
  int64_t stop = at.depth / page_tokens_;
  int64_t count = (at.depth - at.node->start) / page_tokens_;
  for (const Node* node = at.node; stop > 0; node = node->parent, count = node->num_pages()) {
    stop -= count;
    std::copy_n(node->pages.data(), count, out + stop);
  }
}

// --- growing

Node* Tree::make_node() {
  if (spare_.empty()) return store_.add();
  Node* node = spare_.back();
  spare_.pop_back();
  return node;
}

void Tree::recycle(Node* node) {
  const int32_t index = node->index;
  *node = Node();
  node->index = index;
  spare_.push_back(node);
}

int32_t Tree::make_root() {
  Node* root = make_node();
  root->made = ++num_roots_made_;
  if (spare_roots_.empty()) {
    root->root_id = static_cast<int32_t>(roots_.size());
    roots_.push_back(root);
  } else {
    root->root_id = spare_roots_.back();
    spare_roots_.pop_back();
    roots_[root->root_id] = root;
  }
  return root->root_id;
}

Position Tree::insert(Position at, Tokens query, const int32_t* pages, Pages& duplicates) {
  Node* node = at.node;
  int64_t depth = at.depth, offset = 0;
  while (offset < query.count) {
    if (depth == node->end()) {
      Node* child = children_.find(node, query.data + offset, page_tokens_);
      if (!child) break;
      node = child;
    }
    const int64_t skipped = depth - node->start;
    const int64_t run = whole_pages(common_tokens(node->key.data() + skipped, node->key.size() - skipped,
                                                  query.data + offset, query.count - offset));
    const int32_t* first = pages + offset / page_tokens_;
    duplicates.insert(duplicates.end(), first, first + run / page_tokens_);
    offset += run;
    depth += run;
    if (offset < query.count && depth < node->end()) node = split(node, static_cast<int32_t>(depth));
  }
  if (offset < query.count) {
    node = append(node, query.from(offset), pages + offset / page_tokens_, offset);
    depth = node->end();
    drop_root_if_empty(node);
  }
  return {node, static_cast<int32_t>(depth)};
}

Node* Tree::append(Node* node, Tokens key, const int32_t* pages, int64_t offset) {
  const int64_t adopted = pool.adopt(pages, key.count / page_tokens_);
  if (!adopted) return node;
  grown_page = page_of({node, node->end()});
  grown_offset = offset;
  return grow(node, key.upto(adopted * page_tokens_), pages, adopted);
}

Node* Tree::grow(Node* node, Tokens key, const int32_t* pages, int64_t num_pages) {
  if (node->num_children) drop_superseded(node, key.upto(page_tokens_));
  const double moment = queue.policy.moment(num_pages);
  if (!node->parent || node->num_children || node->pinned_children) {
    Node* child = make_node();
    child->parent = node;
    child->start = node->end();
    child->used_at = moment;
    child->used_s = queue.now_s;
    extend(child->key, key.data, key.count);
    extend(child->pages, pages, num_pages);
    add_child(child);
    return child;
  }
  extend(node->key, key.data, key.count);
  extend(node->pages, pages, num_pages);
  settle(node, pages, num_pages);
  node->used_at = moment;
  node->used_s = queue.now_s;
  ++version;
  evictable_pages += num_pages;
  queue.add(node);
  return node;
}

void Tree::add_child(Node* child) {
  link(child);
  settle(child, child->pages.data(), child->num_pages());
  ++version;
  evictable_pages += child->num_pages();
  queue.add(child);
}

bool Tree::insert_donor(Position at, Tokens tail, int32_t page) {
  Node* node = at.node;
  if (look_for_fork(at, tail).num_tokens == tail.count) return false;
  // The look is at a few children only; the very same tail must not take an older one's place.
  if (at.depth == node->end() && children_.find(node, tail.data, static_cast<int32_t>(tail.count))) return false;
  if (!pool.adopt(&page, 1)) {
    drop_root_if_empty(node);
    return false;
  }
  if (at.depth < node->end()) node = split(node, at.depth);
  drop_superseded(node, tail);
  Node* donor = make_node();
  donor->parent = node;
  donor->start = at.depth;
  donor->used_at = queue.policy.moment(1);
  donor->used_s = queue.now_s;
  donor->is_donor = true;
  extend(donor->key, tail.data, tail.count);
  extend(donor->pages, &page, 1);
  add_child(donor);
  return true;
}

// Frees the unpinned donors below `node` whose tokens are the start of a page that is about to enter.
void Tree::drop_superseded(Node* node, Tokens page) {
  Node* child = last_fork(node, page.data[0]);
  for (int32_t looked = 0; child && looked < fork_look_; ++looked) {
    Node* next = child->earlier_fork;
    const int64_t count = child->key.size();
    if (child->is_donor && !child->is_pinned() && count <= page.count &&
        !std::memcmp(child->key.data(), page.data, count * sizeof(int32_t))) {
      free_pages(child->pages.data(), child->num_pages());
      --evictable_pages;
      remove(child);
    }
    child = next;
  }
}

Node* Tree::split(Node* node, int32_t depth) {
  const int32_t num_tokens = depth - node->start, num_pages = num_tokens / page_tokens_;
  Node* upper = make_node();
  upper->parent = node->parent;
  upper->start = node->start;
  upper->key.assign(node->key.begin(), node->key.begin() + num_tokens);
  upper->pages.assign(node->pages.begin(), node->pages.begin() + num_pages);
  upper->inherit(*node);
  unlink(node);
  link(upper);
  node->parent = upper;
  node->start = depth;
  cut_front(node->key, num_tokens);
  cut_front(node->pages, num_pages);
  link(node);
  for (const End& each : node->ends)
    if (each.depth <= depth) upper->ends.push_back(each);
  node->ends.erase(std::remove_if(node->ends.begin(), node->ends.end(), [&](End each) { return each.depth <= depth; }),
                   node->ends.end());
  upper->pinned_pages = std::min(node->pinned_pages, num_pages);
  node->pinned_pages -= upper->pinned_pages;
  upper->pinned_children = node->is_pinned();
  settle(upper, upper->pages.data(), num_pages);
  return upper;
}

void Tree::link(Node* child) {
  Node* parent = child->parent;
  children_.add(child);
  ++parent->num_children;
  child->earlier = parent->last_child;
  child->later = nullptr;
  (child->earlier ? child->earlier->later : parent->first_child) = child;
  parent->last_child = child;
  Node*& last = forks_[{parent, child->key[0]}];
  child->earlier_fork = last;
  child->later_fork = nullptr;
  if (last) last->later_fork = child;
  last = child;
}

void Tree::unlink(Node* child) {
  Node* parent = child->parent;
  children_.remove(child);
  --parent->num_children;
  (child->earlier ? child->earlier->later : parent->first_child) = child->later;
  (child->later ? child->later->earlier : parent->last_child) = child->earlier;
  if (child->earlier_fork) child->earlier_fork->later_fork = child->later_fork;
  if (child->later_fork) {
    child->later_fork->earlier_fork = child->earlier_fork;
  } else if (child->earlier_fork) {
    forks_[{parent, child->key[0]}] = child->earlier_fork;
  } else {
    forks_.erase({parent, child->key[0]});
  }
}

// --- pinning

void Tree::pin(int32_t page, int32_t depth) {
  if (page < 0) return;
  Node* node = home_[page];
  for (End& each : node->ends)
    if (each.depth == depth) {
      ++each.count;
      return;
    }
  bool had_ends = !node->ends.empty();
  node->ends.push_back({depth, 1});
  if (node->pinned_children) return;
  const int32_t pinned = pages_before(node, depth);
  if (pinned > node->pinned_pages) {
    evictable_pages -= pinned - node->pinned_pages;
    node->pinned_pages = pinned;
  }
  while (!had_ends && node->parent) {
    node = node->parent;
    if (++node->pinned_children > 1) return;
    had_ends = !node->ends.empty();
    evictable_pages -= node->num_pages() - node->pinned_pages;
    node->pinned_pages = node->num_pages();
  }
}

void Tree::unpin(int32_t page, int32_t depth) {
  if (page < 0) return;
  Node* node = home_[page];
  const auto end = std::find_if(node->ends.begin(), node->ends.end(), [&](End each) { return each.depth == depth; });
  if (--end->count) return;
  node->ends.erase(end);
  while (!node->pinned_children) {
    shrink_pins(node);
    if (!node->ends.empty()) return;
    Node* parent = node->parent;
    if (!parent) break;
    --parent->pinned_children;
    if (node->is_detached) recycle(node);
    node = parent;
  }
  if (node->parent || node->pinned_children) return;
  if (node->is_detached) {
    recycle(node);
  } else {
    drop_root_if_empty(node);
  }
}

void Tree::shrink_pins(Node* node) {
  const int32_t pinned = pages_before(node, node->deepest_end());
  const int32_t growth = node->pinned_pages - pinned;
  if (!growth) return;
  node->pinned_pages = pinned;
  if (node->is_detached) {
    free_pages(node->pages.data() + pinned, node->num_pages() - pinned);
    node->pages.resize(pinned);
    node->key.resize(static_cast<size_t>(pinned) * page_tokens_);
  } else {
    evictable_pages += growth;
    queue.add(node);
  }
}

int64_t Tree::pages_held_by_one(int32_t page, int32_t depth) const {
  if (page < 0) return 0;
  const Node* node = home_[page];
  const auto end = std::find_if(node->ends.begin(), node->ends.end(), [&](End each) { return each.depth == depth; });
  if (node->pinned_children || end == node->ends.end() || end->count != 1) return 0;
  int64_t num_pages = 0;
  bool is_first = true;
  while (true) {
    int32_t shared = node->start;
    bool has_others = false;
    for (const End& each : node->ends)
      if (!is_first || each.depth != depth) {
        shared = has_others ? std::max(shared, each.depth) : each.depth;
        has_others = true;
      }
    num_pages += std::max(depth - shared, 0) / page_tokens_;
    if (has_others || !node->parent || node->parent->pinned_children > 1) return num_pages;
    node = node->parent;
    depth = node->end();
    is_first = false;
  }
}

int64_t Tree::unpinned_pages(int32_t page, int32_t depth) const {
  int64_t num_pages = 0;
  for (const Node* node = home_[page]; node; node = node->parent) {
    num_pages += std::max(pages_before(node, std::min(depth, node->end())) - node->pinned_pages, 0);
    if (node->is_pinned()) break;
  }
  return num_pages;
}

// --- shrinking

int64_t Tree::evict(int64_t num_pages) {
  freed_.clear();
  int64_t missing = num_pages;
  while (missing > 0) {
    Node* node = queue.head();
    if (!node) break;
    const int64_t count = std::min<int64_t>(missing, node->num_pages() - node->pinned_pages);
    const int64_t left = node->num_pages() - count;
    freed_.insert(freed_.end(), node->pages.rbegin(), node->pages.rbegin() + count);
    missing -= count;
    evictable_pages -= count;
    if (!node->is_donor) queue.policy.evicted(queue.head_rank);
    if (left) {
      const Pages taken(node->pages.begin() + left, node->pages.end());
      node->pages.resize(left);
      node->key.resize(left * page_tokens_);
      tell_lost(taken.data(), count, node);
    } else {
      Node* parent = node->parent;
      remove(node);
      if (parent->parent && parent->num_children == 1) {
        join_only_child(parent);
      } else {
        drop_root_if_empty(parent);
      }
    }
  }
  if (!freed_.empty()) {
    free_pages(freed_.data(), freed_.size());
    ++version;
  }
  return freed_.size();
}

int64_t Tree::detach_all() {
  std::vector<Node*> roots;
  std::copy_if(roots_.begin(), roots_.end(), std::back_inserter(roots), [](const Node* root) { return root; });
  std::sort(roots.begin(), roots.end(), [](const Node* one, const Node* other) { return one->made < other->made; });
  roots_.clear();
  spare_roots_.clear();
  ++version;
  ++generation;
  int64_t freed = 0;
  for (Node* root : roots) freed += detach(root);
  queue.clear();
  return freed;
}

bool Tree::forget(int32_t page) {
  Node* node = home_[page];
  if (!node || node->is_detached) return false;
  const auto index = std::find(node->pages.begin(), node->pages.end(), page) - node->pages.begin();
  if (index) split(node, node->start + static_cast<int32_t>(index) * page_tokens_);
  unlink(node);
  Node* parent = node->parent;
  std::vector<Node*> stack = {node};
  while (!stack.empty()) {
    const Node* each = stack.back();
    stack.pop_back();
    tell_lost(each->pages.data(), each->num_pages(), parent);
    for (Node* child = each->first_child; child; child = child->later) stack.push_back(child);
  }
  detach(node);
  ++version;
  queue.add(parent);
  drop_root_if_empty(parent);
  return true;
}

int64_t Tree::detach(Node* top) {
  std::vector<Node*> nodes, stack = {top};
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    nodes.push_back(node);
    for (Node* child = node->first_child; child; child = child->later) stack.push_back(child);
  }
  int64_t freed = 0;
  for (Node* node : nodes)
    if (node != top) unlink(node);
  for (Node* node : nodes) {
    node->is_detached = true;
    node->root_id = -1;
    const int64_t count = node->num_pages() - node->pinned_pages;
    evictable_pages -= count;
    freed += count;
    free_pages(node->pages.data() + node->pinned_pages, count);
    node->pages.resize(node->pinned_pages);
    node->key.resize(std::min(node->key.size(), static_cast<size_t>(node->pinned_pages) * page_tokens_));
  }
  for (Node* node : nodes)
    if (!node->is_pinned()) recycle(node);
  return freed;
}

// Takes a leaf without pins out of the tree; its pages are being freed.
void Tree::remove(Node* node) {
  Node* parent = node->parent;
  unlink(node);
  if (node->is_donor) {
    if (is_observed) removed.insert(removed.end(), node->pages.begin(), node->pages.end());
  } else {
    tell_lost(node->pages.data(), node->num_pages(), parent);
    parent->inherit(*node);
  }
  recycle(node);
  queue.add(parent);
}

// The child stays and grows upwards, as a split grows a node above it.
void Tree::join_only_child(Node* upper) {
  Node* child = upper->first_child;
  if (!upper->ends.empty() || child->is_donor || upper->used_at > child->used_at) return;
  if (upper->pinned_children != static_cast<int32_t>(child->is_pinned())) return;
  if (static_cast<int64_t>((upper->key.size() + child->key.size()) * sizeof(int32_t)) > kJoinedBytes) return;
  unlink(child);
  unlink(upper);
  child->inherit(*upper);
  child->parent = upper->parent;
  child->start = upper->start;
  child->pinned_pages += upper->pinned_pages;
  settle(child, upper->pages.data(), upper->num_pages());
  extend(upper->key, child->key.data(), child->key.size());
  extend(upper->pages, child->pages.data(), child->num_pages());
  child->key.swap(upper->key);
  child->pages.swap(upper->pages);
  recycle(upper);
  link(child);
}

void Tree::drop_root_if_empty(Node* node) {
  if (node->root_id < 0 || node->num_children || node->is_pinned()) return;
  dropped_roots.push_back(node->root_id);
  roots_[node->root_id] = nullptr;
  spare_roots_.push_back(node->root_id);
  recycle(node);
}

void Tree::tell_lost(const int32_t* pages, int64_t count, const Node* above) {
  if (is_observed) removed.insert(removed.end(), pages, pages + count);
  if (is_watched) losses.push_back({page_of({const_cast<Node*>(above), above->end()}), above->end(), Pages(pages, pages + count)});
}

// --- checking

void Tree::count_held(int64_t first, int64_t stop, int64_t* times) {
  ++visit_;
  for (int64_t page = first; page < stop; ++page) {
    Node* node = home_[page];
    if (!node || node->visit == visit_) continue;
    node->visit = visit_;
    for (int32_t each : node->pages)
      if (each >= first && each < stop) ++times[each - first];
  }
}

std::vector<Node*> Tree::all_nodes() const {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> nodes;
  for (Node* root : roots_) {
    if (!root) continue;
    std::vector<Node*> stack = {root};
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      seen.insert(node);
      nodes.push_back(node);
      for (Node* child = node->first_child; child; child = child->later) stack.push_back(child);
    }
  }
  for (Node* node : home_)
    for (; node && seen.insert(node).second; node = node->parent) nodes.push_back(node);
  return nodes;
}

int64_t Tree::num_bytes() const {
  int64_t total = pool.num_bytes() + queue.num_bytes() + children_.num_bytes();
  total += store_.num_bytes() + static_cast<int64_t>((home_.capacity() + spare_.capacity()) * sizeof(Node*));
  total += static_cast<int64_t>(forks_.bucket_count() * sizeof(void*) + forks_.size() * (sizeof(ForkKey) + 3 * sizeof(void*)));
  store_.each([&](const Node& each) {
    total += static_cast<int64_t>((each.key.capacity() + each.pages.capacity()) * sizeof(int32_t) + each.ends.capacity() * sizeof(End));
  });
  return total;
}
