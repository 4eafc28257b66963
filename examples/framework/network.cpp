// See network.hpp.
#include "network.hpp"

#include <cmath>
#include <utility>

namespace tiny {

namespace {

constexpr std::size_t kBatch = 64;
constexpr std::size_t kHidden = 32;
constexpr float kRate = 0.2f;

}  // namespace

Network::Network(Context& context) : context_(context) {
  parameters_ = {parameter(2, kHidden), parameter(1, kHidden), parameter(kHidden, 1),
                 parameter(1, 1)};
  batch_ = next_batch();
}

/// Queues a batch on the input stream; the caller's thread does not wait for it.
Network::Batch Network::next_batch() {
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(kBatch * 2), y(kBatch);
  for (std::size_t i = 0; i < kBatch; ++i) {
    x[2 * i] = uniform(random_);
    x[2 * i + 1] = uniform(random_);
    y[i] = std::sin(3 * x[2 * i]) * std::cos(2 * x[2 * i + 1]);
  }
  const millpond::Stream& input = context_.input;
  Batch batch{Tensor(context_, kBatch, 2, input), Tensor(context_, kBatch, 1, input),
              millpond::Event(context_.device)};
  batch.x.set(x, input);
  batch.y.set(y, input);
  input.record(batch.arrived);
  // Allocated on one stream, used by another: it is not reused before both are done with it.
  batch.x.used_by(context_.compute);
  batch.y.used_by(context_.compute);
  return batch;
}

Variable Network::parameter(std::size_t rows, std::size_t columns) {
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(rows)));
  std::vector<float> values(rows * columns);
  for (float& value : values) value = rows == 1 ? 0 : normal(random_);
  const Tensor tensor(context_, rows, columns);
  tensor.set(values, context_.compute);
  return Variable(tensor, true);
}

Tensor Network::step() {
  context_.compute.wait(batch_.arrived);
  const Variable hidden = tanh(linear(Variable(batch_.x), parameters_[0], parameters_[1]));
  const Variable loss = mean_square_error(linear(hidden, parameters_[2], parameters_[3]), batch_.y);
  backward(loss);
  for (const Variable& parameter : parameters_) {
    tiny::step(parameter.value(), parameter.gradient(), kRate);
    parameter.clear_gradient();
  }
  batch_ = next_batch();  // on its way while the step above still runs
  return loss.value();
}

}  // namespace tiny
