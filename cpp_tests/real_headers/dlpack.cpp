// Our DLPack tensors through the real header: included before and after ours, and the layout that a
// consumer compiled against it reads.
#include "millpond/millpond.hpp"
//
#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstring>

#include "programs/expect.hpp"

// The offsets that src/capi/dlpack_abi.rs has.
static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64);
static_assert(sizeof(DLManagedTensorVersioned) == 80);
static_assert(offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16);
static_assert(offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24);
static_assert(offsetof(DLTensor, strides) == 32 && offsetof(DLTensor, byte_offset) == 40);
static_assert(offsetof(DLManagedTensor, manager_ctx) == 48);
static_assert(offsetof(DLManagedTensor, deleter) == 56);
static_assert(offsetof(DLManagedTensorVersioned, manager_ctx) == 8);
static_assert(offsetof(DLManagedTensorVersioned, deleter) == 16);
static_assert(offsetof(DLManagedTensorVersioned, flags) == 24);
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
static_assert(kDLCPU == 1 && kDLCUDA == 2 && kDLCUDAHost == 3 && kDLROCMHost == 11);
static_assert(kDLExtDev == 12 && kDLCUDAManaged == 13);
static_assert(DLPACK_FLAG_BITMASK_READ_ONLY == 1 && DLPACK_FLAG_BITMASK_IS_COPIED == 2);
static_assert(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED == 4);
static_assert(DLPACK_MAJOR_VERSION == 1, "another layout: src/capi/dlpack_abi.rs must learn it");
static_assert(kDLInt == 0 && kDLUInt == 1 && kDLFloat == 2 && kDLComplex == 5 && kDLBool == 6);

int main() {
  const millpond::Device device("host");
  millpond::Buffer buffer = device.allocate(sizeof(float) * 6);
  std::memset(buffer.data(), 0, buffer.size());
  buffer.as<float>()[5] = 2.5f;
  const std::int64_t shape[] = {2, 3};
  millpond_dlpack_options options = millpond::dlpack_options<float>(shape, 2);
  options.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  millpond::DlpackTensor tensor = millpond::export_dlpack(buffer, options);

  const DLTensor& t = tensor->dl_tensor;
  REQUIRE(tensor->version.major == DLPACK_MAJOR_VERSION);
  REQUIRE(tensor->flags == DLPACK_FLAG_BITMASK_READ_ONLY);
  REQUIRE(t.device.device_type == kDLCPU && t.device.device_id == 0);
  REQUIRE(t.dtype.code == kDLFloat && t.dtype.bits == 32 && t.dtype.lanes == 1);
  REQUIRE(t.ndim == 2 && t.shape[0] == 2 && t.shape[1] == 3 && t.strides[0] == 3);
  REQUIRE(static_cast<const float*>(t.data)[5] == 2.5f);
  REQUIRE(device.stats().blocks.current == 1);
  DLManagedTensorVersioned* raw = tensor.release();
  raw->deleter(raw);
  REQUIRE(device.stats().blocks.current == 0);

  // A tensor that a consumer's own code made.
  float value[3] = {1, 2, 3};
  std::int64_t size = 3;
  DLManagedTensor old{};
  old.dl_tensor = {value, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &size, nullptr, 0};
  old.deleter = [](DLManagedTensor* self) { self->manager_ctx = self; };
  {
    const millpond::ImportedTensor in(device, millpond::DlpackLegacyTensor(&old));
    REQUIRE(in.view().data == value && in.view().size_bytes == sizeof value);
    REQUIRE(in.view().is_compact == 1 && in.view().block == nullptr);
  }
  REQUIRE(old.manager_ctx == &old);
  return 0;
}
