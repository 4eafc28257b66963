"""Statistics and snapshots in the form in which PyTorch gives its own, from Millpond's exact account.

PyTorch itself refuses torch.cuda.memory_stats() under an allocator that is not its own, so these take its place. What
Millpond does not distinguish (PyTorch's two pools for small and large blocks) is counted under "all" only, and the
"small_pool" and "large_pool" keys are left out.
"""
import collections
import ctypes

from ._library import Block, MillpondError, Stats, check, device_count, library

# PyTorch's name: Millpond's.
BYTES = [
    ("allocated_bytes", "allocated_bytes"),
    ("reserved_bytes", "reserved_bytes"),
    ("active_bytes", "active_bytes"),
    ("requested_bytes", "requested_bytes"),
    ("allocation", "blocks"),
    ("segment", "segments"),
]


def _ordinal(device):
    """The number behind what PyTorch takes for a device: None, a number, "cuda:1", torch.device."""
    if device is None:
        import sys

        torch = sys.modules.get("torch")
        if torch is not None and getattr(torch.cuda, "is_initialized", bool)():
            return torch.cuda.current_device()
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


def _stats(device):
    lib = library()
    device_count(lib)
    stats = Stats(struct_size=ctypes.sizeof(Stats))
    check(lib, lib.millpond_torch_stats(_ordinal(device), ctypes.byref(stats)))
    return stats


def memory_stats(device=None):
    """As torch.cuda.memory_stats(device): an ordered dict with keys such as "allocated_bytes.all.current"."""
    stats = _stats(device)
    out = {}
    for theirs, ours in BYTES:
        counter = getattr(stats, ours)
        for name, value in [
            ("current", counter.current),
            ("peak", counter.peak),
            ("allocated", counter.total),
            ("freed", counter.total - counter.current),
        ]:
            out[f"{theirs}.all.{name}"] = value
    out["num_alloc_retries"] = 0
    out["num_ooms"] = stats.out_of_memory_count
    out["num_device_alloc"] = stats.segments.total
    out["num_device_free"] = stats.segments.total - stats.segments.current
    out["max_split_size"] = -1
    out["millpond.driver_calls"] = stats.driver_calls
    out["millpond.limit_bytes"] = stats.limit_bytes
    return collections.OrderedDict(sorted(out.items()))


def memory_allocated(device=None):
    """Bytes in live tensors, after rounding."""
    return _stats(device).allocated_bytes.current


def max_memory_allocated(device=None):
    return _stats(device).allocated_bytes.peak


def memory_reserved(device=None):
    """Bytes taken from the device."""
    return _stats(device).reserved_bytes.current


def max_memory_reserved(device=None):
    return _stats(device).reserved_bytes.peak


def reset_peak_memory_stats(device=None):
    """The peaks start again from the current values."""
    lib = library()
    device_count(lib)
    check(lib, lib.millpond_torch_reset_peaks(_ordinal(device)))


def mem_get_info(device=None):
    """(free, total) bytes of the device, as torch.cuda.mem_get_info()."""
    lib = library()
    device_count(lib)
    total, free = ctypes.c_uint64(), ctypes.c_uint64()
    check(lib, lib.millpond_torch_memory(_ordinal(device), ctypes.byref(total), ctypes.byref(free)))
    return free.value, total.value


def _blocks(lib, ordinal):
    room = 1024
    while True:
        out = (Block * room)()
        count = lib.millpond_torch_blocks(ordinal, out, room)
        if count <= room:
            return sorted(out[:count], key=lambda b: b.address)
        room = count + count // 4


def snapshot():
    """As torch.cuda.memory_snapshot(): a list of segments with their blocks, of all devices that are in use.

    Millpond's memory has no segments in PyTorch's sense, so live blocks that lie side by side, of one stream and one
    pool, stand for one. Free memory is not listed; memory_stats() counts it.
    """
    lib = library()
    out = []
    for ordinal in range(device_count(lib)):
        segment = None
        for b in _blocks(lib, ordinal):
            key = (b.stream, b.pool_first, b.pool_second)
            if segment is None or segment["_key"] != key or segment["address"] + segment["total_size"] != b.address:
                segment = {
                    "_key": key,
                    "device": ordinal,
                    "address": b.address,
                    "total_size": 0,
                    "allocated_size": 0,
                    "active_size": 0,
                    "requested_size": 0,
                    "stream": b.stream,
                    "segment_type": "large",
                    "segment_pool_id": (b.pool_first, b.pool_second),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [],
                }
                out.append(segment)
            segment["total_size"] += b.size_bytes
            segment["allocated_size"] += b.size_bytes
            segment["active_size"] += b.size_bytes
            segment["requested_size"] += b.requested_bytes
            segment["blocks"].append({
                "address": b.address,
                "size": b.size_bytes,
                "requested_size": b.requested_bytes,
                "state": "active_allocated",
                "frames": [],
            })
    for segment in out:
        del segment["_key"]
    return out
