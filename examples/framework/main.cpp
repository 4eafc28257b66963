// Trains the network of network.hpp, and checks that it learns and that memory does not grow.
//
//   millpond_example_framework            on the embedded host device
//   millpond_example_framework cuda       on another device type that Millpond knows
//   millpond_example_framework PLUGIN.so  on the first device of a custom-runtime plugin
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "network.hpp"

namespace {

using tiny::Context;

constexpr int kSteps = 400;

void print(const char* when, const millpond_stats& stats) {
  std::printf(
      "%-14s live %6.1f KiB in %3llu blocks (peak %6.1f KiB), reserved %7.1f KiB, %llu calls to "
      "the device\n",
      when, static_cast<double>(stats.allocated_bytes.current) / 1024,
      static_cast<unsigned long long>(stats.blocks.current),
      static_cast<double>(stats.allocated_bytes.peak) / 1024,
      static_cast<double>(stats.reserved_bytes.current) / 1024,
      static_cast<unsigned long long>(stats.driver_calls));
}

void train(Context& context) {
  tiny::Network network(context);
  float first = 0, last = 0;
  millpond_stats warm{};
  for (int step = 0; step < kSteps; ++step) {
    const tiny::Tensor loss = network.step();
    if (step % 50 == 0 || step == kSteps - 1) {
      last = loss.get()[0];
      if (step == 0) first = last;
      if (step == 50) warm = context.pool.stats();
      std::printf("step %3d  loss %.4f\n", step, static_cast<double>(last));
    }
  }
  print("trained:", context.pool.stats());
  if (!(last < first / 4)) throw std::runtime_error("the loss did not fall");
  if (context.pool.stats().reserved_bytes.current > warm.reserved_bytes.current * 2) {
    throw std::runtime_error("memory grows from step to step");
  }
}

/// The device type that an argument names: a plugin is loaded first.
std::string type_of(const std::string& argument) {
  return argument.find('/') == std::string::npos ? argument : millpond::DeviceTypes::load(argument);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    Context context(type_of(count > 1 ? arguments[1] : "host"));
    const millpond_device_info info = context.device.info();
    std::printf("device %s:%d, kernels %s\n", info.type, static_cast<int>(info.ordinal),
                context.host_access ? "in place" : "staged");
    train(context);
    context.device.synchronize();
    context.pool.empty_cache();
    const millpond_stats end = context.pool.stats();
    print("at the end:", end);
    if (end.blocks.current != 0 || end.reserved_bytes.current != 0) {
      throw std::runtime_error("memory was left behind");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
