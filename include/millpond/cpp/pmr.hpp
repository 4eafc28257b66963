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
#include "millpond/cpp/nodes.hpp"

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

/// Where a resource has its memory from.
class NodeSource {
 public:
  /// Throws MILLPOND_E_UNSUPPORTED unless the host can access the memory of the pool's device.
  explicit NodeSource(PoolView pool) : pool_(host_accessible(pool)), device_(pool.device()) {
    shares_ = pool.get() == device_.default_pool().get();
    nodes_ = NodeStore::of(device_.get());
    sure_alignment_ = sure_alignment(device_.info());
  }
  explicit NodeSource(Device on) : NodeSource(host_accessible(on).default_pool()) {}

  PoolView pool() const noexcept { return pool_; }
  Device device() const noexcept { return device_; }
  void trim() const noexcept {
    if (nodes_ != nullptr) nodes_->trim();
  }

  /// A node, if the pool is a default one, or a block. Throws BadAlloc.
  [[nodiscard]] void* allocate(std::size_t size_bytes, std::size_t alignment) const {
    if (shares_ && nodes_ != nullptr && NodeStore::takes(size_bytes, alignment)) {
      millpond_pool* open =
          nullptr;  // a device that has ended has no pool, and its nodes no memory
      if (millpond_device_get_default_pool(device_.get(), &open) != C_SUCCESS) throw BadAlloc();
      if (void* const node = nodes_->allocate(size_bytes, alignment)) return node;
    }
    // The standard wants an address of its own for 0 bytes.
    return allocate_unordered(pool_.get(), size_bytes == 0 ? 1 : size_bytes, alignment);
  }
  /// Frees what allocate() of any source of this device returned for the same size and alignment.
  void deallocate(void* address, std::size_t size_bytes, std::size_t alignment) const noexcept {
    if (nodes_ != nullptr && NodeStore::takes(size_bytes, alignment) &&
        nodes_->deallocate(address)) {
      return;
    }
    free_unordered(device_.get(), address, alignment, sure_alignment_);
  }

 private:
  PoolView pool_;
  Device device_;
  bool shares_ = false;             // requests of its pool may be nodes
  NodeStore* nodes_ = nullptr;      // of the device; nullptr: there can be none
  std::size_t sure_alignment_ = 1;  // [B] of every block
};

}  // namespace detail

/// std::pmr::memory_resource over a pool, for instance a device's default one. Any alignment that
/// is a power of two works. allocate() throws BadAlloc, a std::bad_alloc, for every failure;
/// deallocate() never throws. Usable from many threads at once; two of them are equal when they
/// serve the same device: each can free what the other allocated. It owns nothing: its blocks
/// outlive it.
///
/// On a device's default pool, requests of up to 512 bytes share blocks of 64 KiB, which lie in a
/// pool of their own ("nodes of std::pmr" in reports): no scope, tag or hook sees them one by one,
/// and checkpoints of other pools have nothing to do with them. A block goes back when no request
/// is in it, but for one of each size. On other pools each request is a block of its own, which
/// costs at least the device's min chunk: 512 bytes on the built-in ones.
class MemoryResource final : public std::pmr::memory_resource {
 public:
  /// Throws MILLPOND_E_UNSUPPORTED if the host cannot access the device's memory.
  explicit MemoryResource(PoolView pool) : from_(pool) {}
  /// The device's default pool.
  explicit MemoryResource(Device on) : from_(on) {}
  /// The pool that it serves.
  PoolView pool() const noexcept { return from_.pool(); }
  /// The pool's device.
  Device device() const noexcept { return from_.device(); }
  /// Gives back the shared blocks of the device that no small request is in.
  void trim() const noexcept { from_.trim(); }

 private:
  void* do_allocate(std::size_t size_bytes, std::size_t alignment) override {
    return from_.allocate(size_bytes, alignment);
  }
  void do_deallocate(void* address, std::size_t size_bytes, std::size_t alignment) override {
    from_.deallocate(address, size_bytes, alignment);
  }
  // Without run-time types, which one file of a program may have and another not: the other
  // resource is asked about this one. One of this class notices that it is asked, and compares.
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    const MemoryResource* const asks = asks_;
    if (this == &other) return true;
    if (asks == &other) return asks->device() == device();
    if (asks == this) return false;  // the other asks back, so it is of another class
    asks_ = this;
    const bool same = other.is_equal(*this);
    asks_ = asks;
    return same;
  }

  detail::NodeSource from_;
  inline static thread_local const MemoryResource* asks_ = nullptr;  // of this thread, now
};

/// An allocator for standard containers: std::vector<float, Allocator<float>>
/// v(Allocator<float>(d)). The same rules as MemoryResource.
template <typename T>
class Allocator {
 public:
  using value_type = T;

  /// Throws MILLPOND_E_UNSUPPORTED if the host cannot access the device's memory.
  explicit Allocator(PoolView pool) : from_(pool) {}
  /// The device's default pool.
  explicit Allocator(Device on) : from_(on) {}
  /// The same pool for another element type.
  template <typename U>
  Allocator(const Allocator<U>& other) noexcept : from_(other.from_) {}
  /// The pool that it serves.
  PoolView pool() const noexcept { return from_.pool(); }
  /// The pool's device.
  Device device() const noexcept { return from_.device(); }

  /// Room for `count` elements. Throws std::bad_alloc.
  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(from_.allocate(count * sizeof(T), alignof(T)));
  }
  /// Frees what allocate() returned. Never throws.
  void deallocate(T* address, std::size_t count) noexcept {
    from_.deallocate(address, count * sizeof(T), alignof(T));
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

  detail::NodeSource from_;
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_EXCEPTIONS
#endif  // MILLPOND_CPP_PMR_HPP
