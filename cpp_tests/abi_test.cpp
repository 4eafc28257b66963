// The layout of the custom-runtime types as a host's compiler sees them. The numbers were measured
// in PaddlePaddle 3.3; the header asserts them too, but a host may have brought its own header.
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "millpond/custom_runtime.h"
#include "millpond/millpond.h"

namespace {

static_assert(sizeof(C_DeviceInterface) == 1128 && alignof(C_DeviceInterface) == 8, "");
static_assert(sizeof(CustomRuntimeParams) == 96 && sizeof(CustomRuntimeVersion) == 24, "");
static_assert(sizeof(C_Device_st) == 4 && sizeof(C_Status) == 4, "");
static_assert(C_SUCCESS == 0 && C_WARNING == 1 && C_FAILED == 2 && C_ERROR == 3, "");
static_assert(C_INTERNAL_ERROR == 4, "");

#define AT(member, offset) \
  static_assert(offsetof(C_DeviceInterface, member) == (offset), #member " moved")
AT(size, 0);
AT(initialize, 8);
AT(set_device, 32);
AT(get_device, 40);
AT(create_stream, 56);
AT(stream_add_callback, 80);
AT(create_event, 88);
AT(stream_wait_event, 144);
AT(reserved_dev_api, 152);
AT(device_memory_allocate, 216);
AT(device_memory_deallocate, 224);
AT(device_memory_set, 232);
AT(host_memory_allocate, 240);
AT(unified_memory_deallocate, 264);
AT(memory_copy_h2d, 272);
AT(memory_copy_p2p, 296);
AT(async_memory_copy_h2d, 304);
AT(async_memory_copy_p2p, 328);
AT(reserved_mem_api, 336);
AT(get_device_count, 400);
AT(device_memory_stats, 416);
AT(device_min_chunk_size, 424);
AT(device_realloc_size, 464);
AT(get_compute_capability, 472);
AT(get_driver_version, 496);
static_assert(offsetof(CustomRuntimeParams, interface) == 8, "");
static_assert(offsetof(CustomRuntimeParams, version) == 16, "");
static_assert(offsetof(CustomRuntimeParams, device_type) == 40, "");
static_assert(offsetof(CustomRuntimeParams, reserved) == 64, "");

// What the C API passes by pointer starts with its own size, so that it can grow.
template <typename T>
constexpr bool kGrows = std::is_standard_layout<T>::value&& std::is_trivially_copyable<T>::value&&
                            offsetof(T, struct_size) == 0;
static_assert(kGrows<millpond_host_options> && kGrows<millpond_device_info> &&
                  kGrows<millpond_pool_options> && kGrows<millpond_stats> &&
                  kGrows<millpond_block_info> && kGrows<millpond_memory_stats> &&
                  kGrows<millpond_host_memory_stats> && kGrows<millpond_stream_stats> &&
                  kGrows<millpond_latency>,
              "an option struct must start with struct_size");

TEST(Abi, ErrorNumbersAreForEver) {
  const std::uint32_t codes[] = {MILLPOND_OK,
                                 MILLPOND_E_INVALID_ARGUMENT,
                                 MILLPOND_E_OUT_OF_MEMORY,
                                 MILLPOND_E_UNKNOWN_POINTER,
                                 MILLPOND_E_DOUBLE_FREE,
                                 MILLPOND_E_UNKNOWN_STREAM,
                                 MILLPOND_E_UNKNOWN_EVENT,
                                 MILLPOND_E_UNKNOWN_DEVICE,
                                 MILLPOND_E_NOT_INITIALIZED,
                                 MILLPOND_E_UNSUPPORTED,
                                 MILLPOND_E_OUT_OF_RANGE,
                                 MILLPOND_E_DEVICE,
                                 MILLPOND_E_SYSTEM,
                                 MILLPOND_E_PLUGIN_REFUSED,
                                 MILLPOND_E_BUSY,
                                 MILLPOND_E_NOT_PERMITTED,
                                 MILLPOND_E_WRONG_SIZE,
                                 MILLPOND_E_INTERNAL};
  for (std::uint32_t i = 0; i < sizeof codes / sizeof codes[0]; ++i) EXPECT_EQ(i, codes[i]);
}

TEST(Abi, TheLibraryIsTheHeadersVersion) {
  const std::string header = std::to_string(MILLPOND_VERSION_MAJOR) + "." +
                             std::to_string(MILLPOND_VERSION_MINOR) + "." +
                             std::to_string(MILLPOND_VERSION_PATCH);
  EXPECT_EQ(header, millpond_version());
}

}  // namespace
