// See autograd.hpp.
#include "autograd.hpp"

#include <unordered_set>
#include <utility>

namespace tiny {

Variable::Variable(Tensor value, bool needs_gradient) : node_(std::make_shared<Node>()) {
  node_->value = std::move(value);
  node_->needs_gradient = needs_gradient;
}

Variable Variable::result(Tensor value, std::vector<Variable> inputs,
                          std::function<void(Node&)> backward) {
  Variable out(std::move(value));
  for (const Variable& input : inputs) {
    out.node_->needs_gradient |= input.node_->needs_gradient;
    out.node_->inputs.push_back(input.node_);
  }
  out.node_->backward = std::move(backward);
  return out;
}

void Variable::add_gradient(Node& node, const Tensor& gradient) {
  if (!node.needs_gradient) return;
  if (node.gradient) {
    accumulate(node.gradient, gradient);
  } else {
    node.gradient = gradient;
  }
}

Variable linear(const Variable& x, const Variable& weight, const Variable& bias) {
  Tensor value = add_row(matmul(x.value(), false, weight.value(), false), bias.value());
  return Variable::result(std::move(value), {x, weight, bias}, [](Variable::Node& node) {
    Variable::Node &from = *node.inputs[0], &w = *node.inputs[1], &b = *node.inputs[2];
    if (from.needs_gradient) {
      Variable::add_gradient(from, matmul(node.gradient, false, w.value, true));
    }
    Variable::add_gradient(w, matmul(from.value, true, node.gradient, false));
    Variable::add_gradient(b, sum_rows(node.gradient));
  });
}

Variable tanh(const Variable& x) {
  return Variable::result(tanh(x.value()), {x}, [](Variable::Node& node) {
    const Tensor out(node.value.context(), node.value.rows(), node.value.columns());
    const std::size_t size = out.size();
    launch(out.context(), {out}, {node.value, node.gradient},
           [=](const Addresses& to, const Addresses& in) {
             for (std::size_t i = 0; i < size; ++i) {
               to[0][i] = in[1][i] * (1 - in[0][i] * in[0][i]);
             }
           });
    Variable::add_gradient(*node.inputs[0], out);
  });
}

Variable mean_square_error(const Variable& x, const Tensor& target) {
  const Tensor loss(target.context(), 1, 1);
  const std::size_t size = target.size();
  launch(target.context(), {loss}, {x.value(), target},
         [=](const Addresses& to, const Addresses& in) {
           double sum = 0;
           for (std::size_t i = 0; i < size; ++i) {
             const double difference = in[0][i] - in[1][i];
             sum += difference * difference;
           }
           to[0][0] = static_cast<float>(sum / static_cast<double>(size));
         });
  return Variable::result(loss, {x}, [target, size](Variable::Node& node) {
    Variable::Node& from = *node.inputs[0];
    const Tensor out(target.context(), target.rows(), target.columns());
    const float scale = 2.0f / static_cast<float>(size);
    launch(out.context(), {out}, {from.value, target, node.gradient},
           [=](const Addresses& to, const Addresses& in) {
             for (std::size_t i = 0; i < size; ++i) {
               to[0][i] = in[2][0] * scale * (in[0][i] - in[1][i]);
             }
           });
    Variable::add_gradient(from, out);
  });
}

void backward(const Variable& loss) {
  using Node = Variable::Node;
  // Depth first: when a node is appended, everything that it depends on is there already.
  std::vector<Node*> order;
  std::unordered_set<Node*> seen;
  const std::function<void(Node*)> visit = [&](Node* node) {
    if (!node->needs_gradient || !seen.insert(node).second) return;
    for (const std::shared_ptr<Node>& input : node->inputs) visit(input.get());
    order.push_back(node);
  };
  visit(loss.node_.get());

  Context& context = loss.value().context();
  const Tensor one(context, 1, 1);
  one.set({1.0f}, context.compute);
  Variable::add_gradient(*loss.node_, one);
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    if ((*node)->backward) (*node)->backward(**node);
  }
}

}  // namespace tiny
