// See pluggable.hpp: the functions that PyTorch calls. A thin layer over Millpond's C API, which is
// linked in and hidden; no libtorch is needed. devices.cpp keeps the devices and PyTorch's pools.
//
// The device type is `cuda`; MILLPOND_TORCH_DEVICE names another one, such as `host`, for tests.
#include "pluggable.hpp"

#include <millpond/millpond.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "devices.hpp"

namespace millpond_torch {
namespace {

/// What PyTorch shows to the user: it makes a RuntimeError of any std::exception.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& what)
      : what_(std::make_shared<const std::string>(what)) {}
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // shared: copying an exception must not throw
};

/// Whether PyTorch has our hooks too, which it calls only then. Without them we hear neither of
/// other streams that use a block nor of graphs.
std::atomic<bool> hooked{false};

/// Adds to the error why there is no memory and who holds it, if that is what the call failed for.
void explain() {
  millpond_oom_report report{};
  report.struct_size = sizeof report;
  std::size_t size = 0;
  if (millpond_last_oom(&report) != C_SUCCESS ||
      millpond_oom_report_text(&report, nullptr, 0, &size) != C_SUCCESS) {
    return;
  }
  std::string text(size, '\0');
  if (millpond_oom_report_text(&report, &text[0], size, nullptr) != C_SUCCESS) return;
  text.resize(size - 1);
  last_error() += "\n" + text;
}

bool lacks_memory(C_Status status) {
  return status != C_SUCCESS && millpond_last_error_code() == MILLPOND_E_OUT_OF_MEMORY;
}

/// A block of a pool that serves others; NULL: none has any.
void* spare(Device& device, std::size_t size, Stream stream) {
  for (const std::shared_ptr<Pool>& pool : device.serving_others()) {
    void* ptr = nullptr;
    if (millpond_pool_alloc(pool->pool, size, stream_of(stream), &ptr) == C_SUCCESS) return ptr;
  }
  return nullptr;
}

/// Sets `lacking` where a failure is for lack of memory.
void* allocate(std::size_t size, int ordinal, Stream stream, bool& lacking) {
  Device* device = device_at(ordinal);
  if (device == nullptr) return nullptr;
  void* ptr = nullptr;
  C_Status status;
  std::shared_ptr<Pool> pool;
  if (hooked.load(std::memory_order_relaxed)) {
    pool = device->pool_for(stream);
    if (pool != nullptr && pool->elsewhere) pool = nullptr;  // begun since the caller asked
    const auto request = [&] {
      return millpond_pool_alloc(pool != nullptr ? pool->pool : device->default_pool(), size,
                                 stream_of(stream), &ptr);
    };
    status = request();
    if (lacks_memory(status) && device->has_ended_pools()) {
      device->sweep();
      device->avert_oom();
      status = request();
    }
  } else if (recording(stream).state != Recording::State::none) {
    throw Refused(
        "a graph needs the hooks of the pluggable allocator, which are not set: use "
        "millpond_torch.enable()");
  } else {
    // It may be used on any stream, as nobody tells which.
    status = millpond_alloc(device->get(), size, &ptr);
  }
  if (failed(status)) {
    lacking = lacks_memory(status);
    explain();
    // A request of a pool's own, which may be of a graph, has no use for memory of another one.
    if (lacking && pool == nullptr) ptr = spare(*device, size, stream);
    if (ptr == nullptr) return nullptr;
    device->avert_oom();
  }
  last_error().clear();
  return ptr;
}

std::string with_unit(ssize_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s (%zd bytes)", mib < 1024 ? mib : mib / 1024,
                mib < 1024 ? "MiB" : "GiB", bytes);
  return text;
}

}  // namespace
}  // namespace millpond_torch

using namespace millpond_torch;

void* millpond_torch_request(ssize_t size, int device, Stream stream, bool* lacking) {
  *lacking = false;
  if (size < 0) last_error() = "a negative size";
  if (size <= 0) return nullptr;
  return guard(static_cast<void*>(nullptr), [&]() -> void* {
    try {
      return allocate(static_cast<std::size_t>(size), device, stream, *lacking);
    } catch (const Refused& refused) {
      last_error() = refused.what();
      return nullptr;
    }
  });
}

void millpond_torch_delete(void* ptr) {
  guard(0, [&] { return failed(millpond_free(ptr)) ? 1 : 0; });
}

void* millpond_torch_cpu_request(std::size_t size, bool* lacking) {
  *lacking = false;
  if (size == 0) return nullptr;
  return guard(static_cast<void*>(nullptr), [&]() -> void* {
    static std::atomic<millpond_device*> opened{nullptr};
    millpond_device* cpu = opened.load(std::memory_order_acquire);
    void* ptr = nullptr;
    C_Status status = C_SUCCESS;
    if (cpu == nullptr) {
      status = millpond_device_get("cpu", 0, &cpu);
      if (status == C_SUCCESS) opened.store(cpu, std::memory_order_release);
    }
    if (status == C_SUCCESS) status = millpond_alloc(cpu, size, &ptr);
    *lacking = lacks_memory(status);
    if (!failed(status)) return ptr;
    if (*lacking) explain();
    return nullptr;
  });
}

int millpond_torch_cpu_delete(void* ptr) {
  return guard(1, [&] {
    if (!failed(millpond_free(ptr))) return 0;
    return millpond_last_error_code() == MILLPOND_E_UNKNOWN_POINTER ? 2 : 1;
  });
}

void* millpond_torch_alloc(ssize_t size, int device, Stream stream) {
  if (size == 0) return nullptr;
  bool lacking = false;
  void* ptr = millpond_torch_request(size, device, stream, &lacking);
  if (ptr != nullptr) return ptr;
  // Trainers that retry with less look for the first words.
  const char* what = !lacking                  ? "Millpond failed."
                     : device_type() == "cuda" ? "CUDA out of memory."
                                               : "Out of memory.";
  throw OutOfMemory(std::string(what) + " Tried to allocate " + with_unit(size) + " on " +
                    device_type() + " device " + std::to_string(device) +
                    " with Millpond: " + last_error());
}

void millpond_torch_free(void* ptr, ssize_t, int device, Stream stream) {
  if (ptr == nullptr) return;
  guard(0, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    C_Status status = millpond_pool_free(on->default_pool(), ptr, stream_of(stream));
    if (status != C_SUCCESS && millpond_last_error_code() == MILLPOND_E_UNKNOWN_STREAM) {
      // The stream has ended before its block.
      status = millpond_device_free(on->get(), ptr);
    }
    return failed(status) ? 1 : 0;
  });
}

void* millpond_torch_segment_alloc(ssize_t size, int device, Stream stream) {
  if (size <= 0) return nullptr;
  return guard(static_cast<void*>(nullptr), [&]() -> void* {
    Device* on = device_at(device);
    millpond_pool* pool = on != nullptr ? on->segments() : nullptr;
    void* ptr = nullptr;
    if (pool == nullptr) return nullptr;
    if (failed(millpond_pool_alloc(pool, static_cast<std::size_t>(size), stream_of(stream), &ptr)))
      explain();
    return ptr;
  });
}

void millpond_torch_segment_free(void* ptr, ssize_t size, int device, Stream stream) {
  millpond_torch_free(ptr, size, device, stream);
  guard(0, [&] {
    Device* on = open_device(device);
    millpond_pool* pool = on != nullptr ? on->segments() : nullptr;
    // While a graph is captured it cannot go; then it goes with the next one.
    return pool == nullptr || failed(millpond_pool_empty_cache(pool)) ? 1 : 0;
  });
}

void millpond_torch_init(int) { hooked.store(true, std::memory_order_relaxed); }

void millpond_torch_reset() {
  guard(0, [] {
    for (int ordinal = 0; ordinal < device_limit(); ++ordinal) {
      Device* device = open_device(ordinal);
      if (device == nullptr) continue;
      device->sweep();
      (void)failed(millpond_device_empty_cache(device->get()));
    }
    return 0;
  });
}

void millpond_torch_sweep() {
  guard(0, [] {
    for (int ordinal = 0; ordinal < device_limit(); ++ordinal) {
      if (Device* device = open_device(ordinal)) device->sweep();
    }
    return 0;
  });
}

void millpond_torch_memory_fraction(double fraction, int device) {
  guard(0, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    if (!(fraction >= 0.0 && fraction <= 1.0)) {
      last_error() = "the fraction lies between 0 and 1";
      return 1;
    }
    millpond_device_info info{};
    info.struct_size = sizeof info;
    if (failed(millpond_device_get_info(on->get(), &info))) return 1;
    // A limit of 0 would be none.
    const auto limit = static_cast<std::uint64_t>(fraction * static_cast<double>(info.total_bytes));
    return failed(millpond_device_set_limit(on->get(), fraction >= 1.0 ? 0
                                                       : limit == 0    ? 1
                                                                       : limit))
               ? 1
               : 0;
  });
}

void* millpond_torch_base_alloc(void* ptr, std::size_t* size) {
  millpond_block_info info{};
  info.struct_size = sizeof info;
  if (failed(millpond_get_block(ptr, &info))) {
    if (size != nullptr) *size = 0;
    return ptr;
  }
  if (size != nullptr) *size = info.size_bytes;
  return info.base;
}

std::size_t millpond_torch_requested(const void* ptr) {
  millpond_block_info info{};
  info.struct_size = sizeof info;
  return failed(millpond_get_block(ptr, &info)) ? 0 : info.requested_bytes;
}

void millpond_torch_record_stream(void* ptr, Stream stream) {
  hooked.store(true, std::memory_order_relaxed);
  if (ptr == nullptr || !failed(millpond_record_stream(ptr, stream_of(stream)))) return;
  // PyTorch does not check whose memory it is; memory of others is not recorded here.
  if (millpond_last_error_code() == MILLPOND_E_UNKNOWN_POINTER) return;
  // Unheard, the block would be used again while the stream still works on it.
  throw Refused("Millpond cannot keep a block for another stream that uses it: " + last_error());
}

void millpond_torch_begin_allocate_to_pool(int device, PoolId id, Filter filter) {
  hooked.store(true, std::memory_order_relaxed);
  Device* on = device_at(device);
  // Unheard, the graph would be captured without its memory being kept.
  if (on == nullptr) throw Refused("Millpond cannot make a pool: " + last_error());
  on->begin(id, std::move(filter));
}

void millpond_torch_begin_elsewhere(int device, PoolId id, Filter filter) {
  Device* on = device_at(device);
  if (on == nullptr) throw Refused("Millpond cannot open the device: " + last_error());
  on->begin(id, std::move(filter), true);
}

Serving millpond_torch_serving(int device, Stream stream) {
  Device* on = open_device(device);
  const std::shared_ptr<Pool> pool = on != nullptr ? on->pool_for(stream) : nullptr;
  if (pool == nullptr) return Serving::kDefault;
  return pool->elsewhere ? Serving::kElsewhere : Serving::kOwn;
}

void millpond_torch_end_allocate_to_pool(int device, PoolId id) {
  guard(0, [&] {
    Device* on = open_device(device);
    if (on != nullptr && on->end(id)) return 0;
    last_error() = "no allocation to this pool was begun";
    return 1;
  });
}

void millpond_torch_release_pool(int device, PoolId id) {
  guard(0, [&] {
    if (Device* on = open_device(device)) on->release(id);
    return 0;
  });
}

const char* millpond_torch_last_error() { return last_error().c_str(); }

const char* millpond_torch_version() { return millpond_version(); }
