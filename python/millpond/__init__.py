"""Millpond: device memory for deep-learning frameworks, from Python.

    import millpond

    device = millpond.Device("host")              # or "cuda", or a plugin's
    stream = device.stream()
    block = device.alloc(1 << 20, stream)         # freed on its stream when it goes
    block.fill(7, stream)
    print(device.stats().requested_bytes.current)

    millpond.cupy, millpond.numba, millpond.cuda_core, millpond.warp: memory of these libraries from Millpond's pools
    millpond.prefix()                             # headers, the library and the CMake package, for C and C++

All that is loaded into one process and linked to libmillpond.so.0 shares one pond with this package. Objects may be
used from any thread. Sizes are bytes.
"""
from ._callers import tag_callers
from ._command import command_path, view
from ._device import Device, DeviceInfo, DeviceType, Pool, annotate, device_types, history_on_signal, history_stamp, load_plugin
from ._device import set_default_options, tag
from ._group import Group, GroupMember, group_members, set_group_budget
from ._hooks import BlockEvent, Hook
from ._library import MillpondError, OutOfMemoryError, library_path, prefix, version
from ._memory import Block, HostBlock, Stream, UnifiedBlock, handle_of
from ._oom import OomHandler, OomRequest
from ._report import OomHolder, OomReport, OomStep, OomWait
from ._statistics import BlockInfo, Counter, Event, Latency, SegmentInfo, Stats, TagStats, prometheus, report

__version__ = "0.1.0"

__all__ = [
    "Block",
    "BlockEvent",
    "BlockInfo",
    "Counter",
    "Device",
    "DeviceInfo",
    "DeviceType",
    "Event",
    "Group",
    "GroupMember",
    "Hook",
    "HostBlock",
    "Latency",
    "MillpondError",
    "OomHandler",
    "OomHolder",
    "OomReport",
    "OomRequest",
    "OomStep",
    "OomWait",
    "OutOfMemoryError",
    "Pool",
    "SegmentInfo",
    "Stats",
    "Stream",
    "TagStats",
    "UnifiedBlock",
    "annotate",
    "command_path",
    "device_types",
    "group_members",
    "handle_of",
    "history_on_signal",
    "history_stamp",
    "library_path",
    "load_plugin",
    "prefix",
    "prometheus",
    "report",
    "set_default_options",
    "set_group_budget",
    "tag",
    "tag_callers",
    "version",
    "view",
]
