// Streams and events. A StreamView names a stream and owns nothing; a Stream owns one and ends it.
// Work on one stream runs in order; work on different streams runs concurrently.
#ifndef MILLPOND_CPP_STREAM_HPP
#define MILLPOND_CPP_STREAM_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "millpond/cpp/device.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// A point in a stream's work. Owns the event; moves, does not copy.
class [[nodiscard]] Event {
 public:
  /// The empty handle.
  Event() noexcept = default;
  /// A new event, which counts as completed. Throws if the device refuses.
  explicit Event(Device on) : device_(on) { check(millpond_event_create(on.get(), &raw_)); }
  /// One that also notes the time, for elapsed_since(). Throws MILLPOND_E_UNSUPPORTED on devices
  /// of plugins.
  static Event timed(Device on) {
    Event out;
    if (check(millpond_event_create_timed(on.get(), &out.raw_)) == C_SUCCESS) out.device_ = on;
    return out;
  }
  /// Takes the event over; `other` is left empty.
  Event(Event&& other) noexcept
      : device_(std::exchange(other.device_, Device())), raw_(std::exchange(other.raw_, nullptr)) {}
  /// Ends its own event, then takes the other's over.
  Event& operator=(Event&& other) noexcept {
    if (this == &other) return *this;
    Event old(std::move(*this));
    device_ = std::exchange(other.device_, Device());
    raw_ = std::exchange(other.raw_, nullptr);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// Ends the event. Waits for it that are already queued stay in force. Never throws.
  ~Event() {
    if (raw_ != nullptr) (void)millpond_event_destroy(device_.get(), raw_);
  }

  /// The C API's handle; NULL when empty.
  C_Event get() const noexcept { return raw_; }
  /// Whether there is an event behind this handle.
  explicit operator bool() const noexcept { return raw_ != nullptr; }
  /// Its device.
  Device device() const noexcept { return device_; }

  /// Whether what it recorded is done; true if it never recorded.
  bool done() const {
    bool out = false;
    check(millpond_event_query(device_.get(), raw_, &out));
    return out;
  }
  /// Milliseconds from what `start` recorded to what this recorded; both are timed() and done.
  /// Throws MILLPOND_E_BUSY while one of them is not.
  float elapsed_since(const Event& start) const {
    float out = 0;
    check(millpond_event_get_elapsed(device_.get(), start.raw_, raw_, &out));
    return out;
  }
  /// Whether a freed block still waits for what it recorded (record_end): it must not be recorded
  /// again until then.
  bool is_held() const {
    bool out = false;
    check(millpond_event_is_held(device_.get(), raw_, &out));
    return out;
  }
  /// Waits, on the calling thread, until what it recorded is done.
  MILLPOND_CPP_CHECKED C_Status synchronize() const {
    return check(millpond_event_synchronize(device_.get(), raw_));
  }

 private:
  Device device_;
  C_Event raw_ = nullptr;
};

/// Names a stream of a device; owns nothing. Every call on it may come from any thread.
class StreamView {
 public:
  /// The default stream of no device: only good as "the default stream" argument, where the other
  /// arguments tell the device. Elsewhere it is refused (MILLPOND_E_INVALID_ARGUMENT).
  constexpr StreamView() noexcept = default;
  /// Wraps a stream of the C API; NULL is the default stream.
  constexpr StreamView(Device on, C_Stream raw) noexcept : device_(on), raw_(raw) {}

  /// The C API's handle; NULL is the default stream.
  constexpr C_Stream get() const noexcept { return raw_; }
  /// Its device.
  constexpr Device device() const noexcept { return device_; }

  /// Must be called before a stream that was created elsewhere, and used here, is destroyed there.
  MILLPOND_CPP_CHECKED C_Status forget() const {
    return check(millpond_stream_forget(device_.get(), raw_));
  }

  /// Whether all work queued so far is done.
  bool done() const {
    bool out = false;
    check(millpond_stream_query(device_.get(), raw_, &out));
    return out;
  }
  /// Waits, on the calling thread, until all work queued so far is done.
  MILLPOND_CPP_CHECKED C_Status synchronize() const {
    return check(millpond_stream_synchronize(device_.get(), raw_));
  }
  /// Makes `event` stand for everything queued here so far.
  MILLPOND_CPP_CHECKED C_Status record(const Event& event) const {
    return check(millpond_event_record(device_.get(), raw_, event.get()));
  }
  /// Makes work queued here from now on wait for what `event` has recorded; the caller does not
  /// wait.
  MILLPOND_CPP_CHECKED C_Status wait(const Event& event) const {
    return check(millpond_stream_wait_event(device_.get(), raw_, event.get()));
  }
  /// Queues a copy. Each end on the device must lie inside one live block. Host memory must stay
  /// valid until the copy is done, except that a pageable source has been read on return. On cuda a
  /// copy to pageable memory is done on return.
  MILLPOND_CPP_CHECKED C_Status copy(CopyKind kind, void* dst, const void* src,
                                     std::size_t size_bytes) const {
    return check(millpond_copy_async(device_.get(), raw_, static_cast<std::uint32_t>(kind), dst,
                                     src, size_bytes));
  }
  /// Queues a copy from this stream's device into a block of `dst_device`, of the same type.
  MILLPOND_CPP_CHECKED C_Status copy_to(Device dst_device, void* dst, const void* src,
                                        std::size_t size_bytes) const {
    return check(
        millpond_copy_peer_async(dst_device.get(), dst, device_.get(), raw_, src, size_bytes));
  }
  /// Queues a fill with one byte.
  MILLPOND_CPP_CHECKED C_Status memset(void* dst, std::uint8_t value,
                                       std::size_t size_bytes) const {
    return check(millpond_memset_async(device_.get(), raw_, dst, value, size_bytes));
  }
  /// Runs `function` once, on a thread of the device, when the stream reaches it; its argument is
  /// the stream's status. It must not call anything that waits (MILLPOND_E_NOT_PERMITTED). An
  /// exception that leaves it is dropped: nobody is there to catch it. If it cannot be queued,
  /// throws, and does not run or keep `function`.
  MILLPOND_CPP_CHECKED C_Status add_callback(std::function<void(C_Status)> function) const {
    using Function = std::function<void(C_Status)>;
    std::unique_ptr<Function> owned(new (std::nothrow) Function(std::move(function)));
    if (!owned || !*owned) return detail::refuse_function(owned != nullptr);
    const C_Status status =
        millpond_stream_add_callback(device_.get(), raw_, &StreamView::run, owned.get());
    if (status == C_SUCCESS) (void)owned.release();  // run() owns it now
    return check(status);
  }

 private:
  static void run(void* user_data, C_Status status) noexcept {
    const std::unique_ptr<std::function<void(C_Status)>> function(
        static_cast<std::function<void(C_Status)>*>(user_data));
    (void)detail::answer([&] {
      (*function)(status);
      return true;
    });
  }

 protected:
  Device device_;           ///< the device that the stream belongs to
  C_Stream raw_ = nullptr;  ///< NULL: the default stream
};

/// A stream that this object owns. Moves, does not copy; a copy of its StreamView part is a view.
class [[nodiscard]] Stream : public StreamView {
 public:
  /// The empty handle. It is not the default stream, which StreamView() is: every call that gets
  /// it fails with MILLPOND_E_UNKNOWN_STREAM (or, where it names the device, INVALID_ARGUMENT).
  Stream() noexcept : StreamView(Device(), none()) {}
  /// A new stream. Throws if the device refuses; without exceptions the handle is then empty.
  explicit Stream(Device on) : StreamView(on, none()) {
    C_Stream made = nullptr;
    if (check(millpond_stream_create(on.get(), &made)) == C_SUCCESS) raw_ = made;
  }
  /// The same with a priority (lower numbers come first) and flags, 0 or
  /// MILLPOND_STREAM_NON_BLOCKING: see millpond_stream_create_with_priority.
  Stream(Device on, int32_t priority, uint32_t flags = 0) : StreamView(on, none()) {
    C_Stream made = nullptr;
    const C_Status done = millpond_stream_create_with_priority(on.get(), priority, flags, &made);
    if (check(done) == C_SUCCESS) raw_ = made;
  }
  /// Takes the stream over; `other` is left empty.
  Stream(Stream&& other) noexcept
      : StreamView(std::exchange(static_cast<StreamView&>(other), StreamView(Device(), none()))) {}
  /// Ends its own stream, then takes the other's over.
  Stream& operator=(Stream&& other) noexcept {
    if (this == &other) return *this;
    Stream old(std::move(*this));
    static_cast<StreamView&>(*this) =
        std::exchange(static_cast<StreamView&>(other), StreamView(Device(), none()));
    return *this;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Ends the stream. Work queued on it still completes, and its blocks stay valid. Never throws.
  /// In a stream callback it cannot be ended, and stays until the device ends.
  ~Stream() {
    if (*this) (void)millpond_stream_destroy(device_.get(), raw_);
  }
  /// Whether there is a stream behind this handle.
  explicit operator bool() const noexcept { return raw_ != none(); }

 private:
  /// A value that no device accepts as a stream.
  static C_Stream none() noexcept { return reinterpret_cast<C_Stream>(UINTPTR_MAX); }
};

inline StreamView Device::default_stream() const noexcept { return StreamView(*this, nullptr); }

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_STREAM_HPP
