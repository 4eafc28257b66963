// What a test of a foreign plugin and the plugin itself share, over dlsym: faults on demand, and
// the plugin's own account of its memory.
#ifndef MILLPOND_TESTS_FOREIGN_CONTROL_HPP
#define MILLPOND_TESTS_FOREIGN_CONTROL_HPP

#include <cstddef>

enum ForeignCallback {
  kForeignAllocate = 1,
  kForeignDeallocate,
  kForeignCopy,
  kForeignInitialize,
  kForeignInitDevice,
  kForeignCreateStream,
  kForeignCreateEvent,
  kForeignRecordEvent,
};

enum ForeignFault { kForeignFine = 0, kForeignFail, kForeignThrow };

constexpr std::size_t kForeignSizes = 4096;

/// Of one device.
struct ForeignMemory {
  std::size_t bytes;                 ///< held by the host now
  std::size_t peak_bytes;            ///< the most it ever held
  std::size_t calls;                 ///< allocations that succeeded
  std::size_t frees;                 ///< deallocations that succeeded
  std::size_t sizes[kForeignSizes];  ///< bytes of the first allocations, in order
};

extern "C" {
/// The call of `callback` that comes after `after` others fails, or throws; once. 0: the next one.
typedef void (*ForeignControl)(int callback, int kind, long after);
typedef void (*ForeignMemoryOf)(int device, ForeignMemory* out);
/// Whether the host ever wrote behind a piece of memory that it has freed.
typedef int (*ForeignWasOverrun)();
}

#endif
