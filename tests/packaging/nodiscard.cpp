// Calls whose results must not be ignored, each ignored on a line that says so: the compiler warns
// of these lines and of no others (checks/nodiscard.cmake). Compiled with exceptions and without.
#include <cstdint>

#include "millpond/millpond.hpp"

using namespace millpond;

void owned(Device device, PoolView pool, StreamView stream, Buffer& block) {
  memory::Alloc(CPUPlace(), 100);                        // ignored
  memory::Alloc(CPUPlace(), 100, std::nothrow);          // ignored
  device.allocate(100);                                  // ignored
  pool.allocate(100, stream);                            // ignored
  pool.allocate_zeroed(100, stream);                     // ignored
  pool.allocate_aligned(100, 4096, stream);              // ignored
  pool.allocate_unordered(100);                          // ignored
  make_device_array<float>(device, 100);                 // ignored
  block.release();                                       // ignored
  export_dlpack(block);                                  // ignored
  export_dlpack_legacy(block, dlpack_options<float>());  // ignored
  Event::timed(device);                                  // ignored
  Capture::keep(pool);                                   // ignored
}

#if MILLPOND_CPP_EXCEPTIONS
void resources(const StreamResource<>& resource, StreamView stream) {
  LimitingResource limited(resource, 100);
  BinningResource bins(resource, limited, 10);
  ArenaResource arena(bins, stream, 1000);
  resource.allocate(stream, 100);                 // ignored
  resource.allocate_sync(100);                    // ignored
  resource.allocate(100);                         // ignored
  resource.allocate_async(100, stream);           // ignored
  resource.allocate_async(100, 8, stream);        // ignored
  limited.allocate(stream, 100);                  // ignored
  limited.allocate_sync(100);                     // ignored
  bins.allocate(stream, 100);                     // ignored
  bins.allocate_sync(100);                        // ignored
  arena.allocate(stream, 100);                    // ignored
  arena.allocate(100);                            // ignored
  Allocator<int>(resource.pool()).allocate(100);  // ignored
}
#endif

// A failure is thrown, or only the status tells of it.
void told(Device device, PoolView pool, Stream& stream, Event& event, Buffer& block,
          Capture& capture) {
  const auto all = [](const auto&) { return true; };
  capture.add(stream);                              // a status
  device.each_block(MILLPOND_BLOCK_LIVE, all);      // a status
  device.each_segment(all);                         // a status
  pool.each_block(MILLPOND_BLOCK_LIVE, all);        // a status
  device.synchronize();                             // a status
  device.set_limit(1);                              // a status
  device.set_options("");                           // a status
  device.empty_cache();                             // a status
  device.memset(block.data(), 0, 1);                // a status
  pool.set_limit(1);                                // a status
  stream.memset(block.data(), 0, 1);                // a status
  stream.synchronize();                             // a status
  stream.wait(event);                               // a status
  event.synchronize();                              // a status
  block.record_stream(stream);                      // a status
  configure_host(1);                                // a status
  finalize();                                       // a status
  memory::Free(CPUPlace(), nullptr, std::nothrow);  // a status
  memory::Free(CPUPlace(), nullptr);                // as PaddlePaddle's code does
  memory::Copy(CPUPlace(), block.data(), CPUPlace(), block.data(), 1);  // a status
  free_sized(block.data(), 1);                                          // a status
}
