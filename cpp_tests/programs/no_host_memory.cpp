// The C++ interface where the host has no memory: each operation gets so many bytes of it and not
// one more, on a thread that has called the library before and on a new one. It succeeds or throws,
// and nothing ends the process. A function whose registration has ended is not called any more.
#include <unistd.h>

#include <cstdio>

#if defined(__GLIBC__)

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace {

thread_local long left = -1;  // [B] that the thread may have; -1: all

bool has(std::size_t size, std::size_t back = 0) {
  if (left < 0) return true;
  if (static_cast<long>(size) > left + static_cast<long>(back)) {
    errno = ENOMEM;
    return false;
  }
  left += static_cast<long>(back) - static_cast<long>(size);
  return true;
}
// What a block has beyond its size was not had either: it comes back with it.
void* took(void* block, std::size_t size) {
  if (block == nullptr || left < 0) return block;
  const long more = static_cast<long>(malloc_usable_size(block) - size);
  left = more > left ? 0 : left - more;
  return block;
}

}  // namespace

extern "C" {
void* malloc(std::size_t size) noexcept {
  return has(size) ? took(__libc_malloc(size), size) : nullptr;
}
void* calloc(std::size_t count, std::size_t each) noexcept {
  return has(count * each) ? took(__libc_calloc(count, each), count * each) : nullptr;
}
void* realloc(void* block, std::size_t size) noexcept {
  const std::size_t old = block == nullptr ? 0 : malloc_usable_size(block);
  return has(size, old) ? took(__libc_realloc(block, size), size) : nullptr;
}
void* memalign(std::size_t alignment, std::size_t size) noexcept {
  return has(size) ? took(__libc_memalign(alignment, size), size) : nullptr;
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  return memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) noexcept {
  void* const block = memalign(alignment, size);
  if (block == nullptr) return ENOMEM;
  *out = block;
  return 0;
}
void free(void* block) noexcept {
  if (block != nullptr && left >= 0) left += static_cast<long>(malloc_usable_size(block));
  __libc_free(block);
}
}

namespace {

using namespace millpond;

constexpr std::size_t kTooMuch = std::size_t{500} << 20;

Device device;
PoolView pool;
StreamView stream;
const char* now = "";

extern "C" void died(int) {
  (void)!write(2, "ended in: ", 10);
  (void)!write(2, now, std::strlen(now));
  (void)!write(2, "\n", 1);
  _exit(9);
}

/// How a call ends that gets so many bytes; which failures are right depends on the bytes.
void with(long bytes, const std::function<void()>& call) {
  try {
    left = bytes;
    call();
    left = -1;
  } catch (const Error& e) {
    left = -1;
    REQUIRE(e.code() == MILLPOND_E_OUT_OF_MEMORY);
  } catch (const std::bad_alloc&) {
    left = -1;
  } catch (const std::exception& e) {
    left = -1;
    std::fprintf(stderr, "%s, %ld bytes: %s\n", now, bytes, e.what());
    REQUIRE(false);
  }
}

void each(const char* name, const std::function<void()>& call) {
  now = name;
  for (long bytes = 0; bytes < 180000; bytes += bytes < 4096 ? 96 : 3989) {
    with(bytes, call);
    std::thread(with, bytes, std::cref(call)).join();
  }
}

void operations() {
  each("a block", [] { const Buffer b = pool.allocate(5000, stream); });
  each("blocks", [] {
    const Buffer b = pool.allocate(3 << 20, stream);
    (void)device.blocks();
    (void)pool.segments();
  });
  each("too much", [] { const Buffer b = pool.allocate(kTooMuch, stream); });
  each("a stream", [] {
    const Stream s(device);
    const Buffer b = pool.allocate(5000, s);
    (void)b.record_stream(stream);
  });
  each("a stream callback", [] {
    (void)stream.add_callback([more = std::vector<int>(9)](C_Status) { (void)more; });
    (void)stream.synchronize();
  });
  each("callbacks", [] {
    const OomCallback a(device, [](std::uint64_t) { return false; });
    const OomHandler b(device, [](const millpond_oom_report&) { return false; });
    const SegmentCallback c(device, [](bool, void*, std::size_t) {});
    const BlockHook d(device, [](const millpond_block_event&) {});
    const Buffer e = pool.allocate(kTooMuch, stream);
  });
  each("a history", [] {
    History h(device, {});
    const Buffer b = pool.allocate(5000, stream);
    (void)h.events();
    (void)h.stop();
  });
  each("a snapshot", [] { (void)device.snapshot(); });
  each("statistics", [] {
    (void)device.stats_text();
    (void)device.memory_stats();
  });
  each("latencies", [] {
    (void)device.set_options("latency_histograms:True");
    (void)device.set_options("latency_histograms:False");
  });
  each("nodes", [] {
    MemoryResource from(device);
    std::pmr::map<int, int> all(&from);
    for (int i = 0; i < 100; ++i) all[i] = i;
  });
  each("a scope", [] {
    const PoolScope scope(pool);
    const Buffer b = device.allocate(100);
  });
  each("an arena", [] {
    const ArenaResource<StreamResource<>> arena(StreamResource<>(pool), stream, 1 << 16);
    for (int i = 0; i < 9; ++i) (void)arena.allocate(20000);
  });
  if (!device.can(MILLPOND_CAP_MAPPING)) return;  // nothing can be exported
  each("an export", [] {
    const Buffer b = pool.allocate(3 << 20, stream);
    const Export e(b.data());
  });
}

/// Under a hook and within a scope of another thread's, also on threads that are new.
void watched() {
  std::atomic<int> told{0};
  const BlockHook hook(device, [&told](const millpond_block_event&) { ++told; });
  const PoolScope scope(pool);
  const auto call = [] {
    void* block = nullptr;
    if (millpond_alloc(device.get(), 5000, &block) == C_SUCCESS) (void)millpond_free(block);
  };
  each("a block under a hook", call);
  REQUIRE(told > 100);
}

/// Registrations that end without memory: nothing is called any more, and nobody waits for ever.
void ends() {
  bool ended = false, called = false;
  const auto note = [&] { called |= ended; };
  std::optional<OomCallback> a(std::in_place, device, [&note](std::uint64_t) {
    note();
    return false;
  });
  std::optional<SegmentCallback> b(std::in_place, device,
                                   [&note](bool, void*, std::size_t) { note(); });
  std::optional<BlockHook> c(std::in_place, device,
                             [&note](const millpond_block_event&) { note(); });
  const std::string path =
      std::filesystem::temp_directory_path() / ("millpond_group_" + std::to_string(getpid()));
  std::optional<GroupMembership> d(std::in_place, device, path);
  now = "the end of registrations";
  left = 0;
  a.reset();
  b.reset();
  c.reset();
  d.reset();
  left = -1;
  ended = true;
  (void)unlink(path.c_str());
  { const Buffer big = pool.allocate(100 << 20, stream); }
  (void)device.empty_cache();
  void* block = nullptr;
  REQUIRE(millpond_pool_alloc(pool.get(), kTooMuch, stream.get(), &block) != C_SUCCESS);
  REQUIRE(!called);
}

/// More threads than there are errors with a report fail, each for the first time, and live on.
void many_threads_fail() {
  now = "threads that fail";
  constexpr int kThreads = 24;
  std::atomic<int> failed{0};
  std::vector<std::thread> all;
  for (int i = 0; i < kThreads; ++i) {
    all.emplace_back([&failed] {
      void* block = nullptr;
      left = 0;
      const bool none =
          millpond_pool_alloc(pool.get(), kTooMuch, stream.get(), &block) != C_SUCCESS;
      left = -1;
      REQUIRE(none && millpond_last_error_code() == MILLPOND_E_OUT_OF_MEMORY);
      ++failed;
      while (failed < kThreads) std::this_thread::yield();
    });
  }
  for (std::thread& t : all) t.join();
}

}  // namespace

int main(int argc, char**) {
  alarm(60);
  (void)std::signal(SIGABRT, &died);
  (void)std::signal(SIGALRM, &died);
  (void)configure_host(1, 256 << 20, argc == 1);
  device = Device("host", 0);
  const Pool own(device);
  const Stream queue(device);
  pool = own;
  stream = queue;
  ends();
  operations();
  watched();
  many_threads_fail();
  return 0;
}

#else

int main() { return 0; }

#endif
