// Before, between and after: finalize() refuses what came before it, a new start works, and the
// embedded host device can be shaped only before its first use.
#include <cstring>

#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

namespace {

bool failed(std::uint32_t code, C_Status status) {
  if (status != C_SUCCESS && millpond_last_error_code() == code) return true;
  std::fprintf(stderr, "status %d, %s: %s\n", static_cast<int>(status),
               millpond_error_name(millpond_last_error_code()), millpond_last_error_message());
  return false;
}

void shape() {
  millpond_host_options options{};
  REQUIRE(failed(MILLPOND_E_INVALID_ARGUMENT, millpond_host_configure(&options)));  // no size
  options.struct_size = sizeof options;
  options.device_count = 65;
  REQUIRE(failed(MILLPOND_E_INVALID_ARGUMENT, millpond_host_configure(&options)));
  options.device_count = 3;
  options.capacity_bytes = 256u << 20;
  REQUIRE(millpond_host_configure(&options) == C_SUCCESS);
  std::size_t count = 0;
  REQUIRE(millpond_device_get_count("host", &count) == C_SUCCESS && count == 3);
  millpond_device* device = nullptr;
  REQUIRE(millpond_device_get("host", 2, &device) == C_SUCCESS);
  REQUIRE(failed(MILLPOND_E_UNKNOWN_DEVICE, millpond_device_get("host", 3, &device)));
  REQUIRE(failed(MILLPOND_E_BUSY, millpond_host_configure(&options)));
  REQUIRE(millpond::Device("host", 2).info().total_bytes == 256u << 20);
  void* block = nullptr;
  REQUIRE(failed(MILLPOND_E_OUT_OF_MEMORY, millpond_alloc(device, 300u << 20, &block)));
}

void end_and_start_again() {
  millpond_device* old_device = nullptr;
  millpond_pool* old_pool = nullptr;
  C_Stream old_stream = nullptr;
  C_Event old_event = nullptr;
  void* old_block = nullptr;
  REQUIRE(millpond_device_get("host", 0, &old_device) == C_SUCCESS);
  REQUIRE(millpond_pool_create(old_device, nullptr, &old_pool) == C_SUCCESS);
  REQUIRE(millpond_stream_create(old_device, &old_stream) == C_SUCCESS);
  REQUIRE(millpond_event_create(old_device, &old_event) == C_SUCCESS);
  REQUIRE(millpond_pool_alloc(old_pool, 5000, old_stream, &old_block) == C_SUCCESS);
  REQUIRE(millpond_memset_async(old_device, old_stream, old_block, 1, 5000) == C_SUCCESS);

  // A place and a resource are used again below, when their device has ended and another is there.
  const millpond::CustomPlace place("host", 0);
  millpond::memory::Free(place, millpond::memory::Alloc(place, 100));
  millpond::MemoryResource resource{millpond::Device("host", 0)};
  void* const node = resource.allocate(40);
  void* const large = resource.allocate(4000);

  REQUIRE(millpond_finalize() == C_SUCCESS);
  resource.deallocate(node, 40);  // its memory is gone, and is not touched
  resource.deallocate(large, 4000);
  bool threw = false;
  try {
    (void)resource.allocate(40);
  } catch (const millpond::BadAlloc& e) {
    threw = e.code() == MILLPOND_E_NOT_INITIALIZED;
  }
  REQUIRE(threw);
  const auto refused = [&] {
    void* out = nullptr;
    bool done = false;
    char byte = 0;
    millpond_stats stats{};
    stats.struct_size = sizeof stats;
    const std::uint32_t code = MILLPOND_E_NOT_INITIALIZED;
    REQUIRE(failed(code, millpond_alloc(old_device, 64, &out)));
    REQUIRE(failed(code, millpond_pool_alloc(old_pool, 64, nullptr, &out)));
    REQUIRE(failed(code, millpond_pool_free(old_pool, old_block, old_stream)));
    REQUIRE(failed(code, millpond_device_synchronize(old_device)));
    REQUIRE(failed(code, millpond_device_get_stats(old_device, &stats)));
    REQUIRE(failed(code, millpond_pool_get_stats(old_pool, &stats)));
    REQUIRE(failed(code, millpond_stream_query(old_device, old_stream, &done)));
    REQUIRE(failed(code, millpond_stream_destroy(old_device, old_stream)));
    REQUIRE(failed(code, millpond_event_query(old_device, old_event, &done)));
    REQUIRE(failed(code, millpond_copy(old_device, MILLPOND_COPY_D2H, &byte, old_block, 1)));
    REQUIRE(out == nullptr);
  };
  refused();
  REQUIRE(millpond_free(old_block) == C_ERROR);
  REQUIRE(failed(MILLPOND_E_NOT_INITIALIZED, millpond_finalize()));  // twice does no harm

  millpond_device* fresh = nullptr;
  REQUIRE(millpond_device_get("host", 0, &fresh) == C_SUCCESS);
  void* block = nullptr;
  REQUIRE(millpond_alloc(fresh, 5000, &block) == C_SUCCESS);
  REQUIRE(place.device().get() == fresh);
  millpond::memory::Free(place, millpond::memory::Alloc(place, 100));
  millpond::MemoryResource again{millpond::Device(fresh)};
  REQUIRE(!again.is_equal(resource));
  again.deallocate(again.allocate(40), 40);
  refused();  // but old_block may name new memory by now
  REQUIRE(millpond_free(block) == C_SUCCESS);
  REQUIRE(millpond_finalize() == C_SUCCESS);
}

}  // namespace

int main() {
  REQUIRE(failed(MILLPOND_E_NOT_INITIALIZED, millpond_finalize()));  // nothing was started
  shape();
  end_and_start_again();
  return 0;
}
