// Resources over resources, which compose: a limit, a choice by size, an arena. Each takes another
// by value (a StreamResource, or one of these) and is itself a resource in stream order:
//
//   StreamResource<> pool(device);
//   LimitingResource limited(pool, 1u << 30);          // at most 1 GiB at a time
//   BinningResource split(small, limited, 64u << 10);  // up to 64 KiB from `small`
//   ArenaResource step(split, 32u << 20);              // many requests, one free
//
// Copies share what the original has. All of them throw BadAlloc, and need exceptions, as
// StreamResource does.
#ifndef MILLPOND_CPP_ADAPTORS_HPP
#define MILLPOND_CPP_ADAPTORS_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "millpond/cpp/aligned.hpp"
#include "millpond/cpp/resource.hpp"

#if MILLPOND_CPP_EXCEPTIONS

namespace millpond {
inline namespace MILLPOND_CPP_ABI {
namespace detail {

/// A stream in the form that every resource of this library takes, and those of libcu++ too.
struct AnyStream {
  C_Stream stream;
  C_Stream get() const noexcept { return stream; }
};

}  // namespace detail

/// Refuses what would make the bytes that are in use through it exceed a limit:
/// MILLPOND_E_OUT_OF_MEMORY. Counts the bytes that are asked for. A limit of what is *reserved* is
/// the pool's own (PoolView::set_limit). Usable from many threads at once where the upstream is.
template <typename Upstream>
class LimitingResource {
 public:
  /// The same as the upstream's.
  static constexpr std::size_t kDefaultAlignment = Upstream::kDefaultAlignment;

  /// At most `limit_bytes` of `upstream` at a time.
  LimitingResource(Upstream upstream, std::size_t limit_bytes)
      : upstream_(std::move(upstream)), state_(std::make_shared<State>(limit_bytes)) {}

  /// What it takes its memory from.
  const Upstream& upstream() const noexcept { return upstream_; }
  /// The limit, in bytes.
  std::size_t limit_bytes() const noexcept { return state_->limit; }
  /// Bytes that are in use now.
  std::size_t used_bytes() const noexcept { return state_->used.load(); }

  /// As StreamResource::allocate().
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  [[nodiscard]] void* allocate(const S& stream, std::size_t size_bytes,
                               std::size_t alignment = kDefaultAlignment) const {
    return counted(size_bytes, [&] { return upstream_.allocate(stream, size_bytes, alignment); });
  }
  /// As StreamResource::deallocate().
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  void deallocate(const S& stream, void* address, std::size_t size_bytes,
                  std::size_t alignment = kDefaultAlignment) const noexcept {
    upstream_.deallocate(stream, address, size_bytes, alignment);
    if (address != nullptr) state_->used -= size_bytes;
  }
  /// As StreamResource::allocate_sync().
  [[nodiscard]] void* allocate_sync(std::size_t size_bytes,
                                    std::size_t alignment = kDefaultAlignment) const {
    return counted(size_bytes, [&] { return upstream_.allocate_sync(size_bytes, alignment); });
  }
  /// As StreamResource::deallocate_sync().
  void deallocate_sync(void* address, std::size_t size_bytes,
                       std::size_t alignment = kDefaultAlignment) const noexcept {
    upstream_.deallocate_sync(address, size_bytes, alignment);
    if (address != nullptr) state_->used -= size_bytes;
  }

  /// Whether both count in the same account.
  friend bool operator==(const LimitingResource& a, const LimitingResource& b) noexcept {
    return a.state_ == b.state_;
  }
  /// The opposite.
  friend bool operator!=(const LimitingResource& a, const LimitingResource& b) noexcept {
    return !(a == b);
  }
  /// It has the properties of its upstream.
  template <typename P, typename U = Upstream>
  friend constexpr auto get_property(const LimitingResource& r, P property) noexcept
      -> decltype(get_property(std::declval<const U&>(), property)) {
    return get_property(r.upstream_, property);
  }

 private:
  struct State {
    explicit State(std::size_t most) : limit(most) {}
    const std::size_t limit;           // [B]
    std::atomic<std::size_t> used{0};  // [B] never above `limit`
  };

  template <typename Take>
  void* counted(std::size_t size_bytes, Take take) const {
    std::size_t used = state_->used.load();
    do {
      if (size_bytes > state_->limit - used) {
        throw BadAlloc(MILLPOND_E_OUT_OF_MEMORY, "the limit of the resource is reached");
      }
    } while (!state_->used.compare_exchange_weak(used, used + size_bytes));
    try {
      return take();
    } catch (...) {
      state_->used -= size_bytes;
      throw;
    }
  }

  Upstream upstream_;
  std::shared_ptr<State> state_;
};

/// Serves requests of up to `most_bytes` from one resource and larger ones from another. For more
/// bins, one of the two is a BinningResource. Sizes at deallocation must be those of the request,
/// since they say whose the block is.
template <typename Small, typename Large>
class BinningResource {
 public:
  /// What a caller that names no alignment gets. [B]
  static constexpr std::size_t kDefaultAlignment = Small::kDefaultAlignment;

  /// Up to and including `most_bytes`, `small` serves.
  BinningResource(Small small, Large large, std::size_t most_bytes)
      : small_(std::move(small)), large_(std::move(large)), most_(most_bytes) {}

  /// What serves small requests.
  const Small& small() const noexcept { return small_; }
  /// What serves the others.
  const Large& large() const noexcept { return large_; }
  /// The largest request that is small, in bytes.
  std::size_t most_bytes() const noexcept { return most_; }

  /// As StreamResource::allocate().
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  [[nodiscard]] void* allocate(const S& stream, std::size_t size_bytes,
                               std::size_t alignment = kDefaultAlignment) const {
    return size_bytes <= most_ ? small_.allocate(stream, size_bytes, alignment)
                               : large_.allocate(stream, size_bytes, alignment);
  }
  /// As StreamResource::deallocate().
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  void deallocate(const S& stream, void* address, std::size_t size_bytes,
                  std::size_t alignment = kDefaultAlignment) const noexcept {
    size_bytes <= most_ ? small_.deallocate(stream, address, size_bytes, alignment)
                        : large_.deallocate(stream, address, size_bytes, alignment);
  }
  /// As StreamResource::allocate_sync().
  [[nodiscard]] void* allocate_sync(std::size_t size_bytes,
                                    std::size_t alignment = kDefaultAlignment) const {
    return size_bytes <= most_ ? small_.allocate_sync(size_bytes, alignment)
                               : large_.allocate_sync(size_bytes, alignment);
  }
  /// As StreamResource::deallocate_sync().
  void deallocate_sync(void* address, std::size_t size_bytes,
                       std::size_t alignment = kDefaultAlignment) const noexcept {
    size_bytes <= most_ ? small_.deallocate_sync(address, size_bytes, alignment)
                        : large_.deallocate_sync(address, size_bytes, alignment);
  }

  /// Whether each can free what the other allocated.
  friend bool operator==(const BinningResource& a, const BinningResource& b) noexcept {
    return a.most_ == b.most_ && a.small_ == b.small_ && a.large_ == b.large_;
  }
  /// The opposite.
  friend bool operator!=(const BinningResource& a, const BinningResource& b) noexcept {
    return !(a == b);
  }
  /// It has the properties that both have.
  template <typename P, typename A = Small, typename B = Large>
  friend constexpr auto get_property(const BinningResource& r, P property) noexcept
      -> decltype(get_property(std::declval<const A&>(), property),
                  get_property(std::declval<const B&>(), property)) {
    return get_property(r.small_, property);
  }

 private:
  Small small_;
  Large large_;
  std::size_t most_;  // [B]
};

/// A linear arena on one stream: requests are cut one after the other from chunks of the upstream,
/// deallocate() does nothing, and release(), or the end of the last copy, frees all chunks at once,
/// in the stream's order. For what is made together and dies together, as the temporaries of a
/// step. Usable from many threads at once.
template <typename Upstream>
class ArenaResource {
 public:
  /// What a caller that names no alignment gets. [B]
  static constexpr std::size_t kDefaultAlignment = Upstream::kDefaultAlignment;

  /// Takes chunks of `chunk_bytes`, or of a larger request's own size, from `upstream` on `stream`.
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  ArenaResource(Upstream upstream, const S& stream, std::size_t chunk_bytes)
      : state_(std::make_shared<State>(std::move(upstream), detail::stream_handle(stream),
                                       chunk_bytes)) {}

  /// What it takes its chunks from.
  const Upstream& upstream() const noexcept { return state_->upstream; }
  /// Bytes of all chunks.
  std::size_t reserved_bytes() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->reserved();
  }

  /// Room for work queued on the arena's stream from now on; MILLPOND_E_INVALID_ARGUMENT for
  /// another stream, and for an alignment that is not a power of two. 0 bytes give nullptr.
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  [[nodiscard]] void* allocate(const S& stream, std::size_t size_bytes,
                               std::size_t alignment = kDefaultAlignment) const {
    if (detail::stream_handle(stream) != state_->on.stream) {
      throw BadAlloc(MILLPOND_E_INVALID_ARGUMENT, "the arena is on another stream");
    }
    return allocate(size_bytes, alignment);
  }
  /// The same on the arena's stream.
  [[nodiscard]] void* allocate(std::size_t size_bytes,
                               std::size_t alignment = kDefaultAlignment) const {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
      throw BadAlloc(MILLPOND_E_INVALID_ARGUMENT, "the alignment is not a power of two");
    }
    if (size_bytes == 0) return nullptr;
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (void* const room = state_->cut(size_bytes, alignment)) return room;
    }
    // Unlocked: a callback that is asked for memory may release this arena.
    return state_->grow(size_bytes, alignment);
  }
  /// Does nothing: release() frees.
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  void deallocate(const S&, void*, std::size_t, std::size_t = kDefaultAlignment) const noexcept {}
  /// Frees all chunks in the stream's order: what was cut from them must not be used by work that
  /// is queued later.
  void release() const noexcept { state_->release(); }

  /// Whether both cut from the same chunks.
  friend bool operator==(const ArenaResource& a, const ArenaResource& b) noexcept {
    return a.state_ == b.state_;
  }
  /// The opposite.
  friend bool operator!=(const ArenaResource& a, const ArenaResource& b) noexcept {
    return !(a == b);
  }

 private:
  struct Chunk {
    void* address;
    std::size_t size, alignment;  // [B] as asked of the upstream
  };
  struct State {
    State(Upstream from, C_Stream stream, std::size_t chunk_bytes)
        : upstream(std::move(from)), on{stream}, chunk(chunk_bytes) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { release(); }

    void* cut(std::size_t size_bytes, std::size_t alignment) {
      const std::uintptr_t at =
          (next + alignment - 1) & ~(static_cast<std::uintptr_t>(alignment) - 1);
      if (next == 0 || at < next || at > end || size_bytes > end - at) return nullptr;
      next = at + size_bytes;
      return reinterpret_cast<void*>(at);
    }
    void* grow(std::size_t size_bytes, std::size_t alignment) {
      const std::size_t size = size_bytes > chunk ? size_bytes : chunk;
      const std::size_t aligned = alignment > kDefaultAlignment ? alignment : kDefaultAlignment;
      std::list<Chunk> one(1);  // made here, so that nothing fails once the memory is there
      void* const made = upstream.allocate(on, size, aligned);
      one.front() = {made, size, aligned};
      const std::lock_guard<std::mutex> lock(mutex);
      chunks.splice(chunks.end(), one);
      const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(made);
      // A request with a chunk of its own leaves the current one in place, if that has more room.
      if (size - size_bytes > end - next) {
        next = start + size_bytes;
        end = start + size;
      }
      return made;
    }
    void release() noexcept {
      std::list<Chunk> gone;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        gone.swap(chunks);
        next = end = 0;
      }
      // Unlocked: a hook that is told of a free may ask this arena.
      for (const Chunk& c : gone) upstream.deallocate(on, c.address, c.size, c.alignment);
    }
    std::size_t reserved() const {
      std::size_t sum = 0;
      for (const Chunk& c : chunks) sum += c.size;
      return sum;
    }

    Upstream upstream;
    const detail::AnyStream on;
    const std::size_t chunk;  // [B]
    mutable std::mutex mutex;
    std::list<Chunk> chunks;
    std::uintptr_t next = 0, end = 0;  // what is left of the current chunk
  };

  std::shared_ptr<State> state_;
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_EXCEPTIONS
#endif  // MILLPOND_CPP_ADAPTORS_HPP
