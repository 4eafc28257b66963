// Memory by place, written as a developer of PaddlePaddle would write it.
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"
#include "support/pattern.hpp"

using namespace millpond;  // the way that these calls are meant to be used

namespace {

using millpond_tests::pattern;

template <typename Call>
std::uint32_t code_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_STRNE("", error.what());
    return error.code();
  }
  return MILLPOND_OK;
}

std::vector<Place> all_places() {
  return {CPUPlace(),        GPUPlace(0), GPUPlace(1), GPUPlace(), CustomPlace("host", 1),
          CustomPlace("cpu")};
}

TEST(Places, UsedComesBackToItsOldValue) {
  for (const Place& place : all_places()) {
    const std::size_t before = memory::Used(place);
    void* p = memory::Alloc(place, 4 * 1024);
    ASSERT_NE(nullptr, p);
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(p) % 32);
    EXPECT_GE(memory::Used(place), before + 4 * 1024);
    memory::Free(place, p);
    EXPECT_EQ(before, memory::Used(place));
  }
}

TEST(Places, TheDesignsOwnLines) {
  const std::size_t cpu = memory::Used(CPUPlace());
  void* p = memory::Alloc(CPUPlace(), 4 * 1024);
  std::memset(p, 1, 4 * 1024);
  memory::Free(CPUPlace(), p);
  EXPECT_EQ(cpu, memory::Used(CPUPlace()));
  void* q = memory::Alloc(GPUPlace(1), 4 * 1024);
  memory::Free(GPUPlace(1), q);
}

TEST(Places, ManySizesAreAligned) {
  for (std::size_t size = 1; size < 100000; size = size * 3 + 1) {
    void* p = memory::Alloc(GPUPlace(0), size);
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(p) % 32) << size;
    memory::Free(GPUPlace(0), p);
  }
}

TEST(Places, PlacesThatDoNotExist) {
  const Place bad[] = {GPUPlace(1000), GPUPlace(-1), CustomPlace("nowhere", 0),
                       CustomPlace("cpu", 1), CustomPlace(std::string(5000, 'x'), 0)};
  for (const Place& place : bad) {
    EXPECT_EQ(MILLPOND_E_UNKNOWN_DEVICE, code_of([&] { (void)memory::Alloc(place, 64); }));
    EXPECT_EQ(MILLPOND_E_UNKNOWN_DEVICE, code_of([&] { memory::Used(place); }));
    EXPECT_EQ(nullptr, memory::Alloc(place, 64, std::nothrow));
    EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_E_UNKNOWN_DEVICE), millpond_last_error_code());
    EXPECT_EQ(MILLPOND_OK, code_of([&] { memory::Free(place, nullptr); }));
    int local = 0;
    EXPECT_EQ(MILLPOND_E_UNKNOWN_DEVICE, code_of([&] { memory::Free(place, &local); }));
    EXPECT_EQ(MILLPOND_E_UNKNOWN_DEVICE,
              code_of([&] { memory::Copy(place, &local, CPUPlace(), &local, 1); }));
  }
}

TEST(Places, TooMuchIsAnError) {
  const std::size_t huge = static_cast<std::size_t>(-1);
  for (const Place& place : all_places()) {
    EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of([&] { (void)memory::Alloc(place, huge); }));
    EXPECT_EQ(nullptr, memory::Alloc(place, huge, std::nothrow));
    EXPECT_EQ(nullptr, memory::Alloc(place, 0));
  }
}

TEST(Places, FreeRefusesWhatIsNotItsOwn) {
  int local = 0;
  std::vector<char> heap(100);
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER, code_of([&] { memory::Free(CPUPlace(), &local); }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER, code_of([&] { memory::Free(GPUPlace(0), heap.data()); }));
  EXPECT_EQ(C_ERROR, memory::Free(GPUPlace(0), heap.data(), std::nothrow));

  char* p = static_cast<char*>(memory::Alloc(GPUPlace(0), 1000));
  const std::size_t used = memory::Used(GPUPlace(0));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER, code_of([&] { memory::Free(GPUPlace(0), p + 32); }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER, code_of([&] { memory::Free(GPUPlace(1), p); }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER, code_of([&] { memory::Free(CPUPlace(), p); }));
  EXPECT_EQ(C_ERROR, memory::Free(CPUPlace(), p, std::nothrow));
  EXPECT_EQ(used, memory::Used(GPUPlace(0))) << "a refused free freed";
  EXPECT_EQ(C_SUCCESS, memory::Free(GPUPlace(0), p, std::nothrow));
  const std::uint32_t again = code_of([&] { memory::Free(GPUPlace(0), p); });
  EXPECT_TRUE(again == MILLPOND_E_DOUBLE_FREE || again == MILLPOND_E_UNKNOWN_POINTER) << again;
  EXPECT_EQ(C_SUCCESS, memory::Free(CPUPlace(), nullptr, std::nothrow));
}

TEST(Places, CopiesGoBetweenAnyTwo) {
  const std::size_t size = 3 * 1024 * 1024 + 17;  // more than one piece of a copy by the host
  const std::vector<std::uint8_t> bytes = pattern(5, size);
  std::vector<std::uint8_t> got(size);
  for (const Place& from : all_places()) {
    for (const Place& to : all_places()) {
      void* src = memory::Alloc(from, size);
      void* dst = memory::Alloc(to, size);
      memory::Copy(from, src, CPUPlace(), bytes.data(), size);
      memory::Copy(to, dst, from, src, size);
      got.assign(size, 0);
      memory::Copy(CPUPlace(), got.data(), to, dst, size);
      EXPECT_EQ(bytes, got) << from.type() << from.ordinal() << " to " << to.type() << to.ordinal();
      memory::Free(from, src);
      memory::Free(to, dst);
    }
  }
}

TEST(Places, CopiesOnAStream) {
  const std::size_t size = 100000;
  const std::vector<std::uint8_t> bytes = pattern(6, size);
  std::vector<std::uint8_t> got(size);
  const Device zero = GPUPlace(0).device();
  Stream stream(zero);
  Stream elsewhere(GPUPlace(1).device());
  void* a = memory::Alloc(GPUPlace(0), size);
  void* b = memory::Alloc(GPUPlace(1), size);
  memory::Copy(GPUPlace(0), a, CPUPlace(), bytes.data(), size, stream);
  memory::Copy(GPUPlace(1), b, GPUPlace(0), a, size, stream);
  stream.synchronize();
  memory::Copy(CPUPlace(), got.data(), GPUPlace(1), b, size, elsewhere);
  elsewhere.synchronize();
  EXPECT_EQ(bytes, got);
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM, code_of([&] {
              memory::Copy(GPUPlace(0), a, CPUPlace(), bytes.data(), size, elsewhere);
            }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM, code_of([&] {
              memory::Copy(GPUPlace(0), a, CPUPlace(), bytes.data(), size, Stream());
            }));
  EXPECT_EQ(MILLPOND_E_UNSUPPORTED, code_of([&] {
              memory::Copy(CPUPlace(), got.data(), CPUPlace(), bytes.data(), size, stream);
            }));
  // The default stream, whosever it is here.
  got.assign(size, 0);
  memory::Copy(CPUPlace(), got.data(), GPUPlace(1), b, size, millpond::StreamView());
  GPUPlace(1).device().default_stream().synchronize();
  EXPECT_EQ(bytes, got);
  memory::Free(GPUPlace(0), a);
  memory::Free(GPUPlace(1), b);
}

TEST(Places, CopiesCheckTheirEnds) {
  void* p = memory::Alloc(GPUPlace(0), 64);
  std::vector<char> big(1 << 20);
  EXPECT_EQ(MILLPOND_E_OUT_OF_RANGE,
            code_of([&] { memory::Copy(GPUPlace(0), p, CPUPlace(), big.data(), big.size()); }));
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT,
            code_of([&] { memory::Copy(GPUPlace(0), nullptr, CPUPlace(), big.data(), 1); }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER,
            code_of([&] { memory::Copy(GPUPlace(0), big.data(), CPUPlace(), p, 1); }));
  EXPECT_EQ(C_SUCCESS, memory::Copy(GPUPlace(0), nullptr, CPUPlace(), nullptr, 0));
  memory::Free(GPUPlace(0), p);
}

TEST(Places, ComparedByName) {
  EXPECT_EQ(CPUPlace(), CustomPlace("cpu", 0));
  EXPECT_EQ(GPUPlace(1), GPUPlace(1));
  EXPECT_NE(GPUPlace(1), GPUPlace(2));
  EXPECT_NE(static_cast<const Place&>(CPUPlace()), GPUPlace(0));
}

}  // namespace
