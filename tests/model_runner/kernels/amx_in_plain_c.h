// Stands in for `csrc/amx.h`: the tile registers in plain C, so that what is written for them runs on any CPU.
//
// Products are as Intel's manual has them (SDM, volume 2, TDPBF16PS and TDPBSUD), but that subnormal numbers count.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"

static_assert(AXIL_AMX, "asked for by its macros");

constexpr int MOST_ROWS = 16;

struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct TileRegisters {
  TileShapes shapes;
  bool are_there = false;
  uint8_t at[8][16][64];
};
inline thread_local TileRegisters registers;

inline int32_t ask_for_tiles() { return 0; }

class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) {
    for (int t = 0; t < 8; t++)
      if (!shapes.rows[t] || shapes.rows[t] > 16 || !shapes.row_bytes[t] || shapes.row_bytes[t] > 64) __builtin_trap();
    registers.shapes = shapes;
    registers.are_there = true;
    memset(registers.at, 0, sizeof(registers.at));
  }
  ~Tiles() { registers.are_there = false; }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int T> inline void clear_tile() {
  if (!registers.are_there) __builtin_trap();
  memset(registers.at[T], 0, sizeof(registers.at[T]));
}
template <int T> inline void load_tile(const void* p, int64_t apart) {
  clear_tile<T>();
  for (int row = 0; row < registers.shapes.rows[T]; row++)
    memcpy(registers.at[T][row], static_cast<const uint8_t*>(p) + row * apart, registers.shapes.row_bytes[T]);
}
template <int T> inline void store_tile(void* p, int64_t apart) {
  if (!registers.are_there) __builtin_trap();
  for (int row = 0; row < registers.shapes.rows[T]; row++)
    memcpy(static_cast<uint8_t*>(p) + row * apart, registers.at[T][row], registers.shapes.row_bytes[T]);
}

template <class Element> inline Element element(int tile, int row, int column) {
  Element x;
  memcpy(&x, registers.at[tile][row] + column * sizeof(x), sizeof(x));
  return x;
}
template <class Element> inline void put_element(int tile, int row, int column, Element x) {
  memcpy(registers.at[tile][row] + column * sizeof(x), &x, sizeof(x));
}

// Call `add(row, column, words of a row)` for every sum, of operands whose shapes fit.
template <int SUM, int A, int B, class Add> inline void for_sums(const Add& add) {
  const TileShapes& s = registers.shapes;
  if (!registers.are_there || s.rows[A] != s.rows[SUM] || s.row_bytes[B] != s.row_bytes[SUM] ||
      s.row_bytes[A] != 4 * s.rows[B])
    __builtin_trap();
  for (int m = 0; m < s.rows[SUM]; m++)
    for (int n = 0; n < s.row_bytes[SUM] / 4; n++) add(m, n, s.rows[B]);
}
template <bool IS_BYTES, int SUM, int A, int B> inline void add_products() {
  for_sums<SUM, A, B>([](int m, int n, int words) {
    if constexpr (IS_BYTES) {
      int32_t total = element<int32_t>(SUM, m, n);
      for (int k = 0; k < 4 * words; k++)
        total += element<int8_t>(A, m, k) * element<uint8_t>(B, k / 4, 4 * n + k % 4);
      put_element(SUM, m, n, total);
    } else {
      float even = 0, odd = 0;
      for (int k = 0; k < words; k++) {
        even = std::fma(widened(element<Bf16>(A, m, 2 * k)), widened(element<Bf16>(B, k, 2 * n)), even);
        odd = std::fma(widened(element<Bf16>(A, m, 2 * k + 1)), widened(element<Bf16>(B, k, 2 * n + 1)), odd);
      }
      put_element(SUM, m, n, element<float>(SUM, m, n) + (even + odd));
    }
  });
}
