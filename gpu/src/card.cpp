// One line about the card and the driver; the exit status says whether there is one.
#include <cstdio>

#include "driver.hpp"

int main() {
  int version = 0, count = 0;
  char name[128] = "";
  std::size_t bytes = 0;
  MILLPOND_GPU(cuInit, 0);
  MILLPOND_GPU(cuDriverGetVersion, &version);
  MILLPOND_GPU(cuDeviceGetCount, &count);
  MILLPOND_GPU(cuDeviceGetName, name, static_cast<int>(sizeof name), 0);
  MILLPOND_GPU(cuDeviceTotalMem_v2, &bytes, 0);
  std::printf("%d x %s, %.1f GiB; driver for CUDA %d.%d\n", count, name,
              static_cast<double>(bytes) / (1 << 30), version / 1000, version % 1000 / 10);
  return 0;
}
