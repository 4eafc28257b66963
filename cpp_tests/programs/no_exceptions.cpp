// The C++ face without exceptions and without run-time types: a failure is a status or an empty
// object, and nothing ends the program.
#include <cstring>

#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

using namespace millpond;

int main() {
  Device nowhere("nowhere");
  REQUIRE(!nowhere);
  REQUIRE(millpond_last_error_code() == MILLPOND_E_UNKNOWN_DEVICE);
  REQUIRE(nowhere.synchronize() == C_ERROR);
  REQUIRE(!nowhere.allocate(100));
  REQUIRE(memory::Alloc(CustomPlace("nowhere"), 100) == nullptr);
  REQUIRE(millpond_last_error_code() == MILLPOND_E_UNKNOWN_DEVICE);
  REQUIRE(memory::Free(CustomPlace("nowhere"), &nowhere) == C_ERROR);
  REQUIRE(millpond_last_error_code() == MILLPOND_E_UNKNOWN_DEVICE);
  REQUIRE(memory::Used(CustomPlace("nowhere")) == 0);
  REQUIRE(millpond_last_error_code() == MILLPOND_E_UNKNOWN_DEVICE);
  REQUIRE(memory::Alloc(CPUPlace(), static_cast<std::size_t>(-1)) == nullptr);

  const Device device("host");
  REQUIRE(static_cast<bool>(device));
  Stream stream(device);
  Buffer buffer = device.default_pool().allocate(100, stream);
  REQUIRE(buffer && stream.memset(buffer.data(), 7, 100) == C_SUCCESS);
  REQUIRE(stream.memset(buffer.data(), 7, std::size_t{1} << 40) == C_ERROR);
  int calls = 0;
  REQUIRE(stream.add_callback([&calls](C_Status) { ++calls; }) == C_SUCCESS);
  // What the header refuses by itself has a reason, too.
  REQUIRE(stream.add_callback(nullptr) == C_ERROR);
  REQUIRE(millpond_last_error_code() == MILLPOND_E_INVALID_ARGUMENT);
  REQUIRE(std::strcmp(millpond_last_error_message(), "no function to call back") == 0);
  const Device cpu("cpu");
  REQUIRE(!device.default_pool().allocate(100, cpu.default_stream()));
  REQUIRE(millpond_last_error_code() == MILLPOND_E_UNKNOWN_STREAM);
  REQUIRE(stream.synchronize() == C_SUCCESS && calls == 1);
  void* p = memory::Alloc(CPUPlace(), 4096);
  REQUIRE(p != nullptr);
  REQUIRE(memory::Free(CPUPlace(), &calls) == C_ERROR);
  const std::uint32_t code = millpond_last_error_code();
  REQUIRE(code == MILLPOND_E_UNKNOWN_POINTER);
  REQUIRE(memory::Free(CPUPlace(), p) == C_SUCCESS);
  REQUIRE(millpond_last_error_code() == code);  // success does not clear it
  REQUIRE(memory::Free(CPUPlace(), p) == C_ERROR);
  p = memory::Alloc(CPUPlace(), 4096);
  memory::Free(CPUPlace(), p);  // a status that is ignored is no warning
  return 0;
}
