// What pools can do besides allocating: serve a thread's requests that name no pool (PoolScope),
// keep the memory of graphs (Capture), and go back to an earlier layout (Checkpoint).
#ifndef MILLPOND_CPP_POOLS_HPP
#define MILLPOND_CPP_POOLS_HPP

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "millpond/cpp/memory.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// While it lives, requests of its thread to the default pool of the pool's device are served from
/// the pool: Device::allocate(), memory::Alloc(), MemoryResource above 512 bytes, and allocations
/// on the default pool. Scopes nest. A scope must end on its thread, the innermost first, as a
/// local variable does.
class [[nodiscard]] PoolScope {
 public:
  /// Throws MILLPOND_E_INVALID_ARGUMENT for a pool that does not exist.
  explicit PoolScope(PoolView pool) : pool_(pool) {
    open_ = check(millpond_scope_begin(pool.get())) == C_SUCCESS;
  }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;
  /// Ends the scope. Never throws; on another thread than the one that made it, it has no effect.
  ~PoolScope() {
    if (open_) (void)millpond_scope_end(pool_.get());
  }
  /// Whether it has begun; always true with exceptions.
  explicit operator bool() const noexcept { return open_; }

 private:
  PoolView pool_;
  bool open_ = false;
};

/// A capture of work into a graph, and then the right to the graph's memory: as long as it lives,
/// the pool keeps all its memory at its addresses. Keep it beside the graph. Moves, does not copy.
class [[nodiscard]] Capture {
 public:
  /// Owns nothing.
  Capture() noexcept = default;
  /// Serves all requests of `stream` from `pool`, which must not be the default pool, from now on.
  /// Must be made before the driver starts to record. Throws MILLPOND_E_BUSY if the stream is
  /// captured already.
  Capture(PoolView pool, StreamView stream) {
    check(millpond_capture_begin(pool.get(), stream.get(), &raw_));
  }
  /// Keeps all memory of the pool at its addresses, as a capture does that has ended.
  static Capture keep(PoolView pool) {
    Capture made;
    check(millpond_capture_keep(pool.get(), &made.raw_));
    return made;
  }
  /// Takes the capture over; `other` is left empty.
  Capture(Capture&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  /// Releases its own capture, then takes the other's over.
  Capture& operator=(Capture&& other) noexcept {
    if (this == &other) return *this;
    Capture old(std::move(*this));
    raw_ = std::exchange(other.raw_, nullptr);
    return *this;
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  /// Releases it: the graph must be destroyed, and its last replay queued. Never throws.
  ~Capture() {
    if (raw_ != nullptr) (void)millpond_capture_release(raw_);
  }

  /// The C API's handle; NULL when empty.
  millpond_capture* get() const noexcept { return raw_; }
  /// Whether there is a capture behind this handle.
  explicit operator bool() const noexcept { return raw_ != nullptr; }
  /// Records one more stream into the same graph.
  MILLPOND_CPP_CHECKED C_Status add(StreamView stream) const {
    return check(millpond_capture_add_stream(raw_, stream.get()));
  }
  /// The driver has stopped recording: the streams are ordinary ones again. The memory stays.
  MILLPOND_CPP_CHECKED C_Status end() const { return check(millpond_capture_end(raw_)); }
  /// Releases it now; otherwise the destructor does.
  MILLPOND_CPP_CHECKED C_Status release() {
    const C_Status status = check(millpond_capture_release(raw_));
    if (status == C_SUCCESS) raw_ = nullptr;
    return status;
  }
  /// Releases it now, without waiting for a replay that still runs.
  MILLPOND_CPP_CHECKED C_Status release_async() {
    const C_Status status = check(millpond_capture_release_async(raw_));
    if (status == C_SUCCESS) raw_ = nullptr;
    return status;
  }

 private:
  millpond_capture* raw_ = nullptr;  // NULL: empty
};

/// A block that Checkpoint::restore() has changed.
struct RestoredBlock {
  void* data;              ///< its address
  std::size_t size_bytes;  ///< as asked for
  bool live;               ///< live again, or freed
};

/// A record of which blocks of a pool were live at one moment. Moves, does not copy. The blocks
/// that it makes live again have no owner: adopt them (Buffer::adopt) or free them. Those that it
/// frees must be released (Buffer::release) by their owners, which would otherwise free somebody
/// else's block.
class [[nodiscard]] Checkpoint {
 public:
  /// Owns nothing.
  Checkpoint() noexcept = default;
  /// Records what is live in `pool` now.
  explicit Checkpoint(PoolView pool) : pool_(pool) {
    check(millpond_pool_checkpoint(pool.get(), &raw_));
  }
  /// Takes the checkpoint over; `other` is left empty.
  Checkpoint(Checkpoint&& other) noexcept
      : pool_(other.pool_), raw_(std::exchange(other.raw_, nullptr)) {}
  /// Ends its own checkpoint, then takes the other's over.
  Checkpoint& operator=(Checkpoint&& other) noexcept {
    if (this == &other) return *this;
    Checkpoint old(std::move(*this));
    pool_ = other.pool_;
    raw_ = std::exchange(other.raw_, nullptr);
    return *this;
  }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  /// Ends it. Never throws.
  ~Checkpoint() {
    if (raw_ != nullptr) (void)millpond_checkpoint_destroy(raw_);
  }

  /// The C API's handle; NULL when empty.
  millpond_checkpoint* get() const noexcept { return raw_; }
  /// Makes exactly those blocks live again, and appends to `*changed` (may be nullptr) the blocks
  /// that were freed or made live. Throws MILLPOND_E_NOT_PERMITTED if memory of them is gone; then
  /// nothing has changed. Throws std::bad_alloc if there is no room in `*changed`: then all of it
  /// is done, and some of it is not told.
  MILLPOND_CPP_CHECKED C_Status restore(std::vector<RestoredBlock>* changed = nullptr) const {
    Told told{changed, false};
    const C_Status status = check(
        millpond_pool_restore(pool_.get(), raw_, changed != nullptr ? &tell : nullptr, &told));
#if MILLPOND_CPP_EXCEPTIONS
    if (told.lost) throw std::bad_alloc();
#endif
    return status;
  }

 private:
  struct Told {
    std::vector<RestoredBlock>* changed;
    bool lost;
  };
  static void tell(void* user_data, void* data, std::size_t size_bytes, bool live) noexcept {
    Told& told = *static_cast<Told*>(user_data);
    told.lost |= !detail::answer([&] {
      told.changed->push_back({data, size_bytes, live});
      return true;
    });
  }

  PoolView pool_;
  millpond_checkpoint* raw_ = nullptr;  // NULL: empty
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_POOLS_HPP
