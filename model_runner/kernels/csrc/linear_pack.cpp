// Writes weights into their packed blocks, row by row as a checkpoint is read, and reads rows back.

#include <cmath>
#include <vector>

#include "api.h"
#include "hadamard.h"
#include "linear.h"
#include "threads.h"

namespace {

struct Place {
  uint8_t* block;
  int lane;
};

Place place_of(const Weight& w, int64_t row) {
  return {w.data + row / BLOCK * block_bytes(w), static_cast<int>(row % BLOCK)};
}

uint16_t* scales_of(const Weight& w, uint8_t* group) {
  return reinterpret_cast<uint16_t*>(group + group_bytes(w) - BLOCK * (w.format == INT4 ? 4 : 2));
}

// Where an output's 8-bit column lies in its group, and how: `linear.h` says it.
int64_t byte_at(const Weight& w, int lane, int64_t column) {
  const int64_t four = column / 4 * BLOCK * 4;
  if (w.activations != PAIRS_OF_BF16) return four + lane * 4 + column % 4;
  return four + lane / 4 * 16 + column % 4 / 2 * 8 + lane % 4 * 2 + column % 2;
}
int turned_over(int q) { return q < 0 ? q ^ 127 : q; }  // and back again
uint8_t as_byte(const Weight& w, int q) {
  return static_cast<uint8_t>(w.activations == PAIRS_OF_BF16 ? turned_over(q) : q + 128);
}
int of_byte(const Weight& w, uint8_t stored) {
  return w.activations == PAIRS_OF_BF16 ? turned_over(static_cast<int8_t>(stored)) : stored - 128;
}

void put_byte(const Weight& w, uint8_t* group, int lane, int64_t column, int q) {
  group[byte_at(w, lane, column)] = as_byte(w, q);
}

void put_nibbles(uint8_t* group, int lane, int column, int low, int high) {
  group[(column / 4 * BLOCK + lane) * 4 + column % 4] = static_cast<uint8_t>(low | (high << 4));
}

int clamped(float x, int lowest, int highest) {
  const int q = static_cast<int>(lrintf(x));
  return q < lowest ? lowest : q > highest ? highest : q;
}

// Round some of an output's columns to bytes, in steps that `stored` makes of the best one and gives.
template <class Stored>
void round_to_bytes(const Weight& w, uint8_t* group, int lane, const float* values, int64_t count, const Stored& stored) {
  float most = 0;
  for (int64_t k = 0; k < count; k++) most = fmaxf(most, fabsf(values[k]));
  const float step = stored(most / 127), inverse = step > 0 ? 1 / step : 0;
  for (int64_t k = 0; k < count; k++) put_byte(w, group, lane, k, clamped(values[k] * inverse, -127, 127));
}

void write_bytes(const Weight& w, Place place, const float* row) {
  for (int64_t first = 0; first < w.num_columns; first += w.group) {
    uint8_t* group = place.block + first / w.group * group_bytes(w);
    round_to_bytes(w, group, place.lane, row + first, w.group, [&](float step) {
      uint16_t& half = scales_of(w, group)[place.lane];
      half = to_half(step);
      return from_half(half);
    });
  }
}

// One scale for all columns, behind them.
float& rotated_scale(const Weight& w, Place place) {
  return reinterpret_cast<float*>(place.block + BLOCK * stored_columns(w))[place.lane];
}

void write_rotated(const Weight& w, Place place, const float* row) {
  std::vector<float> rotated(static_cast<size_t>(w.num_columns));
  rotate_columns(row, w.num_columns, rotated.data());
  round_to_bytes(w, place.block, place.lane, rotated.data(), w.num_columns, [&](float step) {
    rotated_scale(w, place) = step / static_cast<float>(rotated_together(w.num_columns));
    return step;
  });
}

template <class Element>
void read_rotated(const Weight& w, Place place, Element* row) {
  std::vector<float> values(static_cast<size_t>(w.num_columns));
  const float scale = rotated_scale(w, place);
  for (int64_t k = 0; k < w.num_columns; k++)
    values[static_cast<size_t>(k)] = scale * static_cast<float>(of_byte(w, place.block[byte_at(w, place.lane, k)]));
  rotate_columns(values.data(), w.num_columns, values.data());
  for (int64_t k = 0; k < w.num_columns; k++) put(row + k, values[static_cast<size_t>(k)]);
}

struct Nibbles {
  uint16_t scale, least;
  uint8_t q[GROUP];
};

// The squared error of 16 levels from `least` in steps of `step`.
float rounded_to_nibbles(const float* values, float least, float step, Nibbles& out) {
  out.scale = to_half(step);
  out.least = to_half(least);
  const float scale = from_half(out.scale), base = from_half(out.least), inverse = scale > 0 ? 1 / scale : 0;
  float error = 0;
  for (int k = 0; k < GROUP; k++) {
    const int q = clamped((values[k] - base) * inverse, 0, 15);
    const float off = values[k] - (scale * static_cast<float>(q) + base);
    out.q[k] = static_cast<uint8_t>(q);
    error += off * off;
  }
  return error;
}

// Both ends of the range move inwards as long as that lowers the error: what few far weights lose, many others gain.
Nibbles nearest_nibbles(const float* values) {
  float least = values[0], most = values[0];
  for (int k = 1; k < GROUP; k++) least = fminf(least, values[k]), most = fmaxf(most, values[k]);
  Nibbles best, tried;
  float lowest = rounded_to_nibbles(values, least, (most - least) / 15, best);
  const float range = most - least;
  for (int step = 1; step <= 4; step++) {
    const float inset = 0.04f * static_cast<float>(step) * range;
    const float error = rounded_to_nibbles(values, least + inset, (range - 2 * inset) / 15, tried);
    if (error < lowest) lowest = error, best = tried;
  }
  return best;
}

void put_nibble_group(const Weight& w, Place place, int64_t index, const Nibbles& nibbles) {
  uint8_t* group = place.block + index * group_bytes(w);
  scales_of(w, group)[place.lane] = nibbles.scale;
  scales_of(w, group)[BLOCK + place.lane] = nibbles.least;
  for (int k = 0; k < GROUP / 2; k++) put_nibbles(group, place.lane, k, nibbles.q[k], nibbles.q[k + GROUP / 2]);
}

void write_row(const Weight& w, int64_t packed, const float* row) {
  const Place place = place_of(w, packed);
  switch (w.format) {
    case FLOAT32:
      for (int64_t k = 0; k < w.num_columns; k++)
        reinterpret_cast<float*>(place.block)[k * BLOCK + place.lane] = row[k];
      break;
    case BFLOAT16:
      for (int64_t k = 0; k < w.num_columns; k++)
        reinterpret_cast<Bf16*>(place.block)[(k / 2 * BLOCK + place.lane) * 2 + k % 2] = rounded(row[k]);
      break;
    case INT8:
      if (is_rotated(w)) write_rotated(w, place, row);
      else write_bytes(w, place, row);
      break;
    case INT4:
      for (int64_t g = 0; g < w.num_columns / GROUP; g++)
        put_nibble_group(w, place, g, nearest_nibbles(row + g * GROUP));
      break;
  }
}

template <class Element>
void read_row(const Weight& w, int64_t packed, Element* row) {
  const Place place = place_of(w, packed);
  if (is_rotated(w)) return read_rotated(w, place, row);
  for (int64_t k = 0; k < w.num_columns; k++) {
    float x = 0;
    if (w.format == FLOAT32) {
      x = reinterpret_cast<const float*>(place.block)[k * BLOCK + place.lane];
    } else if (w.format == BFLOAT16) {
      x = widened(reinterpret_cast<const Bf16*>(place.block)[(k / 2 * BLOCK + place.lane) * 2 + k % 2]);
    } else {
      uint8_t* group = place.block + k / w.group * group_bytes(w);
      const int64_t column = k % w.group;
      const uint16_t* scales = scales_of(w, group);
      if (w.format == INT8) {
        const int q = of_byte(w, group[byte_at(w, place.lane, column)]);
        x = from_half(scales[place.lane]) * static_cast<float>(q);
      } else {
        const int64_t low = column % (GROUP / 2);
        const int both = group[(low / 4 * BLOCK + place.lane) * 4 + low % 4];
        const int q = column < GROUP / 2 ? both & 15 : both >> 4;
        x = from_half(scales[place.lane]) * static_cast<float>(q) + from_half(scales[BLOCK + place.lane]);
      }
    }
    put(row + k, x);
  }
}

}  // namespace

AXIL_API int64_t axil_weight_bytes(const Weight* w) {
  return num_blocks(*w) * (block_bytes(*w) + (w->has_bias ? BLOCK * 4 : 0));
}

AXIL_API void axil_write_bias(const Weight* w, int64_t first, int32_t half, int64_t count, const float* values) {
  for (int64_t i = 0; i < count; i++) bias_of(*w)[packed_row(first + i, half)] = values[i];
}

// Pack `count` float32 rows from output `first` of a half on, quantising them where the format asks for it.
AXIL_API void axil_write_rows(const Weight* w, int64_t first, int32_t half, int64_t count, const float* rows) {
  parallel_ranges(count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) write_row(*w, packed_row(first + i, half), rows + i * w->num_columns);
  });
}

// The same from GGUF blocks of 32 weights: `kind` 2 is Q4_0, 3 Q4_1 (into INT4), 8 Q8_0 (into INT8, group 32).
AXIL_API void axil_write_gguf(const Weight* w, int64_t first, int32_t half, int64_t count, const uint8_t* blocks,
                              int32_t kind) {
  const int64_t bytes = kind == 2 ? 18 : kind == 3 ? 20 : 34, per_row = w->num_columns / GROUP;
  for (int64_t i = 0; i < count; i++) {
    const Place place = place_of(*w, packed_row(first + i, half));
    for (int64_t g = 0; g < per_row; g++) {
      const uint8_t* from = blocks + (i * per_row + g) * bytes;
      uint16_t scale;
      memcpy(&scale, from, 2);
      if (kind == 8) {
        uint8_t* group = place.block + g * group_bytes(*w);
        scales_of(*w, group)[place.lane] = scale;
        for (int k = 0; k < GROUP; k++) put_byte(*w, group, place.lane, k, static_cast<int8_t>(from[2 + k]));
        continue;
      }
      Nibbles nibbles;
      nibbles.scale = scale;
      if (kind == 3) memcpy(&nibbles.least, from + 2, 2);
      else nibbles.least = to_half(-8 * from_half(scale));
      const uint8_t* packed = from + bytes - GROUP / 2;
      for (int k = 0; k < GROUP / 2; k++) {
        nibbles.q[k] = packed[k] & 15;
        nibbles.q[k + GROUP / 2] = packed[k] >> 4;
      }
      put_nibble_group(*w, place, g, nibbles);
    }
  }
}

// The rows of given outputs of an ungated weight, as float32 or bf16: what an embedding looks up.
AXIL_API void axil_read_rows(const Weight* w, const int64_t* rows, int64_t count, void* out, int32_t is_bf16) {
  parallel_ranges(count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      if (is_bf16) read_row(*w, rows[i], static_cast<Bf16*>(out) + i * w->num_columns);
      else read_row(*w, rows[i], static_cast<float*>(out) + i * w->num_columns);
    }
  });
}
