// Tensors on a Millpond device, and the few kernels that a small network needs.
//
// A kernel is a function that runs on a stream, in the stream's order, as a stream callback, and no
// call waits for it. Where the host cannot touch device memory (a plugin's device), its operands
// are staged through pinned memory instead, and the caller waits.
#ifndef EXAMPLE_FRAMEWORK_TENSOR_HPP
#define EXAMPLE_FRAMEWORK_TENSOR_HPP

#include <cstddef>
#include <functional>
#include <memory>
#include <millpond/millpond.hpp>
#include <string>
#include <vector>

namespace tiny {

/// What one program runs on: a device, a pool of its own, and two streams.
struct Context {
  explicit Context(const std::string& type, int ordinal = 0);

  millpond::Device device;
  millpond::Pool pool;
  millpond::Stream compute;  ///< kernels
  millpond::Stream input;    ///< the next batch, while the kernels run
  bool host_access;          ///< kernels may work in place
};

/// A matrix of floats, row by row. Copies share the memory; the last one frees it on its stream.
class Tensor {
 public:
  Tensor() = default;
  /// Memory that work queued on `stream` from now on may use; its values are not set.
  Tensor(Context& context, std::size_t rows, std::size_t columns, const millpond::Stream& stream);
  /// The same on the compute stream.
  Tensor(Context& context, std::size_t rows, std::size_t columns)
      : Tensor(context, rows, columns, context.compute) {}

  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  std::size_t size() const { return rows_ * columns_; }
  std::size_t bytes() const { return size() * sizeof(float); }
  float* data() const { return block_ ? block_->as<float>() : nullptr; }
  Context& context() const { return *context_; }
  explicit operator bool() const { return block_ != nullptr; }

  /// Queues a copy of `values` on `stream`; they have been read when this returns.
  void set(const std::vector<float>& values, const millpond::StreamView& stream) const;
  /// Waits for the compute stream, and copies the values out.
  std::vector<float> get() const;
  /// The memory is used by `stream` too.
  void used_by(const millpond::StreamView& stream) const { block_->record_stream(stream); }

 private:
  Context* context_ = nullptr;
  std::shared_ptr<millpond::Buffer> block_;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};

/// Runs `kernel(outputs, inputs)` on the compute stream, with host-visible addresses. A tensor may
/// be both: then its old values are there.
using Addresses = std::vector<float*>;
void launch(Context& context, const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
            std::function<void(const Addresses& outputs, const Addresses& inputs)> kernel);

/// out (m x n) = a (m x k) * b (k x n), either of them transposed first.
Tensor matmul(const Tensor& a, bool a_transposed, const Tensor& b, bool b_transposed);
/// Each row of `a` plus the one row of `b`.
Tensor add_row(const Tensor& a, const Tensor& b);
/// tanh of each element.
Tensor tanh(const Tensor& a);
/// Sums the rows into one.
Tensor sum_rows(const Tensor& a);
/// a += b, in place.
void accumulate(const Tensor& a, const Tensor& b);
/// a -= rate * b, in place.
void step(const Tensor& a, const Tensor& b, float rate);

}  // namespace tiny

#endif  // EXAMPLE_FRAMEWORK_TENSOR_HPP
