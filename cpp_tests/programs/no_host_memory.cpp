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

thread_local long left = -1;           // [B] that the thread may have; -1: all
thread_local std::size_t refused = 0;  // [B] so many at once, or more, are refused to C++; 0: none
thread_local bool first = false;       // the thread of main()
std::atomic<bool> others_have_none{false};

bool has(std::size_t size, std::size_t back = 0) {
  if (!first && others_have_none) {
    errno = ENOMEM;
    return false;
  }
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

void* operator new(std::size_t size) {
  void* const block = refused > 0 && size >= refused ? nullptr : malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept { free(block); }
void operator delete(void* block, std::size_t) noexcept { free(block); }

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

/// A member whose thread finds the host without memory serves on when there is some again, and its
/// end does not wait for that.
void serves_on() {
  now = "a member that serves";
  const std::string path =
      std::filesystem::temp_directory_path() / ("millpond_serves_" + std::to_string(getpid()));
  GroupMembership member(device, path);
  const auto follows = [&](std::uint64_t budget) {
    (void)set_group_budget(path, member.id(), budget);
    while (group_members(path).at(0).budget_bytes != budget) usleep(1000);  // until the alarm
  };
  follows(std::uint64_t{1} << 40);
  others_have_none = true;
  follows(std::uint64_t{1} << 41);  // the call that does it was under way
  usleep(50000);
  others_have_none = false;
  follows(0);
  others_have_none = true;
  follows(std::uint64_t{1} << 42);
  member.leave();  // waits for the thread
  others_have_none = false;
  (void)device.set_limit(0);
  (void)unlink(path.c_str());
}

/// All that a program has ends without memory, as when an exception for the lack of it leaves a
/// function. `live`: so many blocks live meanwhile.
void objects_end(std::size_t live) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("millpond_ends_" + std::to_string(getpid()));
  std::vector<Buffer> others;
  for (std::size_t i = 0; i < live; ++i) others.push_back(device.allocate(100));
  std::vector<std::optional<Stream>> streams(40);
  std::vector<C_Stream> of_streams;
  for (auto& s : streams) {
    s.emplace(device);
    of_streams.push_back(s->get());
    const Buffer b = pool.allocate(5000, *s);
    (void)b.record_stream(stream);
  }
  std::optional<Pool> empty(std::in_place, device), full(std::in_place, device);
  { const Buffer b = empty->allocate(3 << 20, stream); }
  Buffer last = full->allocate(3 << 20, stream);
  millpond_pool* const of_empty = empty->get();
  millpond_pool* const of_full = full->get();
  std::optional<Pool> kept(std::in_place, device);
  const Stream captured(device);
  std::optional<Checkpoint> checkpoint(std::in_place, pool);
  millpond_checkpoint* const of_checkpoint = checkpoint->get();
  std::vector<char> own(4096);
  std::optional<HostRegistration> registered(std::in_place, device, own.data(), own.size());
  std::optional<History> history(std::in_place, device, HistoryOptions{path});
  std::optional<Recording> recording(std::in_place, device, path + ".record");
  const Buffer shared = pool.allocate(3 << 20, stream);
  std::optional<Import> import;
  void* imported = nullptr;
  if (device.can(MILLPOND_CAP_MAPPING)) {
    const Export out(shared.data());
    import.emplace(device, out.info().data(), out.info().size(), out.fds().data(),
                   out.fds().size());
    imported = import->data();
  }
  std::optional<UnifiedBuffer> unified(std::in_place, device, 4096);
  std::vector<std::optional<PinnedBuffer>> pinned(20);
  for (auto& p : pinned) {
    p.emplace(device, 4096);
    REQUIRE(record_host_stream(p->data(), stream) == C_SUCCESS);
  }
  void* const of_pinned = pinned.back()->data();
  void* const of_unified = unified->data();
  std::optional<Capture> going(std::in_place, *kept, captured), over(Capture::keep(*kept));
  millpond_capture* const of_captures[] = {going->get(), over->get()};

  now = "the end of objects";
  left = 0;
  going.reset();
  over.reset();
  kept.reset();
  for (auto& s : streams) s.reset();
  empty.reset();
  full.reset();
  checkpoint.reset();
  registered.reset();
  history.reset();
  recording.reset();
  import.reset();
  unified.reset();
  for (auto& p : pinned) p.reset();
  last.reset();
  left = -1;

  (void)device.empty_cache();  // released pools end at the latest now
  bool done = false;
  for (C_Stream s : of_streams) {
    REQUIRE(millpond_stream_query(device.get(), s, &done) != C_SUCCESS);
    REQUIRE(millpond_last_error_code() == MILLPOND_E_UNKNOWN_STREAM);
  }
  millpond_device* of = nullptr;
  REQUIRE(millpond_pool_get_device(of_empty, &of) != C_SUCCESS);
  REQUIRE(millpond_pool_get_device(of_full, &of) != C_SUCCESS);
  for (millpond_capture* c : of_captures) REQUIRE(millpond_capture_release(c) != C_SUCCESS);
  REQUIRE(millpond_checkpoint_destroy(of_checkpoint) != C_SUCCESS);
  REQUIRE(millpond_host_unregister(device.get(), own.data()) != C_SUCCESS);
  REQUIRE(millpond_device_history_stop(device.get(), nullptr) != C_SUCCESS);
  REQUIRE(millpond_device_record_stop(device.get(), nullptr) != C_SUCCESS);
  if (imported != nullptr) REQUIRE(millpond_import_close(imported) != C_SUCCESS);
  REQUIRE(millpond_unified_free(device.get(), of_unified) != C_SUCCESS);
  REQUIRE(millpond_host_free(device.get(), of_pinned) != C_SUCCESS);
  (void)unlink(path.c_str());
  (void)unlink((path + ".record").c_str());
}

/// Lists of what there is much of: where they find no room, no other failure is told.
void long_lists() {
  const History history(device, {});
  std::vector<Buffer> blocks;
  for (int i = 0; i < 3000; ++i) blocks.push_back(pool.allocate(100, stream));
  std::vector<Checkpoint> checkpoints(1);
  checkpoints[0] = Checkpoint(pool);
  const auto grown = [](const char* name, long step, const std::function<void()>& call) {
    now = name;
    for (long bytes = 0; bytes < 4 << 20; bytes += step) with(bytes, call);
  };
  grown("the events of a history", 32 << 10, [&] { (void)history.events(); });
  grown("a long snapshot", 192 << 10, [] { (void)device.snapshot(); });
  // What the library looks for is more than the text: now the text finds no room, and the library
  // does.
  refused = 100 << 10;
  with(-1, [] { (void)device.snapshot(); });
  refused = 0;
  grown("many blocks", 192 << 10, [] { (void)device.blocks(); });
  grown("much text", 192 << 10, [] { (void)device.stats_text(); });
  grown("a long checkpoint", 192 << 10, [&] { checkpoints[0] = Checkpoint(pool); });
  if (checkpoints[0].get() == nullptr) checkpoints[0] = Checkpoint(pool);
  std::vector<RestoredBlock> told;
  grown("a restore", 192 << 10, [&] { (void)checkpoints[0].restore(&told); });
  grown("a batch", 192 << 10, [] {
    std::vector<Buffer> all = pool.allocate_batch(std::vector<std::size_t>(1000, 100), stream);
    (void)pool.free_batch(all, stream);
  });
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
  first = true;
  (void)std::signal(SIGABRT, &died);
  (void)std::signal(SIGALRM, &died);
  (void)configure_host(1, 256 << 20, argc == 1);
  device = Device("host", 0);
  const Pool own(device);
  const Stream queue(device);
  pool = own;
  stream = queue;
  ends();
  serves_on();
  objects_end(0);
  objects_end(5000);
  operations();
  long_lists();
  watched();
  many_threads_fail();
  left = 0;
  REQUIRE(millpond_finalize() == C_SUCCESS);
  left = -1;
  return 0;
}

#else

int main() { return 0; }

#endif
