// The network that this framework trains: two layers that learn sin(3x) * cos(2y).
//
// Two streams: batches arrive on `input` while the kernels of the step before run on `compute`;
// events keep the two in order. All tensors live in the context's pool.
#ifndef EXAMPLE_FRAMEWORK_NETWORK_HPP
#define EXAMPLE_FRAMEWORK_NETWORK_HPP

#include <cstddef>
#include <random>
#include <vector>

#include "autograd.hpp"

namespace tiny {

/// Parameters, the batch that is on its way, and the random numbers that make both. The same steps
/// give the same losses, to the last bit, on every device.
class Network {
 public:
  explicit Network(Context& context);
  /// Queues one step of training, and the next batch. Returns the loss, a 1 x 1 tensor, for which
  /// nothing waits until it is read.
  Tensor step();
  /// The weights of the first layer; each step changes them in place.
  const Tensor& weights() const { return parameters_[0].value(); }

 private:
  struct Batch {
    Tensor x, y;
    millpond::Event arrived;
  };
  Batch next_batch();
  Variable parameter(std::size_t rows, std::size_t columns);

  Context& context_;
  std::mt19937 random_{7};
  std::vector<Variable> parameters_;
  Batch batch_;
};

}  // namespace tiny

#endif  // EXAMPLE_FRAMEWORK_NETWORK_HPP
