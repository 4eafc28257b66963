// DLPack, the exchange of tensors between frameworks: a Buffer is exported as a tensor that owns
// it, and anybody's tensor is imported and given back when the work that uses it is done.
//
// dlpack.h is not needed here, and may be included before or after: only the names of its two
// structs are declared. ImportedTensor::view() returns what is in a tensor.
#ifndef MILLPOND_CPP_DLPACK_HPP
#define MILLPOND_CPP_DLPACK_HPP

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "millpond/cpp/device.hpp"
#include "millpond/cpp/memory.hpp"
#include "millpond/cpp/stream.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// Gives a tensor back to its producer.
struct DlpackDelete {
  /// Never throws.
  void operator()(DLManagedTensorVersioned* tensor) const noexcept {
    (void)millpond_dlpack_destroy(tensor);
  }
  /// The same for the layout before DLPack 1.0.
  void operator()(DLManagedTensor* tensor) const noexcept {
    (void)millpond_dlpack_destroy_legacy(tensor);
  }
};
/// An owned tensor; release() hands it to a consumer, who calls its deleter.
using DlpackTensor = std::unique_ptr<DLManagedTensorVersioned, DlpackDelete>;
/// The same in the layout before DLPack 1.0.
using DlpackLegacyTensor = std::unique_ptr<DLManagedTensor, DlpackDelete>;

/// Options for elements of type T (arithmetic, or std::complex of it). Without a shape: one
/// dimension, as many as fit. The arrays must live until the export, which copies them.
template <typename T>
millpond_dlpack_options dlpack_options(const std::int64_t* shape = nullptr, std::int32_t ndim = 0) {
  constexpr bool is_complex =
      std::is_same<T, std::complex<float>>::value || std::is_same<T, std::complex<double>>::value;
  static_assert(is_complex || std::is_arithmetic<T>::value, "set the dtype_ members yourself");
  millpond_dlpack_options options{};
  options.struct_size = sizeof options;
  options.dtype_code = is_complex                         ? 5  // kDLComplex
                       : std::is_same<T, bool>::value     ? 6  // kDLBool
                       : std::is_floating_point<T>::value ? 2  // kDLFloat
                       : std::is_signed<T>::value         ? 0  // kDLInt
                                                          : 1;         // kDLUInt
  options.dtype_bits = static_cast<std::uint8_t>(sizeof(T) * 8);
  options.dtype_lanes = 1;
  options.ndim = ndim;
  options.shape = shape;
  return options;
}

/// Exports the block as a tensor, which owns it from now on: its deleter frees it on the stream on
/// which it was allocated. See millpond_dlpack_export for devices, streams and lifetimes. Throws
/// MILLPOND_E_OUT_OF_RANGE, MILLPOND_E_INVALID_ARGUMENT; then `block` still owns it.
[[nodiscard]] inline DlpackTensor export_dlpack(Buffer& block,
                                                const millpond_dlpack_options& options) {
  DLManagedTensorVersioned* tensor = nullptr;
  if (check(millpond_dlpack_export(block.data(), &options, &tensor)) == C_SUCCESS) {
    (void)block.release();
  }
  return DlpackTensor(tensor);
}
/// As bytes, in one dimension.
[[nodiscard]] inline DlpackTensor export_dlpack(Buffer& block) {
  return export_dlpack(block, dlpack_options<std::uint8_t>());
}
/// In the layout before DLPack 1.0.
[[nodiscard]] inline DlpackLegacyTensor export_dlpack_legacy(
    Buffer& block, const millpond_dlpack_options& options) {
  DLManagedTensor* tensor = nullptr;
  if (check(millpond_dlpack_export_legacy(block.data(), &options, &tensor)) == C_SUCCESS) {
    (void)block.release();
  }
  return DlpackLegacyTensor(tensor);
}

namespace detail {

/// Waits for what is queued on a stream, also on one that has ended meanwhile: then for its device.
/// Whether nothing of it runs any more; a device that has ended runs nothing.
inline bool has_passed(StreamView stream) noexcept {
  millpond_device* const device = stream.device().get();
  return millpond_stream_synchronize(device, stream.get()) == C_SUCCESS ||
         millpond_device_synchronize(device) == C_SUCCESS ||
         millpond_last_error_code() == MILLPOND_E_NOT_INITIALIZED;
}

}  // namespace detail

/// A tensor that another library made, owned by this object. Moves, does not copy.
class [[nodiscard]] ImportedTensor {
 public:
  /// Owns nothing.
  ImportedTensor() noexcept = default;
  /// Takes `tensor` over for work of `device` (an empty Device: of any). Throws if it cannot be
  /// used there, or has an unsupported version or an impossible shape: see
  /// millpond_dlpack_get_view. Then `tensor` still owns it, and gives it back.
  ImportedTensor(Device device, DlpackTensor&& tensor) {
    if (check(millpond_dlpack_get_view(device.get(), tensor.get(), &view_)) == C_SUCCESS) {
      tensor_ = std::move(tensor);
    }
  }
  /// The same in the layout before DLPack 1.0.
  ImportedTensor(Device device, DlpackLegacyTensor&& tensor) {
    if (check(millpond_dlpack_get_view_legacy(device.get(), tensor.get(), &view_)) == C_SUCCESS) {
      legacy_ = std::move(tensor);
    }
  }
  /// Takes the tensor over; `other` is left empty.
  ImportedTensor(ImportedTensor&& other) noexcept { swap(other); }
  /// Gives its own tensor back, then takes the other's over.
  ImportedTensor& operator=(ImportedTensor&& other) noexcept {
    ImportedTensor taken(std::move(other));
    swap(taken);
    return *this;
  }
  ImportedTensor(const ImportedTensor&) = delete;
  ImportedTensor& operator=(const ImportedTensor&) = delete;
  /// As reset().
  ~ImportedTensor() { reset(); }

  /// Where the memory is and what is in it; its shape and strides live as long as this object.
  const millpond_dlpack_view& view() const noexcept { return view_; }
  /// Whether it has a tensor.
  explicit operator bool() const noexcept { return tensor_ != nullptr || legacy_ != nullptr; }

  /// Records that work queued on `stream` uses the memory: a block of this library is not reused
  /// before that work is done; for other memory, whose owner knows nothing of the work, reset()
  /// waits for it, so the view must name the stream's device: throws MILLPOND_E_INVALID_ARGUMENT
  /// for StreamView() and an empty Stream.
  MILLPOND_CPP_CHECKED C_Status used_by(StreamView stream) {
    if (view_.block != nullptr) return check(millpond_record_stream(view_.block, stream.get()));
    if (!stream.device()) {
      return detail::refuse(MILLPOND_E_INVALID_ARGUMENT, "the stream belongs to no device");
    }
    for (const StreamView& known : streams_) {
      if (known.get() == stream.get() && known.device() == stream.device()) return C_SUCCESS;
    }
    streams_.push_back(stream);
    return C_SUCCESS;
  }
  /// Gives the tensor back now; see used_by() for what it waits for. Where that cannot be waited
  /// for, as in a stream callback, a tensor of another owner is never given back, since work may
  /// still use it. Never throws.
  void reset() noexcept {
    for (const StreamView& stream : streams_) {
      if (detail::has_passed(stream)) continue;
      (void)tensor_.release();
      (void)legacy_.release();
    }
    streams_.clear();
    tensor_.reset();
    legacy_.reset();
    view_ = empty_view();
  }

 private:
  static millpond_dlpack_view empty_view() noexcept {
    millpond_dlpack_view view{};
    view.struct_size = sizeof view;
    return view;
  }
  void swap(ImportedTensor& other) noexcept {
    std::swap(view_, other.view_);
    tensor_.swap(other.tensor_);
    legacy_.swap(other.legacy_);
    streams_.swap(other.streams_);
  }

  millpond_dlpack_view view_ = empty_view();
  DlpackTensor tensor_;              // one of the two, or neither
  DlpackLegacyTensor legacy_;        // the old layout
  std::vector<StreamView> streams_;  // to wait for, where the memory is not ours
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_DLPACK_HPP
