// The third of mixed.cpp that has exceptions and no run-time types.
#include "millpond/millpond.hpp"

bool no_rtti_throws_failures() {
  try {
    millpond::Device nowhere("nowhere");
  } catch (const millpond::Error& e) {
    return e.code() == MILLPOND_E_UNKNOWN_DEVICE;
  }
  return false;
}

bool no_rtti_knows_its_equals(const std::pmr::memory_resource& same,
                              const std::pmr::memory_resource& other) {
  const millpond::MemoryResource mine(millpond::Device("host", 0));
  return mine.is_equal(same) && same.is_equal(mine) && !mine.is_equal(other) &&
         !other.is_equal(mine) && !mine.is_equal(*std::pmr::new_delete_resource());
}
