// The half of mixed.cpp that is built without exceptions.
#include "millpond/millpond.hpp"

bool plain_returns_failures() {
  const millpond::Device nowhere("nowhere");
  const bool refused = millpond_last_error_code() == MILLPOND_E_UNKNOWN_DEVICE;
  // A stream that could not be made is no stream, and no default one.
  const millpond::Stream none(nowhere);
  const millpond::Device device("host");
  void* block = nullptr;
  const C_Status status =
      millpond_pool_alloc(device.default_pool().get(), 1000, none.get(), &block);
  const bool told = status == C_ERROR && millpond_last_error_code() == MILLPOND_E_UNKNOWN_STREAM;
  return refused && !nowhere && !none && told && nowhere.synchronize() == C_ERROR;
}

millpond_pool* plain_makes_a_pool(millpond_device* device) {
  millpond_pool* pool = nullptr;
  (void)millpond::check(millpond_pool_create(device, nullptr, &pool));
  return pool;
}
