// Writes snapshots of a device for test_snapshot.py: `writer <folder> [segments]`. Blocks of all
// sizes, states, pools and streams; on a device that maps one that is scattered. `before.pickle`,
// `after.pickle` and the same in JSON.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millpond/millpond.hpp"

namespace {

void write(const millpond::Device& device, const std::string& name) {
  device.write_snapshot(name + ".pickle", millpond::SnapshotFormat::kTorchPickle);
  device.write_snapshot(name + ".json", millpond::SnapshotFormat::kJson);
}

void run(const std::string& folder, bool mapping) {
  millpond::configure_host(2, std::uint64_t{256} << 20, mapping);
  // Another device than the first: its number is that of its traces.
  const millpond::Device device("host", 1);
  millpond_history_options history{};
  history.struct_size = sizeof history;
  history.event_count = 1 << 16;
  history.frame_count = 12;
  millpond::check(millpond_device_history_start(device.get(), &history));
  const millpond::Pool own(device, 0, "weights");
  const millpond::Stream stream(device);
  const millpond::Stream side(device);
  std::vector<millpond::Buffer> kept;
  for (std::size_t n = 1; n <= 1500; ++n) kept.push_back(own.allocate(n * 37, stream));
  {
    const millpond::TagScope scope("kv_cache");
    for (std::size_t n = 1; n <= 10; ++n) kept.push_back(device.allocate(n * 1'000'000));
  }
  millpond::annotate("epoch 2");
  // A request that no memory serves: its event has what the device had free.
  try {
    (void)own.allocate(std::size_t{1} << 40, stream);
    throw std::runtime_error("a terabyte was had");
  } catch (const millpond::Error& e) {
    if (e.code() != MILLPOND_E_OUT_OF_MEMORY) throw;
  }
  // Free memory between what is live, and whole granules that lie apart.
  for (std::size_t n = 0; n < kept.size(); n += 3) kept[n] = millpond::Buffer();
  write(device, folder + "/before");

  std::vector<millpond::Buffer> granules;
  const std::size_t granule = std::size_t{2} << 20;
  while (device.stats().reserved_bytes.current + granule <= (std::size_t{200} << 20)) {
    granules.push_back(own.allocate(granule, stream));
  }
  own.set_limit(own.stats().reserved_bytes.current);
  for (std::size_t n = 0; n < granules.size(); n += 2) granules[n] = millpond::Buffer();
  millpond::Buffer wide = own.allocate(mapping ? 5 * granule + 12'345 : granule, stream);
  // One that waits for another stream, which waits for this thread.
  millpond::Buffer waits = device.default_pool().allocate(300'000, stream);
  std::atomic<bool> go{false};
  side.add_callback([&go](C_Status) {
    while (!go) std::this_thread::yield();
  });
  waits.record_stream(side);
  waits = millpond::Buffer();
  write(device, folder + "/after");
  go = true;
  device.synchronize();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    run(argv[1], argc < 3 || std::strcmp(argv[2], "segments") != 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
