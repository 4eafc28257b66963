"""Statistics and snapshots in the form in which PyTorch gives its own, from Millpond's exact account.

PyTorch itself refuses torch.cuda.memory_stats() under an allocator that is not its own, so these take its place. All
keys are there. Two mean something of Millpond's own: the "small_pool" has blocks of up to 60 KiB, which lie apart from
the others here (PyTorch's: below 1 MiB), and "inactive_split" is counted when it is read, so that its peak is the
highest that was read.
"""
from __future__ import annotations

import collections
import ctypes
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Union

from ._library import EachSegment, MillpondError, Stats, check, device_count, library

if TYPE_CHECKING:
    import torch

    # What PyTorch takes for a device.
    Device = Union[torch.device, str, int, None]

# What memory_stats() has beyond PyTorch's.
OURS = {
    "limit_bytes", "free_bytes", "releasable_bytes", "largest_cached_bytes", "largest_free_bytes", "fragmentation_ppm",
}
# The same of host_memory_stats().
HOST_OURS = {"cached_bytes", "pending_bytes"}


def _ordinal(device: Device) -> int:
    """The number behind what PyTorch takes for a device: None, a number, "cuda:1", torch.device."""
    if device is None:
        import sys

        torch = sys.modules.get("torch")
        if torch is not None and getattr(torch.cuda, "is_initialized", bool)():
            return int(torch.cuda.current_device())
        return 0
    if isinstance(device, int):
        return device
    index = getattr(device, "index", None)
    if isinstance(index, int):
        return index
    text = str(device)
    _, colon, number = text.partition(":")
    if colon and number.isdigit():
        return int(number)
    if text == "cuda":
        return _ordinal(None)
    raise MillpondError(f"{device!r} names no CUDA device; give a number, or \"cuda:0\"")


def _stats(device: Device) -> Stats:
    lib = library()
    device_count(lib)
    stats = Stats(struct_size=ctypes.sizeof(Stats))
    check(lib, lib.millpond_torch_stats(_ordinal(device), ctypes.byref(stats)))
    return stats


def _numbers(device: Device, name: Callable[[Any, int], Optional[bytes]], read: Callable[..., int]) -> Dict[str, int]:
    """The numbers of a device by name, from one of the library's functions."""
    lib = library()
    device_count(lib)
    names: List[str] = []
    while (text := name(lib, len(names))) is not None:
        names.append(text.decode())
    values, count = (ctypes.c_uint64 * len(names))(), ctypes.c_size_t()
    check(lib, read(lib, _ordinal(device), values, len(names), ctypes.byref(count)))
    # What has no bound is -1 in PyTorch.
    return {key: -1 if value == 2**64 - 1 else value for key, value in zip(names, values)}


def memory_stats(device: Device = None) -> collections.OrderedDict[str, int]:
    """As torch.cuda.memory_stats(device): an ordered dict with keys such as "allocated_bytes.all.current".

    What PyTorch does not have has keys that begin with "millpond.".
    """
    numbers = _numbers(
        device,
        lambda lib, n: lib.millpond_torch_memory_stats_name(n),
        lambda lib, *arguments: lib.millpond_torch_memory_stats(*arguments),
    )
    out = {}
    for key, value in numbers.items():
        ours = key.startswith("sleeping_bytes.") or key in OURS
        out[f"millpond.{key}" if ours else key] = value
    out["millpond.driver_calls"] = _stats(device).driver_calls
    return collections.OrderedDict(sorted(out.items()))


def host_memory_stats(device: Device = None) -> collections.OrderedDict[str, int]:
    """As torch.cuda.host_memory_stats(), of the pinned memory that Millpond gives out for a device.

    PyTorch's own pinned memory does not come from Millpond, and is not in it.
    """
    numbers = _numbers(
        device,
        lambda lib, n: lib.millpond_torch_host_memory_stats_name(n),
        lambda lib, *arguments: lib.millpond_torch_host_memory_stats(*arguments),
    )
    out = {f"millpond.{key}" if key in HOST_OURS else key: value for key, value in numbers.items()}
    return collections.OrderedDict(sorted(out.items()))


def cpu_memory_stats() -> Dict[str, int]:
    """What CPU tensors have under enable_cpu(), in bytes: "allocated_bytes.current", ".peak" and ".total", the same of
    requested_bytes, active_bytes (with what was freed and is not reusable yet), reserved_bytes (taken from the system),
    blocks and segments."""
    lib = library()
    stats = Stats(struct_size=ctypes.sizeof(Stats))
    check(lib, lib.millpond_torch_cpu_stats(ctypes.byref(stats)))
    names = ["requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "blocks", "segments"]
    return {f"{name}.{part}": int(getattr(getattr(stats, name), part)) for name in names for part in ["current", "peak", "total"]}


def reset_cpu_peak_memory_stats() -> None:
    """The peaks of cpu_memory_stats() start again from the current values."""
    lib = library()
    check(lib, lib.millpond_torch_cpu_reset_peaks())


def memory_allocated(device: Device = None) -> int:
    """Bytes in live tensors, after rounding."""
    return int(_stats(device).allocated_bytes.current)


def max_memory_allocated(device: Device = None) -> int:
    return int(_stats(device).allocated_bytes.peak)


def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the device."""
    return int(_stats(device).reserved_bytes.current)


def max_memory_reserved(device: Device = None) -> int:
    return int(_stats(device).reserved_bytes.peak)


def reset_peak_memory_stats(device: Device = None) -> None:
    """The peaks start again from the current values."""
    lib = library()
    device_count(lib)
    check(lib, lib.millpond_torch_reset_peaks(_ordinal(device)))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """What was allocated, freed and counted so far is not told any more by memory_stats()."""
    lib = library()
    device_count(lib)
    check(lib, lib.millpond_torch_reset_accumulated(_ordinal(device)))


def mem_get_info(device: Device = None) -> Tuple[int, int]:
    """(free, total) bytes of the device, as torch.cuda.mem_get_info()."""
    lib = library()
    device_count(lib)
    total, free = ctypes.c_uint64(), ctypes.c_uint64()
    check(lib, lib.millpond_torch_memory(_ordinal(device), ctypes.byref(total), ctypes.byref(free)))
    return free.value, total.value


def snapshot() -> List[Dict[str, Any]]:
    """As torch.cuda.memory_snapshot(): a list of segments with their blocks, of all devices that are in use, of one moment
    each. All that is reserved is there, free memory too; what sleeps is not.

    Where memory is mapped, a segment is granules of one stream and one pool that lie side by side, or a block whose
    granules come from several places.
    """
    lib = library()
    out: List[Dict[str, Any]] = []
    failed: List[BaseException] = []
    for ordinal in range(device_count(lib)):

        def take(_: Any, segment: Any, blocks: Any, ordinal: int = ordinal) -> None:
            try:
                if not segment.contents.sleeps:
                    out.append(_segment(ordinal, segment.contents, blocks[: segment.contents.blocks]))
            except BaseException as why:  # ctypes would only print it
                failed.append(why)

        status = lib.millpond_torch_segments(ordinal, EachSegment(take), None)
        if failed:
            raise failed[0]
        check(lib, status)
    return out


def _segment(device: int, segment: Any, blocks: List[Any]) -> Dict[str, Any]:
    """One of PyTorch's. The sizes of its blocks extend to the start of the next one: PyTorch's tools add them up."""
    active = [b for b in blocks if b.live or b.waiting]
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": sum(b.span_bytes for b in blocks if b.live),
        "active_size": sum(b.span_bytes for b in active),
        "requested_size": sum(b.requested_bytes for b in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": (segment.pool_first, segment.pool_second),
        "is_expandable": segment.mapped,
        "frames": [],
        "blocks": [
            {
                "address": b.address,
                "size": b.span_bytes,
                "requested_size": b.requested_bytes,
                "state": "active_allocated" if b.live else "active_pending_free" if b.waiting else "inactive",
                "frames": [],
            }
            for b in blocks
        ],
    }
