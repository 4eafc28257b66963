// Standard allocators over device memory that the host can access (MILLPOND_CAP_HOST_ACCESS): the
// types "cpu" and "host", and plugins that say so. Blocks are not stream-ordered, because the host
// writes to them as soon as it has them. Needs exceptions: without them these types are left out,
// since the standard's allocate() has no other way to fail.
#ifndef MILLPOND_CPP_PMR_HPP
#define MILLPOND_CPP_PMR_HPP

#include <cstddef>
#include <memory_resource>
#include <new>

#include "millpond/cpp/aligned.hpp"
#include "millpond/cpp/device.hpp"
#include "millpond/cpp/memory.hpp"

#if MILLPOND_CPP_EXCEPTIONS

namespace millpond {
inline namespace MILLPOND_CPP_ABI {
namespace detail {

/// Throws MILLPOND_E_UNSUPPORTED unless the host can access the device's memory.
inline Device host_accessible(Device device) {
  if (!device.can(MILLPOND_CAP_HOST_ACCESS)) {
    refuse(MILLPOND_E_UNSUPPORTED, "the host cannot touch this device's memory");
  }
  return device;
}
/// The pool, if the host can access its device's memory.
inline PoolView host_accessible(PoolView pool) {
  (void)host_accessible(pool.device());
  return pool;
}

}  // namespace detail

/// std::pmr::memory_resource over a pool, for instance a device's default one. Any alignment that
/// is a power of two works. allocate() throws BadAlloc, a std::bad_alloc, for every failure;
/// deallocate() never throws. Usable from many threads at once; two of them are equal when they
/// serve the same device: each can free what the other allocated. It owns nothing: its blocks
/// outlive it.
///
/// Each request is a block of its own, which costs at least the device's min chunk: 512 bytes on
/// the built-in ones. For many small nodes, put a std::pmr::synchronized_pool_resource (or the
/// unsynchronized one) over it.
class MemoryResource final : public std::pmr::memory_resource {
 public:
  /// Throws MILLPOND_E_UNSUPPORTED if the host cannot access the device's memory.
  explicit MemoryResource(PoolView pool)
      : pool_(detail::host_accessible(pool)), device_(pool.device()) {}
  /// The device's default pool.
  explicit MemoryResource(Device on)
      : pool_(detail::host_accessible(on).default_pool()), device_(on) {}
  /// The pool that it serves.
  PoolView pool() const noexcept { return pool_; }
  /// The pool's device.
  Device device() const noexcept { return device_; }

 private:
  void* do_allocate(std::size_t size_bytes, std::size_t alignment) override {
    if (size_bytes == 0) size_bytes = 1;  // the standard wants an address of its own
    return detail::allocate_unordered(pool_.get(), size_bytes, alignment);
  }
  void do_deallocate(void* address, std::size_t, std::size_t alignment) override {
    detail::free_unordered(device_.get(), address, alignment, sure_alignment_);
  }
  // Without run-time types, which one file of a program may have and another not: the other
  // resource is asked about this one. One of this class notices that it is asked, and compares.
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    const MemoryResource* const asks = asks_;
    if (this == &other) return true;
    if (asks == &other) return asks->device_ == device_;
    if (asks == this) return false;  // the other asks back, so it is of another class
    asks_ = this;
    const bool same = other.is_equal(*this);
    asks_ = asks;
    return same;
  }

  PoolView pool_;
  Device device_;
  std::size_t sure_alignment_ = detail::sure_alignment(device_.info());  // [B] of every block
  inline static thread_local const MemoryResource* asks_ = nullptr;      // of this thread, now
};

/// An allocator for standard containers: std::vector<float, Allocator<float>>
/// v(Allocator<float>(d)). The same rules as MemoryResource.
template <typename T>
class Allocator {
 public:
  using value_type = T;

  /// Throws MILLPOND_E_UNSUPPORTED if the host cannot access the device's memory.
  explicit Allocator(PoolView pool)
      : pool_(detail::host_accessible(pool)), device_(pool.device()) {}
  /// The device's default pool.
  explicit Allocator(Device on) : pool_(detail::host_accessible(on).default_pool()), device_(on) {}
  /// The same pool for another element type.
  template <typename U>
  Allocator(const Allocator<U>& other) noexcept
      : pool_(other.pool_), device_(other.device_), sure_alignment_(other.sure_alignment_) {}
  /// The pool that it serves.
  PoolView pool() const noexcept { return pool_; }
  /// The pool's device.
  Device device() const noexcept { return device_; }

  /// Room for `count` elements. Throws std::bad_alloc.
  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_alloc();
    const std::size_t size_bytes = count == 0 ? 1 : count * sizeof(T);
    return static_cast<T*>(detail::allocate_unordered(pool_.get(), size_bytes, alignof(T)));
  }
  /// Frees what allocate() returned. Never throws.
  void deallocate(T* address, std::size_t) noexcept {
    detail::free_unordered(device_.get(), address, alignof(T), sure_alignment_);
  }

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
  template <typename U>
  friend class Allocator;

  PoolView pool_;
  Device device_;
  std::size_t sure_alignment_ = detail::sure_alignment(device_.info());  // [B] of every block
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_EXCEPTIONS
#endif  // MILLPOND_CPP_PMR_HPP
