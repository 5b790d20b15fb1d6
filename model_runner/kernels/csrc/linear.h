// A linear layer's weight as the kernels read it, and what is multiplied with it.
//
// Outputs are cut into blocks of BLOCK; a block's weights lie together, in the order in which one thread reads them.
// Sums run over the columns in ascending order, whatever the number of tokens and of threads.
#pragma once

#include <cstdint>

#include "simd_bytes.h"

constexpr int VECTORS = REGISTERS == 16 || AXIL_AMX ? 2 : 3;
constexpr int BLOCK = VECTORS * LANES;
constexpr int GROUP = 32;  // columns that share a scale in 4 bits, and in GGUF's 8 bits

// How a block is stored. K columns, g groups of `group` columns, n outputs of the block:
//   FLOAT32   float [K][n]
//   BFLOAT16  bf16 [K / 2][n][2]; K is even, and filled up with zeros to whole steps of AMX
//   INT8      g x { byte [group / 4][n][4]: q + 128; half [n]: scale }             weight = scale * q
//             rotated: byte [K / 4][n][4]: q + 128; float [n]: scale               weight = scale * q, rotated; filled up too
//   INT4      g x { byte [4][n][4]: low nibbles columns 0-15, high 16-31; half [n]: scale; half [n]: least }
//             (group is GROUP)                                                     weight = scale * q + least
// In front of PAIRS_OF_BF16 a byte of 8 bits is the number's two's complement, with the seven lower bits turned over where it
// is negative, so that q + 1/2 has them and the sign; of four columns: byte [n / 4][2][4][2], the first two before the others.
enum Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

// What tokens are multiplied as in front of weights of few bits: as they are; rounded to 8 bits, in front of INT8 rotated
// as the weights are, with one scale, in front of INT4 each group of columns to its own; rounded to bf16, in groups of
// GROUP, where the CPU multiplies that.
enum Activations : int32_t { AS_THEY_ARE = 0, BYTES = 1, PAIRS_OF_BF16 = 2 };

// What opens a layer's outputs.
enum Gate : int32_t { NO_GATE = 0, SILU = 1, GELU_TANH = 2 };

// Mirrored in linear.py. Where there is a gate, even blocks are of it and odd ones of what it opens, and `num_outputs` counts
// the pairs.
struct Weight {
  int32_t format;
  int32_t group;
  int32_t gate;
  int32_t activations;
  int32_t has_bias;
  int64_t num_outputs;
  int64_t num_columns;
  uint8_t* data;  // the blocks, then the bias by packed row as float32; of zeros where nothing was written
};

inline int64_t blocks_of(int64_t num_outputs) { return (num_outputs + BLOCK - 1) / BLOCK; }
inline int64_t num_blocks(const Weight& w) { return blocks_of(w.num_outputs) * (w.gate ? 2 : 1); }
// Columns are rotated before 8 bits are multiplied with bytes (`hadamard.h`); the scale makes up for both rotations.
inline bool is_rotated(const Weight& w) { return w.format == INT8 && w.activations == BYTES; }
// Columns of which a block has room, of bfloat16 and of rotated bytes.
inline int64_t stored_columns(const Weight& w) {
  const int64_t step = !AXIL_AMX ? 1 : w.format == BFLOAT16 ? 32 : 64;
  return (w.num_columns + step - 1) / step * step;
}
inline int64_t group_bytes(const Weight& w) {
  return w.format == INT4 ? BLOCK * (GROUP / 2 + 4) : BLOCK * (static_cast<int64_t>(w.group) + 2);
}
inline int64_t block_bytes(const Weight& w) {
  if (w.format == FLOAT32) return w.num_columns * BLOCK * 4;
  if (w.format == BFLOAT16) return stored_columns(w) * BLOCK * 2;
  return is_rotated(w) ? (stored_columns(w) + 4) * BLOCK : w.num_columns / w.group * group_bytes(w);
}

// The outputs' scales of a rotated block, behind its bytes.
inline const float* rotated_scales(const Weight& w, const uint8_t* block) {
  return reinterpret_cast<const float*>(block + stored_columns(w) * BLOCK);
}

inline float* bias_of(const Weight& w) {
  return w.has_bias ? reinterpret_cast<float*>(w.data + num_blocks(w) * block_bytes(w)) : nullptr;
}

// Where output `row` of a half (-1: not gated, 0: gate, 1: what it opens) lies among the packed rows.
inline int64_t packed_row(int64_t row, int32_t half) {
  return half < 0 ? row : (row / BLOCK * 2 + half) * BLOCK + row % BLOCK;
}

AXIL_INLINE float from_half(uint16_t bits) { return _cvtsh_ss(bits); }
AXIL_INLINE uint16_t to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
