// Sharing: blocks for other processes (Export) and from them (Import), and SegmentCallback, for
// libraries that register memory. POSIX systems only. docs/sharing.md describes how it fits
// together.
#ifndef MILLPOND_CPP_SHARE_HPP
#define MILLPOND_CPP_SHARE_HPP

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "millpond/cpp/callbacks.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// What another process needs to use a block: bytes and file descriptors, to be sent together and
/// in this order. Closes its descriptors when it ends, which does not end the export: whoever has
/// received them keeps the memory. For importers that get only the bytes, by fabric handles, this
/// object itself keeps the memory: keep it until they are done. Moves, does not copy.
class [[nodiscard]] Export {
 public:
  /// Owns nothing.
  Export() noexcept = default;
  /// Exports the live block that starts at `block`. Throws MILLPOND_E_UNSUPPORTED, with the reason,
  /// if its device cannot share.
  explicit Export(const void* block) {
    std::size_t bytes = 0;
    std::size_t count = 0;
    if (check(millpond_export_get_size(block, &bytes, &count)) != C_SUCCESS) return;
    std::vector<unsigned char> info(bytes);
    std::vector<int> fds(count, -1);
    const C_Status status = millpond_export(block, info.data(), bytes, fds.data(), count);
    if (check(status) != C_SUCCESS) return;
    info_ = std::move(info);
    fds_ = std::move(fds);
  }
  /// Takes the export over; `other` is left empty.
  Export(Export&& other) noexcept
      : info_(std::exchange(other.info_, {})), fds_(std::exchange(other.fds_, {})) {}
  /// Closes its own descriptors, then takes the other's over.
  Export& operator=(Export&& other) noexcept {
    if (this == &other) return *this;
    Export old(std::move(*this));
    info_ = std::exchange(other.info_, {});
    fds_ = std::exchange(other.fds_, {});
    return *this;
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  /// As close().
  ~Export() { close(); }

  /// The bytes.
  const std::vector<unsigned char>& info() const noexcept { return info_; }
  /// The descriptors; they stay this object's.
  const std::vector<int>& fds() const noexcept { return fds_; }
  /// Whether there is an export.
  explicit operator bool() const noexcept { return !fds_.empty(); }
  /// Closes the descriptors here, as is right once they are sent.
  void close() noexcept {
    for (const int fd : fds_) (void)::close(fd);
    fds_.clear();
  }

 private:
  std::vector<unsigned char> info_;
  std::vector<int> fds_;
};

/// A part of a live block as a dma-buf, for the driver of another device. Closes its descriptor
/// when it ends; the block must live as long as anybody uses the dma-buf. Moves, does not copy.
class [[nodiscard]] DmaBuf {
 public:
  /// Owns nothing.
  DmaBuf() noexcept = default;
  /// Exports `bytes` bytes at `ptr`. Throws MILLPOND_E_UNSUPPORTED, with the reason, where device
  /// or driver have none.
  DmaBuf(const void* ptr, std::size_t bytes) {
    check(millpond_export_dmabuf(ptr, bytes, &fd_, &offset_));
  }
  /// Takes the descriptor over; `other` is left empty.
  DmaBuf(DmaBuf&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), offset_(std::exchange(other.offset_, 0)) {}
  /// Closes its own descriptor, then takes the other's over.
  DmaBuf& operator=(DmaBuf&& other) noexcept {
    if (this == &other) return *this;
    DmaBuf old(std::move(*this));
    fd_ = std::exchange(other.fd_, -1);
    offset_ = std::exchange(other.offset_, 0);
    return *this;
  }
  DmaBuf(const DmaBuf&) = delete;
  DmaBuf& operator=(const DmaBuf&) = delete;
  /// Closes the descriptor.
  ~DmaBuf() {
    if (fd_ >= 0) (void)::close(fd_);
  }

  /// The descriptor, which stays this object's; -1 when empty.
  int fd() const noexcept { return fd_; }
  /// Where in it the first byte is.
  std::uint64_t offset() const noexcept { return offset_; }
  /// Whether there is one.
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
  std::uint64_t offset_ = 0;
};

/// A block of another process, open here at an address of its own. Moves, does not copy.
class [[nodiscard]] Import {
 public:
  /// Owns nothing.
  Import() noexcept = default;
  /// Opens what an Export of another process describes, for work on `on`. The descriptors stay the
  /// caller's, who may close them after this. An export by fabric handles can be opened without
  /// them, also on another machine: then the exporter must keep the memory until this has ended.
  /// Throws MILLPOND_E_INVALID_ARGUMENT for anything that does not come from an export.
  Import(Device on, const void* info, std::size_t info_bytes, const int* fds = nullptr,
         std::size_t fd_count = 0) {
    check(millpond_import(on.get(), info, info_bytes, fds, fd_count, &data_));
  }
  /// Takes the import over; `other` is left empty.
  Import(Import&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  /// Ends its own import, then takes the other's over.
  Import& operator=(Import&& other) noexcept {
    if (this == &other) return *this;
    Import old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    return *this;
  }
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;
  /// Ends it, after a wait for the device. Never throws; if it cannot end now (a stream is
  /// captured), it ends with the device.
  ~Import() {
    if (data_ != nullptr) (void)millpond_import_close(data_);
  }

  /// Its address in this process; nullptr when empty.
  void* data() const noexcept { return data_; }
  /// The same, as elements.
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  /// Whether something is open.
  explicit operator bool() const noexcept { return data_ != nullptr; }
  /// Ends it now; otherwise the destructor does.
  MILLPOND_CPP_CHECKED C_Status close() {
    const C_Status status = check(millpond_import_close(data_));
    if (status == C_SUCCESS) data_ = nullptr;
    return status;
  }

 private:
  void* data_ = nullptr;
};

/// Freed blocks of a device that other processes still use.
struct HeldExports {
  std::size_t blocks = 0;        ///< how many
  std::uint64_t size_bytes = 0;  ///< after rounding
};

/// Makes exported blocks reusable that nobody uses any more, and returns what is left. Waits for
/// nothing.
inline HeldExports poll_exports(Device on) {
  HeldExports held;
  check(millpond_device_poll_exports(on.get(), &held.blocks, &held.size_bytes));
  return held;
}

/// Whether work on `peer` could access memory of `owner` at its address.
inline bool can_access_peer(Device owner, Device peer) {
  bool can = false;
  check(millpond_device_can_access_peer(owner.get(), peer.get(), &can));
  return can;
}

/// Gives work on `peer` access to the pooled memory of `owner` from now on. Throws
/// MILLPOND_E_UNSUPPORTED if that is impossible.
MILLPOND_CPP_CHECKED inline C_Status enable_peer_access(Device owner, Device peer) {
  return check(millpond_device_enable_peer_access(owner.get(), peer.get()));
}

/// A function that is called, while this object lives, for each range of a device's addresses that
/// gets memory and, before the memory goes away, for each that loses it. Moves, does not copy; its
/// destructor calls reset().
class [[nodiscard]] SegmentCallback {
 public:
  /// Its arguments are whether the range was added (otherwise it is about to be removed), its first
  /// address and its bytes. Runs with the lock held that keeps these calls in order: it must not
  /// call Millpond, nor wait for a thread that may be in it. An exception that leaves it is
  /// dropped.
  using Function = std::function<void(bool added, void* data, std::size_t size_bytes)>;

  /// The empty object.
  SegmentCallback() noexcept = default;
  /// Registers `function`, and calls it for all existing ranges. If it cannot be registered, throws
  /// and does not keep it.
  SegmentCallback(Device on, Function function) : held_(on, std::move(function)) {}

  /// Ends the registration; the function is not called again. Must not be called while holding a
  /// lock that the function takes. Does nothing if empty, or if the device has ended.
  void reset() noexcept { held_.reset(); }
  /// Whether a function is registered.
  explicit operator bool() const noexcept { return static_cast<bool>(held_); }

 private:
  static void run(void* user_data, std::uint32_t event, void* data,
                  std::size_t size_bytes) noexcept {
    const auto held = detail::Held<Function>::of(user_data);
    if (!held) return;
    (void)detail::answer([&] {
      held->function(event == MILLPOND_SEGMENT_ADDED, data, size_bytes);
      return true;
    });
  }

  struct Calls {
    using Function = SegmentCallback::Function;
    static C_Status add(millpond_device* device, void* function, std::uint64_t* id) {
      return millpond_device_add_segment_callback(device, &SegmentCallback::run, function, id);
    }
    static C_Status remove(millpond_device* device, std::uint64_t id) {
      return millpond_device_remove_segment_callback(device, id);
    }
  };

  detail::Registration<Calls> held_;
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_SHARE_HPP
