// Threads of our own: a call is cut into pieces, and whoever is free takes the next. Nobody waits for a thread that has
// taken nothing, so a neighbour that keeps a core busy costs its share and no more.
#pragma once

#include <cstdint>

// Call `work(context, piece)` once for every piece in [0, num_pieces), on all threads; returns when all are done.
// One caller at a time, and not from within a piece.
void run_pieces(void (*work)(void* context, int64_t piece), void* context, int64_t num_pieces);

// Threads that take part, the caller's included.
int num_threads();

// Call `body(piece)` for every piece.
template <class Body>
void parallel(int64_t num_pieces, const Body& body) {
  run_pieces([](void* context, int64_t piece) { (*static_cast<const Body*>(context))(piece); },
             const_cast<Body*>(&body), num_pieces);
}

// Call `body(begin, end)` over [0, count) in pieces of at least `smallest` elements, a few for each thread. Where the
// cuts lie depends on the number of threads: only for bodies whose elements don't touch each other.
template <class Body>
void parallel_ranges(int64_t count, int64_t smallest, const Body& body) {
  int64_t pieces = count / (smallest > 0 ? smallest : 1);
  const int64_t enough = 4 * num_threads();
  pieces = pieces < 1 ? 1 : pieces > enough ? enough : pieces;
  parallel(pieces, [&](int64_t piece) { body(count * piece / pieces, count * (piece + 1) / pieces); });
}
