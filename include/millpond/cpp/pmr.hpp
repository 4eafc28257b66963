// Standard allocators over device memory that the host can touch (MILLPOND_CAP_HOST_ACCESS): the
// types "cpu" and "host", and plugins that say so. Blocks are not stream-ordered, because the host
// writes to them as soon as it has them. Needs exceptions: without them these types are left out,
// since the standard's allocate() has no other way to fail.
#ifndef MILLPOND_CPP_PMR_HPP
#define MILLPOND_CPP_PMR_HPP

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>

#include "millpond/cpp/device.hpp"

#if MILLPOND_CPP_EXCEPTIONS

namespace millpond {
namespace detail {

/// [B] what every block is aligned to, on every device.
inline constexpr std::size_t kBlockAlignment = 32;

/// Throws MILLPOND_E_UNSUPPORTED unless the host can touch the device's memory.
inline Device host_accessible(Device device) {
  if (!device.can(MILLPOND_CAP_HOST_ACCESS)) {
    refuse(MILLPOND_E_UNSUPPORTED, "the host cannot touch this device's memory");
  }
  return device;
}

inline bool is_aligned(const void* address, std::size_t alignment) noexcept {
  return (reinterpret_cast<std::uintptr_t>(address) & (alignment - 1)) == 0;
}

/// A block of at least `size_bytes` whose returned address is aligned; may point inside the block.
/// Throws std::bad_alloc.
inline void* allocate_aligned(Device device, std::size_t size_bytes, std::size_t alignment) {
  if (size_bytes == 0) size_bytes = 1;  // the standard wants an address of its own
  void* block = nullptr;
  if (millpond_alloc(device.get(), size_bytes, &block) != C_SUCCESS) throw std::bad_alloc();
  if (is_aligned(block, alignment)) return block;
  // Pools align better than they promise, so this is rare: ask for room to move the address.
  (void)millpond_free(block);
  if (size_bytes > static_cast<std::size_t>(-1) - alignment ||
      millpond_alloc(device.get(), size_bytes + alignment, &block) != C_SUCCESS) {
    throw std::bad_alloc();
  }
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(block);
  const std::size_t skip = (alignment - (start & (alignment - 1))) & (alignment - 1);
  return static_cast<unsigned char*>(block) + skip;
}

/// Gives back what allocate_aligned() returned for the same alignment.
inline void free_aligned(void* address, std::size_t alignment) noexcept {
  if (alignment > kBlockAlignment) {  // it may lie inside its block
    millpond_block_info info{};
    info.struct_size = sizeof info;
    if (millpond_get_block(address, &info) == C_SUCCESS) address = info.base;
  }
  (void)millpond_free(address);
}

}  // namespace detail

/// std::pmr::memory_resource over a device's default pool. Any alignment that is a power of two
/// works. allocate() throws std::bad_alloc for every failure, and the thread's last error says
/// why; deallocate() never throws. Usable from many threads at once; two of them are equal when
/// they serve the same device. It owns nothing: its blocks outlive it.
class MemoryResource final : public std::pmr::memory_resource {
 public:
  /// Throws MILLPOND_E_UNSUPPORTED when the host cannot touch the device's memory.
  explicit MemoryResource(Device on) : device_(detail::host_accessible(on)) {}
  /// The device that it serves.
  Device device() const noexcept { return device_; }

 private:
  void* do_allocate(std::size_t size_bytes, std::size_t alignment) override {
    return detail::allocate_aligned(device_, size_bytes, alignment);
  }
  void do_deallocate(void* address, std::size_t, std::size_t alignment) override {
    detail::free_aligned(address, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    if (this == &other) return true;
#if defined(__cpp_rtti) || defined(__GXX_RTTI) || defined(_CPPRTTI)
    const auto* same = dynamic_cast<const MemoryResource*>(&other);
    return same != nullptr && same->device_ == device_;
#else
    return false;
#endif
  }

  Device device_;
};

/// An allocator for standard containers: std::vector<float, Allocator<float>>
/// v(Allocator<float>(d)). The same rules as MemoryResource.
template <typename T>
class Allocator {
 public:
  using value_type = T;

  /// Throws MILLPOND_E_UNSUPPORTED when the host cannot touch the device's memory.
  explicit Allocator(Device on) : device_(detail::host_accessible(on)) {}
  /// The same device for another element type.
  template <typename U>
  Allocator(const Allocator<U>& other) noexcept : device_(other.device()) {}
  /// The device that it serves.
  Device device() const noexcept { return device_; }

  /// Room for `count` elements. Throws std::bad_alloc.
  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(detail::allocate_aligned(device_, count * sizeof(T), alignof(T)));
  }
  /// Gives back what allocate() returned. Never throws.
  void deallocate(T* address, std::size_t) noexcept { detail::free_aligned(address, alignof(T)); }

  /// Whether each can free what the other allocated.
  template <typename U>
  friend bool operator==(const Allocator& a, const Allocator<U>& b) noexcept {
    return a.device() == b.device();
  }
  /// The opposite.
  template <typename U>
  friend bool operator!=(const Allocator& a, const Allocator<U>& b) noexcept {
    return !(a == b);
  }

 private:
  Device device_;
};

}  // namespace millpond

#endif  // MILLPOND_CPP_EXCEPTIONS
#endif  // MILLPOND_CPP_PMR_HPP
