// The C++17 face of Millpond: header only, over the C API of millpond.h.
//
// Every name lives in namespace millpond. The parts, in the order in which they build on each
// other:
//   cpp/error.hpp    Error, check(), what happens without exceptions
//   cpp/statistics.hpp  statistic(), quantile(): numbers of statistics
//   cpp/device.hpp   DeviceTypes, Device, CopyKind, SnapshotFormat, TagScope, configure_host(),
//                    finalize()
//   cpp/callbacks.hpp  OomCallback, OomHandler, BlockHook
//   cpp/group.hpp    GroupMembership, group_members(), set_group_budget()
//   cpp/history.hpp  History, HistoryOptions, HistoryEvent, Recording, annotate(),
//                    history_on_signal(), history_stamp()
//   cpp/stream.hpp   StreamView, Stream, Event
//   cpp/memory.hpp   PoolView, Pool, Buffer, PinnedBuffer, UnifiedBuffer, UnifiedPlace,
//                    UnifiedAdvice, HostRegistration, DevicePtr, DeviceDelete, make_device_array()
//   cpp/pools.hpp    PoolScope, Capture, Checkpoint, RestoredBlock
//   cpp/share.hpp    Export, Import, HeldExports, SegmentCallback, access from other devices
//   cpp/places.hpp   Place, CPUPlace, GPUPlace, CustomPlace, memory::Alloc / Free / Used / Copy
//   cpp/aligned.hpp  BadAlloc: what the next three throw
//   cpp/nodes.hpp    nothing for programs: small nodes of the next
//   cpp/pmr.hpp      MemoryResource (std::pmr), Allocator<T>: for memory that the host can touch
//   cpp/resource.hpp StreamResource, VirtualResource: for code written for libcu++ or RMM
//   cpp/adaptors.hpp LimitingResource, BinningResource, ArenaResource: resources over resources
//   cpp/dlpack.hpp   export_dlpack(), DlpackTensor, DlpackLegacyTensor, ImportedTensor
//
// Owners (Stream, Event, Pool, Buffer, PinnedBuffer, UnifiedBuffer, HostRegistration, DevicePtr,
// Capture, Checkpoint, Export, Import, ImportedTensor, the callbacks, GroupMembership, History and
// Recording) move and do not copy; their destructors never throw. PoolScope and TagScope stay where
// they are. Views and Device are plain values that own nothing. One object must not be changed by
// two threads at once; different objects may be used from any threads, and every call of the
// library itself is safe from any thread.
#ifndef MILLPOND_MILLPOND_HPP
#define MILLPOND_MILLPOND_HPP

#include "millpond/cpp/adaptors.hpp"
#include "millpond/cpp/aligned.hpp"
#include "millpond/cpp/callbacks.hpp"
#include "millpond/cpp/device.hpp"
#include "millpond/cpp/dlpack.hpp"
#include "millpond/cpp/error.hpp"
#include "millpond/cpp/group.hpp"
#include "millpond/cpp/history.hpp"
#include "millpond/cpp/memory.hpp"
#include "millpond/cpp/nodes.hpp"
#include "millpond/cpp/places.hpp"
#include "millpond/cpp/pmr.hpp"
#include "millpond/cpp/pools.hpp"
#include "millpond/cpp/resource.hpp"
#include "millpond/cpp/share.hpp"
#include "millpond/cpp/statistics.hpp"
#include "millpond/cpp/stream.hpp"

#endif  // MILLPOND_MILLPOND_HPP
