// Device types and devices. A Device is a handle that owns nothing: copy it freely. It stays valid
// until finalize() or until its type is unregistered; calls on it after that fail with
// MILLPOND_E_NOT_INITIALIZED.
#ifndef MILLPOND_CPP_DEVICE_HPP
#define MILLPOND_CPP_DEVICE_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "millpond/cpp/error.hpp"
#include "millpond/cpp/statistics.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

class PoolView;
class StreamView;
class Buffer;

namespace detail {
/// Runs a function of the program that the library calls. Nothing may pass into the library: what
/// it throws counts as false.
template <typename Call>
bool answer(const Call& call) noexcept {
#if MILLPOND_CPP_EXCEPTIONS
  try {
    return call();
  } catch (...) {
    return false;
  }
#else
  return call();
#endif
}
}  // namespace detail

/// The maximum length of a device type's name in bytes, including the terminating NUL.
inline constexpr std::size_t kTypeNameCapacity = sizeof(millpond_device_info::type);

/// The direction of a copy.
enum class CopyKind : std::uint32_t {
  kHostToDevice = MILLPOND_COPY_H2D,
  kDeviceToHost = MILLPOND_COPY_D2H,
  kDeviceToDevice = MILLPOND_COPY_D2D,
};

/// The format of a snapshot; docs/snapshots.md describes both.
enum class SnapshotFormat : std::uint32_t {
  kJson = MILLPOND_SNAPSHOT_JSON,
  kTorchPickle = MILLPOND_SNAPSHOT_TORCH_PICKLE,
};

/// Configures the embedded host device: `device_count` devices (0: default 2) of `capacity_bytes`
/// each (0: default). Without `mapping` it behaves as a device that only gives segments. Throws
/// MILLPOND_E_BUSY once "host" has been used.
MILLPOND_CPP_CHECKED inline C_Status configure_host(std::uint32_t device_count,
                                                    std::uint64_t capacity_bytes = 0,
                                                    bool mapping = true) {
  millpond_host_options options{};
  options.struct_size = sizeof options;
  options.device_count = device_count;
  options.capacity_bytes = capacity_bytes;
  options.disable_mapping = mapping ? 0u : 1u;
  return check(millpond_host_configure(&options));
}

/// Sets options ("key:value,key:value", docs/options.md) of devices that are opened from now on: of
/// all types, or of `type`; of all ordinals (-1), or of one. Later settings override earlier ones
/// and the environment. Throws MILLPOND_E_INVALID_ARGUMENT, with the column and the nearest right
/// word.
MILLPOND_CPP_CHECKED inline C_Status set_default_options(const std::string& options,
                                                         const std::string& type = {},
                                                         std::int32_t ordinal = -1) {
  return check(millpond_set_default_options(type.empty() ? nullptr : type.c_str(), ordinal,
                                            options.c_str()));
}

/// Ends every device type. Live blocks are lost, and handles are refused from then on; a later
/// Device starts anew. Not needed at exit. Throws MILLPOND_E_NOT_INITIALIZED if nothing was
/// started.
MILLPOND_CPP_CHECKED inline C_Status finalize() { return check(millpond_finalize()); }

/// Priorities of streams: lower numbers come first.
struct StreamPriorities {
  std::int32_t least = 0;     ///< that of a stream that is made without one, or more
  std::int32_t greatest = 0;  ///< the first; not above `least`
};

/// One device, a value that owns nothing. Default-constructed it is empty, and every call on it
/// throws MILLPOND_E_INVALID_ARGUMENT.
class Device {
 public:
  /// The empty handle.
  constexpr Device() noexcept = default;
  /// Wraps a handle of the C API.
  constexpr explicit Device(millpond_device* raw) noexcept : raw_(raw) {}
  /// Device `ordinal` of `type`, for instance ("host", 0). Opens it on first use. Throws
  /// MILLPOND_E_UNKNOWN_DEVICE if there is no such type or no such ordinal.
  explicit Device(const char* type, std::int32_t ordinal = 0) {
    check(millpond_device_get(type, ordinal, &raw_));
  }
  /// The same.
  explicit Device(const std::string& type, std::int32_t ordinal = 0)
      : Device(type.c_str(), ordinal) {}

  /// The handle of the C API; NULL when empty.
  constexpr millpond_device* get() const noexcept { return raw_; }
  /// Whether there is a device behind this handle.
  constexpr explicit operator bool() const noexcept { return raw_ != nullptr; }

  /// Name, ordinal, capabilities (MILLPOND_CAP_*), and sizes in bytes.
  millpond_device_info info() const {
    millpond_device_info out{};
    out.struct_size = sizeof out;
    check(millpond_device_get_info(raw_, &out));
    return out;
  }
  /// The name of its type.
  std::string type() const { return info().type; }
  /// Its number within the type.
  std::int32_t ordinal() const { return info().ordinal; }
  /// Whether the device can do all of `caps` (MILLPOND_CAP_*, combined with |).
  bool can(std::uint32_t caps) const { return (info().caps & caps) == caps; }
  /// Why the device cannot do `cap` (one of MILLPOND_CAP_*), as a text for a person; empty if it
  /// can. Throws MILLPOND_E_INVALID_ARGUMENT for what is not one capability.
  std::string reason(std::uint32_t cap) const {
    char text[1024] = {};
    check(millpond_device_get_reason(raw_, cap, text, sizeof text));
    return text;
  }

  /// Waits until all work queued on the device is done.
  MILLPOND_CPP_CHECKED C_Status synchronize() const {
    return check(millpond_device_synchronize(raw_));
  }
  /// Limits the reserved bytes of all pools together to `limit_bytes`; 0 removes the limit.
  MILLPOND_CPP_CHECKED C_Status set_limit(std::uint64_t limit_bytes) const {
    return check(millpond_device_set_limit(raw_, limit_bytes));
  }
  /// Changes options from now on, all of them or, after an error, none: "key:value,key:value"
  /// (docs/options.md). Throws MILLPOND_E_INVALID_ARGUMENT, with the column and the nearest right
  /// word, and MILLPOND_E_BUSY for `backend`, `expandable_segments` and
  /// `peer_access`.
  MILLPOND_CPP_CHECKED C_Status set_options(const std::string& options) const {
    return check(millpond_device_set_options(raw_, options.c_str()));
  }
  /// The value of one option. Throws MILLPOND_E_INVALID_ARGUMENT for an unknown key.
  std::string option(const std::string& key) const {
    char out[MILLPOND_OPTION_BYTES] = {};
    check(millpond_device_get_option(raw_, key.c_str(), out, sizeof out));
    return out;
  }
  /// Where its value comes from: "built in", the name of a variable of the environment, "program",
  /// or "device" (it can do nothing else). Throws as option().
  std::string option_source(const std::string& key) const {
    char out[MILLPOND_OPTION_BYTES] = {};
    check(millpond_device_get_option_source(raw_, key.c_str(), out, sizeof out));
    return out;
  }
  /// All options, as set_options() and set_default_options() take them.
  std::string options() const {
    char out[MILLPOND_OPTIONS_BYTES] = {};
    check(millpond_device_get_options(raw_, out, sizeof out));
    return out;
  }
  /// Every block that is in one of `states` (MILLPOND_BLOCK_* bits), sorted by address, all as of
  /// one moment; see millpond_device_walk_blocks.
  std::vector<millpond_block_record> blocks(std::uint32_t states = MILLPOND_BLOCK_LIVE) const {
    return detail::list_blocks(raw_, nullptr, states);
  }
  /// Calls `function(const millpond_block_record&)` for each of them, until it returns false. What
  /// it throws comes out of here. It may call Millpond.
  template <typename Function>
  MILLPOND_CPP_CHECKED C_Status each_block(std::uint32_t states, const Function& function) const {
    return detail::each_block(raw_, nullptr, states, function);
  }
  /// All reserved memory, where it is used, sorted by address, all as of one moment; see
  /// millpond_device_walk_segments.
  std::vector<millpond_segment_record> segments() const {
    return detail::list_segments(raw_, nullptr);
  }
  /// Calls `function(const millpond_segment_record&)` for each of them, as each_block() does.
  template <typename Function>
  MILLPOND_CPP_CHECKED C_Status each_segment(const Function& function) const {
    return detail::each_segment(raw_, nullptr, function);
  }
  /// Writes all memory of the device as it is at one moment, every block and the account, to the
  /// file `path`, which has its name only when it is whole; see millpond_device_write_snapshot.
  /// Throws MILLPOND_E_SYSTEM where the file cannot be written.
  MILLPOND_CPP_CHECKED C_Status
  write_snapshot(const std::string& path, SnapshotFormat format = SnapshotFormat::kJson) const {
    return check(
        millpond_device_write_snapshot(raw_, static_cast<std::uint32_t>(format), path.c_str()));
  }
  /// The same to a function, piece by piece, as long as it returns true. Throws MILLPOND_E_SYSTEM
  /// when it returns false; an exception that it lets out counts as false.
  MILLPOND_CPP_CHECKED C_Status send_snapshot(
      SnapshotFormat format,
      const std::function<bool(const void* data, std::size_t size_bytes)>& function) const {
    if (!function) return detail::refuse(MILLPOND_E_INVALID_ARGUMENT, "no function to call back");
    const auto take = [](void* user_data, const void* data, std::size_t size_bytes) -> bool {
      const auto& to =
          *static_cast<const std::function<bool(const void*, std::size_t)>*>(user_data);
      return detail::answer([&] { return to(data, size_bytes); });
    };
    return check(
        millpond_device_send_snapshot(raw_, static_cast<std::uint32_t>(format), take,
                                      const_cast<void*>(static_cast<const void*>(&function))));
  }
  /// The same as one string. Throws std::bad_alloc if there is no room for it.
  std::string snapshot(SnapshotFormat format = SnapshotFormat::kJson) const {
    Text text;
    const C_Status status = millpond_device_send_snapshot(raw_, static_cast<std::uint32_t>(format),
                                                          &Text::append, &text);
#if MILLPOND_CPP_EXCEPTIONS
    if (text.lost) throw std::bad_alloc();
#endif
    if (check(status) != C_SUCCESS) text.all.clear();
    return std::move(text.all);
  }
  /// Why the calling thread's last request to this device that found no memory did not; what throws
  /// carries the same. Throws MILLPOND_E_INVALID_ARGUMENT when there was none.
  millpond_oom_report last_oom() const {
    millpond_oom_report out{};
    out.struct_size = sizeof out;
    check(millpond_device_last_oom(raw_, &out));
    return out;
  }
  /// The statistics of each tag that was ever used on the device.
  std::vector<millpond_tag_stats> tags() const {
    std::vector<millpond_tag_stats> all(16);
    for (;;) {
      std::size_t count = 0;
      if (check(millpond_device_list_tags(raw_, all.data(), sizeof all[0], all.size(), &count)) !=
          C_SUCCESS) {
        return {};
      }
      const bool fits = count <= all.size();
      all.resize(count);
      if (fits) return all;
    }
  }
  /// From now on what happens to the memory is kept, the newest events; in a file all of them, if
  /// `path` is not empty. Throws MILLPOND_E_BUSY while there is a history.
  MILLPOND_CPP_CHECKED C_Status start_history(const std::string& path = {},
                                              std::size_t event_count = 0,
                                              std::size_t frame_count = 0) const {
    millpond_history_options options{};
    options.struct_size = sizeof options;
    options.event_count = event_count;
    options.frame_count = frame_count;
    options.path = path.empty() ? nullptr : path.c_str();
    return check(millpond_device_history_start(raw_, &options));
  }
  /// Ends the history: how many events its file lacks.
  std::uint64_t stop_history() const {
    std::uint64_t dropped = 0;
    check(millpond_device_history_stop(raw_, &dropped));
    return dropped;
  }
  /// Calls `each(const millpond_history_event&)` for each event that the history has kept, the
  /// oldest first, until it returns false: how many there were before. Throws MILLPOND_E_SYSTEM
  /// when `each` throws.
  template <typename Each>
  std::uint64_t read_history(Each each) const {
    std::uint64_t dropped = 0;
    check(millpond_device_history_read(
        raw_,
        [](void* to, const millpond_history_event* event) -> bool {
          return (*static_cast<Each*>(to))(*event);
        },
        &each, &dropped));
    return dropped;
  }
  /// From now on what is asked of the memory is written to `path`, for `millpond replay`.
  MILLPOND_CPP_CHECKED C_Status start_record(const std::string& path) const {
    return check(millpond_device_record_start(raw_, path.c_str()));
  }
  /// Ends the recording: how many events it lacks.
  std::uint64_t stop_record() const {
    std::uint64_t dropped = 0;
    check(millpond_device_record_stop(raw_, &dropped));
    return dropped;
  }
  /// Counters of all pools together, in bytes.
  millpond_stats stats() const {
    millpond_stats out{};
    out.struct_size = sizeof out;
    check(millpond_device_get_stats(raw_, &out));
    return out;
  }
  /// The statistics of all pools together, by PyTorch's names; docs/seeing.md has a table.
  millpond_memory_stats memory_stats() const {
    millpond_memory_stats out{};
    out.struct_size = sizeof out;
    check(millpond_device_get_memory_stats(raw_, &out));
    return out;
  }
  /// From now on memory_stats() tells what was allocated, freed and counted as if that began now.
  MILLPOND_CPP_CHECKED C_Status reset_accumulated() const {
    return check(millpond_device_reset_accumulated(raw_));
  }
  /// What each stream has of the device; with the price of blocks().
  std::vector<millpond_stream_stats> stream_stats() const {
    return detail::list_stream_stats(raw_, nullptr);
  }
  /// The statistics of the device, its pools, its tags and its pinned memory as text, in a
  /// MILLPOND_STATS_* format: JSON, or what Prometheus reads.
  std::string stats_text(std::uint32_t format = MILLPOND_STATS_JSON) const {
    return detail::written([&](char* buffer, std::size_t capacity, std::size_t* needed) {
      return millpond_device_write_stats(raw_, format, buffer, capacity, needed);
    });
  }
  /// How long calls of one kind (MILLPOND_LATENCY_*) took while `latency_histograms` was on.
  millpond_latency latency(std::uint32_t what) const {
    millpond_latency out{};
    out.struct_size = sizeof out;
    check(millpond_device_get_latency(raw_, what, &out));
    return out;
  }
  /// The histograms of latency() start again from nothing.
  MILLPOND_CPP_CHECKED C_Status reset_latencies() const {
    return check(millpond_device_reset_latencies(raw_));
  }
  /// The statistics of pinned host memory, by PyTorch's names.
  millpond_host_memory_stats host_memory_stats() const {
    millpond_host_memory_stats out{};
    out.struct_size = sizeof out;
    check(millpond_device_get_host_memory_stats(raw_, &out));
    return out;
  }
  /// From now on host_memory_stats() tells what was allocated, freed and timed as if that began
  /// now.
  MILLPOND_CPP_CHECKED C_Status reset_host_accumulated() const {
    return check(millpond_device_reset_host_accumulated(raw_));
  }
  /// Counters of pinned host memory, in bytes.
  millpond_host_stats host_stats() const {
    millpond_host_stats out{};
    out.struct_size = sizeof out;
    check(millpond_device_get_host_stats(raw_, &out));
    return out;
  }
  /// Resets the peaks of host_stats() to the current values.
  MILLPOND_CPP_CHECKED C_Status reset_host_peaks() const {
    return check(millpond_device_reset_host_peaks(raw_));
  }
  /// The priorities that its streams may have.
  StreamPriorities stream_priorities() const {
    StreamPriorities out;
    check(millpond_device_get_stream_priority_range(raw_, &out.least, &out.greatest));
    return out;
  }
  /// Gives freed pinned host memory back to the device; waits for the work that still uses it.
  MILLPOND_CPP_CHECKED C_Status empty_host_cache() const {
    return check(millpond_device_empty_host_cache(raw_));
  }
  /// Resets the peaks to the current values.
  MILLPOND_CPP_CHECKED C_Status reset_peaks() const {
    return check(millpond_device_reset_peaks(raw_));
  }
  /// Gives unused memory of all pools back to the device.
  MILLPOND_CPP_CHECKED C_Status empty_cache() const {
    return check(millpond_device_empty_cache(raw_));
  }
  /// The same until at most `keep_bytes` stay reserved, or none is unused.
  MILLPOND_CPP_CHECKED C_Status trim_to(std::uint64_t keep_bytes) const {
    return check(millpond_device_trim_to(raw_, keep_bytes));
  }
  /// Sets the limit and gives unused memory back until it is kept; the bytes that are reserved
  /// beyond it all the same.
  std::uint64_t set_budget(std::uint64_t budget_bytes) const {
    std::uint64_t above = 0;
    check(millpond_device_set_budget(raw_, budget_bytes, &above));
    return above;
  }
  /// Joins the programs that share this device's card and the file `path`; the number of the
  /// member. Requests for which the card has too little ask the others to give back what they do
  /// not use, and wait for that up to `wait`. GroupMembership (cpp/group.hpp) serves the others,
  /// too.
  std::uint64_t join_group(const std::string& path, const std::string& name = {},
                           std::chrono::milliseconds wait = std::chrono::seconds(1)) const {
    std::uint64_t id = 0;
    const auto ms = static_cast<std::uint64_t>(wait.count() < 0 ? 0 : wait.count());
    check(millpond_device_join_group(raw_, path.c_str(), name.c_str(), ms, &id));
    return id;
  }
  /// Leaves the group. Throws MILLPOND_E_NOT_PERMITTED if the device is in none.
  MILLPOND_CPP_CHECKED C_Status leave_group() const {
    return check(millpond_device_leave_group(raw_));
  }
  /// Gives back what others of the group want, and follows a budget from outside; returns after
  /// that or after `timeout`, with the bytes that went back.
  std::uint64_t serve_group(std::chrono::milliseconds timeout) const {
    std::uint64_t given = 0;
    const auto ms = static_cast<std::uint64_t>(timeout.count() < 0 ? 0 : timeout.count());
    check(millpond_device_serve_group(raw_, ms, &given));
    return given;
  }
  /// PoolView::sleep() for all pools of this name, all or none. Throws MILLPOND_E_INVALID_ARGUMENT
  /// if there is none.
  MILLPOND_CPP_CHECKED C_Status sleep(const char* pool_name, bool keep) const {
    return check(millpond_device_sleep(raw_, pool_name, keep ? MILLPOND_SLEEP_KEEP : 0u));
  }
  /// PoolView::wake() for all sleeping pools of this name.
  MILLPOND_CPP_CHECKED C_Status wake(const char* pool_name) const {
    return check(millpond_device_wake(raw_, pool_name));
  }

  /// Copies `size_bytes` and returns when they have arrived. Each end on the device must lie inside
  /// one live block (MILLPOND_E_OUT_OF_RANGE, MILLPOND_E_UNKNOWN_POINTER).
  MILLPOND_CPP_CHECKED C_Status copy(CopyKind kind, void* dst, const void* src,
                                     std::size_t size_bytes) const {
    return check(millpond_copy(raw_, static_cast<std::uint32_t>(kind), dst, src, size_bytes));
  }
  /// Copies from a block of `src_device`, of the same type, into a block of this device; returns
  /// when the bytes have arrived.
  MILLPOND_CPP_CHECKED C_Status copy_from(Device src_device, void* dst, const void* src,
                                          std::size_t size_bytes) const {
    return check(millpond_copy_peer(raw_, dst, src_device.raw_, src, size_bytes));
  }
  /// Fills `size_bytes` of a block with one byte, and returns when done.
  MILLPOND_CPP_CHECKED C_Status memset(void* dst, std::uint8_t value,
                                       std::size_t size_bytes) const {
    return check(millpond_memset(raw_, dst, value, size_bytes));
  }

  /// The pool that every device has; borrowed, valid as long as the device.
  inline PoolView default_pool() const;
  /// The default stream (NULL); it always exists.
  inline StreamView default_stream() const noexcept;
  /// A block of the default pool that every stream and the host may use at once. 0 bytes give an
  /// empty Buffer. Throws MILLPOND_E_OUT_OF_MEMORY.
  inline Buffer allocate(std::size_t size_bytes) const;

  /// Whether both name the same device.
  friend constexpr bool operator==(Device a, Device b) noexcept { return a.raw_ == b.raw_; }
  /// Whether they name different devices.
  friend constexpr bool operator!=(Device a, Device b) noexcept { return a.raw_ != b.raw_; }

 private:
  struct Text {
    std::string all;
    bool lost = false;
    static bool append(void* to, const void* data, std::size_t size_bytes) noexcept {
      Text& text = *static_cast<Text*>(to);
      const bool kept = detail::answer([&] {
        text.all.append(static_cast<const char*>(data), size_bytes);
        return true;
      });
      text.lost |= !kept;
      return kept;
    }
  };

  millpond_device* raw_ = nullptr;
};

/// Gives a tag to all blocks that this thread allocates while the object lives. Scopes nest; they
/// must end in reverse order, on their thread.
class [[nodiscard]] TagScope {
 public:
  /// Begins the scope; see millpond_tag_push. Throws MILLPOND_E_INVALID_ARGUMENT for a bad name.
  explicit TagScope(const char* name) { begun_ = check(millpond_tag_push(name)) == C_SUCCESS; }
  /// The same by a number from millpond_tag_get_number, which saves the lookup of the name.
  explicit TagScope(std::uint32_t tag) {
    begun_ = check(millpond_tag_push_number(tag)) == C_SUCCESS;
  }
  TagScope(const TagScope&) = delete;
  TagScope& operator=(const TagScope&) = delete;
  ~TagScope() {
    if (begun_) (void)millpond_tag_pop();
  }

 private:
  bool begun_ = false;
};

/// The name of a tag, which lives as long as the process; "" for a number that no tag has.
inline const char* tag_name(std::uint32_t tag) noexcept { return millpond_tag_get_name(tag); }
/// The number of the tag of that name, which is made where there is none. Throws
/// MILLPOND_E_INVALID_ARGUMENT for a bad name.
inline std::uint32_t tag_number(const char* name) {
  std::uint32_t out = 0;
  check(millpond_tag_get_number(name, &out));
  return out;
}

/// The table of device types of this process: "cpu", "host" and "cuda" are always there (the last
/// with or without devices), plugins are added.
/// All functions may be called from any thread.
class DeviceTypes {
 public:
  /// The names of all types known now.
  static std::vector<std::string> names() {
    std::vector<std::string> out;
    std::size_t count = 0;
    check(millpond_device_type_get_count(&count));
    for (std::size_t i = 0; i < count; ++i) {
      char name[kTypeNameCapacity] = {};
      // A type may disappear between the two calls; the list is then what is left.
      if (millpond_device_type_get_name(i, name, sizeof name) != C_SUCCESS) {
        if (millpond_last_error_code() == MILLPOND_E_OUT_OF_RANGE) break;
        check(C_ERROR);
      }
      out.emplace_back(name);
    }
    return out;
  }
  /// Whether a type of that name is known now.
  static bool contains(const std::string& type) {
    for (const std::string& name : names()) {
      if (name == type) return true;
    }
    return false;
  }
  /// How many devices the type has. Throws MILLPOND_E_UNKNOWN_DEVICE for an unknown name.
  static std::size_t device_count(const std::string& type) {
    std::size_t count = 0;
    check(millpond_device_get_count(type.c_str(), &count));
    return count;
  }
  /// Why the type has no devices, as a text for a person; empty if it has some. Throws
  /// MILLPOND_E_UNKNOWN_DEVICE for an unknown name.
  static std::string reason(const std::string& type) {
    char text[1024] = {};
    check(millpond_device_type_get_reason(type.c_str(), text, sizeof text));
    return text;
  }
  /// Adds the device type of a plugin that is linked into this program; returns its name. Throws
  /// MILLPOND_E_PLUGIN_REFUSED with the reason, MILLPOND_E_BUSY if the name is taken.
  static std::string add(void (*init_plugin)(CustomRuntimeParams*)) {
    char name[kTypeNameCapacity] = {};
    check(millpond_device_type_register(init_plugin, name, sizeof name));
    return name;
  }
  /// Loads a plugin from a shared object, adds its device type, and returns its name. Throws as
  /// add(), and MILLPOND_E_SYSTEM if the file cannot be loaded.
  static std::string load(const std::string& path) {
    char name[kTypeNameCapacity] = {};
    check(millpond_device_type_load(path.c_str(), name, sizeof name));
    return name;
  }
  /// Removes a plugin's type. Throws MILLPOND_E_BUSY while it has live blocks.
  MILLPOND_CPP_CHECKED static C_Status remove(const std::string& type) {
    return check(millpond_device_type_unregister(type.c_str()));
  }
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_DEVICE_HPP
