// Millpond from C++: owners instead of pairs of calls, places, and a standard container whose
// memory comes from a device.
#include <cstdio>
#include <exception>
#include <millpond/millpond.hpp>
#include <numeric>
#include <vector>

using namespace millpond;

namespace {

void streams_and_buffers() {
  const Device device("host", 0);
  Pool pool(device, 64u << 20, "example");
  Stream producer(device), consumer(device);
  Event ready(device);

  PinnedBuffer from(device, 1 << 20), back(device, 1 << 20);
  std::iota(from.as<int>(), from.as<int>() + from.size() / sizeof(int), 0);

  Buffer block = pool.allocate(from.size(), producer);
  producer.copy(CopyKind::kHostToDevice, block.data(), from.data(), from.size());
  producer.record(ready);
  consumer.wait(ready);  // the consumer waits on the device; this thread does not
  consumer.copy(CopyKind::kDeviceToHost, back.data(), block.data(), back.size());
  block.record_stream(consumer);  // freed on `producer`, but not reused before `consumer` is done
  block.reset();
  consumer.add_callback([](C_Status status) {
    std::printf("the consumer is done, status %d\n", static_cast<int>(status));
  });
  consumer.synchronize();
  if (back.as<int>()[1000] != 1000) throw std::runtime_error("the copy is wrong");

  const millpond_stats stats = pool.stats();
  std::printf("peak %llu bytes allocated, %llu reserved\n",
              static_cast<unsigned long long>(stats.allocated_bytes.peak),
              static_cast<unsigned long long>(stats.reserved_bytes.current));
}

void places() {
  const std::size_t before = memory::Used(GPUPlace(0));
  std::vector<float> numbers(1024, 1.5f), got(1024);
  void* p = memory::Alloc(GPUPlace(0), numbers.size() * sizeof(float));
  memory::Copy(GPUPlace(0), p, CPUPlace(), numbers.data(), numbers.size() * sizeof(float));
  memory::Copy(CPUPlace(), got.data(), GPUPlace(0), p, got.size() * sizeof(float));
  std::printf("GPUPlace(0) has %zu bytes in use\n", memory::Used(GPUPlace(0)));
  memory::Free(GPUPlace(0), p);
  if (got != numbers || memory::Used(GPUPlace(0)) != before) {
    throw std::runtime_error("a place does not keep its word");
  }
  try {
    memory::Alloc(GPUPlace(1000), 4096);
    throw std::runtime_error("device 1000 exists");
  } catch (const Error& error) {
    std::printf("as expected: %s\n", error.what());
  }
}

void containers() {
  MemoryResource resource(Device("host", 1));
  std::pmr::vector<double> numbers(&resource);
  for (int i = 0; i < 10000; ++i) numbers.push_back(i);
  std::printf("a vector of %zu doubles on %s:%d\n", numbers.size(),
              resource.device().type().c_str(), resource.device().ordinal());
}

}  // namespace

int main() {
  try {
    streams_and_buffers();
    places();
    containers();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
