// Reverse-mode differentiation: each operation remembers how its gradient reaches its inputs.
#ifndef EXAMPLE_FRAMEWORK_AUTOGRAD_HPP
#define EXAMPLE_FRAMEWORK_AUTOGRAD_HPP

#include <functional>
#include <memory>
#include <vector>

#include "tensor.hpp"

namespace tiny {

/// A value in the graph of one training step. Copies name the same value.
class Variable {
 public:
  Variable() = default;
  /// A leaf: a parameter (its gradient is kept) or an input.
  explicit Variable(Tensor value, bool needs_gradient = false);

  const Tensor& value() const { return node_->value; }
  /// Empty until backward() has reached it.
  const Tensor& gradient() const { return node_->gradient; }
  void clear_gradient() const { node_->gradient = Tensor(); }

 private:
  struct Node {
    Tensor value;
    Tensor gradient;
    bool needs_gradient = false;
    std::vector<std::shared_ptr<Node>> inputs;
    std::function<void(Node&)> backward;  ///< gives the gradient on to `inputs`
  };
  static void add_gradient(Node& node, const Tensor& gradient);
  static Variable result(Tensor value, std::vector<Variable> inputs,
                         std::function<void(Node&)> backward);

  std::shared_ptr<Node> node_;

  friend Variable linear(const Variable& x, const Variable& weight, const Variable& bias);
  friend Variable tanh(const Variable& x);
  friend Variable mean_square_error(const Variable& x, const Tensor& target);
  friend void backward(const Variable& loss);
};

/// x * weight + bias.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias);
/// tanh of each element.
Variable tanh(const Variable& x);
/// The mean of the squared differences, as a 1 x 1 tensor.
Variable mean_square_error(const Variable& x, const Tensor& target);
/// Adds d loss / d leaf to the gradient of every leaf that wants one. Queues; waits for nothing.
void backward(const Variable& loss);

}  // namespace tiny

#endif  // EXAMPLE_FRAMEWORK_AUTOGRAD_HPP
