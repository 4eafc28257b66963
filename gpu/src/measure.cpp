// What memory costs: Millpond beside the driver's own calls and the CUDA runtime's, in one run.
// Nothing here is judged on the fake driver but the number of driver calls, which is exact there.
//
//   measure [folder of the idle programs]
//   measure --growth    only what new memory costs
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "report.hpp"

extern char** environ;

namespace {

using gpu::check;
using gpu::driver;
using gpu::Handle;
using gpu::Ptr;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kGiB = 1 << 30;

double nanos(Clock::time_point from) {
  return std::chrono::duration<double, std::nano>(Clock::now() - from).count();
}

/// The best of some runs of `loops` calls, in nanoseconds for each call.
double best_of(int runs, int loops, const std::function<void()>& call) {
  for (int i = 0; i < loops / 10 + 1; ++i) call();
  double best = 1e300;
  for (int run = 0; run < runs; ++run) {
    const auto begin = Clock::now();
    for (int i = 0; i < loops; ++i) call();
    best = std::min(best, nanos(begin) / loops);
  }
  return best;
}

struct Runtime {  // the CUDA runtime, where the machine has one
  int (*malloc)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*malloc_async)(void**, std::size_t, Handle) = nullptr;
  int (*free_async)(void*, Handle) = nullptr;

  bool load() {
    // The fake driver is not enough for the real runtime library.
    if (driver().fake) return false;
    void* library = nullptr;
    const char* const names[] = {"libcudart.so", "libcudart.so.13", "libcudart.so.12",
                                 "libcudart.so.11.0", "/usr/local/cuda/lib64/libcudart.so"};
    for (const char* name : names) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW);
    }
    if (library == nullptr) return false;
    const auto find = [&](auto& to, const char* symbol) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, symbol));
      return to != nullptr;
    };
    return find(malloc, "cudaMalloc") && find(free, "cudaFree") &&
           find(malloc_async, "cudaMallocAsync") && find(free_async, "cudaFreeAsync");
  }
};

struct Device {
  millpond_device* device = nullptr;
  millpond_pool* pool = nullptr;
  C_Stream stream = nullptr;

  explicit Device(const char* type) {
    check(millpond_device_get(type, 0, &device));
    check(millpond_device_get_default_pool(device, &pool));
    check(millpond_stream_create(device, &stream));
  }
  void* alloc(std::size_t size) {
    void* at = nullptr;
    check(millpond_pool_alloc(pool, size, stream, &at));
    return at;
  }
  void free(void* at) { check(millpond_pool_free(pool, at, stream)); }
  std::uint64_t driver_calls() {
    millpond_stats stats{};
    stats.struct_size = sizeof stats;
    check(millpond_device_get_stats(device, &stats));
    return stats.driver_calls;
  }
};

void pairs(gpu::Report& report, Device& cuda, Device& host, const Runtime* runtime) {
  Handle pool = nullptr;
  MILLPOND_GPU(cuDeviceGetDefaultMemPool, &pool, 0);
  std::uint64_t keep = ~std::uint64_t{0};
  MILLPOND_GPU(cuMemPoolSetAttribute, pool, 4, &keep);  // the release threshold
  for (std::size_t size : {std::size_t{4096}, std::size_t{1} << 20, std::size_t{20} << 20}) {
    const std::string what = "alloc + free of " + gpu::bytes(size);
    const auto pair_of = [size](Device& device) {
      return best_of(5, 20000, [&] { device.free(device.alloc(size)); });
    };
    // The first round takes memory from the driver and is not counted.
    cuda.free(cuda.alloc(size));
    const std::uint64_t warm = driver().calls(), own_warm = cuda.driver_calls();
    const double ours = pair_of(cuda);
    const std::uint64_t made =
        driver().fake ? driver().calls() - warm : cuda.driver_calls() - own_warm;
    report.row(what + ", driver calls", std::to_string(made), "0", made == 0);
    const double on_host = pair_of(host);
    const std::string value = gpu::number(ours, "ns");
    const std::string goal = "<= " + gpu::number(on_host * 1.15, "ns") + " (host device)";
    if (driver().fake) {
      report.info(what, value, "host device: " + gpu::number(on_host, "ns"));
      continue;  // the fake driver's own costs say nothing
    }
    report.row(what, value, goal, ours <= on_host * 1.15);
    Handle stream = cuda.stream;
    report.info(what + ", cuMemAllocAsync",
                gpu::number(best_of(3, 5000,
                                    [&] {
                                      Ptr at = 0;
                                      MILLPOND_GPU(cuMemAllocAsync, &at, size, stream);
                                      MILLPOND_GPU(cuMemFreeAsync, at, stream);
                                    }),
                            "ns"));
    report.info(what + ", cuMemAlloc", gpu::number(best_of(3, 200,
                                                           [&] {
                                                             Ptr at = 0;
                                                             MILLPOND_GPU(cuMemAlloc_v2, &at, size);
                                                             MILLPOND_GPU(cuMemFree_v2, at);
                                                           }),
                                                   "ns"));
    if (runtime == nullptr) continue;
    report.info(what + ", cudaMallocAsync", gpu::number(best_of(3, 5000,
                                                                [&] {
                                                                  void* at = nullptr;
                                                                  runtime->malloc_async(&at, size,
                                                                                        stream);
                                                                  runtime->free_async(at, stream);
                                                                }),
                                                        "ns"));
    report.info(what + ", cudaMalloc", gpu::number(best_of(3, 200,
                                                           [&] {
                                                             void* at = nullptr;
                                                             runtime->malloc(&at, size);
                                                             runtime->free(at);
                                                           }),
                                                   "ns"));
  }
}

void growth(gpu::Report& report, Device& cuda) {
  double ours = 1e300, theirs = 1e300, ours_more = 1e300, theirs_more = 1e300, ours_apart = 1e300;
  for (int run = 0; run < 5; ++run) {
    check(millpond_device_synchronize(cuda.device));
    check(millpond_device_empty_cache(cuda.device));
    auto begin = Clock::now();
    void* all = cuda.alloc(kGiB);
    ours = std::min(ours, nanos(begin));
    begin = Clock::now();
    void* more = cuda.alloc(64 * kMiB);
    ours_more = std::min(ours_more, nanos(begin));
    cuda.free(more);
    cuda.free(all);
    check(millpond_device_synchronize(cuda.device));
    check(millpond_device_empty_cache(cuda.device));
    std::vector<void*> apart;
    begin = Clock::now();
    for (int i = 0; i < 32; ++i) apart.push_back(cuda.alloc(32 * kMiB));
    ours_apart = std::min(ours_apart, nanos(begin));
    for (void* block : apart) cuda.free(block);
    check(millpond_device_synchronize(cuda.device));
    check(millpond_device_empty_cache(cuda.device));
    Ptr at = 0;
    begin = Clock::now();
    MILLPOND_GPU(cuMemAlloc_v2, &at, kGiB);
    theirs = std::min(theirs, nanos(begin));
    MILLPOND_GPU(cuMemFree_v2, at);
    begin = Clock::now();
    MILLPOND_GPU(cuMemAlloc_v2, &at, 64 * kMiB);
    MILLPOND_GPU(cuMemFree_v2, at);
    theirs_more = std::min(theirs_more, nanos(begin));
  }
  const auto judge = [&](const char* name, double value, double limit, const char* note) {
    const std::string text = gpu::number(value / 1000, "us");
    const std::string goal = "<= " + gpu::number(limit / 1000, "us") + note;
    if (driver().fake) {
      report.info(name, text, goal);
    } else {
      report.row(name, text, goal, value <= limit);
    }
  };
  judge("first 1 GiB", ours, 3 * theirs, " (3 x cuMemAlloc)");
  // One request is in four handles, the others have one each.
  report.info("first 1 GiB in 32 requests", gpu::number(ours_apart / 1000, "us"),
              "beside the row above");
  judge("64 MiB more", ours_more, theirs_more, " (cuMemAlloc + cuMemFree)");
}

/// The best bandwidth of an operation on `size` bytes, in GB/s.
double bandwidth(std::size_t size, Handle stream, const std::function<void()>& queue) {
  Handle begin = nullptr, end = nullptr;
  MILLPOND_GPU(cuEventCreate, &begin, 0);
  MILLPOND_GPU(cuEventCreate, &end, 0);
  float best = 1e30f;
  for (int run = 0; run < 20; ++run) {
    MILLPOND_GPU(cuEventRecord, begin, stream);
    queue();
    MILLPOND_GPU(cuEventRecord, end, stream);
    MILLPOND_GPU(cuEventSynchronize, end);
    float milliseconds = 0;
    MILLPOND_GPU(cuEventElapsedTime, &milliseconds, begin, end);
    if (run > 2) best = std::min(best, milliseconds);
  }
  return static_cast<double>(size) / (static_cast<double>(best) * 1e6);
}

void bandwidths(gpu::Report& report, Device& cuda, std::size_t size) {
  const Handle stream = cuda.stream;
  void* ours[2] = {cuda.alloc(size), cuda.alloc(size)};
  Ptr plain[2] = {};
  for (Ptr& at : plain) MILLPOND_GPU(cuMemAlloc_v2, &at, size);
  void *pinned = nullptr, *own_pinned = nullptr;
  MILLPOND_GPU(cuMemHostAlloc, &pinned, size, 0);
  check(millpond_host_alloc(cuda.device, size, &own_pinned));
  const auto address = [](void* at) { return reinterpret_cast<Ptr>(at); };
  const auto judge = [&](const char* name, const std::function<void()>& own,
                         const std::function<void()>& other) {
    // In turns, and the best of each: a card that warms up slows both.
    double mine = 0, theirs = 0;
    for (int turn = 0; turn < 3; ++turn) {
      mine = std::max(mine, bandwidth(size, stream, own));
      theirs = std::max(theirs, bandwidth(size, stream, other));
    }
    const std::string value = gpu::number(mine, "GB/s");
    const std::string goal = ">= " + gpu::number(theirs * 0.98, "GB/s") + " (cuMemAlloc - 2 %)";
    if (driver().fake) {
      report.info(name, value, goal);
    } else {
      report.row(name, value, goal, mine >= theirs * 0.98);
    }
  };
  judge(
      "copy to the device",
      [&] {
        check(millpond_copy_async(cuda.device, cuda.stream, MILLPOND_COPY_H2D, ours[0], own_pinned,
                                  size));
      },
      [&] { MILLPOND_GPU(cuMemcpyHtoDAsync_v2, plain[0], pinned, size, stream); });
  judge(
      "copy to the host",
      [&] {
        check(millpond_copy_async(cuda.device, cuda.stream, MILLPOND_COPY_D2H, own_pinned, ours[0],
                                  size));
      },
      [&] { MILLPOND_GPU(cuMemcpyDtoHAsync_v2, pinned, plain[0], size, stream); });
  judge(
      "copy on the device",
      [&] {
        check(millpond_copy_async(cuda.device, cuda.stream, MILLPOND_COPY_D2D, ours[1], ours[0],
                                  size));
      },
      [&] { MILLPOND_GPU(cuMemcpyDtoDAsync_v2, plain[1], plain[0], size, stream); });
  judge(
      "copy on the device, the driver's call",
      [&] { MILLPOND_GPU(cuMemcpyDtoDAsync_v2, address(ours[1]), address(ours[0]), size, stream); },
      [&] { MILLPOND_GPU(cuMemcpyDtoDAsync_v2, plain[1], plain[0], size, stream); });
  judge(
      "memset", [&] { check(millpond_memset_async(cuda.device, cuda.stream, ours[0], 1, size)); },
      [&] { MILLPOND_GPU(cuMemsetD8Async, plain[0], 1, size, stream); });
  check(millpond_host_free(cuda.device, own_pinned));
  MILLPOND_GPU(cuMemFreeHost, pinned);
  for (Ptr at : plain) MILLPOND_GPU(cuMemFree_v2, at);
  for (void* at : ours) cuda.free(at);
}

/// Pairs in a second of threads that have a stream each, in blocks of random sizes, 200 of them
/// live.
double together(Device& device, unsigned count, double seconds) {
  std::vector<double> rates(count);
  std::vector<std::thread> threads;
  std::atomic<unsigned> ready{0};
  for (unsigned me = 0; me < count; ++me) {
    threads.emplace_back([&, me] {
      C_Stream stream = nullptr;
      check(millpond_stream_create(device.device, &stream));
      std::mt19937_64 random(me + 1);
      std::vector<void*> live(200);
      const auto turn = [&] {
        void*& at = live[random() % live.size()];
        if (at != nullptr) check(millpond_pool_free(device.pool, at, stream));
        // Log-uniform from 512 bytes to 1 MiB.
        const std::size_t size = (std::size_t{512} << random() % 11) + random() % 512;
        check(millpond_pool_alloc(device.pool, size, stream, &at));
      };
      for (int i = 0; i < 20000; ++i) turn();
      ++ready;
      while (ready < count) std::this_thread::yield();
      const auto begin = Clock::now();
      std::uint64_t turns = 0;
      while (nanos(begin) < seconds * 1e9) {
        for (int i = 0; i < 1000; ++i) turn();
        turns += 1000;
      }
      rates[me] = static_cast<double>(turns) / nanos(begin) * 1e9;
      for (void* at : live) check(millpond_pool_free(device.pool, at, stream));
      check(millpond_stream_destroy(device.device, stream));
    });
  }
  for (auto& thread : threads) thread.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

void threads(gpu::Report& report, Device& cuda, Device& host) {
  const unsigned processors = std::thread::hardware_concurrency();
  for (Device* device : {&cuda, &host}) {
    const double seconds = driver().fake ? 0.02 : 0.5, one = together(*device, 1, seconds);
    std::string text = gpu::number(one / 1e6, "million/s");
    for (unsigned count = 2; count <= std::min(16u, processors); count *= 2) {
      text += "; " + std::to_string(count) + ": " +
              gpu::number(together(*device, count, seconds) / one, "times");
    }
    report.info(
        std::string("pairs of random sizes by threads, ") + (device == &cuda ? "cuda" : "host"),
        text, std::to_string(processors) + " processors");
  }
}

/// The shortest life of a program, in milliseconds; negative when it does not run.
double life(const std::string& program) {
  double best = 1e300;
  for (int run = 0; run < 30; ++run) {
    char* arguments[] = {const_cast<char*>(program.c_str()), nullptr};
    pid_t child = 0;
    int status = -1;
    const auto begin = Clock::now();
    if (posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ) != 0) return -1;
    if (waitpid(child, &status, 0) < 0 || status != 0) return -1;
    best = std::min(best, nanos(begin) / 1e6);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  gpu::start();
  gpu::Report report("cost");
  if (argc > 1 && std::strcmp(argv[1], "--growth") == 0) {
    Device only("cuda");
    growth(report, only);
    check(millpond_finalize());
    return report.status();
  }
  std::string folder = argc > 1 ? argv[1] : argv[0];
  if (argc <= 1) folder = folder.substr(0, folder.rfind('/') + 1) + ".";
  const double with = life(folder + "/idle_with"), without = life(folder + "/idle_without");
  report.row("start of a process without CUDA", gpu::number(with - without, "ms"), "< 5 ms",
             with > 0 && without > 0 && with - without < 5.0);
  Device cuda("cuda");
  Device host("host");
  Runtime runtime;
  const bool has_runtime = runtime.load();
  if (!has_runtime) report.skip("cudaMalloc, cudaMallocAsync", "no CUDA runtime library was found");
  pairs(report, cuda, host, has_runtime ? &runtime : nullptr);
  threads(report, cuda, host);
  growth(report, cuda);
  bandwidths(report, cuda, (driver().fake ? 8 : 256) * kMiB);
  check(millpond_finalize());
  return report.status();
}
