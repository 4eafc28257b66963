// A custom-runtime plugin as its vendor writes it: in C++, against PaddlePaddle's own header where
// a wheel brought it (FOREIGN_PADDLE_HEADER), else against ours. It links nothing of Millpond.
//
// One source, many plugins: the macros FOREIGN_* leave functions out, set the sizes, and name the
// type; see foreign.cmake. A test looks inside through two more exports: foreign_control() makes a
// callback fail or throw, foreign_memory() tells what was asked of the plugin, to the byte.
//
// The memory is the process's own, aligned to the plugin's min chunk and guarded behind its end, so
// that a host that writes further than it asked for is found out.
#include <cstdint>  // the header of 2.6.2 uses it and does not include it

#ifdef FOREIGN_PADDLE_HEADER
#include "paddle/phi/backends/device_ext.h"
#else
#include <millpond/custom_runtime.h>
#endif

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "control.hpp"
#include "work.hpp"

#ifndef FOREIGN_TYPE
#define FOREIGN_TYPE "foreign"
#endif
#ifndef FOREIGN_CAPACITY
#define FOREIGN_CAPACITY (std::size_t{1} << 30)
#endif
#ifdef FOREIGN_MIN_CHUNK
constexpr std::size_t kMinChunk = FOREIGN_MIN_CHUNK;
#else
constexpr std::size_t kMinChunk = 256;  // what a host takes where nothing is said
#endif

namespace {

constexpr std::size_t kDevices = 2;
constexpr std::size_t kCapacity = FOREIGN_CAPACITY;  // [B] of each device
// [B] the largest power of two that divides the min chunk.
constexpr std::size_t kAlignment = kMinChunk & ~(kMinChunk - 1);
constexpr std::size_t kGuard = 64;  // [B] behind each piece of memory
constexpr unsigned char kGuardByte = 0xC5;

// ---- what a test asks for ----

std::atomic<int> fault_callback{0};
std::atomic<int> fault_kind{0};
std::atomic<long> fault_after{-1};

/// Success, unless a test wants this call to fail; throws when it wants that.
C_Status pass(ForeignCallback callback) {
  if (fault_callback.load() != callback || fault_kind.load() == kForeignFine) return C_SUCCESS;
  if (fault_after.fetch_sub(1) != 0) return C_SUCCESS;
  if (fault_kind.load() == kForeignThrow) throw std::runtime_error("thrown on demand");
  return C_FAILED;
}

// ---- memory ----

std::mutex lock;
std::map<void*, std::size_t> live[kDevices];
ForeignMemory account[kDevices];
bool overrun = false;
thread_local int current = 0;

bool known(C_Device device) {
  return device != nullptr && device->id >= 0 && static_cast<std::size_t>(device->id) < kDevices;
}

C_Status allocate(const C_Device device, void** out, size_t size) {
  if (!known(device) || out == nullptr || size == 0 || current != device->id) return C_ERROR;
  if (size % kMinChunk != 0) return C_ERROR;
  if (pass(kForeignAllocate) != C_SUCCESS) return C_FAILED;
  std::lock_guard<std::mutex> held(lock);
  ForeignMemory& mine = account[device->id];
  if (size > kCapacity - mine.bytes) return C_FAILED;
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, size + kGuard) != 0) return C_FAILED;
  std::memset(static_cast<unsigned char*>(memory) + size, kGuardByte, kGuard);
  live[device->id][memory] = size;
  mine.bytes += size;
  if (mine.bytes > mine.peak_bytes) mine.peak_bytes = mine.bytes;
  if (mine.calls < kForeignSizes) mine.sizes[mine.calls] = size;
  ++mine.calls;
  *out = memory;
  return C_SUCCESS;
}

C_Status deallocate(const C_Device device, void* memory, size_t size) {
  if (!known(device) || current != device->id) return C_ERROR;
  if (memory == nullptr) return C_SUCCESS;
  if (pass(kForeignDeallocate) != C_SUCCESS) return C_FAILED;
  foreign::wait_for_device(device->id);  // no stream is named: as cudaFree does
  std::lock_guard<std::mutex> held(lock);
  const auto found = live[device->id].find(memory);
  if (found == live[device->id].end() || found->second != size) return C_ERROR;
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (static_cast<unsigned char*>(memory)[size + i] != kGuardByte) overrun = true;
  }
  live[device->id].erase(found);
  account[device->id].bytes -= size;
  ++account[device->id].frees;
  std::free(memory);
  return C_SUCCESS;
}

C_Status copy(const C_Device device, void* dst, const void* src, size_t size) {
  if (!known(device) || current != device->id) return C_ERROR;
  if (pass(kForeignCopy) != C_SUCCESS) return C_FAILED;
  foreign::wait_for_device(device->id);
  if (size != 0) std::memmove(dst, src, size);
  return C_SUCCESS;
}

C_Status get_count(size_t* count) {
  *count = kDevices;
  return C_SUCCESS;
}

#ifndef FOREIGN_NO_EXTRA_COPIES
C_Status fill(const C_Device device, void* memory, unsigned char value, size_t size) {
  if (!known(device)) return C_ERROR;
  foreign::wait_for_device(device->id);
  if (size != 0) std::memset(memory, value, size);
  return C_SUCCESS;
}

C_Status copy_peer(const C_Device to, const C_Device from, void* dst, const void* src,
                   size_t size) {
  if (!known(to) || !known(from)) return C_ERROR;
  foreign::wait_for_device(to->id);
  foreign::wait_for_device(from->id);
  if (size != 0) std::memmove(dst, src, size);
  return C_SUCCESS;
}
#endif

#ifndef FOREIGN_NO_HOST_MEMORY
C_Status host_allocate(const C_Device, void** out, size_t size) {
  *out = std::malloc(size);
  return *out != nullptr ? C_SUCCESS : C_FAILED;
}

C_Status host_deallocate(const C_Device, void* memory, size_t) {
  std::free(memory);
  return C_SUCCESS;
}
#endif

// ---- devices ----

C_Status set_device(const C_Device device) {
  if (!known(device)) return C_ERROR;
  current = device->id;
  return C_SUCCESS;
}

#ifndef FOREIGN_NO_LIFECYCLE
C_Status start() { return pass(kForeignInitialize); }

C_Status finish() {
  foreign::end_all();  // the host unloads us next: no thread may be left
  return C_SUCCESS;
}

C_Status init_device(const C_Device device) {
  return known(device) ? pass(kForeignInitDevice) : C_ERROR;
}

C_Status deinit_device(const C_Device device) { return known(device) ? C_SUCCESS : C_ERROR; }

C_Status get_device(const C_Device device) {
  device->id = current;
  return C_SUCCESS;
}

C_Status get_list(size_t* ids) {
  for (std::size_t i = 0; i < kDevices; ++i) ids[i] = i;
  return C_SUCCESS;
}
#endif

C_Status synchronize_device(const C_Device device) {
  if (!known(device)) return C_ERROR;
  foreign::wait_for_device(device->id);
  return C_SUCCESS;
}

// ---- streams and events; a null stream is the default one, where work is done at once ----

#ifndef FOREIGN_NO_STREAMS
foreign::Stream* of(C_Stream stream) { return reinterpret_cast<foreign::Stream*>(stream); }
#ifndef FOREIGN_NO_EVENTS
foreign::Event* of(C_Event event) { return reinterpret_cast<foreign::Event*>(event); }
#endif

C_Status create_stream(const C_Device device, C_Stream* out) {
  if (!known(device)) return C_ERROR;
  if (pass(kForeignCreateStream) != C_SUCCESS) return C_FAILED;
  *out = reinterpret_cast<C_Stream>(foreign::create_stream(device->id));
  return C_SUCCESS;
}

C_Status destroy_stream(const C_Device, C_Stream stream) {
  foreign::destroy_stream(of(stream));
  return C_SUCCESS;
}

C_Status synchronize_stream(const C_Device device, C_Stream stream) {
  if (stream == nullptr) return synchronize_device(device);
  of(stream)->wait();
  return C_SUCCESS;
}

#ifndef FOREIGN_NO_QUERIES
C_Status query_stream(const C_Device, C_Stream stream) {
  return stream == nullptr || of(stream)->idle() ? C_SUCCESS : C_WARNING;
}
#endif

#ifndef FOREIGN_NO_CALLBACKS
C_Status add_callback(const C_Device device, C_Stream stream, C_Callback callback, void* data) {
  const int id = device->id;
  const auto call = [id, stream, callback, data] {
    C_Device_st its_device{id};
    C_Status status = C_SUCCESS;
    callback(&its_device, stream, data, &status);
  };
  if (stream == nullptr) {
    call();
  } else {
    of(stream)->push(call);
  }
  return C_SUCCESS;
}
#endif

#ifndef FOREIGN_NO_EVENTS
C_Status create_event(const C_Device, C_Event* out) {
  if (pass(kForeignCreateEvent) != C_SUCCESS) return C_FAILED;
  *out = reinterpret_cast<C_Event>(new foreign::Event);
  return C_SUCCESS;
}

C_Status destroy_event(const C_Device, C_Event event) {
  delete of(event);
  return C_SUCCESS;
}

C_Status record_event(const C_Device, C_Stream stream, C_Event event) {
  if (pass(kForeignRecordEvent) != C_SUCCESS) return C_FAILED;
  of(event)->record(stream == nullptr ? nullptr : of(stream));
  return C_SUCCESS;
}

C_Status synchronize_event(const C_Device, C_Event event) {
  of(event)->wait();
  return C_SUCCESS;
}

#ifndef FOREIGN_NO_QUERIES
C_Status query_event(const C_Device, C_Event event) {
  return of(event)->done() ? C_SUCCESS : C_WARNING;
}
#endif

#ifndef FOREIGN_NO_WAITS
C_Status stream_wait_event(const C_Device, C_Stream stream, C_Event event) {
  if (stream == nullptr) {
    of(event)->wait();
  } else {
    of(event)->hold(of(stream));
  }
  return C_SUCCESS;
}
#endif
#endif  // FOREIGN_NO_EVENTS

#ifndef FOREIGN_NO_ASYNC
C_Status copy_later(const C_Device device, C_Stream stream, void* dst, const void* src,
                    size_t size) {
  if (!known(device)) return C_ERROR;
  if (stream == nullptr) return copy(device, dst, src, size);
  of(stream)->push([=] { std::memmove(dst, src, size); });
  return C_SUCCESS;
}

// The host may free pageable memory as soon as this returns.
C_Status copy_in_later(const C_Device device, C_Stream stream, void* dst, const void* src,
                       size_t size) {
  if (!known(device)) return C_ERROR;
  if (stream == nullptr) return copy(device, dst, src, size);
  const auto* bytes = static_cast<const unsigned char*>(src);
  of(stream)->push([dst, kept = std::vector<unsigned char>(bytes, bytes + size)] {
    std::memmove(dst, kept.data(), kept.size());
  });
  return C_SUCCESS;
}
#endif
#endif  // FOREIGN_NO_STREAMS

// ---- sizes ----

#ifndef FOREIGN_NO_STATS
C_Status stats(const C_Device device, size_t* total, size_t* free) {
  if (!known(device)) return C_ERROR;
  std::lock_guard<std::mutex> held(lock);
  *total = kCapacity;
  *free = kCapacity - account[device->id].bytes;
  return C_SUCCESS;
}
#endif

template <std::size_t kValue>
C_Status answer(const C_Device device, size_t* out) {
  if (!known(device) || out == nullptr) return C_ERROR;
  *out = kValue;
  return C_SUCCESS;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) void InitPlugin(CustomRuntimeParams* params);
__attribute__((visibility("default"))) void foreign_control(int callback, int kind, long after);
__attribute__((visibility("default"))) void foreign_memory(int device, ForeignMemory* out);
__attribute__((visibility("default"))) int foreign_was_overrun();
}

void foreign_control(int callback, int kind, long after) {
  fault_kind.store(kForeignFine);
  fault_callback.store(callback);
  fault_after.store(after);
  fault_kind.store(kind);
}

void foreign_memory(int device, ForeignMemory* out) {
  std::lock_guard<std::mutex> held(lock);
  *out = account[device];
}

int foreign_was_overrun() { return overrun ? 1 : 0; }

void InitPlugin(CustomRuntimeParams* params) {
  if (std::getenv("FOREIGN_INIT_THROWS") != nullptr) throw std::runtime_error("thrown on demand");
#ifdef FOREIGN_PADDLE_HEADER
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
#elif defined(FOREIGN_OLDER)
  // As a plugin that was built for 2.6.2 looks at its host.
  if (params->size != 88 && params->interface->size != 912) return;
  params->version = {0, 1, 1};
#else
  MILLPOND_CUSTOM_RUNTIME_CHECK_VERSION(params);
#endif
  for (ForeignMemory& mine : account) mine = ForeignMemory{};  // a host begins
  static char type[] = FOREIGN_TYPE;
  static char sub_type[] = "memory";
  params->device_type = type;
  params->sub_device_type = sub_type;

  C_DeviceInterface* table = params->interface;
#if defined(FOREIGN_PADDLE_HEADER) || !defined(FOREIGN_OLDER)
  // As many vendors do: "my" struct, cleared, with the size that I know.
  std::memset(table, 0, sizeof(C_DeviceInterface));
  table->size = sizeof(C_DeviceInterface);
#endif
  table->set_device = set_device;
  table->device_memory_allocate = allocate;
  table->device_memory_deallocate = deallocate;
  table->memory_copy_h2d = copy;
  table->memory_copy_d2h = copy;
  table->get_device_count = get_count;
  table->synchronize_device = synchronize_device;
#ifndef FOREIGN_NO_LIFECYCLE
  table->initialize = start;
  table->finalize = finish;
  table->init_device = init_device;
  table->deinit_device = deinit_device;
  table->get_device = get_device;
  table->get_device_list = get_list;
#endif
#ifndef FOREIGN_NO_EXTRA_COPIES
  table->memory_copy_d2d = copy;
  table->memory_copy_p2p = copy_peer;
  table->device_memory_set = fill;
#endif
#ifndef FOREIGN_NO_HOST_MEMORY
  table->host_memory_allocate = host_allocate;
  table->host_memory_deallocate = host_deallocate;
  table->unified_memory_allocate = host_allocate;
  table->unified_memory_deallocate = host_deallocate;
#endif
#ifndef FOREIGN_NO_STREAMS
  table->create_stream = create_stream;
  table->destroy_stream = destroy_stream;
  table->synchronize_stream = synchronize_stream;
#ifndef FOREIGN_NO_QUERIES
  table->query_stream = query_stream;
#endif
#ifndef FOREIGN_NO_CALLBACKS
  table->stream_add_callback = add_callback;
#endif
#ifndef FOREIGN_NO_EVENTS
  table->create_event = create_event;
  table->destroy_event = destroy_event;
  table->record_event = record_event;
  table->synchronize_event = synchronize_event;
#ifndef FOREIGN_NO_QUERIES
  table->query_event = query_event;
#endif
#ifndef FOREIGN_NO_WAITS
  table->stream_wait_event = stream_wait_event;
#endif
#endif
#ifndef FOREIGN_NO_ASYNC
  table->async_memory_copy_h2d = copy_in_later;
  table->async_memory_copy_d2h = copy_later;
  table->async_memory_copy_d2d = copy_later;
#endif
#endif
#ifndef FOREIGN_NO_STATS
  table->device_memory_stats = stats;
#endif
#ifdef FOREIGN_MIN_CHUNK
  table->device_min_chunk_size = answer<FOREIGN_MIN_CHUNK>;
#endif
#ifdef FOREIGN_MAX_CHUNK
  table->device_max_chunk_size = answer<FOREIGN_MAX_CHUNK>;
#endif
#ifdef FOREIGN_MAX_ALLOC
  table->device_max_alloc_size = answer<FOREIGN_MAX_ALLOC>;
#endif
#ifdef FOREIGN_PADDING
  table->device_extra_padding_size = answer<FOREIGN_PADDING>;
#endif
#ifdef FOREIGN_INIT_ALLOC
  table->device_init_alloc_size = answer<FOREIGN_INIT_ALLOC>;
#endif
#ifdef FOREIGN_REALLOC
  table->device_realloc_size = answer<FOREIGN_REALLOC>;
#endif
}
