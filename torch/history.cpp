// What an allocator of C++ (python/millpond_torch/native.cpp) needs to tell PyTorch what happened:
// the histories of the devices in use and of those that come into use, and their segments as they
// come and go.
#include <millpond/millpond.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "devices.hpp"
#include "pluggable.hpp"

using namespace millpond_torch;

namespace {

static_assert(static_cast<int>(EventKind::kAlloc) == MILLPOND_HISTORY_ALLOC &&
              static_cast<int>(EventKind::kFreeRequested) == MILLPOND_HISTORY_FREE_REQUESTED &&
              static_cast<int>(EventKind::kFreeCompleted) == MILLPOND_HISTORY_FREE_COMPLETED &&
              static_cast<int>(EventKind::kFreeRefused) == MILLPOND_HISTORY_FREE_REFUSED &&
              static_cast<int>(EventKind::kSegmentAlloc) == MILLPOND_HISTORY_SEGMENT_ALLOC &&
              static_cast<int>(EventKind::kSegmentFree) == MILLPOND_HISTORY_SEGMENT_FREE &&
              static_cast<int>(EventKind::kSegmentMap) == MILLPOND_HISTORY_SEGMENT_MAP &&
              static_cast<int>(EventKind::kSegmentUnmap) == MILLPOND_HISTORY_SEGMENT_UNMAP &&
              static_cast<int>(EventKind::kOutOfMemory) == MILLPOND_HISTORY_OOM);

enum class Of { nobody, us, others };

struct State {
  std::mutex lock;
  std::size_t events = 0;  // of the histories that are wanted; 0: none are
  std::array<Of, 64> begun{};
  std::array<bool, 64> watched{};
  // Read without the lock by the threads that tell of a segment.
  std::atomic<void (*)(int, bool, void*, std::size_t, bool)> segments{nullptr};
};

State& state() {
  static auto* all = new State;
  return *all;
}

/// Begins the device's history, unless somebody else has; the lock is held.
bool begin(Device& device, std::size_t ordinal) {
  if (state().begun[ordinal] != Of::nobody) return true;
  millpond_history_options options{};
  options.struct_size = sizeof options;
  options.event_count = state().events;
  const C_Status status = millpond_device_history_start(device.get(), &options);
  if (status != C_SUCCESS && millpond_last_error_code() == MILLPOND_E_BUSY) {
    state().begun[ordinal] = Of::others;
    return true;
  }
  if (failed(status)) return false;
  state().begun[ordinal] = Of::us;
  return true;
}

void stop() {
  for (std::size_t n = 0; n < state().begun.size(); ++n) {
    Device* device = open_device(static_cast<int>(n));
    if (state().begun[n] == Of::us && device != nullptr) {
      (void)failed(millpond_device_history_stop(device->get(), nullptr));
    }
    state().begun[n] = Of::nobody;
  }
}

/// While it is set, the thread hears of segments that were there before.
thread_local bool t_old = false;

struct Watched {
  int ordinal;
  bool mapped;
};

void on_segment(void* user_data, std::uint32_t event, void* ptr, std::size_t size) {
  const auto* device = static_cast<const Watched*>(user_data);
  if (!t_old) {
    const auto told = state().segments.load();
    told(device->ordinal, event == MILLPOND_SEGMENT_ADDED, ptr, size, device->mapped);
  }
}

/// Segments of the device are told of; the lock is held.
bool watch(Device& device, std::size_t ordinal, bool old) {
  if (state().watched[ordinal]) return true;
  millpond_device_info info{};
  info.struct_size = sizeof info;
  if (failed(millpond_device_get_info(device.get(), &info))) return false;
  // Never destroyed: the callback ends with the process.
  auto* watched = new Watched{static_cast<int>(ordinal), (info.caps & MILLPOND_CAP_MAPPING) != 0};
  std::uint64_t id = 0;
  t_old = old;
  const C_Status status =
      millpond_device_add_segment_callback(device.get(), on_segment, watched, &id);
  t_old = false;
  if (failed(status)) {
    delete watched;
    return false;
  }
  state().watched[ordinal] = true;
  return true;
}

template <typename Each>
bool each_open(Each each) {
  bool all = true;
  for (std::size_t n = 0; n < state().begun.size(); ++n) {
    if (Device* device = open_device(static_cast<int>(n))) all = each(*device, n) && all;
  }
  return all;
}

/// What is passed through a reading.
struct Reading {
  Device* device;
  bool (*each)(void*, const Event*);
  void* user_data;
  std::map<const millpond_pool*, PoolId> pools;
};

bool on_event(void* user_data, const millpond_history_event* e) {
  auto& reading = *static_cast<Reading*>(user_data);
  if ((e->flags & MILLPOND_HISTORY_HOST) != 0 || e->kind > MILLPOND_HISTORY_OOM) return true;
  PoolId pool{0, 0};
  if (e->pool != nullptr) {
    const auto known = reading.pools.find(e->pool);
    pool = known != reading.pools.end()
               ? known->second
               : reading.pools.emplace(e->pool, reading.device->id_of(e->pool)).first->second;
  }
  Event out{};
  out.time_ns = e->time_ns;
  out.address = reinterpret_cast<std::uintptr_t>(e->ptr);
  out.size_bytes = e->size_bytes;
  out.stream = reinterpret_cast<std::uintptr_t>(e->stream);
  out.pool_first = pool.first;
  out.pool_second = pool.second;
  out.thread = e->thread;
  out.kind = static_cast<EventKind>(e->kind);
  out.stamp = e->stamp;
  out.at_once = (e->flags & MILLPOND_HISTORY_AT_ONCE) != 0;
  return reading.each(reading.user_data, &out);
}

}  // namespace

void millpond_torch::begin_histories(Device& device, int ordinal) {
  const auto n = static_cast<std::size_t>(ordinal);
  std::lock_guard<std::mutex> held(state().lock);
  // A device without a history is still a device.
  if (state().events != 0) (void)begin(device, n);
  if (state().segments != nullptr) (void)watch(device, n, false);
}

int millpond_torch_history_start(std::size_t events) {
  return guard(1, [&] {
    std::lock_guard<std::mutex> held(state().lock);
    if (state().events != 0 && events > state().events) stop();
    if (events > state().events) state().events = events;
    return each_open(begin) ? 0 : 1;
  });
}

void millpond_torch_history_stop() {
  guard(0, [] {
    std::lock_guard<std::mutex> held(state().lock);
    state().events = 0;
    stop();
    return 0;
  });
}

std::uint64_t millpond_torch_history_stamp() { return millpond_history_stamp(); }

int millpond_torch_history_read(int device, bool (*each)(void*, const Event*), void* user_data) {
  return guard(1, [&] {
    Device* on = open_device(device);
    if (on == nullptr) return 0;
    {
      std::lock_guard<std::mutex> held(state().lock);
      if (state().begun[static_cast<std::size_t>(device)] == Of::nobody) return 0;
    }
    Reading reading{on, each, user_data, {}};
    return failed(millpond_device_history_read(on->get(), on_event, &reading, nullptr)) ? 1 : 0;
  });
}

int millpond_torch_on_segments(void (*told)(int, bool, void*, std::size_t, bool)) {
  return guard(1, [&] {
    std::lock_guard<std::mutex> held(state().lock);
    state().segments = told;
    return each_open([](Device& device, std::size_t n) { return watch(device, n, true); }) ? 0 : 1;
  });
}
