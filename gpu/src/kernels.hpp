// Two kernels: one fills memory with a pattern, the other counts the words that differ from it.
// They are PTX text, which the driver compiles for whatever card it finds, so no CUDA compiler is
// needed.
//
// The fake driver runs no kernels; there, copies do the same in the same streams.
#ifndef MILLPOND_GPU_KERNELS_HPP
#define MILLPOND_GPU_KERNELS_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver.hpp"

namespace gpu {

inline std::uint64_t word(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t x = (seed + index) * 0x9E3779B97F4A7C15u;
  return x ^ (x >> 29);
}

class Kernels {
 public:
  Kernels();
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  /// Queues: `count` words at `out` become the pattern of `seed`.
  void fill(void* out, std::size_t count, std::uint64_t seed, Handle stream);
  /// Queues: the words at `in` that are not the pattern of `seed` are counted.
  void verify(const void* in, std::size_t count, std::uint64_t seed, Handle stream);
  /// Waits for everything and gives the number of wrong words so far.
  std::uint64_t wrong();

 private:
  struct Read {
    std::vector<std::uint64_t> words;
    std::uint64_t seed;
  };
  void launch(Handle function, void** arguments, std::size_t count, Handle stream);

  Handle fill_ = nullptr;
  Handle verify_ = nullptr;
  Ptr counter_ = 0;
  std::vector<std::unique_ptr<std::vector<std::uint64_t>>> written_;  // fake driver only
  std::vector<std::unique_ptr<Read>> read_;
};

}  // namespace gpu

#endif  // MILLPOND_GPU_KERNELS_HPP
