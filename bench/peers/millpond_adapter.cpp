// Millpond as a subject of the external harness that runs released device allocators side by side.
//
// The harness loads this shared object and calls the five peer_* functions; see build.sh. Options:
//   host      the embedded host device of the given capacity, which maps (also the empty string)
//   segments  the same device without mapping
//   fake      a custom-runtime plugin over the harness's counting CUDA runtime, registered with
//             millpond_device_type_register; that interface has no mapping
// Each harness stream is a stream of the device; memory comes from the device's default pool.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "millpond/millpond.h"
#include "peer_adapter.h"

namespace {

constexpr unsigned kMaxStreams = 64;
millpond_device* g_device;
millpond_pool* g_pool;
C_Stream g_streams[kMaxStreams];
bool g_fake;

// ---- the plugin over the harness's runtime, which is the only libcudart in the process ----

using Stream = void*;
using Event = void*;
struct Runtime {
  int (*malloc)(void**, size_t);
  int (*free)(void*);
  int (*mem_info)(size_t*, size_t*);
  int (*stream_create)(Stream*, unsigned);
  int (*stream_destroy)(Stream);
  int (*stream_query)(Stream);
  int (*stream_synchronize)(Stream);
  int (*stream_wait)(Stream, Event, unsigned);
  int (*device_synchronize)();
  int (*event_create)(Event*, unsigned);
  int (*event_destroy)(Event);
  int (*event_record)(Event, Stream);
  int (*event_query)(Event);
  int (*event_synchronize)(Event);
} g_cuda;

constexpr unsigned kNoTiming = 2;     // cudaEventDisableTiming
constexpr unsigned kNonBlocking = 1;  // cudaStreamNonBlocking

template <class F>
bool find(F& out, const char* name) {
  out = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  return out != nullptr;
}

bool load_runtime() {
  return find(g_cuda.malloc, "cudaMalloc") && find(g_cuda.free, "cudaFree") &&
         find(g_cuda.mem_info, "cudaMemGetInfo") &&
         find(g_cuda.stream_create, "cudaStreamCreateWithFlags") &&
         find(g_cuda.stream_destroy, "cudaStreamDestroy") &&
         find(g_cuda.stream_query, "cudaStreamQuery") &&
         find(g_cuda.stream_synchronize, "cudaStreamSynchronize") &&
         find(g_cuda.stream_wait, "cudaStreamWaitEvent") &&
         find(g_cuda.device_synchronize, "cudaDeviceSynchronize") &&
         find(g_cuda.event_create, "cudaEventCreateWithFlags") &&
         find(g_cuda.event_destroy, "cudaEventDestroy") &&
         find(g_cuda.event_record, "cudaEventRecord") &&
         find(g_cuda.event_query, "cudaEventQuery") &&
         find(g_cuda.event_synchronize, "cudaEventSynchronize");
}

C_Status status(int cuda_error) { return cuda_error == 0 ? C_SUCCESS : C_FAILED; }

C_Status fake_allocate(C_Device, void** out, size_t size) {
  return status(g_cuda.malloc(out, size));
}
C_Status fake_deallocate(C_Device, void* ptr, size_t) { return status(g_cuda.free(ptr)); }
// Nothing is ever copied: the addresses have no memory behind them.
C_Status fake_copy(C_Device, void*, const void*, size_t) { return C_FAILED; }
C_Status fake_count(size_t* out) {
  *out = 1;
  return C_SUCCESS;
}
C_Status fake_list(size_t* out) {
  out[0] = 0;
  return C_SUCCESS;
}
C_Status fake_stats(C_Device, size_t* total, size_t* free) {
  return status(g_cuda.mem_info(free, total));
}
C_Status fake_min_chunk(C_Device, size_t* out) {
  *out = 512;
  return C_SUCCESS;
}
C_Status fake_create_stream(C_Device, C_Stream* out) {
  return status(g_cuda.stream_create(reinterpret_cast<Stream*>(out), kNonBlocking));
}
C_Status fake_destroy_stream(C_Device, C_Stream s) { return status(g_cuda.stream_destroy(s)); }
C_Status fake_query_stream(C_Device, C_Stream s) { return status(g_cuda.stream_query(s)); }
C_Status fake_synchronize_stream(C_Device, C_Stream s) {
  return status(g_cuda.stream_synchronize(s));
}
C_Status fake_synchronize_device(C_Device) { return status(g_cuda.device_synchronize()); }
C_Status fake_create_event(C_Device, C_Event* out) {
  return status(g_cuda.event_create(reinterpret_cast<Event*>(out), kNoTiming));
}
C_Status fake_destroy_event(C_Device, C_Event e) { return status(g_cuda.event_destroy(e)); }
C_Status fake_record_event(C_Device, C_Stream s, C_Event e) {
  return status(g_cuda.event_record(e, s));
}
C_Status fake_query_event(C_Device, C_Event e) { return status(g_cuda.event_query(e)); }
C_Status fake_synchronize_event(C_Device, C_Event e) { return status(g_cuda.event_synchronize(e)); }
C_Status fake_stream_wait_event(C_Device, C_Stream s, C_Event e) {
  return status(g_cuda.stream_wait(s, e, 0));
}

void init_plugin(CustomRuntimeParams* params) {
  MILLPOND_CUSTOM_RUNTIME_CHECK_COMMON(params);
  params->device_type = const_cast<char*>("fakecuda");
  params->sub_device_type = const_cast<char*>("v0");
  C_DeviceInterface* t = params->interface;
  t->device_memory_allocate = fake_allocate;
  t->device_memory_deallocate = fake_deallocate;
  t->memory_copy_h2d = fake_copy;
  t->memory_copy_d2h = fake_copy;
  t->memory_copy_d2d = fake_copy;
  t->get_device_count = fake_count;
  t->get_device_list = fake_list;
  t->device_memory_stats = fake_stats;
  t->device_min_chunk_size = fake_min_chunk;
  t->create_stream = fake_create_stream;
  t->destroy_stream = fake_destroy_stream;
  t->query_stream = fake_query_stream;
  t->synchronize_stream = fake_synchronize_stream;
  t->synchronize_device = fake_synchronize_device;
  t->create_event = fake_create_event;
  t->destroy_event = fake_destroy_event;
  t->record_event = fake_record_event;
  t->query_event = fake_query_event;
  t->synchronize_event = fake_synchronize_event;
  t->stream_wait_event = fake_stream_wait_event;
}

int fail(const char* what) {
  std::fprintf(stderr, "millpond adapter: %s: %s\n", what, millpond_last_error_message());
  return 2;
}

}  // namespace

extern "C" {

const char* peer_name(void) { return "millpond"; }

// The harness asks before peer_init, so the options are not known yet. Only `fake` takes memory
// from the harness's driver; saying so is left to a build with -DMILLPOND_PEER_FAKE, because the
// shadow check then wants every block to lie in that driver's memory.
uint32_t peer_flags(void) {
#ifdef MILLPOND_PEER_FAKE
  return PEER_F_DEVICE;
#else
  return PEER_F_HOST;
#endif
}

int peer_init(const peer_config* cfg) {
  if (cfg->abi_version != PEER_ABI_VERSION || cfg->n_streams > kMaxStreams) return 2;
  const char* options = cfg->options == nullptr ? "" : cfg->options;
  const char* type = "host";
  char name[MILLPOND_DEVICE_TYPE_NAME_BYTES];
  if (std::strcmp(options, "fake") == 0) {
    g_fake = true;
    if (!load_runtime()) {
      std::fprintf(stderr, "millpond adapter: the harness's CUDA runtime is not loaded\n");
      return 2;
    }
    if (millpond_device_type_register(init_plugin, name, sizeof name) != C_SUCCESS) {
      return fail("register");
    }
    type = name;
  } else {
    const bool segments = std::strcmp(options, "segments") == 0;
    if (!segments && *options != 0 && std::strcmp(options, "host") != 0) return 2;
    millpond_host_options host{};
    host.struct_size = sizeof host;
    host.device_count = 1;
    host.capacity_bytes = cfg->capacity;
    host.disable_mapping = segments ? 1 : 0;
    if (millpond_host_configure(&host) != C_SUCCESS) return fail("configure");
  }
  if (millpond_device_get(type, 0, &g_device) != C_SUCCESS) return fail("device");
  if (millpond_device_get_default_pool(g_device, &g_pool) != C_SUCCESS) return fail("pool");
  for (unsigned i = 0; i < cfg->n_streams; ++i) {
    if (millpond_stream_create(g_device, &g_streams[i]) != C_SUCCESS) return fail("stream");
  }
  return 0;
}

int peer_alloc(size_t size, int stream, void** out) {
  if (__builtin_expect(millpond_pool_alloc(g_pool, size, g_streams[stream], out) == C_SUCCESS, 1)) {
    return 0;
  }
  return millpond_last_error_code() == MILLPOND_E_OUT_OF_MEMORY ? 1 : 2;
}

int peer_free(void* ptr, size_t, int stream) {
  return millpond_pool_free(g_pool, ptr, g_streams[stream]) == C_SUCCESS ? 0 : 2;
}

uint64_t peer_reserved_bytes(void) {
  millpond_stats stats{};
  stats.struct_size = sizeof stats;
  return millpond_device_get_stats(g_device, &stats) == C_SUCCESS ? stats.reserved_bytes.current
                                                                  : 0;
}

int peer_empty_cache(void) { return millpond_device_empty_cache(g_device) == C_SUCCESS ? 0 : 2; }

}  // extern "C"
