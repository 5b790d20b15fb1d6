#include "threads.h"

#include "api.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>

namespace {

// A job's progress in one word, so that a piece can only be taken of the job that it was counted for:
// 24 bits of the job's number, 20 of how many pieces it has, 20 of how many are taken.
constexpr int COUNT_BITS = 20;
constexpr uint64_t COUNT_MASK = (1u << COUNT_BITS) - 1;
constexpr int64_t SPIN_NS = 50'000;  // longer than what lies between two calls of a step, shorter than a time slice

struct Pool {
  alignas(64) std::atomic<uint64_t> progress{0};
  alignas(64) std::atomic<int32_t> num_done{0};
  std::atomic<int32_t> is_caller_asleep{0};
  alignas(64) std::atomic<int32_t> num_jobs{0};  // what sleeping workers watch
  std::atomic<int32_t> num_asleep{0};
  void (*work)(void*, int64_t) = nullptr;
  void* context = nullptr;
  int64_t num_pieces = 0;  // of the caller; `progress` counts groups of pieces where there are more than fit
  int64_t group = 1;
  int wanted = 1;
  int started = 0;
};

// Never destroyed: workers may look at it until the process has gone.
Pool& pool() {
  static Pool* const the_pool = new Pool();
  return *the_pool;
}

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

void sleep_while(std::atomic<int32_t>& word, int32_t seen) {
  syscall(SYS_futex, reinterpret_cast<int32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void wake(std::atomic<int32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<int32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Whether `is_over` came true within the time that is worth spinning.
template <class Condition>
bool spun_until(const Condition& is_over) {
  const int64_t end = now_ns() + SPIN_NS;
  do {
    for (int i = 0; i < 64; i++) {
      if (is_over()) return true;
      _mm_pause();
    }
  } while (now_ns() < end);
  return is_over();
}

// Take pieces until none is left.
void take_part(Pool& p) {
  uint64_t seen = p.progress.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t taken = seen & COUNT_MASK, count = (seen >> COUNT_BITS) & COUNT_MASK;
    if (taken >= count) return;
    if (!p.progress.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    // The job can't end before this piece does, so what it is about stands still.
    const int64_t first = static_cast<int64_t>(taken) * p.group;
    const int64_t end = first + p.group < p.num_pieces ? first + p.group : p.num_pieces;
    for (int64_t piece = first; piece < end; piece++) p.work(p.context, piece);
    if (p.num_done.fetch_add(1, std::memory_order_seq_cst) + 1 == static_cast<int32_t>(count) &&
        p.is_caller_asleep.load(std::memory_order_seq_cst))
      wake(p.num_done);
    seen = p.progress.load(std::memory_order_acquire);
  }
}

bool has_piece(const Pool& p) {
  const uint64_t seen = p.progress.load(std::memory_order_acquire);
  return (seen & COUNT_MASK) < ((seen >> COUNT_BITS) & COUNT_MASK);
}

void* work_for_ever(void* argument) {
  Pool& p = pool();
  const int number = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  for (;;) {
    const int32_t jobs = p.num_jobs.load(std::memory_order_seq_cst);
    const bool is_wanted = number < __atomic_load_n(&p.wanted, __ATOMIC_RELAXED);
    if (is_wanted && has_piece(p)) {
      take_part(p);
      continue;
    }
    if (is_wanted && spun_until([&] { return has_piece(p); })) continue;
    p.num_asleep.fetch_add(1, std::memory_order_seq_cst);
    if (p.num_jobs.load(std::memory_order_seq_cst) == jobs) sleep_while(p.num_jobs, jobs);
    p.num_asleep.fetch_sub(1, std::memory_order_seq_cst);
  }
  return nullptr;
}

// The child of a fork has the caller's thread alone.
void forget_workers() {
  Pool& p = pool();
  p.started = 0;
  p.num_asleep.store(0);
  p.progress.store(0);
}

void start_workers(Pool& p) {
  static const bool is_registered = pthread_atfork(nullptr, nullptr, forget_workers) == 0;
  (void)is_registered;
  sigset_t everything, before;
  sigfillset(&everything);
  pthread_sigmask(SIG_SETMASK, &everything, &before);  // signals belong to the program's own threads
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  while (p.started < p.wanted - 1) {
    pthread_t thread;
    void* number = reinterpret_cast<void*>(static_cast<intptr_t>(p.started + 1));
    if (pthread_create(&thread, &attributes, work_for_ever, number) != 0) break;
    p.started++;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

int num_threads() { return pool().wanted; }

void run_pieces(void (*work)(void*, int64_t), void* context, int64_t num_pieces) {
  Pool& p = pool();
  if (num_pieces <= 1 || p.wanted == 1) {
    for (int64_t piece = 0; piece < num_pieces; piece++) work(context, piece);
    return;
  }
  if (p.started < p.wanted - 1) start_workers(p);
  p.work = work;
  p.context = context;
  p.num_pieces = num_pieces;
  p.group = (num_pieces + static_cast<int64_t>(COUNT_MASK) - 1) / static_cast<int64_t>(COUNT_MASK);
  const uint64_t count = static_cast<uint64_t>((num_pieces + p.group - 1) / p.group);
  const int32_t job = p.num_jobs.load(std::memory_order_relaxed) + 1;
  p.num_done.store(0, std::memory_order_relaxed);
  p.progress.store((static_cast<uint64_t>(static_cast<uint32_t>(job)) << (2 * COUNT_BITS)) | (count << COUNT_BITS),
                   std::memory_order_release);
  p.num_jobs.store(job, std::memory_order_seq_cst);
  if (p.num_asleep.load(std::memory_order_seq_cst)) wake(p.num_jobs);
  take_part(p);
  const auto is_done = [&] { return p.num_done.load(std::memory_order_acquire) == static_cast<int32_t>(count); };
  if (is_done() || spun_until(is_done)) return;
  p.is_caller_asleep.store(1, std::memory_order_seq_cst);
  for (int32_t done; (done = p.num_done.load(std::memory_order_seq_cst)) != static_cast<int32_t>(count);)
    sleep_while(p.num_done, done);
  p.is_caller_asleep.store(0, std::memory_order_seq_cst);
}

AXIL_API void axil_set_threads(int32_t count) {
  __atomic_store_n(&pool().wanted, count < 1 ? 1 : count, __ATOMIC_RELAXED);
}

// Add 1 to each of `count` counters, one piece each: every one must be reached once, on whatever threads.
AXIL_API void axil_count_pieces(int32_t* counters, int64_t count) {
  parallel(count, [&](int64_t piece) { counters[piece]++; });
}
