// Memory that begins at a cache line, grown as it is asked for and kept from call to call.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

template <class T>
class Lines {
 public:
  Lines() = default;
  ~Lines() { free(memory_); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  // Room for `count` elements; what was there before may be gone.
  T* room_for(int64_t count) {
    if (count > count_) {
      free(memory_);
      memory_ = static_cast<T*>(aligned_alloc(64, (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64));
      count_ = memory_ ? count : 0;
      if (!memory_) throw std::bad_alloc();
    }
    return memory_;
  }

 private:
  T* memory_ = nullptr;
  int64_t count_ = 0;
};
