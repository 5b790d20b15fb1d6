// The plain C face of the tree and its pool: whole operations of a lease, one call each. ../core.py calls it.
//
// Token ids, pages and figures lie in the caller's memory. Results are figures, and pages in `out`. What the caller
// must be told of besides (pages lost, roots dropped, contradictions) is counted in kTold and read by radix_told.

#include <new>

#include "outline.h"
#include "tree.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

// As `Figure` in ../ledger.py.
enum Figure {
  kFree, kOwned, kEvictable = kOwned + 4, kVersion, kEvictedTotal, kGeneration, kTold,
  kPlace, kDepth, kCount, kCopied, kCopySource, kCopyDepth, kGrownPage, kGrownOffset, kRoot, kWatched,
};

// As `_LOST` and its neighbours in ../core.py.
enum Told : int64_t { kLost, kDropped, kContradiction, kRemoved };

struct Core {
  Core(int32_t num_pages, int32_t page_tokens, int32_t fork_look, uint64_t seed, Policy policy, uint8_t* owners,
       int32_t* free_ids, int64_t* figures, int32_t* out)
      : page_tokens(page_tokens), pool(num_pages, owners, free_ids, figures + kFree, figures + kOwned),
        tree(num_pages, page_tokens, fork_look, seed, pool, policy), figures(figures), out(out) {}

  void begin() {
    tree.is_watched = figures[kWatched];
    tree.grown_offset = -1;
  }

  void publish() {
    figures[kEvictable] = tree.evictable_pages;
    figures[kVersion] = tree.version;
    figures[kGeneration] = tree.generation;
    figures[kGrownPage] = tree.grown_page;
    figures[kGrownOffset] = tree.grown_offset;
    figures[kTold] = tree.losses.size() + tree.dropped_roots.size() + pool.contradictions.size() + tree.removed.size();
  }

  int64_t evict(int64_t num_pages) {
    const int64_t evicted = tree.evict(num_pages);
    figures[kEvictedTotal] += evicted;
    return evicted;
  }

  bool allocate(int64_t num_pages, int32_t* pages) {
    const int64_t shortfall = num_pages - pool.num_free();
    if (shortfall > 0) {
      if (shortfall > tree.evictable_pages) return false;
      evict(shortfall);
    }
    return pool.allocate(num_pages, pages);
  }

  int32_t page_tokens;
  Pool pool;
  Tree tree;
  int64_t* figures;
  int32_t* out;
  Pages scratch;
  std::vector<int64_t> told;
  Outliner outliner;
};

// A lease as the caller keeps it; the field order is that of `_HELD` in ../core.py.
struct Held {
  int64_t root_id, page, depth, generation, cached_tokens, copied_tokens, copy_source, copy_depth;
  const int32_t* page_ids;
  int64_t num_pages;
  const int32_t* duplicates;
  int64_t num_duplicates;
  int64_t has_hints, priority;
  double keep_s;
};

bool is_stale(const Core& core, const Held& held) {
  if (held.generation != core.tree.generation) return true;
  return held.page >= 0 && core.tree.home(static_cast<int32_t>(held.page))->is_detached;
}

void drop_copy(Core& core, Held& held) {
  if (held.copy_source >= 0)
    core.tree.unpin(static_cast<int32_t>(held.copy_source), static_cast<int32_t>(held.copy_depth));
  held.copy_source = -1;
}

Position place_of(Core& core, Held& held) {
  if (held.page < 0 && !core.tree.root_of(static_cast<int32_t>(held.root_id))) held.root_id = core.tree.make_root();
  return core.tree.position_at(static_cast<int32_t>(held.root_id), static_cast<int32_t>(held.page),
                               static_cast<int32_t>(held.depth));
}

// Moves a lease to the end of what it has computed; the pages that the tree had already go to `duplicates`.
bool enter(Core& core, Held& held, Tokens rest, Pages& duplicates) {
  if (is_stale(core, held)) return false;
  if (held.depth + rest.count > held.cached_tokens) drop_copy(core, held);
  const int64_t num_pages = rest.count / core.page_tokens;
  if (!num_pages) return false;
  const Position end = core.tree.insert(place_of(core, held), rest.upto(num_pages * core.page_tokens),
                                        held.page_ids + held.depth / core.page_tokens, duplicates);
  // A new root into which nothing was taken is gone again.
  held.page = end.depth ? core.tree.page_of(end) : -1;
  held.depth = end.depth;
  return true;
}

void put_place(Core& core, const Held& held) {
  core.figures[kPlace] = held.page;
  core.figures[kDepth] = held.depth;
  core.figures[kCopySource] = held.copy_source;
  core.figures[kRoot] = core.tree.root_of(static_cast<int32_t>(held.root_id)) ? held.root_id : -1;
}

// Keeps a partly filled page; returns whether the tree has taken it.
bool keep_donor(Core& core, Held& held, Tokens tail) {
  if (tail.count <= 0 || tail.count >= core.page_tokens || is_stale(core, held)) return false;
  if (held.depth + tail.count <= held.cached_tokens) return false;
  return core.tree.insert_donor(place_of(core, held), tail, held.page_ids[held.depth / core.page_tokens]);
}

}  // namespace

API Core* radix_new(int32_t num_pages, int32_t page_tokens, int32_t fork_look, uint64_t seed, int32_t formula,
                    double turnover, double protection, double attention_tokens, uint8_t* owners, int32_t* free_ids,
                    int64_t* figures, int32_t* out) {
  const Policy policy(static_cast<Formula>(formula), turnover, protection, attention_tokens);
  return new (std::nothrow)
      Core(num_pages, page_tokens, fork_look, seed, policy, owners, free_ids, figures, out);
}

API void radix_delete(Core* core) { delete core; }

API int64_t radix_num_bytes(const Core* core) { return core->tree.num_bytes(); }

// From now on pages that leave are told of.
API void radix_observe(Core* core) { core->tree.is_observed = true; }

API void radix_tell_time(Core* core, double now_s) { core->tree.queue.now_s = now_s; }

// Figures: kDepth, kCopied.
API void radix_find(Core* core, int32_t root_id, const int32_t* query, int64_t count) {
  const Position end = core->tree.match(core->tree.root_of(root_id), {query, count});
  core->figures[kDepth] = end.depth;
  core->figures[kCopied] = core->tree.look_for_fork(end, Tokens{query, count}.from(end.depth)).num_tokens;
}

// Figures: kPlace, kDepth, kCount of pages in `out`, kCopied tokens from the page kCopySource to the last in `out`.
API void radix_lease(Core* core, int32_t root_id, const int32_t* query, int64_t count) {
  core->begin();
  Tree& tree = core->tree;
  Node* root = tree.root_of(root_id);
  const Position end = root ? tree.match(root, {query, count}) : Position{nullptr, 0};
  const Fork fork = root ? tree.look_for_fork(end, Tokens{query, count}.from(end.depth)) : Fork{};
  const int32_t page = end.depth ? tree.page_of(end) : -1;
  int64_t num_pages = end.depth / core->page_tokens;
  if (num_pages) tree.pages_to(end, core->out);
  tree.pin(page, end.depth);
  int64_t copied = 0;
  if (fork.num_tokens) {
    tree.pin(fork.page, fork.depth);
    if (core->allocate(1, core->out + num_pages)) {
      ++num_pages;
      copied = fork.num_tokens;
    } else {
      tree.unpin(fork.page, fork.depth);
    }
  }
  int64_t* figures = core->figures;
  figures[kPlace] = page;
  figures[kDepth] = end.depth;
  figures[kCount] = num_pages;
  figures[kCopied] = copied;
  figures[kCopySource] = fork.page;
  figures[kCopyDepth] = fork.depth;
  core->publish();
}

// Copies the tokens behind a place, along the youngest branches; returns how many. Figure: kPlace, the first one's page.
API int64_t radix_beyond(Core* core, int32_t root_id, int32_t page, int32_t depth, int32_t* tokens, int64_t count) {
  auto [node, at] = core->tree.position_at(root_id, page, depth);
  int64_t num_copied = 0;
  while (node && num_copied < count) {
    const int64_t skipped = at - node->start, run = std::min<int64_t>(node->end() - at, count - num_copied);
    if (run && !num_copied) core->figures[kPlace] = node->pages[skipped / core->page_tokens];
    std::copy_n(node->key.data() + skipped, run, tokens + num_copied);
    num_copied += run;
    at += static_cast<int32_t>(run);
    node = node->last_child;
  }
  return num_copied;
}

API int32_t radix_next_victim(Core* core) {
  const Node* node = core->tree.queue.head();
  return node ? node->pages.back() : -1;
}

API void radix_unpin(Core* core, int32_t page, int32_t depth) {
  core->begin();
  core->tree.unpin(page, depth);
  core->publish();
}

// Pages in `out`; returns false, and changes nothing, when fewer are free or evictable.
API bool radix_allocate(Core* core, int64_t num_pages) {
  core->begin();
  const bool is_done = core->allocate(num_pages, core->out);
  core->publish();
  return is_done;
}

// Figures: kPlace, kDepth, kCopySource (-1: let go), kRoot, kCount of duplicates in `out`.
API void radix_commit(Core* core, Held* held, const int32_t* rest, int64_t count) {
  core->begin();
  const int32_t page = static_cast<int32_t>(held->page), depth = static_cast<int32_t>(held->depth);
  core->scratch.clear();
  if (enter(*core, *held, {rest, count}, core->scratch)) {
    core->tree.pin(static_cast<int32_t>(held->page), static_cast<int32_t>(held->depth));
    core->tree.unpin(page, depth);
  }
  std::copy(core->scratch.begin(), core->scratch.end(), core->out);
  core->figures[kCount] = core->scratch.size();
  put_place(*core, *held);
  core->publish();
}

// Figures: kPlace, kDepth, kRoot; kCount is 1 when the tree has taken the partly filled page.
API void radix_release(Core* core, Held* held, const int32_t* rest, int64_t count) {
  core->begin();
  Tree& tree = core->tree;
  const int32_t page = static_cast<int32_t>(held->page), depth = static_cast<int32_t>(held->depth);
  const int64_t version = tree.version;
  Pages& own = core->scratch;
  own.assign(held->duplicates, held->duplicates + held->num_duplicates);
  enter(*core, *held, {rest, count}, own);
  if (held->page >= 0) {
    Node* node = tree.home(static_cast<int32_t>(held->page));
    if (tree.version == version) tree.touch(node);
    if (const int64_t found = held->cached_tokens - held->copied_tokens) {
      Node* used = node;
      while (found <= used->start && used->parent) used = used->parent;
      ++used->hits;
    }
    if (held->has_hints) {
      node->priority = std::max(node->priority, held->priority);
      node->keep_until_s = std::max(node->keep_until_s, tree.queue.now_s + held->keep_s);
    }
  }
  drop_copy(*core, *held);
  const bool is_kept = keep_donor(*core, *held, Tokens{rest, count}.from(held->depth - depth));
  const int64_t first = held->depth / core->page_tokens + is_kept;
  own.insert(own.end(), held->page_ids + first, held->page_ids + held->num_pages);
  core->pool.free(own.data(), own.size(), REQUEST);
  tree.unpin(page, depth);
  core->figures[kCount] = is_kept;
  put_place(*core, *held);
  core->publish();
}

API int64_t radix_held_by_one(const Core* core, int32_t page, int32_t depth) {
  return core->tree.pages_held_by_one(page, depth);
}

API int64_t radix_unpinned(const Core* core, int32_t page, int32_t depth) {
  return core->tree.unpinned_pages(page, depth);
}

API int64_t radix_evict(Core* core, int64_t num_pages) {
  core->begin();
  const int64_t evicted = core->evict(num_pages);
  core->publish();
  return evicted;
}

API int64_t radix_flush(Core* core) {
  core->begin();
  const int64_t freed = core->tree.detach_all();
  core->publish();
  return freed;
}

API bool radix_forget(Core* core, int32_t page) {
  core->begin();
  const bool is_forgotten = core->tree.forget(page);
  core->publish();
  return is_forgotten;
}

API void radix_quarantine(Core* core, int32_t page) { core->pool.quarantine(page); }

// Figures: kPlace, kDepth.
API void radix_follow(Core* core, int32_t root_id, int32_t page, int32_t depth, const int32_t* key, int64_t start,
                      int64_t count) {
  const Position at = core->tree.position_at(root_id, page, depth);
  const Position end = core->tree.follow(at, {key + start, count - start});
  core->figures[kPlace] = end.depth ? core->tree.page_of(end) : -1;
  core->figures[kDepth] = end.depth;
}

// Writes a 1 to `goes_on` for each of `count` first pages that goes on from a place.
API void radix_continued(Core* core, int32_t root_id, int32_t page, int32_t depth, const int32_t* first_pages,
                         int64_t count, uint8_t* goes_on) {
  const Position at = core->tree.position_at(root_id, page, depth);
  for (int64_t i = 0; i < count; ++i) goes_on[i] = core->tree.goes_on(at, first_pages + i * core->page_tokens);
}

API void radix_count_held(Core* core, int64_t first, int64_t stop, int64_t* times) {
  core->tree.count_held(first, stop, times);
}

// What is to be told: per item its kind, the number of values, the values. Valid until the next call.
API const int64_t* radix_told(Core* core, int64_t* count) {
  std::vector<int64_t>& told = core->told;
  told.clear();
  for (const Loss& loss : core->tree.losses) {
    told.insert(told.end(), {kLost, static_cast<int64_t>(loss.pages.size()) + 2, loss.above, loss.depth});
    told.insert(told.end(), loss.pages.begin(), loss.pages.end());
  }
  if (const Pages& removed = core->tree.removed; !removed.empty()) {
    told.insert(told.end(), {kRemoved, static_cast<int64_t>(removed.size())});
    told.insert(told.end(), removed.begin(), removed.end());
  }
  for (const int32_t root_id : core->tree.dropped_roots) told.insert(told.end(), {kDropped, 1, root_id});
  for (const Contradiction& each : core->pool.contradictions)
    told.insert(told.end(), {kContradiction, 4, each.page, each.owner, each.event, each.expected});
  core->tree.losses.clear();
  core->tree.removed.clear();
  core->tree.dropped_roots.clear();
  core->pool.contradictions.clear();
  core->figures[kTold] = 0;
  *count = told.size();
  return told.data();
}

// The ring's events about one page: serial number and kind of each. Valid until the next call.
API const int64_t* radix_events_of(Core* core, int32_t page, int64_t* count) {
  core->told.clear();
  core->pool.each_event([&](const Happened& happened) {
    if (std::find(happened.pages.begin(), happened.pages.end(), page) != happened.pages.end())
      core->told.insert(core->told.end(), {happened.serial, happened.event});
  });
  *count = core->told.size();
  return core->told.data();
}

// The tree's largest parts, as outline.h says. Valid until the next call.
API const int64_t* radix_outline(Core* core, int64_t under, int64_t max_nodes, int64_t max_depth, int64_t share,
                                 int64_t max_victims, int64_t* count) {
  core->told.clear();
  core->outliner.write(core->tree, {under, max_nodes, max_depth, share, max_victims}, core->told);
  *count = core->told.size();
  return core->told.data();
}

// The node that holds a page: its start, number of tokens and digest, then its first tokens. Valid until the next call.
API const int64_t* radix_run_of(Core* core, int32_t page, int64_t max_tokens, int64_t* count) {
  std::vector<int64_t>& told = core->told;
  told.clear();
  const Node* node = core->tree.home(page);
  if (node && !node->is_detached) {
    const int64_t num_tokens = static_cast<int64_t>(node->key.size());
    told.insert(told.end(), {node->start, num_tokens, static_cast<int64_t>(core->tree.digest(node))});
    told.insert(told.end(), node->key.begin(), node->key.begin() + std::min(num_tokens, max_tokens));
  }
  *count = told.size();
  return told.data();
}

// All nodes, for checks: per node the values that ../picture.py reads. Valid until the next call.
API const int64_t* radix_picture(Core* core, int64_t* count) {
  std::vector<int64_t>& told = core->told;
  told.clear();
  const auto name = [](const Node* node) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(node)); };
  const auto bits = [](double value) {
    int64_t result;
    std::memcpy(&result, &value, sizeof result);
    return result;
  };
  std::unordered_map<const Node*, int64_t> times;
  core->tree.queue.each([&](const Node* node) { ++times[node]; });
  for (const Node* node : core->tree.all_nodes()) {
    told.insert(told.end(), {name(node), name(node->parent), node->root_id, node->start, node->is_donor,
                             node->is_detached, bits(node->used_at), bits(node->keep_until_s), node->hits,
                             node->priority, static_cast<int64_t>(node->queued_as), times[node],
                             node->pinned_children, node->pinned_pages});
    told.push_back(node->key.size());
    told.insert(told.end(), node->key.begin(), node->key.end());
    told.push_back(node->pages.size());
    told.insert(told.end(), node->pages.begin(), node->pages.end());
    told.push_back(node->ends.size());
    for (const End& each : node->ends) told.insert(told.end(), {each.depth, each.count});
    told.push_back(node->num_children);
    for (const Node* child = node->first_child; child; child = child->later) told.push_back(name(child));
  }
  *count = told.size();
  return told.data();
}
