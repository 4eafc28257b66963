// Trains a network of two layers to be sin(3x) * cos(2y), and checks that it learns.
//
//   millpond_example_framework            on the embedded host device
//   millpond_example_framework PLUGIN.so  on the first device of a custom-runtime plugin
//
// Two streams: batches arrive on `input` while the kernels of the step before run on
// `compute`; events keep the two in order. All tensors live in one pool, whose counters are shown.
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <stdexcept>

#include "autograd.hpp"

namespace {

using tiny::Context;
using tiny::Tensor;
using tiny::Variable;

constexpr std::size_t kBatch = 64;
constexpr std::size_t kHidden = 32;
constexpr int kSteps = 400;

struct Batch {
  Tensor x, y;
  millpond::Event arrived;
};

/// Queues a batch on the input stream; the caller's thread does not wait for it.
Batch next_batch(Context& context, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(kBatch * 2), y(kBatch);
  for (std::size_t i = 0; i < kBatch; ++i) {
    x[2 * i] = uniform(random);
    x[2 * i + 1] = uniform(random);
    y[i] = std::sin(3 * x[2 * i]) * std::cos(2 * x[2 * i + 1]);
  }
  Batch batch{Tensor(context, kBatch, 2, context.input), Tensor(context, kBatch, 1, context.input),
              millpond::Event(context.device)};
  batch.x.set(x, context.input);
  batch.y.set(y, context.input);
  context.input.record(batch.arrived);
  // Allocated on one stream, used by another: it is not reused before both are done with it.
  batch.x.used_by(context.compute);
  batch.y.used_by(context.compute);
  return batch;
}

Variable parameter(Context& context, std::size_t rows, std::size_t columns, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(rows)));
  std::vector<float> values(rows * columns);
  for (float& value : values) value = rows == 1 ? 0 : normal(random);
  const Tensor tensor(context, rows, columns);
  tensor.set(values, context.compute);
  return Variable(tensor, true);
}

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
  std::mt19937 random(7);
  const Variable parameters[] = {
      parameter(context, 2, kHidden, random), parameter(context, 1, kHidden, random),
      parameter(context, kHidden, 1, random), parameter(context, 1, 1, random)};
  float first = 0, last = 0;
  millpond_stats warm{};
  Batch batch = next_batch(context, random);
  for (int step = 0; step < kSteps; ++step) {
    context.compute.wait(batch.arrived);
    const Variable hidden = tanh(linear(Variable(batch.x), parameters[0], parameters[1]));
    const Variable loss = mean_square_error(linear(hidden, parameters[2], parameters[3]), batch.y);
    backward(loss);
    for (const Variable& parameter : parameters) {
      tiny::step(parameter.value(), parameter.gradient(), 0.2f);
      parameter.clear_gradient();
    }
    batch = next_batch(context, random);  // on its way while the step above still runs
    if (step % 50 == 0 || step == kSteps - 1) {
      last = loss.value().get()[0];
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

}  // namespace

int main(int count, char** arguments) {
  try {
    const std::string type =
        count > 1 ? millpond::DeviceTypes::load(arguments[1]) : std::string("host");
    Context context(type);
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
