// See tensor.hpp.
#include "tensor.hpp"

#include <cmath>
#include <utility>

namespace tiny {

using millpond::CopyKind;
using millpond::PinnedBuffer;

Context::Context(const std::string& type, int ordinal)
    : device(type, ordinal),
      pool(device, 0, "tiny framework"),
      compute(device),
      input(device),
      host_access(device.can(MILLPOND_CAP_HOST_ACCESS)) {}

Tensor::Tensor(Context& context, std::size_t rows, std::size_t columns,
               const millpond::Stream& stream)
    : context_(&context),
      block_(std::make_shared<millpond::Buffer>(
          context.pool.allocate(rows * columns * sizeof(float), stream))),
      rows_(rows),
      columns_(columns) {}

void Tensor::set(const std::vector<float>& values, const millpond::StreamView& stream) const {
  stream.copy(CopyKind::kHostToDevice, data(), values.data(), bytes());
}

std::vector<float> Tensor::get() const {
  std::vector<float> out(size());
  context_->compute.copy(CopyKind::kDeviceToHost, out.data(), data(), bytes());
  context_->compute.synchronize();
  return out;
}

namespace {

void launch_in_place(Context& context, const std::vector<Tensor>& outputs,
                     const std::vector<Tensor>& inputs,
                     std::function<void(const Addresses&, const Addresses&)> kernel) {
  Addresses out, in;
  for (const Tensor& tensor : outputs) out.push_back(tensor.data());
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  // Addresses, not tensors, go along: a callback must not be the one that frees memory, and the
  // stream's order keeps the memory until the kernel has run.
  context.compute.add_callback([out, in, kernel = std::move(kernel)](C_Status status) {
    if (status == C_SUCCESS) kernel(out, in);
  });
}

// A plugin may read the source of a copy as soon as the copy is queued, so the kernel has to be
// done by then: here the host waits for the operands, computes, and queues the results.
void launch_staged(Context& context, const std::vector<Tensor>& outputs,
                   const std::vector<Tensor>& inputs,
                   const std::function<void(const Addresses&, const Addresses&)>& kernel) {
  std::vector<PinnedBuffer> stages;
  const auto stage = [&](const Tensor& tensor) {
    stages.emplace_back(context.device, tensor.bytes());
    context.compute.copy(CopyKind::kDeviceToHost, stages.back().data(), tensor.data(),
                         tensor.bytes());
    return stages.back().as<float>();
  };
  Addresses out, in;
  for (const Tensor& tensor : outputs) out.push_back(stage(tensor));
  for (const Tensor& tensor : inputs) in.push_back(stage(tensor));
  context.compute.synchronize();
  kernel(out, in);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    context.compute.copy(CopyKind::kHostToDevice, outputs[i].data(), out[i], outputs[i].bytes());
  }
  context.compute.synchronize();  // the stages go now
}

}  // namespace

void launch(Context& context, const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
            std::function<void(const Addresses&, const Addresses&)> kernel) {
  if (context.host_access) {
    launch_in_place(context, outputs, inputs, std::move(kernel));
  } else {
    launch_staged(context, outputs, inputs, kernel);
  }
}

Tensor matmul(const Tensor& a, bool a_transposed, const Tensor& b, bool b_transposed) {
  const std::size_t m = a_transposed ? a.columns() : a.rows();
  const std::size_t k = a_transposed ? a.rows() : a.columns();
  const std::size_t n = b_transposed ? b.rows() : b.columns();
  const std::size_t a_row = a_transposed ? 1 : k, a_column = a_transposed ? m : 1;
  const std::size_t b_row = b_transposed ? 1 : n, b_column = b_transposed ? k : 1;
  const Tensor out(a.context(), m, n);
  launch(a.context(), {out}, {a, b}, [=](const Addresses& to, const Addresses& from) {
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        float sum = 0;
        for (std::size_t l = 0; l < k; ++l) {
          sum += from[0][i * a_row + l * a_column] * from[1][l * b_row + j * b_column];
        }
        to[0][i * n + j] = sum;
      }
    }
  });
  return out;
}

Tensor add_row(const Tensor& a, const Tensor& b) {
  const Tensor out(a.context(), a.rows(), a.columns());
  const std::size_t size = a.size(), columns = a.columns();
  launch(a.context(), {out}, {a, b}, [=](const Addresses& to, const Addresses& from) {
    for (std::size_t i = 0; i < size; ++i) to[0][i] = from[0][i] + from[1][i % columns];
  });
  return out;
}

Tensor tanh(const Tensor& a) {
  const Tensor out(a.context(), a.rows(), a.columns());
  const std::size_t size = a.size();
  launch(a.context(), {out}, {a}, [=](const Addresses& to, const Addresses& from) {
    for (std::size_t i = 0; i < size; ++i) to[0][i] = std::tanh(from[0][i]);
  });
  return out;
}

Tensor sum_rows(const Tensor& a) {
  const Tensor out(a.context(), 1, a.columns());
  const std::size_t rows = a.rows(), columns = a.columns();
  launch(a.context(), {out}, {a}, [=](const Addresses& to, const Addresses& from) {
    for (std::size_t j = 0; j < columns; ++j) to[0][j] = 0;
    for (std::size_t i = 0; i < rows * columns; ++i) to[0][i % columns] += from[0][i];
  });
  return out;
}

void accumulate(const Tensor& a, const Tensor& b) {
  const std::size_t size = a.size();
  launch(a.context(), {a}, {b}, [=](const Addresses& to, const Addresses& from) {
    for (std::size_t i = 0; i < size; ++i) to[0][i] += from[0][i];
  });
}

void step(const Tensor& a, const Tensor& b, float rate) {
  const std::size_t size = a.size();
  launch(a.context(), {a}, {b}, [=](const Addresses& to, const Addresses& from) {
    for (std::size_t i = 0; i < size; ++i) to[0][i] -= rate * from[0][i];
  });
}

}  // namespace tiny
