// A program of three files, built with and without exceptions and run-time types: each has the form
// of the C++ face that its own compiler options ask for, whatever the linker puts together.
#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

// In mixed_plain.cpp, without exceptions.
bool plain_returns_failures();
millpond_pool* plain_makes_a_pool(millpond_device* device);
// In mixed_no_rtti.cpp, with exceptions.
bool no_rtti_throws_failures();
bool no_rtti_knows_its_equals(const std::pmr::memory_resource& same,
                              const std::pmr::memory_resource& other);

// Asks the other whether they are equal, as a resource that wraps another may.
class Wrapper : public std::pmr::memory_resource {
  void* do_allocate(std::size_t, std::size_t) override { throw std::bad_alloc(); }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other || other.is_equal(*this);
  }
};

int main() {
  REQUIRE(plain_returns_failures());
  bool thrown = false;
  try {
    millpond::Device nowhere("nowhere");
  } catch (const millpond::Error& e) {
    thrown = e.code() == MILLPOND_E_UNKNOWN_DEVICE;
  }
  REQUIRE(thrown);
  REQUIRE(plain_returns_failures() && no_rtti_throws_failures());
  // Handles of the C API are what crosses.
  const millpond::Device device("host");
  millpond_pool* const made = plain_makes_a_pool(device.get());
  REQUIRE(made != nullptr);
  const millpond::PoolView pool(made);
  REQUIRE(static_cast<bool>(pool.allocate(1000)));
  REQUIRE(millpond_pool_destroy(made) == C_SUCCESS);

  // A resource is equal to those of its device, in whatever file they were made.
  const millpond::MemoryResource equal(device), other(millpond::Device("host", 1));
  REQUIRE(equal.is_equal(millpond::MemoryResource(device)) && !equal.is_equal(other));
  REQUIRE(!equal.is_equal(Wrapper()));
  REQUIRE(no_rtti_knows_its_equals(equal, other));

  // Who moves to itself keeps what it has.
  millpond::Stream stream(device);
  millpond::Stream& same = stream;
  stream = std::move(same);
  REQUIRE(stream && stream.done());
  millpond::Event event(device);
  millpond::Event& also = event;
  event = std::move(also);
  REQUIRE(event && event.done());
  millpond::Buffer block = device.allocate(1000);
  millpond::Buffer& as_well = block;
  block = std::move(as_well);
  REQUIRE(block && block.size() == 1000);
  return 0;
}
