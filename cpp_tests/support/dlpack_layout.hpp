// The structs of DLPack 1 with the names of its header, as a consumer sees them; written from the
// standard, for machines without dlpack.h. real_headers/dlpack.cpp uses the real one.
#ifndef MILLPOND_TESTS_DLPACK_LAYOUT_HPP
#define MILLPOND_TESTS_DLPACK_LAYOUT_HPP

#include <cstdint>

struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

#endif  // MILLPOND_TESTS_DLPACK_LAYOUT_HPP
