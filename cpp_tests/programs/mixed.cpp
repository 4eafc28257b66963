// A program of two files, one with exceptions and one without: each has the form of the C++ face
// that its own compiler options ask for, whatever the linker puts together.
#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

// In mixed_plain.cpp, without exceptions.
bool plain_returns_failures();
millpond_pool* plain_makes_a_pool(millpond_device* device);

int main() {
  REQUIRE(plain_returns_failures());
  bool thrown = false;
  try {
    millpond::Device nowhere("nowhere");
  } catch (const millpond::Error& e) {
    thrown = e.code() == MILLPOND_E_UNKNOWN_DEVICE;
  }
  REQUIRE(thrown);
  REQUIRE(plain_returns_failures());
  // Handles of the C API are what crosses.
  const millpond::Device device("host");
  millpond_pool* const made = plain_makes_a_pool(device.get());
  REQUIRE(made != nullptr);
  const millpond::PoolView pool(made);
  REQUIRE(static_cast<bool>(pool.allocate(1000)));
  REQUIRE(millpond_pool_destroy(made) == C_SUCCESS);

  // Who moves to itself keeps what it has.
  millpond::Stream stream(device);
  millpond::Stream& same = stream;
  stream = std::move(same);
  REQUIRE(stream && stream.done());
  millpond::Event event(device);
  millpond::Event& also = event;
  event = std::move(also);
  REQUIRE(event && event.done());
  return 0;
}
