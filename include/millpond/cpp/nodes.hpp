// Small nodes of standard containers: requests of up to 512 bytes share slabs, blocks of 64 KiB in
// a pool of their own. What MemoryResource and Allocator have beneath them for a device's default
// pool; nothing of it is for programs.
//
// All that is remembered lies in the program's own memory, a bit for each node: nothing is read or
// written in the nodes themselves, so a node may be freed when its device has ended. A store is
// never destroyed, since static objects and threads free late.
//
// Locks are short, and none is held while the library is called. Which one a request takes follows
// from the address of its stack, so that threads seldom meet; a free takes the one of its slab.
#ifndef MILLPOND_CPP_NODES_HPP
#define MILLPOND_CPP_NODES_HPP

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "millpond/cpp/error.hpp"

#if MILLPOND_CPP_EXCEPTIONS

namespace millpond {
inline namespace MILLPOND_CPP_ABI {
namespace detail {

/// The largest request that shares a slab. [B]
inline constexpr std::size_t kLargestNode = 512;
/// Nodes are multiples of this. [B]
inline constexpr std::size_t kNodeUnit = 16;
/// A slab, and its alignment. [B]
inline constexpr std::size_t kSlabBytes = std::size_t{64} << 10;

/// How many forks lie between the process that made the first store and this one: a child must not
/// use what its parent has.
inline std::atomic<unsigned> forks{0};
inline void note_fork() noexcept { forks.fetch_add(1, std::memory_order_relaxed); }

/// A lock that is held for some instructions.
class NodeLock {
 public:
  void lock() noexcept {
    for (int tries = 0; taken_.exchange(true, std::memory_order_acquire); ++tries) {
      if (tries > 100) (void)sched_yield();  // its holder may not run
    }
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

/// One slab: nodes of one size. Only its shard's lock makes it change, once it is in use.
struct Slab {
  explicit Slab(std::uintptr_t at) noexcept : base(at) {}

  void begin(unsigned kind, unsigned of_shard) noexcept {
    size = static_cast<std::uint32_t>((kind + 1) * kNodeUnit);
    reciprocal = static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + size - 1) / size);
    const std::uint32_t places = static_cast<std::uint32_t>(kSlabBytes / size);
    summary = 0;
    for (std::uint32_t i = 0; i < places; i += 64) {
      const std::uint32_t left = places - i;
      bits[i / 64] = left < 64 ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
      summary |= std::uint64_t{1} << (i / 64);
    }
    // A node at the start would have the block's own address: freed as a block, it would take all
    // others with it.
    bits[0] &= ~std::uint64_t{1};
    count = free = places - 1;
    shard.store(of_shard, std::memory_order_relaxed);
  }
  /// A free node; there is one.
  void* take() noexcept {
    const unsigned word = static_cast<unsigned>(__builtin_ctzll(summary));
    const unsigned bit = static_cast<unsigned>(__builtin_ctzll(bits[word]));
    bits[word] &= bits[word] - 1;
    if (bits[word] == 0) summary &= summary - 1;
    --free;
    return reinterpret_cast<void*>(base + std::size_t{word * 64 + bit} * size);
  }
  /// Whether `address` was a node in use, which is free now.
  bool give(std::uintptr_t address) noexcept {
    const std::uint64_t offset = address - base;
    const std::uint64_t index = offset * reciprocal >> 32;
    if (index == 0 || index > count || index * size != offset) return false;
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    if ((bits[index / 64] & bit) != 0) return false;
    bits[index / 64] |= bit;
    summary |= std::uint64_t{1} << (index / 64);
    ++free;
    return true;
  }

  const std::uintptr_t base;
  std::atomic<unsigned> shard{kNone};         // whose it is; kNone: its block is freed
  std::uint32_t size = 0, reciprocal = 0;     // [B] of a node, and 2^32 divided by that
  std::uint32_t count = 0, free = 0;          // nodes
  Slab *next = nullptr, *previous = nullptr;  // in the list of its kind, while it has free nodes
  std::uint64_t summary = 0;                  // which words of `bits` are not 0
  std::uint64_t bits[kSlabBytes / kNodeUnit / 64] = {};  // 1: free

  static constexpr unsigned kNone = ~0u;
};

/// Every slab that a store ever had, by address. Grows only, and is read without a lock.
class SlabTable {
 public:
  Slab* find(std::uintptr_t base) const noexcept {
    const Table* const table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return nullptr;
    for (std::size_t i = place(base);; ++i) {
      Slab* const slab = table->slabs[i & table->mask].load(std::memory_order_acquire);
      if (slab == nullptr || slab->base == base) return slab;
    }
  }
  /// The slab at `base`, made if there was none; nullptr without host memory. One thread at a time.
  Slab* make(std::uintptr_t base) noexcept {
    if (Slab* const known = find(base)) return known;
    const Table* const old = table_.load(std::memory_order_relaxed);
    if (old == nullptr || (used_ + 1) * 2 > old->mask + 1) {
      const std::size_t size = old == nullptr ? 64 : (old->mask + 1) * 2;
      Table* const made = new (std::nothrow) Table(size);
      if (made == nullptr || !made->slabs) {
        delete made;
        return nullptr;
      }
      for (std::size_t i = 0; old != nullptr && i <= old->mask; ++i) {
        if (Slab* const slab = old->slabs[i].load(std::memory_order_relaxed)) put(*made, slab);
      }
      made->before = old;  // somebody may still read it
      table_.store(made, std::memory_order_release);
    }
    Slab* const slab = new (std::nothrow) Slab(base);
    if (slab == nullptr) return nullptr;
    put(*table_.load(std::memory_order_relaxed), slab);
    ++used_;
    return slab;
  }
  template <typename Each>
  void each(Each call) const {
    const Table* const table = table_.load(std::memory_order_acquire);
    for (std::size_t i = 0; table != nullptr && i <= table->mask; ++i) {
      if (Slab* const slab = table->slabs[i].load(std::memory_order_acquire)) call(*slab);
    }
  }

 private:
  struct Table {
    explicit Table(std::size_t size)
        : mask(size - 1), slabs(new (std::nothrow) std::atomic<Slab*>[size]()) {}
    const std::size_t mask;
    const std::unique_ptr<std::atomic<Slab*>[]> slabs;
    const Table* before = nullptr;
  };

  static std::size_t place(std::uintptr_t base) noexcept {
    return static_cast<std::size_t>(std::uint64_t{base / kSlabBytes} * 0x9E3779B97F4A7C15u >> 32);
  }
  static void put(const Table& table, Slab* slab) noexcept {
    std::size_t i = place(slab->base);
    while (table.slabs[i & table.mask].load(std::memory_order_relaxed) != nullptr) ++i;
    table.slabs[i & table.mask].store(slab, std::memory_order_release);
  }

  std::atomic<const Table*> table_{nullptr};
  std::size_t used_ = 0;
};

/// The small nodes of one device.
class NodeStore {
 public:
  /// The store of an open device; nullptr without host memory, or where forks cannot be noticed.
  static NodeStore* of(millpond_device* device) noexcept {
    if (NodeStore* const known = find(device)) return known;
    static const bool noticed = pthread_atfork(nullptr, nullptr, &note_fork) == 0;
    NodeStore* const made = noticed ? new (std::nothrow) NodeStore(device) : nullptr;
    if (made == nullptr) return nullptr;
    beginning.lock();
    NodeStore* const other = find(device);  // another thread may have been faster
    if (other == nullptr) {
      made->next_ = stores.load(std::memory_order_relaxed);
      stores.store(made, std::memory_order_release);
    }
    beginning.unlock();
    if (other == nullptr) return made;
    delete made;
    return other;
  }

  /// Whether a request is small enough. The same answer at its free.
  static bool takes(std::size_t size_bytes, std::size_t alignment) noexcept {
    return size_bytes <= kLargestNode && alignment <= kLargestNode && alignment != 0 &&
           (alignment & (alignment - 1)) == 0;
  }
  /// A node; nullptr if the request has to be a block of its own. The device must be open.
  void* allocate(std::size_t size_bytes, std::size_t alignment) noexcept {
    if (born_ != forks_->load(std::memory_order_relaxed)) return nullptr;
    const std::size_t step = alignment < kNodeUnit ? kNodeUnit : alignment;
    const std::size_t size = size_bytes == 0 ? step : (size_bytes + step - 1) & ~(step - 1);
    const unsigned kind = static_cast<unsigned>(size / kNodeUnit) - 1;
    Shard& shard = shards_[own_shard()];
    shard.lock.lock();
    Slab* slab = shard.kinds[kind].first;
    if (slab == nullptr) {
      shard.lock.unlock();
      slab = more(shard, kind);  // locked again, if there is one
      if (slab == nullptr) return nullptr;
    }
    Kind& of_kind = shard.kinds[kind];
    if (slab->free == slab->count) --of_kind.idle;
    void* const node = slab->take();
    if (slab->free == 0) of_kind.unlink(slab);
    shard.lock.unlock();
    return node;
  }
  /// Whether `address` is a node of this store; it is free then.
  bool deallocate(void* address) noexcept {
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(address);
    Slab* const slab = slabs_.find(at & ~(std::uintptr_t{kSlabBytes} - 1));
    if (slab == nullptr) return false;
    // The child of a fork leaves its parent's alone.
    if (born_ != forks_->load(std::memory_order_relaxed)) return true;
    const unsigned number = slab->shard.load(std::memory_order_relaxed);
    if (number == Slab::kNone) return false;
    Shard& shard = shards_[number];
    shard.lock.lock();
    if (slab->shard.load(std::memory_order_relaxed) != number || !slab->give(at)) {
      shard.lock.unlock();
      return true;  // it was freed before
    }
    Kind& of_kind = shard.kinds[slab->size / kNodeUnit - 1];
    if (slab->free == 1) of_kind.link(slab);
    bool ends = false;
    if (slab->free == slab->count) {
      ends = of_kind.idle != 0;  // one stays, for who allocates and frees in turn
      if (ends) {
        of_kind.unlink(slab);
        slab->shard.store(Slab::kNone, std::memory_order_relaxed);
      } else {
        ++of_kind.idle;
      }
    }
    shard.lock.unlock();
    if (ends) give_back(slab->base);
    return true;
  }
  /// Frees the slabs that no node is in.
  void trim() noexcept {
    if (born_ != forks_->load(std::memory_order_relaxed)) return;
    slabs_.each([this](Slab& slab) {
      const unsigned number = slab.shard.load(std::memory_order_relaxed);
      if (number == Slab::kNone) return;
      Shard& shard = shards_[number];
      shard.lock.lock();
      const bool ends =
          slab.shard.load(std::memory_order_relaxed) == number && slab.free == slab.count;
      if (ends) {
        Kind& of_kind = shard.kinds[slab.size / kNodeUnit - 1];
        of_kind.unlink(&slab);
        --of_kind.idle;
        slab.shard.store(Slab::kNone, std::memory_order_relaxed);
      }
      shard.lock.unlock();
      if (ends) give_back(slab.base);
    });
  }

 private:
  static constexpr std::size_t kKinds = kLargestNode / kNodeUnit;
  static constexpr unsigned kShards = 8;

  /// The slabs of one shard with nodes of one size.
  struct Kind {
    Slab* first = nullptr;   // of those that have free nodes
    std::uint32_t idle = 0;  // how many of them no node is in
    void link(Slab* slab) noexcept {
      slab->previous = nullptr;
      slab->next = first;
      if (first != nullptr) first->previous = slab;
      first = slab;
    }
    void unlink(Slab* slab) noexcept {
      (slab->previous == nullptr ? first : slab->previous->next) = slab->next;
      if (slab->next != nullptr) slab->next->previous = slab->previous;
    }
  };
  struct alignas(64) Shard {
    NodeLock lock;
    Kind kinds[kKinds];
  };

  explicit NodeStore(millpond_device* device) noexcept
      : device_(device), forks_(&forks), born_(forks.load(std::memory_order_relaxed)) {}

  /// The pool of the slabs, made for the first of them; nullptr if that fails.
  millpond_pool* pool() noexcept {
    millpond_pool* known = pool_.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    millpond_pool_options options{};
    options.struct_size = sizeof options;
    options.name = "nodes of std::pmr";
    millpond_pool* made = nullptr;
    if (millpond_pool_create(device_, &options, &made) != C_SUCCESS) return nullptr;
    if (pool_.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
    (void)millpond_pool_release(made);  // another thread was faster
    return known;
  }

  static NodeStore* find(const millpond_device* device) noexcept {
    NodeStore* store = stores.load(std::memory_order_acquire);
    while (store != nullptr &&
           (store->device_ != device || store->born_ != forks.load(std::memory_order_relaxed))) {
      store = store->next_;
    }
    return store;
  }
  /// Threads have stacks of their own, some megabytes apart.
  static unsigned own_shard() noexcept {
    const char here = 0;
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(&here) >> 20;
    return static_cast<unsigned>((at ^ at >> 3 ^ at >> 6) % kShards);
  }
  /// Takes a slab from the device. Its shard is locked then; nullptr, and not locked, if there is
  /// none.
  Slab* more(Shard& shard, unsigned kind) noexcept {
    void* block = nullptr;
    millpond_pool* const from = pool();
    if (from == nullptr ||
        millpond_pool_alloc_unordered_aligned(from, kSlabBytes, kSlabBytes, &block) != C_SUCCESS) {
      return nullptr;  // without slabs, each request is a block of its own
    }
    Slab* slab = nullptr;
    growing_.lock();
    slab = slabs_.make(reinterpret_cast<std::uintptr_t>(block));
    growing_.unlock();
    if (slab == nullptr) {
      (void)millpond_device_free(device_, block);
      return nullptr;
    }
    shard.lock.lock();
    slab->begin(kind, static_cast<unsigned>(&shard - shards_));
    shard.kinds[kind].link(slab);
    ++shard.kinds[kind].idle;
    return slab;
  }
  void give_back(std::uintptr_t base) noexcept {
    (void)millpond_device_free(device_, reinterpret_cast<void*>(base));
  }

  inline static std::atomic<NodeStore*> stores{nullptr};  // of all devices that ever were
  inline static NodeLock beginning;

  millpond_device* const device_;
  const std::atomic<unsigned>* const forks_;  // of the library that made it
  const unsigned born_;                       // what that was then
  std::atomic<millpond_pool*> pool_{nullptr};
  NodeStore* next_ = nullptr;
  NodeLock growing_;
  SlabTable slabs_;
  Shard shards_[kShards];
};

}  // namespace detail
}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_EXCEPTIONS
#endif  // MILLPOND_CPP_NODES_HPP
