// Captured graphs and sleeping pools under kernels. A graph is captured on a stream of Millpond's
// and on a non-blocking one of the driver's, in memory that comes and goes; between its replays
// other blocks take all that the limit leaves. Then a pool's memory goes to the host and comes back
// at its addresses.
//
//   pools [--small]    (--small: for the fake driver and for slow tools)
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "millpond/millpond.h"
#include "report.hpp"

namespace {

using gpu::check;
using gpu::Handle;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr unsigned kThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

struct Block {
  void* at;
  std::size_t words;
  std::uint64_t seed;
};

millpond_device* device = nullptr;
millpond_pool* usual = nullptr;

void* allocate(millpond_pool* pool, std::size_t bytes, C_Stream stream) {
  void* at = nullptr;
  check(millpond_pool_alloc(pool, bytes, stream, &at));
  return at;
}

std::uint64_t reserved(millpond_pool* pool) {
  millpond_stats stats{};
  stats.struct_size = sizeof stats;
  check(millpond_pool_get_stats(pool, &stats));
  return stats.reserved_bytes.current;
}

std::uint64_t free_bytes() {
  millpond_device_info info{};
  info.struct_size = sizeof info;
  check(millpond_device_get_info(device, &info));
  return info.free_bytes;
}

/// A graph that fills `bytes` twice, in memory that it gives back, and leaves both in two results.
struct Graph {
  millpond_capture* capture = nullptr;
  Handle exec = nullptr;
  std::vector<Block> results;
};

Graph record(gpu::Kernels& kernels, millpond_pool* pool, C_Stream stream, std::size_t bytes,
             std::uint64_t seed) {
  Graph out;
  check(millpond_capture_begin(pool, stream, &out.capture));
  MILLPOND_GPU(cuStreamBeginCapture_v2, reinterpret_cast<Handle>(stream), kThreadLocal);
  for (std::uint64_t i = 0; i < 2; ++i) {
    const std::size_t words = bytes / sizeof(std::uint64_t);
    void* scratch = allocate(usual, bytes * (i + 1), stream);
    void* result = allocate(usual, bytes, stream);
    kernels.fill(scratch, words, seed + i, reinterpret_cast<Handle>(stream));
    MILLPOND_GPU(cuMemcpyDtoDAsync_v2, reinterpret_cast<gpu::Ptr>(result),
                 reinterpret_cast<gpu::Ptr>(scratch), bytes, reinterpret_cast<Handle>(stream));
    check(millpond_pool_free(usual, scratch, stream));
    out.results.push_back({result, words, seed + i});
  }
  Handle graph = nullptr;
  MILLPOND_GPU(cuStreamEndCapture, reinterpret_cast<Handle>(stream), &graph);
  check(millpond_capture_end(out.capture));
  MILLPOND_GPU(cuGraphInstantiateWithFlags, &out.exec, graph, 0);
  MILLPOND_GPU(cuGraphDestroy, graph);
  return out;
}

void replays(gpu::Report& report, const std::string& name, C_Stream stream, std::size_t bytes) {
  gpu::Kernels kernels;
  millpond_pool* pool = nullptr;
  check(millpond_pool_create(device, nullptr, &pool));
  const std::uint64_t limit = 12 * bytes;
  check(millpond_device_set_limit(device, limit));
  Graph graphs[] = {record(kernels, pool, stream, bytes, 1000),
                    record(kernels, pool, stream, bytes, 2000)};
  const std::uint64_t kept = reserved(pool);

  // Others have all that is left.
  std::vector<Block> others;
  void* at = nullptr;
  while (millpond_pool_alloc(usual, bytes / 2, nullptr, &at) == C_SUCCESS) {
    others.push_back({at, bytes / 2 / sizeof(std::uint64_t), others.size() * 77});
    kernels.fill(at, others.back().words, others.back().seed, nullptr);
  }
  check(millpond_device_synchronize(device));
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    for (const Graph& graph : graphs) {
      for (const Block& b : graph.results)
        kernels.fill(b.at, b.words, 5, reinterpret_cast<Handle>(stream));
      MILLPOND_GPU(cuGraphLaunch, graph.exec, reinterpret_cast<Handle>(stream));
      for (const Block& b : graph.results) {
        kernels.verify(b.at, b.words, b.seed, reinterpret_cast<Handle>(stream));
      }
    }
  }
  check(millpond_device_synchronize(device));
  for (const Block& b : others) kernels.verify(b.at, b.words, b.seed, nullptr);
  const std::uint64_t wrong = kernels.wrong();
  report.row(
      name,
      std::to_string(2 * kRounds) + " replays beside " + std::to_string(others.size()) + " blocks",
      "0 wrong words", wrong == 0 && !others.empty(), std::to_string(wrong) + " wrong");

  for (const Block& b : others) check(millpond_free(b.at));
  for (Graph& graph : graphs) {
    MILLPOND_GPU(cuGraphExecDestroy, graph.exec);
    for (const Block& b : graph.results) check(millpond_pool_free(usual, b.at, stream));
    check(millpond_capture_release(graph.capture));
  }
  report.row(name + ", memory after the graphs",
             gpu::bytes(reserved(pool)) + " of " + gpu::bytes(kept), "0 B",
             reserved(pool) == 0 && kept > 0);
  check(millpond_pool_destroy(pool));
  check(millpond_device_set_limit(device, 0));
}

void sleeps(gpu::Report& report, C_Stream stream, std::size_t bytes) {
  gpu::Kernels kernels;
  millpond_pool* pool = nullptr;
  check(millpond_pool_create(device, nullptr, &pool));
  // Every second piece goes, and their granules are shown together as one block.
  std::vector<void*> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(allocate(pool, bytes / 8, stream));
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i % 2 == 0) {
      blocks.push_back({pieces[i], bytes / 8 / sizeof(std::uint64_t), 100 + i});
    } else {
      check(millpond_pool_free(pool, pieces[i], stream));
    }
  }
  blocks.push_back({allocate(pool, bytes, stream), bytes / sizeof(std::uint64_t), 300});
  for (const Block& b : blocks)
    kernels.fill(b.at, b.words, b.seed, reinterpret_cast<Handle>(stream));
  check(millpond_device_synchronize(device));
  const std::uint64_t held = reserved(pool), before = free_bytes();
  const auto start = Clock::now();
  check(millpond_pool_sleep(pool, MILLPOND_SLEEP_KEEP));
  const auto asleep = Clock::now();
  const std::uint64_t freed = free_bytes() - before;
  {  // Somebody else has the memory.
    void* at = allocate(usual, held, stream);
    kernels.fill(at, held / sizeof(std::uint64_t), 9, reinterpret_cast<Handle>(stream));
    check(millpond_pool_free(usual, at, stream));
    check(millpond_device_empty_cache(device));
  }
  const auto again = Clock::now();
  check(millpond_pool_wake(pool));
  const auto awake = Clock::now();
  for (const Block& b : blocks)
    kernels.verify(b.at, b.words, b.seed, reinterpret_cast<Handle>(stream));
  const std::uint64_t wrong = kernels.wrong();
  report.row("sleep", gpu::bytes(freed) + " of " + gpu::bytes(held) + " to the device", "all",
             freed >= held);
  report.row("wake", std::to_string(blocks.size()) + " blocks at their addresses", "0 wrong words",
             wrong == 0, std::to_string(wrong) + " wrong");
  const auto ms = [](Clock::duration d) {
    return gpu::number(std::chrono::duration<double, std::milli>(d).count(), "ms");
  };
  if (!gpu::driver().fake) {
    report.info("sleep and wake of " + gpu::bytes(held),
                ms(asleep - start) + ", " + ms(awake - again),
                "contents kept in pinned host memory");
  }
  for (const Block& b : blocks) check(millpond_pool_free(pool, b.at, stream));
  check(millpond_pool_destroy(pool));
}

}  // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  const std::size_t bytes = (small ? 8 : 128) * kMiB;
  gpu::start();
  gpu::Report report("pools");
  check(millpond_device_get("cuda", 0, &device));
  check(millpond_device_get_default_pool(device, &usual));
  millpond_device_info info{};
  info.struct_size = sizeof info;
  check(millpond_device_get_info(device, &info));

  C_Stream ours = nullptr;
  check(millpond_stream_create(device, &ours));
  Handle theirs = nullptr;
  constexpr unsigned kNonBlocking = 1;
  MILLPOND_GPU(cuStreamCreate, &theirs, kNonBlocking);
  replays(report, "graph on Millpond's stream", ours, bytes);
  replays(report, "graph on the driver's stream", reinterpret_cast<C_Stream>(theirs), bytes);
  if ((info.caps & MILLPOND_CAP_MAPPING) != 0) {
    sleeps(report, ours, bytes);
  } else {
    report.skip("sleep and wake", "this device does not map memory");
  }
  check(millpond_stream_forget(device, reinterpret_cast<C_Stream>(theirs)));
  MILLPOND_GPU(cuStreamDestroy_v2, theirs);
  check(millpond_stream_destroy(device, ours));
  millpond_stats stats{};
  stats.struct_size = sizeof stats;
  check(millpond_device_get_stats(device, &stats));
  report.row("nothing left", std::to_string(stats.blocks.current) + " blocks", "0",
             stats.blocks.current == 0);
  check(millpond_finalize());
  return report.status();
}
