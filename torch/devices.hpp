// The devices that PyTorch uses, each with the pools that it named and the graphs that are captured
// into them. Shared by the functions of the shared object; not installed.
//
// A pool counts its uses as PyTorch's own allocator does: a begin is one more, a release one less.
// With the last use it ends: its captures are released without a wait, and what it had becomes
// ordinary memory once the device has passed everything queued by then.
#ifndef MILLPOND_TORCH_DEVICES_HPP
#define MILLPOND_TORCH_DEVICES_HPP

#include <millpond/millpond.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "pluggable.hpp"

namespace millpond_torch {

/// This thread's last failure.
std::string& last_error();

/// Keeps Millpond's last error.
void keep_error();
/// Whether a call of Millpond has failed; keeps its error then.
inline bool failed(C_Status status) {
  if (status == C_SUCCESS) return false;
  keep_error();
  return true;
}

/// The type of PyTorch's devices: `cuda`, or what MILLPOND_TORCH_DEVICE names.
const std::string& device_type();

inline C_Stream stream_of(Stream stream) { return reinterpret_cast<C_Stream>(stream); }

/// What the driver records on a stream at the moment.
struct Recording {
  /// `unknown`: the driver does not say, and it may be `active`.
  enum class State { none, active, broken, unknown } state;
  std::uint64_t id;  // of the capture, unique in the process
};
Recording recording(Stream stream);

/// What Millpond calls a pool of PyTorch's, and back.
std::string name_of(PoolId id);
bool id_of_name(const std::string& name, PoolId& out);

/// A pool that PyTorch named.
struct Pool {
  PoolId id;
  millpond_pool* pool = nullptr;
  millpond_capture* kept = nullptr;  // its memory is its own; NULL where the driver has the memory
  int uses = 0;                      // begins without their release
  bool serves_others = false;        // where a request finds no memory; by the device's lock
  bool elsewhere = false;            // another allocator has its memory, and no member but these
};

/// A device in use. All members may be called from any thread.
class Device {
 public:
  explicit Device(millpond_device* device, millpond_pool* pool) : device_(device), pool_(pool) {}

  millpond_device* get() const { return device_; }
  millpond_pool* default_pool() const { return pool_; }

  /// The pool that serves a request of the stream now; NULL: the default one. Throws Refused where
  /// the memory of a graph could not be kept for it.
  std::shared_ptr<Pool> pool_for(Stream stream) {
    // Acquire: pairs with the release in `count`, so that a capture's first request finds its
    // filter.
    return busy_.load(std::memory_order_acquire) ? busy_pool_for(stream) : nullptr;
  }

  /// One more use of the pool, which serves what the filter accepts from now on. Throws Refused.
  void begin(PoolId id, Filter filter, bool elsewhere = false);
  /// One more use of the pool. Throws Refused.
  void hold(PoolId id);
  /// The pool of this id; NULL: there is none.
  std::shared_ptr<Pool> named(PoolId id);
  /// How many uses the pool has.
  int uses(PoolId id);
  /// Whether requests of others may be served from the pool where there is no memory. False: there
  /// is no such pool.
  bool serve_others(PoolId id, bool serves);
  /// Whether they may.
  bool serves_others(PoolId id);
  std::vector<std::shared_ptr<Pool>> serving_others();
  /// The pool's latest filter goes. False: it has none.
  bool end(PoolId id);
  /// One use less.
  void release(PoolId id);

  /// Gives the memory of ended pools back, and waits for the device if it must.
  void sweep();
  bool has_ended_pools();

  /// A request that has failed for lack of memory is tried again, or was served from elsewhere.
  /// Then PyTorch does not count that as out of memory.
  void avert_oom() { averted_.fetch_add(1, std::memory_order_relaxed); }
  /// How often that was so since they were reset.
  std::uint64_t averted_ooms() const { return averted_.load(std::memory_order_relaxed); }
  void reset_averted_ooms() { averted_.store(0, std::memory_order_relaxed); }

  /// PyTorch's id of a pool of this device; 0, 0 for the default one.
  PoolId id_of(const millpond_pool* pool);

  /// The pool of segments for torch.cuda.MemPool; NULL, with the error kept, where there is none.
  millpond_pool* segments();

 private:
  /// Streams that were captured together into one graph.
  struct Capture {
    std::shared_ptr<Pool> pool;
    std::uint64_t id;  // the driver's
    millpond_capture* handle;
    std::vector<Stream> streams;
    bool over;  // ended; kept until the pool ends
  };
  /// What was begun and has not ended.
  struct Active {
    std::shared_ptr<Pool> pool;
    Filter filter;
    std::uint64_t only;  // the one capture whose requests it took; 0: none yet
    bool others;         // it took requests that were not part of a capture
  };

  std::shared_ptr<Pool> busy_pool_for(Stream stream);
  std::shared_ptr<Pool> find(PoolId id);
  std::shared_ptr<Pool> make(PoolId id, bool elsewhere = false);
  void protect(const std::shared_ptr<Pool>& pool, Stream stream, std::uint64_t id);
  void end_stale(Stream stream, const Recording& now);
  void end_capture(Capture& capture);
  std::vector<millpond_capture*> finish(const std::shared_ptr<Pool>& pool);
  void count();

  millpond_device* const device_;
  millpond_pool* const pool_;
  std::atomic<std::uint64_t> averted_{0};
  std::atomic<bool> busy_{false};  // whether anything is active or captured: no lock without
  std::mutex lock_;                // guards what follows
  std::vector<std::shared_ptr<Pool>> pools_, ended_;
  std::vector<Active> active_;  // in the order of their begins; the last one counts first
  std::vector<Capture> captures_;
  bool unpooled_ = false;  // the driver's own pool serves this device
  millpond_pool* segments_ = nullptr;
};

/// What PyTorch must hear of by an exception.
class Refused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Begins what was asked of every device (history.cpp) on one that has just been opened.
void begin_histories(Device& device, int ordinal);

/// Held while a device is opened.
std::mutex& opening();
/// What the program has set for all devices (settings.cpp) counts for this one, too. False:
/// Millpond refuses it, and the error is kept. Under `opening`.
bool apply_settings(millpond_device* device);

/// Devices that do not reach each other may have mapped memory, too.
void map_always();

/// The devices in use, by ordinal; they are never destroyed.
constexpr std::size_t kDevices = 64;
inline std::array<std::atomic<Device*>, kDevices> devices{};

/// The device, if it is in use.
inline Device* open_device(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= kDevices) return nullptr;
  return devices[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
}
/// The device, opened if it is not; NULL, with the error kept, where it cannot be had.
Device* open_now(int ordinal);
/// The device, opened on first use; as `open_now`.
inline Device* device_at(int ordinal) {
  Device* device = open_device(ordinal);
  return device != nullptr ? device : open_now(ordinal);
}
/// The number of devices there may be.
int device_limit();

/// Runs `body`; an exception becomes `otherwise`, with the error kept.
template <typename Body, typename Result>
Result guard(Result otherwise, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    try {
      last_error() = "the process has no memory for Millpond's own books";
    } catch (...) {
    }
    return otherwise;
  }
}

}  // namespace millpond_torch

#endif
