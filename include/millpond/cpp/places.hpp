// Places, and memory by place, with the call names that PaddlePaddle's memory design uses:
//
//   using namespace millpond;
//   void* p = memory::Alloc(CPUPlace(), 4 * 1024);
//   void* q = memory::Alloc(GPUPlace(1), n);
//   memory::Copy(GPUPlace(1), q, CPUPlace(), p, 4 * 1024);
//   memory::Free(GPUPlace(1), q);
//
// A place is only a name. Whether the device exists is found out by the first call that uses it,
// which throws MILLPOND_E_UNKNOWN_DEVICE (or returns nullptr with std::nothrow). Later calls find
// it in a list. A block by place costs about as much as millpond_alloc(), which waits for all
// streams at its free; whoever knows the stream of the work allocates from a pool, and pays less
// than half.
#ifndef MILLPOND_CPP_PLACES_HPP
#define MILLPOND_CPP_PLACES_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "millpond/cpp/device.hpp"
#include "millpond/cpp/error.hpp"
#include "millpond/cpp/stream.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

namespace detail {

/// A place that was found, in a list of the process that only grows: by one for each device that it
/// names.
struct FoundPlace {
  char type[kTypeNameCapacity] = {};
  std::size_t length = 0;  // of `type`
  std::int32_t ordinal = 0;
  std::atomic<millpond_device*> device{nullptr};  // another one after finalize()
  FoundPlace* next = nullptr;
};

inline std::atomic<FoundPlace*> found_places{nullptr};

/// The entry of a place; nullptr if it was never found.
inline FoundPlace* found_place(const std::string& type, std::int32_t ordinal) noexcept {
  FoundPlace* place = found_places.load(std::memory_order_acquire);
  while (place != nullptr && (place->ordinal != ordinal || place->length != type.size() ||
                              std::memcmp(type.data(), place->type, place->length) != 0)) {
    place = place->next;
  }
  return place;
}

/// Notes which device a place names, in its entry if it has one. Without host memory for the entry
/// it is looked up again the next time.
inline void note_place(FoundPlace* place, const std::string& type, std::int32_t ordinal,
                       millpond_device* device) noexcept {
  if (place != nullptr) {
    place->device.store(device, std::memory_order_release);
    return;
  }
  if (type.size() >= kTypeNameCapacity) return;
  place = new (std::nothrow) FoundPlace();
  if (place == nullptr) return;
  std::memcpy(place->type, type.c_str(), type.size());
  place->length = type.size();
  place->ordinal = ordinal;
  place->device.store(device, std::memory_order_relaxed);
  place->next = found_places.load(std::memory_order_relaxed);
  while (!found_places.compare_exchange_weak(place->next, place, std::memory_order_release,
                                             std::memory_order_relaxed)) {
  }
}

}  // namespace detail

/// The name of a device: a type and an ordinal. A value; owns nothing.
class Place {
 public:
  /// Device `ordinal` of `type`.
  Place(std::string type, std::int32_t ordinal) : type_(std::move(type)), ordinal_(ordinal) {}
  /// The name of the device type; "" stands for the machine's GPU type, see GPUPlace.
  const std::string& type() const noexcept { return type_; }
  /// The number of the device.
  std::int32_t ordinal() const noexcept { return ordinal_; }
  /// Whether it is the process's own memory, for which copies accept any host pointer.
  bool is_cpu() const noexcept { return type_ == "cpu"; }

  /// Stores the device that it names in `*out`: the same one until that ends. Does not throw; the
  /// reason is the thread's last error.
  MILLPOND_CPP_CHECKED C_Status find(Device* out) const noexcept {
    detail::FoundPlace* const place = detail::found_place(type_, ordinal_);
    if (place != nullptr) {
      millpond_device* const known = place->device.load(std::memory_order_acquire);
      millpond_pool* pool = nullptr;
      // Only an open device has one; this also refuses a forked child.
      if (millpond_device_get_default_pool(known, &pool) == C_SUCCESS) {
        *out = Device(known);
        return C_SUCCESS;
      }
    }
    millpond_device* raw = nullptr;
    const C_Status status = open(&raw);
    if (status != C_SUCCESS) return status;
    detail::note_place(place, type_, ordinal_, raw);
    *out = Device(raw);
    return C_SUCCESS;
  }
  /// The device that it named the last time, which may have ended; empty where it was never found.
  Device known() const noexcept {
    const detail::FoundPlace* const place = detail::found_place(type_, ordinal_);
    return place == nullptr ? Device() : Device(place->device.load(std::memory_order_acquire));
  }
  /// The device that it names. Throws MILLPOND_E_UNKNOWN_DEVICE.
  Device device() const {
    Device out;
    check(find(&out));
    return out;
  }

  /// Whether both have the same name.
  friend bool operator==(const Place& a, const Place& b) noexcept {
    return a.ordinal_ == b.ordinal_ && a.type_ == b.type_;
  }
  /// Whether the names differ.
  friend bool operator!=(const Place& a, const Place& b) noexcept { return !(a == b); }

 private:
  C_Status open(millpond_device** out) const noexcept {
    if (!type_.empty()) return millpond_device_get(type_.c_str(), ordinal_, out);
    const C_Status status = millpond_device_get("cuda", ordinal_, out);
    if (status == C_SUCCESS) return status;
    // If CUDA has devices, one that cannot be opened is a failure; the reason is the last error.
    std::size_t count = 0;
    const bool counted = millpond_device_get_count("cuda", &count) == C_SUCCESS;
    return millpond_device_get(counted && count != 0 ? "cuda" : "host", ordinal_, out);
  }

  std::string type_;  // "": "cuda" where that type has devices, else "host"
  std::int32_t ordinal_;
};

/// The process's own memory: the one device of the built-in type "cpu".
class CPUPlace : public Place {
 public:
  CPUPlace() : Place("cpu", 0) {}
};

/// GPU number `ordinal`: of the type "cuda" if that has devices, otherwise of the embedded "host"
/// devices, so that the same program runs on a machine without a GPU.
class GPUPlace : public Place {
 public:
  explicit GPUPlace(std::int32_t ordinal = 0) : Place(std::string(), ordinal) {}
};

/// Device `ordinal` of any type by name, a plugin's for instance.
class CustomPlace : public Place {
 public:
  explicit CustomPlace(std::string type, std::int32_t ordinal = 0)
      : Place(std::move(type), ordinal) {}
};

/// Memory by place. All functions may be called from any thread; sizes are bytes.
namespace memory {

namespace detail {

/// Calls `call(device)` with the device of the place: with the one that it was the last time, and
/// with the one that it is now where that has ended.
template <typename Call>
C_Status with_device(const Place& place, Call call) noexcept {
  const Device known = place.known();
  if (known) {
    const C_Status status = call(known.get());
    if (status == C_SUCCESS || millpond_last_error_code() != MILLPOND_E_NOT_INITIALIZED) {
      return status;
    }
  }
  Device now;
  const C_Status status = place.find(&now);
  return status == C_SUCCESS ? call(now.get()) : status;
}
inline C_Status allocate(const Place& place, std::size_t size_bytes, void** out) noexcept {
  return with_device(
      place, [=](millpond_device* device) { return millpond_alloc(device, size_bytes, out); });
}
inline C_Status free(const Place& place, void* block) noexcept {
  if (block == nullptr) return C_SUCCESS;
  return with_device(place,
                     [=](millpond_device* device) { return millpond_device_free(device, block); });
}

}  // namespace detail

/// Allocates `size_bytes` at `place`, aligned to the device's min chunk (512 bytes on the built-in
/// ones), usable at once from every stream. Free it with Free() at the same place. 0 bytes give
/// nullptr. Throws MILLPOND_E_OUT_OF_MEMORY, and MILLPOND_E_UNKNOWN_DEVICE if there is no such
/// place.
[[nodiscard]] inline void* Alloc(const Place& place, std::size_t size_bytes) {
  void* block = nullptr;
  check(detail::allocate(place, size_bytes, &block));
  return block;
}

/// The same, but every failure returns nullptr; the thread's last error says why.
[[nodiscard]] inline void* Alloc(const Place& place, std::size_t size_bytes,
                                 const std::nothrow_t&) noexcept {
  void* block = nullptr;
  return detail::allocate(place, size_bytes, &block) == C_SUCCESS ? block : nullptr;
}

/// Frees a block of `place`; it is reused when all work queued so far is done. nullptr is a no-op
/// at any place. Throws MILLPOND_E_UNKNOWN_POINTER if no live block of that place starts there
/// (nothing is freed then), MILLPOND_E_DOUBLE_FREE if a second free is recognised. Without
/// exceptions the status tells; it may be ignored without a warning, as code written for
/// PaddlePaddle does, where this returns void.
inline C_Status Free(const Place& place, void* block) { return check(detail::free(place, block)); }

/// The same, with the status instead of an exception, which the compiler wants looked at where
/// there are no exceptions.
MILLPOND_CPP_CHECKED inline C_Status Free(const Place& place, void* block,
                                          const std::nothrow_t&) noexcept {
  return detail::free(place, block);
}

/// Bytes in live blocks at `place`, after rounding, of all pools together. Throws
/// MILLPOND_E_UNKNOWN_DEVICE if there is no such place.
inline std::size_t Used(const Place& place) {
  Device device;
  if (check(place.find(&device)) != C_SUCCESS) return 0;
  return static_cast<std::size_t>(device.stats().allocated_bytes.current);
}

namespace detail {

/// The devices of both ends of a copy.
inline C_Status find_ends(const Place& dst_place, const void* dst, Device* to,
                          const Place& src_place, const void* src, Device* from) {
  if (dst == nullptr || src == nullptr) {
    return millpond::detail::refuse(MILLPOND_E_INVALID_ARGUMENT, "a copy from or to NULL");
  }
  const C_Status status = check(dst_place.find(to));
  return status == C_SUCCESS ? check(src_place.find(from)) : status;
}

/// Copies between devices of two types, which do not know each other, through the host.
inline C_Status copy_through_host(Device to, void* dst, Device from, const void* src,
                                  std::size_t size_bytes) {
  constexpr std::size_t kStageBytes = std::size_t{1} << 20;
  const std::size_t stage_bytes = size_bytes < kStageBytes ? size_bytes : kStageBytes;
  const std::unique_ptr<unsigned char[]> stage(new (std::nothrow) unsigned char[stage_bytes]);
  if (!stage) {
    return millpond::detail::refuse(MILLPOND_E_OUT_OF_MEMORY, "no host memory to copy through");
  }
  for (std::size_t done = 0; done < size_bytes;) {
    const std::size_t left = size_bytes - done;
    const std::size_t part = left < stage_bytes ? left : stage_bytes;
    C_Status status = from.copy(CopyKind::kDeviceToHost, stage.get(),
                                static_cast<const unsigned char*>(src) + done, part);
    if (status == C_SUCCESS) {
      status = to.copy(CopyKind::kHostToDevice, static_cast<unsigned char*>(dst) + done,
                       stage.get(), part);
    }
    if (status != C_SUCCESS) return status;
    done += part;
  }
  return C_SUCCESS;
}

}  // namespace detail

/// Copies `size_bytes` between any two places and returns when they have arrived. At CPUPlace any
/// host pointer will do; elsewhere the range must lie inside one live block of that place
/// (MILLPOND_E_OUT_OF_RANGE, MILLPOND_E_UNKNOWN_POINTER). 0 bytes copy nothing.
MILLPOND_CPP_CHECKED inline C_Status Copy(const Place& dst_place, void* dst, const Place& src_place,
                                          const void* src, std::size_t size_bytes) {
  if (size_bytes == 0) return C_SUCCESS;
  Device to, from;
  const C_Status status = detail::find_ends(dst_place, dst, &to, src_place, src, &from);
  if (status != C_SUCCESS) return status;
  if (dst_place.is_cpu() && src_place.is_cpu()) {
    std::memmove(dst, src, size_bytes);
    return C_SUCCESS;
  }
  if (dst_place.is_cpu()) return from.copy(CopyKind::kDeviceToHost, dst, src, size_bytes);
  if (src_place.is_cpu()) return to.copy(CopyKind::kHostToDevice, dst, src, size_bytes);
  if (to == from) return to.copy(CopyKind::kDeviceToDevice, dst, src, size_bytes);
  const millpond_device_info to_info = to.info();
  const millpond_device_info from_info = from.info();
  if (std::strcmp(to_info.type, from_info.type) == 0) {
    return to.copy_from(from, dst, src, size_bytes);
  }
  return detail::copy_through_host(to, dst, from, src, size_bytes);
}

/// Queues the copy on `stream`, which must be a stream of the destination (from the CPU), or of the
/// source (to the CPU, and between devices); StreamView() is the default one of that. The memory
/// must stay valid until the copy is done, except that a pageable host source has been read on
/// return. Throws as the blocking Copy(), and MILLPOND_E_UNSUPPORTED between the CPU and itself and
/// between types of device, where no stream orders both ends; MILLPOND_E_UNKNOWN_STREAM if the
/// stream belongs to another device.
MILLPOND_CPP_CHECKED inline C_Status Copy(const Place& dst_place, void* dst, const Place& src_place,
                                          const void* src, std::size_t size_bytes,
                                          StreamView stream) {
  if (size_bytes == 0) return C_SUCCESS;
  Device to, from;
  const C_Status status = detail::find_ends(dst_place, dst, &to, src_place, src, &from);
  if (status != C_SUCCESS) return status;
  if (dst_place.is_cpu() && src_place.is_cpu()) {
    return millpond::detail::refuse(MILLPOND_E_UNSUPPORTED, "no stream orders a copy on the host");
  }
  const Device own = src_place.is_cpu() ? to : from;
  if (!stream.device() && stream.get() == nullptr) stream = own.default_stream();
  if (stream.device() != own) {
    return millpond::detail::refuse(MILLPOND_E_UNKNOWN_STREAM,
                                    "the stream belongs to neither the right device nor type");
  }
  if (dst_place.is_cpu()) return stream.copy(CopyKind::kDeviceToHost, dst, src, size_bytes);
  if (src_place.is_cpu()) return stream.copy(CopyKind::kHostToDevice, dst, src, size_bytes);
  if (to == from) return stream.copy(CopyKind::kDeviceToDevice, dst, src, size_bytes);
  const millpond_device_info to_info = to.info();
  const millpond_device_info from_info = from.info();
  if (std::strcmp(to_info.type, from_info.type) != 0) {
    return millpond::detail::refuse(MILLPOND_E_UNSUPPORTED,
                                    "no stream orders a copy between two types of device");
  }
  return stream.copy_to(to, dst, src, size_bytes);
}

}  // namespace memory
}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_PLACES_HPP
