// CUDA from C++: what to do without a GPU, memory in stream order, and how to use a framework's own
// CUstream. Needs no CUDA toolkit to build. Without a GPU it says why there is none, and exits with
// 0.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <millpond/millpond.hpp>
#include <stdexcept>

using namespace millpond;

namespace {

/// A framework would launch a kernel here, on reinterpret_cast<cudaStream_t>(stream.get()).
void compute(StreamView stream, Buffer& block) { stream.memset(block.data(), 7, block.size()); }

void on(const Device& gpu) {
  const millpond_device_info info = gpu.info();
  std::printf("%s:%d, compute capability %llu, driver %llu, %s memory\n", info.type, info.ordinal,
              static_cast<unsigned long long>(info.compute_capability),
              static_cast<unsigned long long>(info.driver_version),
              gpu.can(MILLPOND_CAP_MAPPING) ? "mapped" : "segmented");

  // A stream of ours. One that the framework has made is StreamView(gpu, stream); before it ends,
  // call forget() on that view.
  Stream stream(gpu);
  Buffer block = gpu.default_pool().allocate(8u << 20, stream);
  compute(stream, block);

  // Page-locked memory: copies from and to it run beside the host.
  PinnedBuffer result(gpu, block.size());
  stream.copy(CopyKind::kDeviceToHost, result.data(), block.data(), block.size());
  block.reset();  // at once: freed in the order of the stream, after the copy
  stream.synchronize();

  const unsigned char* first = result.as<unsigned char>();
  const bool good =
      std::all_of(first, first + result.size(), [](unsigned char b) { return b == 7; });
  if (!good) throw std::runtime_error("the bytes are wrong");
  std::printf("8 MiB came back; %llu bytes are reserved for the next request\n",
              static_cast<unsigned long long>(gpu.stats().reserved_bytes.current));
}

}  // namespace

int main() {
  try {
    const std::size_t count = DeviceTypes::device_count("cuda");
    if (count == 0) std::printf("no GPU: %s\n", DeviceTypes::reason("cuda").c_str());
    for (std::size_t i = 0; i < count; ++i) on(Device("cuda", static_cast<std::int32_t>(i)));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
