// All pages with their owners, and a ring of what last happened to them: the compiled twin of ../../pages.py.
#pragma once

#include <cstdint>
#include <vector>

using Pages = std::vector<int32_t>;

enum Owner : uint8_t { FREE, REQUEST, TREE, QUARANTINED };

// As `EVENTS` in ../ledger.py names them.
enum Event : int32_t { ALLOCATE, ADOPT, FREE_BY_REQUEST, FREE_BY_TREE, QUARANTINE };

struct Happened {
  int64_t serial = 0;
  Event event = ALLOCATE;
  Pages pages;
};

// A page whose owner was not the one that gave it.
struct Contradiction {
  int32_t page, owner, event, expected;
};

// The ledger and the free list lie in the caller's memory.
class Pool {
 public:
  Pool(int32_t num_pages, uint8_t* owners, int32_t* free_ids, int64_t* num_free, int64_t* counts)
      : owners_(owners), free_ids_(free_ids), num_free_(*num_free), counts_(counts), ring_(kRingEvents) {
    for (int32_t page = 0; page < num_pages; ++page) free_ids[page] = num_pages - 1 - page;
    num_free_ = num_pages;
    counts_[FREE] = num_pages;
  }

  int64_t num_free() const { return num_free_; }

  // Hands free pages to a request, or returns false and leaves all free.
  bool allocate(int64_t num_pages, int32_t* out) {
    int64_t taken = 0;
    while (taken < num_pages && num_free_ > 0) {
      const int32_t page = free_ids_[--num_free_];
      if (is_rightful(page, FREE, ALLOCATE)) out[taken++] = page;
    }
    if (taken < num_pages) {
      while (taken > 0) free_ids_[num_free_++] = out[--taken];
      return false;
    }
    enter(out, taken, FREE, REQUEST, ALLOCATE);
    return true;
  }

  // Moves pages from a request to the tree, up to the first that isn't the request's to give; returns how many.
  int64_t adopt(const int32_t* pages, int64_t num_pages) {
    int64_t count = 0;
    while (count < num_pages && is_rightful(pages[count], REQUEST, ADOPT)) ++count;
    enter(pages, count, REQUEST, TREE, ADOPT);
    return count;
  }

  // Takes pages back, the first to be given out next; a quarantined one stays where it is.
  void free(const int32_t* pages, int64_t num_pages, Owner owner) {
    if (!num_pages) return;
    const Event event = owner == TREE ? FREE_BY_TREE : FREE_BY_REQUEST;
    rightful_.clear();
    for (int64_t i = 0; i < num_pages; ++i)
      if (is_rightful(pages[i], owner, event)) rightful_.push_back(pages[i]);
    for (auto page = rightful_.rbegin(); page != rightful_.rend(); ++page) free_ids_[num_free_++] = *page;
    enter(rightful_.data(), static_cast<int64_t>(rightful_.size()), owner, FREE, event);
  }

  void quarantine(int32_t page) {
    --counts_[owners_[page]];
    ++counts_[QUARANTINED];
    owners_[page] = QUARANTINED;
    note(&page, 1, QUARANTINE);
  }

  // What the ring holds, oldest first.
  template <typename Visit>
  void each_event(Visit visit) const {
    const int64_t first = num_events_ > kRingEvents ? num_events_ - kRingEvents : 0;
    for (int64_t serial = first; serial < num_events_; ++serial) visit(ring_[serial % kRingEvents]);
  }

  int64_t num_bytes() const {
    int64_t total = sizeof(Happened) * kRingEvents;
    for (const Happened& each : ring_) total += static_cast<int64_t>(each.pages.capacity() * sizeof(int32_t));
    return total;
  }

  std::vector<Contradiction> contradictions;

 private:
  static constexpr int64_t kRingEvents = 768;

  bool is_rightful(int32_t page, Owner owner, Event event) {
    const uint8_t actual = owners_[page];
    if (actual == owner) return true;
    if (actual != QUARANTINED) contradictions.push_back({page, actual, event, owner});
    return false;
  }

  void enter(const int32_t* pages, int64_t num_pages, Owner source, Owner target, Event event) {
    for (int64_t i = 0; i < num_pages; ++i) owners_[pages[i]] = target;
    counts_[source] -= num_pages;
    counts_[target] += num_pages;
    note(pages, num_pages, event);
  }

  void note(const int32_t* pages, int64_t num_pages, Event event) {
    Happened& happened = ring_[num_events_ % kRingEvents];
    happened.serial = num_events_++;
    happened.event = event;
    happened.pages.assign(pages, pages + num_pages);
  }

  uint8_t* owners_;
  int32_t* free_ids_;
  int64_t& num_free_;
  int64_t* counts_;
  std::vector<Happened> ring_;
  int64_t num_events_ = 0;
  Pages rightful_;
};
