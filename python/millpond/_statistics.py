"""Numbers about memory: counters, times, blocks, tags, events."""
from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from . import _abi
from ._library import check, library, one_of


@dataclass(frozen=True)
class Counter:
    """One quantity over time: now, its highest, and the sum of all that was ever added."""

    current: int
    peak: int
    total: int


@dataclass(frozen=True)
class Stats:
    """The exact account of a pool or of a device, in bytes and counts."""

    requested_bytes: Counter
    allocated_bytes: Counter
    active_bytes: Counter
    reserved_bytes: Counter
    sleeping_bytes: Counter
    blocks: Counter
    segments: Counter
    driver_calls: int
    out_of_memory_count: int
    limit_bytes: int


def stats(call: Any, handle: Any) -> Stats:
    raw = _abi.Stats(struct_size=ctypes.sizeof(_abi.Stats))
    check(call(handle, ctypes.byref(raw)))

    def counter(c: _abi.Counter) -> Counter:
        return Counter(c.current, c.peak, c.total)

    return Stats(
        counter(raw.requested_bytes), counter(raw.allocated_bytes), counter(raw.active_bytes),
        counter(raw.reserved_bytes), counter(raw.sleeping_bytes), counter(raw.blocks), counter(raw.segments),
        raw.driver_calls, raw.out_of_memory_count, raw.limit_bytes,
    )


def _by_name(call: Any, handle: Any, size: int, name_of: Any, find: Any) -> dict[str, int]:
    raw = ctypes.create_string_buffer(size)
    ctypes.cast(raw, ctypes.POINTER(ctypes.c_size_t))[0] = size
    check(call(handle, raw))
    found: dict[str, int] = {}
    value = ctypes.c_uint64()
    while True:
        name = name_of(len(found))
        if name is None:
            return found
        check(find(raw, name, ctypes.byref(value)))
        found[name.decode()] = value.value


def memory_stats(call: Any, handle: Any) -> dict[str, int]:
    lib = library()
    return _by_name(
        call, handle, _abi.MEMORY_STATS_BYTES, lib.millpond_memory_stats_name, lib.millpond_memory_stats_find
    )


def host_memory_stats(handle: Any) -> dict[str, int]:
    lib = library()
    return _by_name(
        lib.millpond_device_get_host_memory_stats, handle, _abi.HOST_MEMORY_STATS_BYTES,
        lib.millpond_host_memory_stats_name, lib.millpond_host_memory_stats_find,
    )


@dataclass(frozen=True)
class Latency:
    """How long calls of one kind took, in nanoseconds."""

    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    buckets: tuple[int, ...] = field(repr=False)  # `histogram` names those that count any
    _raw: _abi.Latency = field(repr=False, compare=False)

    def quantile(self, part: float) -> int:
        """The nanoseconds that this part (0 to 1) of the calls did not exceed; at most a quarter too long."""
        out = ctypes.c_uint64()
        check(library().millpond_latency_quantile(ctypes.byref(self._raw), part, ctypes.byref(out)))
        return out.value

    def histogram(self) -> list[tuple[int, int]]:
        """(the shortest duration in nanoseconds, how many calls) of each bucket that has any."""
        start = library().millpond_latency_bucket_start
        return [(start(i), n) for i, n in enumerate(self.buckets) if n]


def latency(handle: Any, what: str) -> Latency:
    number = one_of(_abi.LATENCY, what)
    raw = _abi.Latency(struct_size=ctypes.sizeof(_abi.Latency))
    check(library().millpond_device_get_latency(handle, number, ctypes.byref(raw)))
    return Latency(raw.count, raw.total_ns, raw.min_ns, raw.max_ns, tuple(raw.buckets), raw)


@dataclass(frozen=True)
class BlockInfo:
    """One block of `Device.blocks`. `state` is "live", "waiting" (freed, and a stream is not done) or "free". `stream` is 0
    for the default stream, but also for a block without a stream and for a stream that has ended: the library does not tell
    them apart here, as it does in a `BlockEvent` and in an `Event`."""

    ptr: int
    size: int
    requested: int
    stream: int
    state: str
    tag: str
    pool: int = 0
    """The handle of its pool; 0 if that has ended."""
    segment: int = 0
    """Where the memory begins that was taken with it from the device by one call; 0 where the device maps."""


@dataclass(frozen=True)
class SegmentInfo:
    """One range of reserved memory, at the addresses at which it is used. `kind` is "segment" (taken by one call), "large" or
    "small" (granules of a device that maps), or "scattered": a piece of a block whose granules come from several places;
    then `home` is where its memory has been from the start. `stream` is as in a `BlockInfo`."""

    ptr: int
    size: int
    kind: str
    stream: int
    pool: int
    home: int


_STATES = {_abi.BLOCK_LIVE: "live", _abi.BLOCK_WAITING: "waiting", _abi.BLOCK_FREE: "free"}


def _listed(record: Any, call: Callable[[Any, int, int, Any], int]) -> Any:
    """The records of a function that lists (records, the size of one, capacity, how many there are)."""
    count, capacity = ctypes.c_size_t(), 1024
    while True:
        records = (record * capacity)()
        check(call(records, ctypes.sizeof(record), capacity, ctypes.byref(count)))
        if count.value <= capacity:
            return records[: count.value]
        capacity = count.value + count.value // 8  # others allocate meanwhile


def blocks(device: Any, pool: Any, states: int) -> list[BlockInfo]:
    lib = library()
    records = _listed(_abi.BlockRecord, lambda *to: lib.millpond_device_list_blocks(device, pool, states, *to))
    return [
        BlockInfo(
            r.ptr or 0, r.size_bytes, r.requested_bytes, r.stream or 0, _STATES.get(r.state, str(r.state)),
            lib.millpond_tag_get_name(r.tag).decode(errors="replace"), r.pool or 0, r.segment or 0,
        )
        for r in records
    ]


def segments(device: Any, pool: Any) -> list[SegmentInfo]:
    lib = library()
    records = _listed(_abi.SegmentRecord, lambda *to: lib.millpond_device_list_segments(device, pool, *to))
    return [
        SegmentInfo(
            r.ptr or 0, r.size_bytes, _abi.SEGMENTS.get(r.kind, str(r.kind)), r.stream or 0, r.pool or 0, r.home or 0
        )
        for r in records
    ]


@dataclass(frozen=True)
class TagStats:
    """What the blocks of one tag have of a device. `active_` is with freed blocks that wait, `small_` what lies in chunks,
    `host_` pinned memory and `unified_` unified memory, as it was asked for."""

    requested_bytes: Counter
    allocated_bytes: Counter
    blocks: Counter
    waiting_bytes: int
    active_bytes: Counter
    active_blocks: Counter
    small_allocated_bytes: Counter
    small_blocks: Counter
    host_bytes: Counter
    host_blocks: Counter
    unified_bytes: Counter
    unified_blocks: Counter


def tags(device: Any) -> dict[str, TagStats]:
    lib = library()
    found = _listed(_abi.TagStats, lambda *to: lib.millpond_device_list_tags(device, *to))

    def counter(c: _abi.Counter) -> Counter:
        return Counter(c.current, c.peak, c.total)

    return {
        t.name.decode(errors="replace"): TagStats(
            counter(t.requested_bytes), counter(t.allocated_bytes), counter(t.blocks), t.waiting_bytes,
            counter(t.active_bytes), counter(t.active_blocks), counter(t.small_allocated_bytes),
            counter(t.small_blocks), counter(t.host_bytes), counter(t.host_blocks), counter(t.unified_bytes),
            counter(t.unified_blocks),
        )
        for t in found
    }


_OOM = next(number for number, kind in _abi.HISTORY.items() if kind == "oom")
_UNKNOWN = (1 << 64) - 1


@dataclass(frozen=True)
class Event:
    """One event of a history."""

    kind: str
    time_ns: int
    ptr: int
    size: int
    requested: int
    stream: Optional[int]
    thread: int
    tag: str
    host: bool
    frames: tuple[int, ...]
    text: Optional[str]
    device_free: Optional[int] = None
    """Of "oom": what the device had free, if it could be asked."""
    stamp: int = 0
    """When it happened, as history_stamp() tells it."""


def events(handle: Any) -> tuple[list[Event], int]:
    lib = library()
    found: list[Event] = []
    failed: list[BaseException] = []

    def take(_: Any, at: Any) -> bool:
        try:
            e = at.contents
            found.append(
                Event(
                    _abi.HISTORY.get(e.kind, str(e.kind)), e.time_ns, e.ptr or 0, e.size_bytes, e.requested_bytes,
                    (e.stream or 0) if e.flags & _abi.HISTORY_STREAM else None, e.thread,
                    lib.millpond_tag_get_name(e.tag).decode(errors="replace"), bool(e.flags & _abi.HISTORY_HOST),
                    tuple(e.frames[: e.frame_count]) if e.frame_count else (),
                    e.text.decode(errors="replace") if e.text is not None else None,
                    e.device_free_bytes if e.kind == _OOM and e.device_free_bytes != _UNKNOWN else None,
                    e.stamp,
                )
            )
            return True
        except BaseException as why:
            failed.append(why)
            return False

    dropped = ctypes.c_uint64()
    status = lib.millpond_device_history_read(handle, _abi.HistoryCallback(take), None, ctypes.byref(dropped))
    if failed:
        raise failed[0]
    check(status)
    return found, dropped.value


def written(call: Callable[[Any, int, Any], int]) -> str:
    """The text of a function that writes (buffer, capacity, how many bytes it needs); the text may grow between calls."""
    needed, capacity = ctypes.c_size_t(), 16384
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        check(call(buffer, capacity, ctypes.byref(needed)))
        if needed.value <= capacity:
            return buffer.value.decode(errors="replace")
        capacity = needed.value * 2


def report(streams: bool = False) -> dict[str, Any]:
    """What `Device.report` tells of one device, of all that are open: "devices" is a list."""
    found: dict[str, Any] = json.loads(_of_all(_abi.STATS_JSON, streams))
    return found


def prometheus(streams: bool = False) -> str:
    """What `Device.prometheus` tells of one device, of all that are open, as one page."""
    return _of_all(_abi.STATS_PROMETHEUS, streams)


def _of_all(kind: int, streams: bool) -> str:
    kind |= _abi.STATS_STREAMS if streams else 0
    return written(lambda *to: library().millpond_write_stats(kind, *to))
