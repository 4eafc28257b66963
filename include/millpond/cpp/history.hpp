// Histories as objects: History and Recording begin with their constructors and end with their
// destructors, or with their device if that ends first; annotate() notes something in every
// history. docs/history.md describes what they hold. A destructor cannot say that a file is not
// whole: call stop() where that matters.
#ifndef MILLPOND_CPP_HISTORY_HPP
#define MILLPOND_CPP_HISTORY_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millpond/cpp/device.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// A note in the history of each open device that has one. `note` is UTF-8. Thread-safe.
MILLPOND_CPP_CHECKED inline C_Status annotate(const std::string& note) {
  return check(millpond_history_annotate(note.c_str()));
}

/// The clock that events are stamped with: see millpond_history_stamp. Thread-safe.
inline std::uint64_t history_stamp() noexcept { return millpond_history_stamp(); }

/// An event of a history that owns what it tells: see millpond_history_event.
struct HistoryEvent {
  std::uint64_t time_ns;              ///< by CLOCK_MONOTONIC
  std::uint32_t kind;                 ///< MILLPOND_HISTORY_ALLOC to _ANNOTATE
  std::uint32_t flags;                ///< MILLPOND_HISTORY_HOST and the like
  void* ptr;                          ///< of the block or the range; NULL for a note
  std::uint64_t size_bytes;           ///< as charged
  std::uint64_t requested_bytes;      ///< as asked for
  C_Stream stream;                    ///< where `flags` say that there is one
  millpond_pool* pool;                ///< NULL where it has ended
  std::uint32_t thread;               ///< the system's number of it
  std::uint32_t tag;                  ///< 0: none
  std::vector<std::uint64_t> frames;  ///< return addresses, the innermost first
  std::string text;                   ///< of a note
  std::uint64_t stamp;                ///< when, as history_stamp() tells it
  std::uint64_t device_free_bytes;    ///< of MILLPOND_HISTORY_OOM; see millpond_history_event
};

/// How a history is to be.
struct HistoryOptions {
  std::string path{};           ///< all events go to this file, too; empty: to none
  std::size_t event_count = 0;  ///< the newest so many are kept; 0: 65 536
  std::size_t frame_count = 0;  ///< callers of each request, free and note, 64 at most
};

/// The signal `signal` begins a history of each open device that has none, and the next one ends
/// these; 0: none does any more. See millpond_history_on_signal. Throws MILLPOND_E_BUSY where the
/// program handles the signal itself.
MILLPOND_CPP_CHECKED inline C_Status history_on_signal(int signal, const HistoryOptions& how = {}) {
  millpond_history_options options{};
  options.struct_size = sizeof options;
  options.event_count = how.event_count;
  options.frame_count = how.frame_count;
  options.path = how.path.empty() ? nullptr : how.path.c_str();
  return check(millpond_history_on_signal(signal, &options));
}

/// The history of a device, from here to its end. Moves, does not copy. One thread at a time uses
/// an object; the device may be used by all meanwhile.
///
///   {
///     History history(device, {"run.history"});
///     annotate("epoch 3");
///     ...
///   }  // the file is whole
class [[nodiscard]] History {
 public:
  /// Of no device.
  History() noexcept = default;
  /// Begins. Throws MILLPOND_E_BUSY where the device has a history already, MILLPOND_E_SYSTEM for a
  /// file that cannot be written.
  explicit History(Device device, const HistoryOptions& how = {}) : device_(device) {
    running_ = device.start_history(how.path, how.event_count, how.frame_count) == C_SUCCESS;
    known_ = running_;
  }
  /// Takes it over; `other` is left empty.
  History(History&& other) noexcept
      : device_(other.device_),
        running_(std::exchange(other.running_, false)),
        known_(std::exchange(other.known_, false)) {}
  /// Ends its own history, then takes the other's over.
  History& operator=(History&& other) noexcept {
    if (this == &other) return *this;
    History old(std::move(*this));
    device_ = other.device_;
    running_ = std::exchange(other.running_, false);
    known_ = std::exchange(other.known_, false);
    return *this;
  }
  History(const History&) = delete;
  History& operator=(const History&) = delete;
  /// Ends the history that the device has then, so do not end it in another way and begin another
  /// one meanwhile. Never throws: what has become of the file only stop() tells.
  ~History() {
    if (running_) (void)millpond_device_history_stop(device_.get(), nullptr);
  }

  /// Whether it has begun and not ended.
  explicit operator bool() const noexcept { return running_; }
  /// Ends it now: how many events its file lacks. Throws MILLPOND_E_SYSTEM where the file could not
  /// be written wholly; it has ended all the same. 0 where it is not running.
  std::uint64_t stop() {
    if (!std::exchange(running_, false)) return 0;
    return device_.stop_history();
  }
  /// Calls `each(const millpond_history_event&)` for each event that it has kept, the oldest first,
  /// until that returns false: how many there were before. Also after stop(), until another begins.
  template <typename Each>
  std::uint64_t read(Each each) const {
    return known_ ? device_.read_history(std::move(each)) : 0;
  }
  /// The same as a list; `dropped` (may be nullptr) is how many there were before. Throws
  /// std::bad_alloc if there is no room for the list.
  std::vector<HistoryEvent> events(std::uint64_t* dropped = nullptr) const {
    std::vector<HistoryEvent> all;
    const auto add = [&all](const millpond_history_event& e) {
      HistoryEvent event{
          e.time_ns, e.kind, e.flags, e.ptr, e.size_bytes, e.requested_bytes,  e.stream, e.pool,
          e.thread,  e.tag,  {},      {},    e.stamp,      e.device_free_bytes};
      event.frames.assign(e.frames, e.frames + e.frame_count);
      if (e.text != nullptr) event.text = e.text;
      all.push_back(std::move(event));
      return true;
    };
    std::uint64_t before = 0;
    if (known_) {
      using Walk = detail::Walk<decltype(add)>;
      Walk walk{add};
      walk.ended(millpond_device_history_read(
          device_.get(), &Walk::template step<millpond_history_event>, &walk, &before));
    }
    if (dropped != nullptr) *dropped = before;
    return all;
  }

 private:
  Device device_;
  bool running_ = false;
  bool known_ = false;  // it has begun: what it has kept can be read
};

/// A recording of what is asked of a device, for `millpond replay`. Moves, does not copy.
class [[nodiscard]] Recording {
 public:
  /// Of no device.
  Recording() noexcept = default;
  /// Begins. Throws MILLPOND_E_BUSY while the device is recorded, MILLPOND_E_SYSTEM for a file that
  /// cannot be written.
  Recording(Device device, const std::string& path) : device_(device) {
    running_ = device.start_record(path) == C_SUCCESS;
  }
  /// Takes it over; `other` is left empty.
  Recording(Recording&& other) noexcept
      : device_(other.device_), running_(std::exchange(other.running_, false)) {}
  /// Ends its own recording, then takes the other's over.
  Recording& operator=(Recording&& other) noexcept {
    if (this == &other) return *this;
    Recording old(std::move(*this));
    device_ = other.device_;
    running_ = std::exchange(other.running_, false);
    return *this;
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  /// Ends the recording that the device has then, as ~History. Never throws.
  ~Recording() {
    if (running_) (void)millpond_device_record_stop(device_.get(), nullptr);
  }

  /// Whether it has begun and not ended.
  explicit operator bool() const noexcept { return running_; }
  /// Ends it now: how many events it lacks. As History::stop().
  std::uint64_t stop() {
    if (!std::exchange(running_, false)) return 0;
    return device_.stop_record();
  }

 private:
  Device device_;
  bool running_ = false;
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_HISTORY_HPP
