// Memory under kernels: blocks of all sizes come and go in several streams under a limit, so that
// memory is given to other blocks, remapped and reused without waits. Each block is filled by a
// kernel when it comes and verified by another before it goes; no host synchronisation hides a
// wrong order.
//
//   memory [--small]    (--small: for the fake driver and for slow tools)
//   memory --stray      a kernel writes behind a block, for a checker to find
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "millpond/millpond.h"
#include "report.hpp"

namespace {

using gpu::check;

struct Block {
  void* at;
  std::size_t words;
  std::uint64_t seed;
  std::size_t stream;  // index: of the allocation
};

struct Size {
  std::size_t limit_bytes;
  std::size_t largest_bytes;
  int rounds;
};

std::size_t pick(std::mt19937_64& random, std::size_t largest) {
  // As many small ones as large ones: the exponent is even, not the size.
  const double exponent =
      std::uniform_real_distribution<double>(6.0, std::log2(double(largest)))(random);
  return static_cast<std::size_t>(std::exp2(exponent)) & ~std::size_t{7};
}

/// One of two blocks that lie side by side is overrun.
int stray() {
  gpu::start();
  millpond_device* device = nullptr;
  millpond_pool* pool = nullptr;
  check(millpond_device_get("cuda", 0, &device));
  check(millpond_device_get_default_pool(device, &pool));
  gpu::Kernels kernels;
  void* at = nullptr;
  check(millpond_pool_alloc(pool, 4096, nullptr, &at));
  kernels.fill(at, (4096 + 1024) / sizeof(std::uint64_t), 1, nullptr);
  const int seen = gpu::driver().cuCtxSynchronize();
  std::printf("the write behind the block: %s\n", gpu::driver().name(seen));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--stray") == 0) return stray();
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  const Size size =
      small ? Size{96u << 20, 24u << 20, 600} : Size{std::size_t{2} << 30, 400u << 20, 20000};
  gpu::start();
  gpu::Report report("memory");
  millpond_device* device = nullptr;
  millpond_pool* pool = nullptr;
  check(millpond_device_get("cuda", 0, &device));
  check(millpond_device_get_default_pool(device, &pool));
  check(millpond_device_set_limit(device, size.limit_bytes));

  gpu::Kernels kernels;
  std::vector<C_Stream> streams(4);
  for (C_Stream& stream : streams) check(millpond_stream_create(device, &stream));
  C_Event event = nullptr;
  check(millpond_event_create(device, &event));

  std::mt19937_64 random(20240229);
  std::vector<Block> live;
  std::uint64_t allocated = 0, shortages = 0, shared = 0;
  const auto drop = [&](std::size_t index) {
    const Block block = live[index];
    live[index] = live.back();
    live.pop_back();
    C_Stream own = streams[block.stream];
    kernels.verify(block.at, block.words, block.seed, own);
    if (random() % 4 == 0) {
      // Another stream reads it last; the block must wait for that stream, too.
      C_Stream other = streams[random() % streams.size()];
      check(millpond_event_record(device, own, event));
      check(millpond_stream_wait_event(device, other, event));
      kernels.verify(block.at, block.words, block.seed, other);
      check(millpond_record_stream(block.at, other));
      ++shared;
    }
    check(millpond_pool_free(pool, block.at, own));
  };
  for (int round = 0; round < size.rounds; ++round) {
    const std::size_t stream = random() % streams.size();
    const std::size_t bytes = pick(random, size.largest_bytes);
    void* at = nullptr;
    const C_Status status = millpond_pool_alloc(pool, bytes, streams[stream], &at);
    if (status != C_SUCCESS) {
      if (millpond_last_error_code() != MILLPOND_E_OUT_OF_MEMORY) check(status);
      ++shortages;
      for (int i = 0; i < 4 && !live.empty(); ++i) drop(random() % live.size());
      continue;
    }
    allocated += bytes;
    live.push_back({at, bytes / sizeof(std::uint64_t), random(), stream});
    kernels.fill(at, live.back().words, live.back().seed, streams[stream]);
    if (live.size() > 200 || (random() % 3 == 0 && !live.empty())) drop(random() % live.size());
  }
  while (!live.empty()) drop(live.size() - 1);
  const std::uint64_t wrong = kernels.wrong();

  millpond_stats stats{};
  stats.struct_size = sizeof stats;
  check(millpond_device_get_stats(device, &stats));
  report.row("blocks under kernels",
             std::to_string(size.rounds) + " of " + gpu::bytes(allocated) + ", " +
                 std::to_string(shared) + " shared",
             "0 wrong words", wrong == 0, std::to_string(wrong) + " wrong");
  report.row("memory held at most", gpu::bytes(stats.reserved_bytes.peak),
             "<= " + gpu::bytes(size.limit_bytes), stats.reserved_bytes.peak <= size.limit_bytes);
  report.row("the limit was felt", std::to_string(shortages) + " shortages", "> 0", shortages > 0);
  report.row("nothing left", std::to_string(stats.blocks.current) + " blocks", "0",
             stats.blocks.current == 0);
  for (C_Stream stream : streams) check(millpond_stream_destroy(device, stream));
  check(millpond_event_destroy(device, event));
  check(millpond_finalize());
  return report.status();
}
