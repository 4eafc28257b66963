// What the shared object exports: the functions that torch.cuda.memory.CUDAPluggableAllocator
// takes, with PyTorch's own signatures (torch/csrc/cuda/CUDAPluggableAllocator.h, PyTorch 2.1
// to 2.15), and a few more for the Python package.
//
// Streams are those of PyTorch (cudaStream_t, a pointer); devices are CUDA ordinals. All may be
// called from any thread. Those that say so throw, since PyTorch has no other way to hear of it;
// the others keep their error for millpond_torch_last_error.
#ifndef MILLPOND_TORCH_PLUGGABLE_HPP
#define MILLPOND_TORCH_PLUGGABLE_HPP

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#define MILLPOND_TORCH_EXPORT __attribute__((visibility("default")))

namespace millpond_torch {
using Stream = void*;                                              // cudaStream_t
using PoolId = std::pair<unsigned long long, unsigned long long>;  // c10::MempoolId_t
using Filter = std::function<bool(Stream)>;

// What the Python package reads. New members go at the end; the caller gives the size that it
// knows.
struct Counter {
  std::uint64_t current, peak, total;
};
struct Stats {
  std::size_t struct_size;
  Counter requested_bytes, allocated_bytes, active_bytes, reserved_bytes, blocks, segments;
  std::uint64_t driver_calls, out_of_memory_count, limit_bytes;
};
struct Block {
  std::uint64_t address, size_bytes, requested_bytes, stream;
  std::uint64_t pool_first, pool_second;  // PyTorch's id of the pool; 0, 0: the default one
};
// Memory of one stream and one pool, side by side.
struct Segment {
  std::uint64_t address, size_bytes, stream;
  std::uint64_t pool_first, pool_second;  // as in Block
  std::size_t blocks;
  bool mapped;  // memory is mapped there; else it was taken by one call
  bool small;   // for blocks that lie in chunks
  bool sleeps;  // it has addresses and no memory
};
// A part of a segment: a live block, a freed one that waits, or neither, which is free.
struct SegmentBlock {
  std::uint64_t address, size_bytes, requested_bytes;
  std::uint64_t span_bytes;  // up to the next one
  bool live, waiting;
};
// An event of a history (millpond_history_event), of the device's own memory. The kinds that
// PyTorch has no name for are left out.
enum class EventKind : std::uint32_t {
  kAlloc = 1,
  kFreeRequested = 2,
  kFreeCompleted = 3,
  kFreeRefused = 4,
  kSegmentAlloc = 5,
  kSegmentFree = 6,
  kSegmentMap = 7,
  kSegmentUnmap = 8,
  kOutOfMemory = 9,
};
/// Which pool serves a request: the default one, one of its own, or one whose memory another
/// allocator has.
enum class Serving : int { kDefault, kOwn, kElsewhere };
struct Event {
  std::uint64_t time_ns;  // of CLOCK_MONOTONIC
  std::uint64_t address, size_bytes, stream;
  std::uint64_t pool_first, pool_second;
  std::uint32_t thread;  // gettid
  EventKind kind;
  bool at_once;         // a free that waited for nothing
  std::uint64_t stamp;  // when, as millpond_torch_history_stamp tells it
};
}  // namespace millpond_torch

extern "C" {
// Memory for work that is queued on `stream` from now on. 0 bytes: NULL. Throws an exception
// derived from std::bad_alloc whose what() tells the sizes and the reason, and begins with
// "CUDA out of memory." where there is no memory.
//
// Until one of the hooks below is called for the first time, PyTorch is taken not to have them:
// then a block may be used on every stream and waits for all of them after its free, and a request
// on a stream that is captured throws.
MILLPOND_TORCH_EXPORT void* millpond_torch_alloc(ssize_t size, int device,
                                                 millpond_torch::Stream stream);
// Ends a block; at once reusable by work queued later on `stream`. NULL: nothing.
MILLPOND_TORCH_EXPORT void millpond_torch_free(void* ptr, ssize_t size, int device,
                                               millpond_torch::Stream stream);

// The same two for an allocator of C++ (torch/python/millpond_torch/native.cpp). A failure is NULL,
// and `lacking` tells whether it is for lack of memory; a block is freed on its own stream.
MILLPOND_TORCH_EXPORT void* millpond_torch_request(ssize_t size, int device,
                                                   millpond_torch::Stream stream, bool* lacking);
MILLPOND_TORCH_EXPORT void millpond_torch_delete(void* ptr);

// The same two for the processor's own memory (torch/python/millpond_torch/cpu.cpp), from the
// device `cpu`: aligned to 512 bytes, private to the process, and no stream is known to use it.
// 0 bytes: NULL. `delete` gives 0 where it has freed the block, 2 where Millpond knows no such
// block, 1 for any other failure.
MILLPOND_TORCH_EXPORT void* millpond_torch_cpu_request(std::size_t size, bool* lacking);
MILLPOND_TORCH_EXPORT int millpond_torch_cpu_delete(void* ptr);
// As millpond_torch_stats and millpond_torch_reset_peaks, of `cpu`.
MILLPOND_TORCH_EXPORT int millpond_torch_cpu_stats(millpond_torch::Stats* inout);
MILLPOND_TORCH_EXPORT int millpond_torch_cpu_reset_peaks(void);

// The same two for torch.cuda.MemPool, under PyTorch's own allocator, which takes whole segments
// from them: a failure is NULL, upon which PyTorch gives its cache back and asks again, and what is
// freed goes back to the device.
MILLPOND_TORCH_EXPORT void* millpond_torch_segment_alloc(ssize_t size, int device,
                                                         millpond_torch::Stream stream);
MILLPOND_TORCH_EXPORT void millpond_torch_segment_free(void* ptr, ssize_t size, int device,
                                                       millpond_torch::Stream stream);

// The optional hooks of CUDAPluggableAllocator, in the order in which PyTorch names them. The first
// says that all of them are set.
MILLPOND_TORCH_EXPORT void millpond_torch_init(int device_count);
// torch.cuda.empty_cache(): unused memory of all devices goes back.
MILLPOND_TORCH_EXPORT void millpond_torch_reset();
// As much of it as ended pools without live blocks have, which becomes ordinary free memory.
MILLPOND_TORCH_EXPORT void millpond_torch_sweep();
// The share of the device's total memory, 0 to 1, that is the most from now on.
MILLPOND_TORCH_EXPORT void millpond_torch_memory_fraction(double fraction, int device);
// The start of the block that holds `ptr`, and its bytes.
MILLPOND_TORCH_EXPORT void* millpond_torch_base_alloc(void* ptr, std::size_t* size);
// The bytes that were requested of it; 0: it is none of Millpond's.
MILLPOND_TORCH_EXPORT std::size_t millpond_torch_requested(const void* ptr);
// The block is not used again before the stream is done with it. Other memory is left alone. Throws
// std::runtime_error where the use cannot be noted.
MILLPOND_TORCH_EXPORT void millpond_torch_record_stream(void* ptr, millpond_torch::Stream stream);
// From now on requests of streams that the filter accepts come from a pool of their own, as
// captured graphs and torch.cuda.use_mem_pool ask for it. Of several filters that accept a stream
// the one that was begun last counts. A pool has one use more. Throws std::runtime_error where
// there can be no such pool.
MILLPOND_TORCH_EXPORT void millpond_torch_begin_allocate_to_pool(int device,
                                                                 millpond_torch::PoolId pool,
                                                                 millpond_torch::Filter filter);
// The same of a pool whose memory another allocator has: Millpond only knows whose turn it is. It
// is ended and released as others are.
MILLPOND_TORCH_EXPORT void millpond_torch_begin_elsewhere(int device, millpond_torch::PoolId pool,
                                                          millpond_torch::Filter filter);
// Which pool a request of the stream is for. Throws as millpond_torch_begin_allocate_to_pool where
// the memory of a graph that the stream is captured into cannot be kept.
MILLPOND_TORCH_EXPORT millpond_torch::Serving millpond_torch_serving(int device,
                                                                     millpond_torch::Stream stream);
MILLPOND_TORCH_EXPORT void millpond_torch_end_allocate_to_pool(int device,
                                                               millpond_torch::PoolId pool);
// One use less, as PyTorch asks for it once for each begin. After the last one the pool's memory
// serves others once the device is done with what is queued now, but for the blocks that live, and
// goes back with the next reset. Waits for nothing.
MILLPOND_TORCH_EXPORT void millpond_torch_release_pool(int device, millpond_torch::PoolId pool);

// For the Python package. Those that return int give 0, or 1 for a failure that
// millpond_torch_last_error tells.
MILLPOND_TORCH_EXPORT int millpond_torch_device_count(std::size_t* out);
MILLPOND_TORCH_EXPORT int millpond_torch_stats(int device, millpond_torch::Stats* inout);
// The numbers of torch.cuda.memory_stats(), at most `room` of them, in the order of their names;
// how many there are in all goes to `count`.
MILLPOND_TORCH_EXPORT int millpond_torch_memory_stats(int device, std::uint64_t* out,
                                                      std::size_t room, std::size_t* count);
// The n-th name; NULL past the last one.
MILLPOND_TORCH_EXPORT const char* millpond_torch_memory_stats_name(std::size_t index);
// The same for torch.cuda.host_memory_stats().
MILLPOND_TORCH_EXPORT int millpond_torch_host_memory_stats(int device, std::uint64_t* out,
                                                           std::size_t room, std::size_t* count);
MILLPOND_TORCH_EXPORT const char* millpond_torch_host_memory_stats_name(std::size_t index);
MILLPOND_TORCH_EXPORT int millpond_torch_reset_accumulated(int device);
MILLPOND_TORCH_EXPORT int millpond_torch_memory(int device, std::uint64_t* total,
                                                std::uint64_t* free);
MILLPOND_TORCH_EXPORT int millpond_torch_reset_peaks(int device);
// The live blocks, at most `room` of them; how many there are in all.
MILLPOND_TORCH_EXPORT std::size_t millpond_torch_blocks(int device, millpond_torch::Block* out,
                                                        std::size_t room);
// Tells `each` all memory of a device at one moment, segment by segment; none of a device that is
// not in use. With no lock held.
MILLPOND_TORCH_EXPORT int millpond_torch_segments(
    int device,
    void (*each)(void* user_data, const millpond_torch::Segment* segment,
                 const millpond_torch::SegmentBlock* blocks),
    void* user_data);
// One use more of a pool that has PyTorch's id, which is made if there is none; and one use less.
MILLPOND_TORCH_EXPORT int millpond_torch_pool_hold(int device, std::uint64_t first,
                                                   std::uint64_t second);
MILLPOND_TORCH_EXPORT void millpond_torch_pool_drop(int device, std::uint64_t first,
                                                    std::uint64_t second);
// Whether ordinary requests that find no memory are served from such a pool's free memory.
MILLPOND_TORCH_EXPORT int millpond_torch_pool_serves_others(int device, std::uint64_t first,
                                                            std::uint64_t second, bool serves);
// Whether they are. False, too: there is no such pool.
MILLPOND_TORCH_EXPORT bool millpond_torch_pool_is_spare(int device, std::uint64_t first,
                                                        std::uint64_t second);
// A request that has failed for lack of memory is tried again, or was served from elsewhere: it
// does not count in num_ooms.
MILLPOND_TORCH_EXPORT void millpond_torch_avert_oom(int device);
// PyTorch copies between devices by cudaMemcpyPeerAsync where they do not reach each other, so all
// memory may be mapped. Before the first device is used.
MILLPOND_TORCH_EXPORT void millpond_torch_copies_by_peer();
// The uses of such a pool; 0: there is none.
MILLPOND_TORCH_EXPORT int millpond_torch_pool_uses(int device, std::uint64_t first,
                                                   std::uint64_t second);
// The layout of the blocks of PyTorch's pool as it is now, which the caller destroys.
MILLPOND_TORCH_EXPORT int millpond_torch_checkpoint(int device, std::uint64_t first,
                                                    std::uint64_t second, void** out);
// Exactly the blocks of the checkpoint live in the pool again, at their addresses. Nobody else may
// use the pool meanwhile. After a failure nothing has changed.
MILLPOND_TORCH_EXPORT int millpond_torch_restore(int device, std::uint64_t first,
                                                 std::uint64_t second, const void* checkpoint);
MILLPOND_TORCH_EXPORT void millpond_torch_checkpoint_destroy(void* checkpoint);
// What another process needs to open the block that begins at `ptr`, as millpond_export, _import
// and _import_close say. The caller closes the descriptors.
MILLPOND_TORCH_EXPORT int millpond_torch_export_size(const void* ptr, std::size_t* info_bytes,
                                                     std::size_t* fd_count);
MILLPOND_TORCH_EXPORT int millpond_torch_export(const void* ptr, void* info, std::size_t info_bytes,
                                                int* fds, std::size_t fd_count);
MILLPOND_TORCH_EXPORT int millpond_torch_import(int device, const void* info,
                                                std::size_t info_bytes, const int* fds,
                                                std::size_t fd_count, void** out);
MILLPOND_TORCH_EXPORT int millpond_torch_import_close(void* ptr);
// From now on the devices in use, and those that come into use, keep so many of their newest
// events. A second call may ask for more, upon which what was kept is given up. A device that has a
// history already, as by MILLPOND_HISTORY, keeps that one.
MILLPOND_TORCH_EXPORT int millpond_torch_history_start(std::size_t events);
MILLPOND_TORCH_EXPORT void millpond_torch_history_stop();
// The clock of Event::stamp.
MILLPOND_TORCH_EXPORT std::uint64_t millpond_torch_history_stamp();
// Tells `each` the device's events, the oldest first, until it returns false; none without a
// history.
MILLPOND_TORCH_EXPORT int millpond_torch_history_read(
    int device, bool (*each)(void* user_data, const millpond_torch::Event* event), void* user_data);
// From now on `told` hears of each range of addresses of any device that gets memory (`added`), and
// of each that is about to lose it; of those that are there already it does not. It must not call
// Millpond. For good: there is one of them in a process.
MILLPOND_TORCH_EXPORT int millpond_torch_on_segments(void (*told)(int device, bool added, void* ptr,
                                                                  std::size_t size, bool mapped));
// From now on all devices have the options of the text, which is one of
// torch.cuda.memory._set_allocator_settings: those in use, and those that come into use, which fail
// to where Millpond refuses a value. Keys that Millpond does not know, and on devices in use
// `backend` and `expandable_segments`, change nothing.
MILLPOND_TORCH_EXPORT int millpond_torch_settings(const char* text);
// 0.
MILLPOND_TORCH_EXPORT int millpond_torch_no();
// Sets the tag of the memory that this thread allocates from now on; tags nest.
MILLPOND_TORCH_EXPORT int millpond_torch_tag_push(const char* name);
MILLPOND_TORCH_EXPORT int millpond_torch_tag_pop();
// Bytes in live blocks of a device that have this tag.
MILLPOND_TORCH_EXPORT int millpond_torch_tag_bytes(int device, const char* name,
                                                   std::uint64_t* out);
// This thread's last failure in these functions; valid until its next one. Never NULL.
MILLPOND_TORCH_EXPORT const char* millpond_torch_last_error();
MILLPOND_TORCH_EXPORT const char* millpond_torch_version();
}

#endif
