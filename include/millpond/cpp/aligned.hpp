// What the standard's allocation interfaces have in common: an exception that derives from
// std::bad_alloc, and blocks at any alignment. Needs exceptions, as those interfaces do.
#ifndef MILLPOND_CPP_ALIGNED_HPP
#define MILLPOND_CPP_ALIGNED_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "millpond/cpp/error.hpp"

#if MILLPOND_CPP_EXCEPTIONS

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// A failed allocation, for code that catches std::bad_alloc: what() is the library's message,
/// shortened to what fits. Copying it cannot fail.
class BadAlloc : public std::bad_alloc {
 public:
  /// The calling thread's last error.
  BadAlloc() noexcept : BadAlloc(millpond_last_error_code(), millpond_last_error_message()) {
    report_ = detail::last_oom();
  }
  /// An error with the given parts: `code` is one of MILLPOND_E_*.
  BadAlloc(std::uint32_t code, const char* message) noexcept : code_(code) {
    std::strncpy(message_, message, sizeof message_ - 1);
  }
  /// The library's message for a person.
  const char* what() const noexcept override { return message_; }
  /// The stable number, one of MILLPOND_E_*.
  std::uint32_t code() const noexcept { return code_; }
  /// As Error::oom_report().
  const millpond_oom_report* oom_report() const noexcept { return report_.get(); }

 private:
  std::uint32_t code_;
  char message_[240] = {};
  std::shared_ptr<const millpond_oom_report> report_;
};

namespace detail {

/// [B] the alignment that every block of a device has: addresses are multiples of its min chunk.
inline std::size_t sure_alignment(const millpond_device_info& info) noexcept {
  const std::uint64_t chunk = info.min_chunk_bytes;
  const std::uint64_t power = chunk & (~chunk + 1);
  return power == 0 ? 1 : static_cast<std::size_t>(power);
}

inline bool is_aligned(const void* address, std::size_t alignment) noexcept {
  return (reinterpret_cast<std::uintptr_t>(address) & (alignment - 1)) == 0;
}

/// What millpond_pool_alloc_aligned() can do, and the least that it takes. [B]
inline constexpr std::size_t kMostAlignment = std::size_t{2} << 20;
inline constexpr std::size_t kLeastAligned = std::size_t{16} << 10;

/// A block of at least `size_bytes` whose returned address is aligned; may point inside the block.
/// `take(size_bytes, &block)`, `take_aligned(size_bytes, alignment, &block)` and `give(block)` are
/// the C calls. Throws BadAlloc.
template <typename Take, typename TakeAligned, typename Give>
[[nodiscard]] void* allocate_aligned(std::size_t size_bytes, std::size_t alignment, Take take,
                                     TakeAligned take_aligned, Give give) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    throw BadAlloc(MILLPOND_E_INVALID_ARGUMENT, "the alignment is not a power of two");
  }
  void* block = nullptr;
  if (take(size_bytes, &block) != C_SUCCESS) throw BadAlloc();
  if (is_aligned(block, alignment)) return block;
  // Pools align better than they promise, so this is rare.
  (void)give(block);
  if (size_bytes > static_cast<std::size_t>(-1) - alignment) {
    throw BadAlloc(MILLPOND_E_OUT_OF_MEMORY, "no memory has so many bytes at that alignment");
  }
  if (alignment <= kMostAlignment && size_bytes + alignment > kLeastAligned) {
    if (take_aligned(size_bytes, alignment, &block) == C_SUCCESS) return block;
    if (millpond_last_error_code() != MILLPOND_E_UNSUPPORTED) throw BadAlloc();
  }
  // Less than a block of that kind would have, or where there are none: room to move the address.
  if (take(size_bytes + alignment, &block) != C_SUCCESS) throw BadAlloc();
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(block);
  const std::size_t skip = (alignment - (start & (alignment - 1))) & (alignment - 1);
  return static_cast<unsigned char*>(block) + skip;
}

/// The start of the block behind what allocate_aligned() returned. `sure` [B] is an alignment that
/// every block of the device has: up to it no lookup is needed.
inline void* block_start(void* address, std::size_t alignment, std::size_t sure) noexcept {
  if (alignment <= sure) return address;
  millpond_block_info info{};
  info.struct_size = sizeof info;
  return millpond_get_block(address, &info) == C_SUCCESS ? info.base : address;
}

/// As allocate_aligned(), without a stream.
[[nodiscard]] inline void* allocate_unordered(millpond_pool* pool, std::size_t size_bytes,
                                              std::size_t alignment) {
  const auto take = [pool](std::size_t bytes, void** out) {
    return millpond_pool_alloc_unordered(pool, bytes, out);
  };
  const auto take_aligned = [pool](std::size_t bytes, std::size_t at, void** out) {
    return millpond_pool_alloc_unordered_aligned(pool, bytes, at, out);
  };
  return allocate_aligned(size_bytes, alignment, take, take_aligned, &millpond_free);
}

/// Frees what allocate_unordered() returned for the same alignment; `sure` as for block_start().
inline void free_unordered(millpond_device* device, void* address, std::size_t alignment,
                           std::size_t sure) noexcept {
  if (address == nullptr) return;
  (void)millpond_device_free(device, block_start(address, alignment, sure));
}

}  // namespace detail
}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_EXCEPTIONS
#endif  // MILLPOND_CPP_ALIGNED_HPP
