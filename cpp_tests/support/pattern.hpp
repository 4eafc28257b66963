// Byte patterns that show where a wrong byte came from, and a gate that holds a stream back.
#ifndef MILLPOND_TESTS_PATTERN_HPP
#define MILLPOND_TESTS_PATTERN_HPP

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "support/check.hpp"

namespace millpond_tests {

/// Eight bytes of the pattern `seed`, of which this is the `index`th word; neighbours and other
/// seeds differ.
inline std::uint64_t pattern_word(std::uint64_t seed, std::size_t index) {
  std::uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15u + index * 0xD1342543DE82EF95u;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}

inline std::vector<std::uint8_t> pattern(std::uint64_t seed, std::size_t size) {
  std::vector<std::uint8_t> out(size);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = pattern_word(seed, i / 8);
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, size - i));
  }
  return out;
}

/// The index of the first byte that is not the pattern's, or the size.
inline std::size_t first_unlike(const std::vector<std::uint8_t>& bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = pattern_word(seed, i / 8);
    std::uint64_t got = word;
    std::memcpy(&got, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    if (got == word) continue;
    std::uint8_t want[8];
    std::memcpy(want, &word, sizeof(want));
    while (bytes[i] == want[i % 8]) ++i;
    return i;
  }
  return bytes.size();
}

/// The index of the first byte that is not `value`, or `size`.
inline std::size_t first_other(const std::vector<std::uint8_t>& bytes, std::uint8_t value,
                               std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i) {
    if (bytes[i] != value) return i;
  }
  return to;
}

/// Holds a stream until open() is called, so that a test decides what is still pending. When a call
/// of the test itself waits for the stream, it would wait for ever: the gate then opens after some
/// seconds, and the test fails.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    open();
    EXPECT_FALSE(expired_) << "a call waited, on the host, for a stream that was held back";
  }

  /// Work queued on `stream` after this waits for open(). The Gate must outlive it.
  C_Status close(millpond_device* device, C_Stream stream) {
    return millpond_stream_add_callback(device, stream, &Gate::wait, this);
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  static void wait(void* self, C_Status) {
    Gate& gate = *static_cast<Gate*>(self);
    std::unique_lock<std::mutex> lock(gate.mutex_);
    const auto is_open = [&gate] { return gate.open_; };
    if (!gate.changed_.wait_for(lock, std::chrono::seconds(3), is_open)) {
      gate.expired_ = gate.open_ = true;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool expired_ = false;
};

}  // namespace millpond_tests

#endif  // MILLPOND_TESTS_PATTERN_HPP
