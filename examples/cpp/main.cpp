// Millpond from C++: owners instead of pairs of calls, places, a standard container whose memory
// comes from a device, code that takes a memory resource, and a tensor for another framework.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <millpond/millpond.hpp>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>
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
    (void)memory::Alloc(GPUPlace(1000), 4096);
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

/// As code for libcu++ or RMM is: any resource, any stream. It knows nothing of Millpond.
template <typename Resource, typename StreamType>
void fill_twice(Resource& resource, const StreamType& stream, std::size_t size) {
  void* a = resource.allocate(stream, size, 4096);
  void* b = resource.allocate(stream, size, 4096);
  resource.deallocate(stream, a, size, 4096);
  resource.deallocate(stream, b, size, 4096);
}

void resources() {
  const Device device("host");
  Pool pool(device, 8u << 20, "for a library");
  const Stream stream(device);
  // With libcu++: StreamResource<cuda::mr::device_accessible>.
  StreamResource<> resource(pool);
  fill_twice(resource, stream, 1 << 20);
  try {
    fill_twice(resource, stream, 64u << 20);
    throw std::runtime_error("the pool's limit does not hold");
  } catch (const std::bad_alloc& error) {
    std::printf("as expected: %s\n", error.what());
  }
  if (pool.stats().blocks.current != 0) throw std::runtime_error("a block was left behind");
}

/// Stands for another framework, which gets a DLPack tensor to look at and to give back.
double sum_of(DlpackTensor tensor) {
  const ImportedTensor in(Device(), std::move(tensor));
  const float* values = static_cast<const float*>(in.view().data);
  return std::accumulate(values, values + in.view().element_count, 0.0);
}

void tensors() {
  const Device device("host");
  const Stream stream(device);
  const std::int64_t shape[] = {10, 100};
  std::vector<float> numbers(1000, 0.5f);
  Buffer block = device.default_pool().allocate(numbers.size() * sizeof(float), stream);
  stream.copy(CopyKind::kHostToDevice, block.data(), numbers.data(), block.size());
  stream.synchronize();  // DLPack knows no streams: the values must be there
  const double sum = sum_of(export_dlpack(block, dlpack_options<float>(shape, 2)));
  std::printf("another framework sums a tensor of ours to %g, and has freed it\n", sum);
  if (sum != 500 || block) throw std::runtime_error("the tensor is wrong");
}

}  // namespace

int main() {
  try {
    streams_and_buffers();
    places();
    containers();
    resources();
    tensors();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
