"""Devices and their pools."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar
from uuid import UUID

from . import _abi, _callers, _statistics
from ._group import Group
from ._hooks import BlockEvent, Hook
from ._library import MillpondError, PathLike, chars_of, check, check_end, counted, ended, library, mine, number_of, one_of
from ._library import path_of, signed_of, size_of, text_of
from ._memory import Block, HostBlock, Stream, StreamLike, UnifiedBlock, handle_of
from ._oom import OomHandler, OomRequest
from ._sole import Sole
from ._statistics import BlockInfo, Event, Latency, SegmentInfo, Stats, TagStats

_STATES = {
    "live": _abi.BLOCK_LIVE, "waiting": _abi.BLOCK_WAITING, "free": _abi.BLOCK_FREE, "any": _abi.BLOCK_ANY,
}
_FORMATS = {"json": _abi.SNAPSHOT_JSON, "torch": _abi.SNAPSHOT_TORCH_PICKLE}


_T = TypeVar("_T")


def _until(value: _T, end: Callable[[], None]) -> Iterator[_T]:
    """The body of a `with`: `end` comes after it, and an error of `end` does not take the place of the body's."""
    try:
        yield value
    except BaseException:
        with contextlib.suppress(MillpondError):
            end()
        raise
    end()


class Pool(Sole):
    """A pool of a device's memory, with an account and a limit of its own: `device.create_pool`."""

    _owns: bool = False

    def __init__(self, device: Device, handle: int, owns: bool, name: str = "") -> None:
        self.device, self.handle, self._owns, self.name = device, handle, owns, name

    def alloc(self, size: int, stream: StreamLike = 0, zeroed: bool = False, *, align: int = 0) -> Block:
        """A block in the order of a stream: work that is queued there from now on may use it. `zeroed`: its bytes are 0 for
        that work. `align`: its address is a multiple of that power of two, up to 2 MiB."""
        native, out, lib = handle_of(stream), ctypes.c_void_p(), library()
        bytes_ = size_of(size)
        if align:
            aligned, at = lib.millpond_pool_alloc_aligned, number_of(align, "align")
            _callers.asked(lambda: check(aligned(self.handle, bytes_, at, native, ctypes.byref(out))))
        else:
            call = lib.millpond_pool_alloc_zeroed if zeroed else lib.millpond_pool_alloc
            _callers.asked(lambda: check(call(self.handle, bytes_, native, ctypes.byref(out))))
        block = Block(self.device, out.value or 0, size, native)
        if align and zeroed and size:
            block.fill(0, native)
        return block

    def alloc_batch(self, sizes: Sequence[int], stream: StreamLike = 0) -> list[Block]:
        """A block of each size in one call, all or none; each ends by itself, or with others by `free_batch`."""
        native, lib, count = handle_of(stream), library(), len(sizes)
        bytes_, out = (ctypes.c_size_t * count)(*map(size_of, sizes)), (ctypes.c_void_p * count)()
        _callers.asked(lambda: check(lib.millpond_pool_alloc_batch(self.handle, bytes_, count, native, out)))
        return [Block(self.device, ptr or 0, size, native) for ptr, size in zip(out, sizes)]

    def free_batch(self, blocks: Sequence[Block], stream: Optional[StreamLike] = None) -> None:
        """Frees blocks of the device in one call: on the stream of all of them, or on another one, and then the reuse of
        each waits for both. A freed one is skipped. BufferError, with nothing freed, while a view of one is in use. After
        another error the blocks before the one that failed are freed."""
        streams = {block.stream for block in blocks}
        if stream is None and (len(streams) > 1 or None in streams):
            raise ValueError("the blocks have no stream in common: name one")
        native = handle_of(stream if stream is not None else streams.pop() or 0) if blocks else 0
        taken: list[Block] = []
        for block in blocks:
            try:
                if block._take():
                    taken.append(block)
            except BufferError:
                for other in taken:
                    other._owns = True
                raise
        freed, count = ctypes.c_size_t(), len(taken)
        array = (ctypes.c_void_p * count)(*(block._ptr for block in taken))
        status = library().millpond_pool_free_batch(self.handle, array, count, native, ctypes.byref(freed))
        for block in [] if ended(status) else taken[freed.value :]:
            block._owns = True
        check_end(status)

    def oom_handler(self, function: Callable[[OomRequest], object]) -> OomHandler:
        """As `Device.oom_handler`, for requests that this pool should have served only. It ends with the pool."""
        return OomHandler(self.device, self.handle, function)

    def stats(self) -> Stats:
        """Its exact account."""
        return _statistics.stats(library().millpond_pool_get_stats, self.handle)

    def memory_stats(self) -> dict[str, int]:
        """Its numbers by the names of torch.cuda.memory_stats()."""
        return _statistics.memory_stats(library().millpond_pool_get_memory_stats, self.handle)

    def blocks(self, states: str = "any") -> list[BlockInfo]:
        """Its blocks by address, all as they are at one moment: "live", "waiting", "free" or "any"."""
        return _statistics.blocks(self.device.handle, self.handle, one_of(_STATES, states))

    def segments(self) -> list[SegmentInfo]:
        """The memory that it has reserved, by address, all as it is at one moment."""
        return _statistics.segments(self.device.handle, self.handle)

    def set_limit(self, limit_bytes: int) -> None:
        """From now on it never takes more bytes than that; 0: no limit of its own."""
        check(library().millpond_pool_set_limit(self.handle, number_of(limit_bytes, "limit_bytes")))

    def empty_cache(self) -> None:
        """Gives what no block uses back to the device."""
        check(library().millpond_pool_empty_cache(self.handle))

    def trim_to(self, keep_bytes: int) -> None:
        """Gives what no block uses back to the device until at most `keep_bytes` of it stay reserved."""
        check(library().millpond_pool_trim_to(self.handle, number_of(keep_bytes, "keep_bytes")))

    def reset_peaks(self) -> None:
        """Its peaks start again from the current values."""
        check(library().millpond_pool_reset_peaks(self.handle))

    def reset_accumulated(self) -> None:
        """From now on `memory_stats` tells what was allocated, freed and counted as if that began now."""
        check(library().millpond_pool_reset_accumulated(self.handle))

    def sleep(self, keep: bool = False) -> None:
        """Gives its physical memory back to the device, and keeps the addresses; `keep`: and the contents, in host memory."""
        check(library().millpond_pool_sleep(self.handle, _abi.SLEEP_KEEP if keep else 0))

    def wake(self) -> None:
        """Brings the memory back, at the same addresses."""
        check(library().millpond_pool_wake(self.handle))

    @contextlib.contextmanager
    def scope(self) -> Iterator[Pool]:
        """Inside, this thread's requests to the default pool of the device are served from this pool."""
        check(library().millpond_scope_begin(self.handle))
        yield from _until(self, lambda: check_end(library().millpond_scope_end(self.handle)))

    def release(self) -> None:
        """Takes no more requests, and ends after its last block. So it does when this object ends."""
        if not self.__dict__.pop("_owns", False):  # one step: of two threads only one gets it
            return
        status = library().millpond_pool_release(self.handle)
        self._owns = not ended(status)
        check_end(status)

    def __del__(self) -> None:
        try:
            self.release()
        except Exception:  # the device has ended, or Python is ending
            pass

    def __repr__(self) -> str:
        what = f"Pool {self.name!r}" if self.name else "Pool"
        return f"<millpond.{what} of {self.device.name}>"


@dataclass(frozen=True)
class DeviceInfo:
    """What a device says of itself; sizes in bytes. What is unknown is 0, "" or None."""

    type: str
    ordinal: int
    total_bytes: int
    free_bytes: int
    min_chunk_bytes: int
    max_chunk_bytes: int
    compute_capability: int
    runtime_version: int
    driver_version: int
    capabilities: tuple[str, ...]
    name: str = ""
    pci_bus_id: str = ""
    uuid: Optional[UUID] = None


_CAPS = {
    "mapping": _abi.CAP_MAPPING, "host_access": _abi.CAP_HOST_ACCESS, "unified": _abi.CAP_UNIFIED,
    "pinned": _abi.CAP_PINNED, "streams": _abi.CAP_STREAMS, "callbacks": _abi.CAP_CALLBACKS,
    "export": _abi.CAP_EXPORT, "rdma": _abi.CAP_RDMA,
}


class Device:
    """A device, by type and number: `Device("host")`, `Device("cuda", 1)`. Opened when it is first asked for. A pickled one is
    the device of that type and number in the process that reads it."""

    def __init__(self, type: str = "host", ordinal: int = 0) -> None:
        lib, out = library(), ctypes.c_void_p()
        number = signed_of(ordinal, "ordinal")
        check(lib.millpond_device_get(chars_of(type, "the device type"), number, ctypes.byref(out)))
        mine()
        self.type, self.ordinal, self.handle = type, number, out.value or 0
        pool = ctypes.c_void_p()
        check(lib.millpond_device_get_default_pool(self.handle, ctypes.byref(pool)))
        self.default_pool = Pool(self, pool.value or 0, owns=False)
        self.has_host_access = "host_access" in self.info().capabilities

    def __reduce__(self) -> tuple[type[Device], tuple[str, int]]:
        return type(self), (self.type, self.ordinal)

    @property
    def name(self) -> str:
        """Such as "cuda:0"."""
        return f"{self.type}:{self.ordinal}"

    def info(self) -> DeviceInfo:
        """What it says of itself, with the memory that is free now."""
        raw = _abi.DeviceInfo(struct_size=ctypes.sizeof(_abi.DeviceInfo))
        check(library().millpond_device_get_info(self.handle, ctypes.byref(raw)))
        return DeviceInfo(
            raw.type.decode(), raw.ordinal, raw.total_bytes, raw.free_bytes, raw.min_chunk_bytes, raw.max_chunk_bytes,
            raw.compute_capability, raw.runtime_version, raw.driver_version,
            tuple(name for name, bit in _CAPS.items() if raw.caps & bit), raw.name.decode(errors="replace"),
            raw.pci_bus_id.decode(errors="replace"), UUID(bytes=bytes(raw.uuid)) if any(raw.uuid) else None,
        )

    def reason(self, capability: str) -> str:
        """Why it does not have a capability of `info`; "" if it has."""
        return text_of(library().millpond_device_get_reason, self.handle, one_of(_CAPS, capability), capacity=1024)

    # Memory

    def alloc(
        self, size: int, stream: Optional[StreamLike] = None, zeroed: bool = False, *, align: int = 0
    ) -> Block:
        """A block of the default pool: in the order of a stream, or (None) for use at once by all streams and the host.
        `zeroed`: its bytes are 0 then. `align`: its address is a multiple of that power of two, up to 2 MiB.

        OutOfMemoryError says who holds the memory and what was tried.
        """
        if stream is not None:
            return self.default_pool.alloc(size, stream, zeroed, align=align)
        out, lib = ctypes.c_void_p(), library()
        bytes_ = size_of(size)
        if align:
            aligned, pool, at = lib.millpond_pool_alloc_unordered_aligned, self.default_pool.handle, number_of(align, "align")
            _callers.asked(lambda: check(aligned(pool, bytes_, at, ctypes.byref(out))))
        else:
            _callers.asked(lambda: check(lib.millpond_alloc(self.handle, bytes_, ctypes.byref(out))))
        block = Block(self, out.value or 0, size, None)
        if zeroed and size:
            block.fill(0)
        return block

    def alloc_host(self, size: int) -> HostBlock:
        """Pinned host memory, from a cache; it is not cleared."""
        return HostBlock(self, size)

    def alloc_unified(self, size: int) -> UnifiedBlock:
        """Memory that the processor and the device access at the same address; MillpondError where there is none."""
        return UnifiedBlock(self, size)

    def stream(self, priority: int = 0, non_blocking: bool = False) -> Stream:
        """A new stream. Work on one with a lower `priority` comes first; one that is `non_blocking` is not ordered with the
        default stream. A device without such streams makes an ordinary one."""
        return Stream(self, priority, non_blocking)

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """The priorities that come last and first, such as (0, -5); (0, 0) on a device without priorities."""
        least, greatest = ctypes.c_int32(), ctypes.c_int32()
        call = library().millpond_device_get_stream_priority_range
        check(call(self.handle, ctypes.byref(least), ctypes.byref(greatest)))
        return least.value, greatest.value

    def create_pool(self, name: str = "", limit_bytes: int = 0, *, contiguous: bool = False) -> Pool:
        """A pool with an account of its own, which takes at most `limit_bytes` (0: no limit) from the device.

        Each block of a contiguous one lies in one physical allocation of the device, for libraries that register memory.
        """
        limit, flags = number_of(limit_bytes, "limit_bytes"), 1 if contiguous else 0
        chars = chars_of(name, "the name") or None
        options = _abi.PoolOptions(ctypes.sizeof(_abi.PoolOptions), limit, chars, flags)
        out = ctypes.c_void_p()
        check(library().millpond_pool_create(self.handle, ctypes.byref(options), ctypes.byref(out)))
        return Pool(self, out.value or 0, owns=True, name=name)

    def synchronize(self) -> None:
        """Waits for all work on all its streams."""
        check(library().millpond_device_synchronize(self.handle))

    def empty_cache(self) -> None:
        """Gives what no block uses back to the device, of all pools."""
        check(library().millpond_device_empty_cache(self.handle))

    def trim_to(self, keep_bytes: int) -> None:
        """Gives what no block uses back to the device until at most `keep_bytes` stay reserved."""
        check(library().millpond_device_trim_to(self.handle, number_of(keep_bytes, "keep_bytes")))

    def set_budget(self, budget_bytes: int) -> int:
        """Sets the limit, and gives what no block uses back until it is kept; the bytes that are taken beyond it all the same."""
        above, budget = ctypes.c_uint64(), number_of(budget_bytes, "budget_bytes")
        check(library().millpond_device_set_budget(self.handle, budget, ctypes.byref(above)))
        return above.value

    def join_group(self, path: PathLike, name: str = "", wait: float = 1.0, *, serves: bool = True) -> Group:
        """Joins the programs that share this device's card and the file `path`: a request for which the card has too little
        asks the others to give back what they do not use, for `wait` seconds at most. A thread of this program gives back
        what the others want; without it (`serves=False`) call the group's `serve`."""
        return Group(self, path, name, wait, serves)

    def empty_host_cache(self) -> None:
        """Gives freed pinned memory back, after waiting for the work that still uses it."""
        check(library().millpond_device_empty_host_cache(self.handle))

    def set_limit(self, limit_bytes: int) -> None:
        """From now on no more bytes than that are taken from the device; 0: no limit."""
        check(library().millpond_device_set_limit(self.handle, number_of(limit_bytes, "limit_bytes")))

    # Options

    @property
    def options(self) -> dict[str, str]:
        """The options in force, by their names in docs/options.md."""
        text = text_of(library().millpond_device_get_options, self.handle, capacity=_abi.OPTIONS_BYTES)
        keys = [key.split(":", 1)[0] for key in _split(text)]
        get = library().millpond_device_get_option
        return {key: text_of(get, self.handle, key.encode(), capacity=_abi.OPTION_BYTES) for key in keys}

    def set_options(self, **options: object) -> None:
        """Changes options from now on: `device.set_options(max_split_size_mb=64)`."""
        check(library().millpond_device_set_options(self.handle, joined(options)))

    # Numbers

    def stats(self) -> Stats:
        """The exact account of all its pools together."""
        return _statistics.stats(library().millpond_device_get_stats, self.handle)

    def memory_stats(self) -> dict[str, int]:
        """The numbers of all its pools together, by the names of torch.cuda.memory_stats()."""
        return _statistics.memory_stats(library().millpond_device_get_memory_stats, self.handle)

    def host_memory_stats(self) -> dict[str, int]:
        """The numbers of its pinned memory, by the names of torch.cuda.host_memory_stats()."""
        return _statistics.host_memory_stats(self.handle)

    def reset_peaks(self) -> None:
        """The peaks start again from the current values."""
        check(library().millpond_device_reset_peaks(self.handle))

    def reset_accumulated(self) -> None:
        """What `memory_stats` sums up begins again."""
        check(library().millpond_device_reset_accumulated(self.handle))

    def reset_host_peaks(self) -> None:
        """The peaks of its pinned memory start again from the current values."""
        check(library().millpond_device_reset_host_peaks(self.handle))

    def reset_host_accumulated(self) -> None:
        """What `host_memory_stats` sums up begins again."""
        check(library().millpond_device_reset_host_accumulated(self.handle))

    def report(self, streams: bool = False) -> dict[str, Any]:
        """All statistics of the device, its pools and tags and its pinned memory, as docs/seeing.md has them."""
        found: dict[str, Any] = json.loads(self._written(_abi.STATS_JSON, streams))
        return found

    def prometheus(self, streams: bool = False) -> str:
        """The same in the text format of Prometheus."""
        return self._written(_abi.STATS_PROMETHEUS, streams)

    def _written(self, kind: int, streams: bool) -> str:
        kind |= _abi.STATS_STREAMS if streams else 0
        return _statistics.written(lambda *to: library().millpond_device_write_stats(self.handle, kind, *to))

    def latency(self, what: str = "alloc") -> Latency:
        """How long calls took while the option `latency_histograms` was on: "alloc", "free", "device_alloc",
        "device_free", "device_event", "event_wait" or "lock_wait"."""
        return _statistics.latency(self.handle, what)

    def reset_latencies(self) -> None:
        """All histograms start again from nothing."""
        check(library().millpond_device_reset_latencies(self.handle))

    def blocks(self, states: str = "any") -> list[BlockInfo]:
        """All blocks by address, as they are at one moment: "live", "waiting", "free" or "any"."""
        return _statistics.blocks(self.handle, None, one_of(_STATES, states))

    def segments(self) -> list[SegmentInfo]:
        """All reserved memory, by address, all as it is at one moment: each range once, where it is used."""
        return _statistics.segments(self.handle, None)

    def tags(self) -> dict[str, TagStats]:
        """What the blocks of each tag have that was ever used on the device."""
        return _statistics.tags(self.handle)

    def hook(self, function: Callable[[BlockEvent], object]) -> Hook:
        """Calls `function` for each block that is allocated, before its caller has it, and for each that is freed, before
        anybody else can have its memory: until `close()` of what is returned, or inside a `with`.

        It runs on the thread of the call, on several at once; no hook is told of what it allocates and frees itself. Its
        first exception is raised at the end.
        """
        return Hook(self, function)

    def oom_handler(self, function: Callable[[OomRequest], object]) -> OomHandler:
        """Calls `function` when a request finds no memory of the device, after everything else was tried: until `close()` of
        what is returned, or inside a `with`. It frees what the program can do without, and returns whether it has freed
        something: then the request is tried again. It runs on the thread of the request, on several at once; a request that
        fails inside it calls none. Its first exception is raised at the end, and counts as False."""
        return OomHandler(self, None, function)

    # Snapshots, histories, recordings

    def snapshot(self) -> dict[str, Any]:
        """Every block and the account, all of one moment, with the schema in docs/snapshots.md."""
        pieces: list[bytes] = []
        failed: list[BaseException] = []

        def take(_: Any, data: Any, size: int) -> bool:
            try:
                pieces.append(ctypes.string_at(data, size))
                return True
            except BaseException as why:  # ctypes would only print it
                failed.append(why)
                return False

        call = library().millpond_device_send_snapshot
        status = call(self.handle, _abi.SNAPSHOT_JSON, _abi.WriteCallback(take), None)
        if failed:
            raise failed[0]
        check(status)
        found: dict[str, Any] = json.loads(b"".join(pieces))
        return found

    def write_snapshot(self, path: PathLike, format: str = "json") -> None:
        """Writes it to a file: "json", or "torch" for PyTorch's memory tools."""
        check(library().millpond_device_write_snapshot(self.handle, one_of(_FORMATS, format), path_of(path)))

    @contextlib.contextmanager
    def history(self, path: Optional[PathLike] = None, events: int = 0, frames: int = 0) -> Iterator[Device]:
        """Inside, what happens to the device's memory is kept: the newest `events` (0: 65 536) for `events()`, and all
        of them in the file, if any, for `millpond history` and `view`. `frames`: how many callers of each."""
        options = _history_options(path, events, frames)
        check(library().millpond_device_history_start(self.handle, ctypes.byref(options)))
        yield from _until(self, lambda: check_end(library().millpond_device_history_stop(self.handle, None)))

    def events(self) -> list[Event]:
        """What the last history has kept, the oldest first; during it, too."""
        return _statistics.events(self.handle)[0]

    @contextlib.contextmanager
    def record(self, path: PathLike) -> Iterator[Device]:
        """Inside, what the program asks of the device's memory is written as a trace, for `millpond replay`."""
        check(library().millpond_device_record_start(self.handle, path_of(path)))

        def stop() -> None:
            dropped = ctypes.c_uint64()
            check_end(library().millpond_device_record_stop(self.handle, ctypes.byref(dropped)))
            if dropped.value:
                raise MillpondError(f"{os.fspath(path)} lacks {counted(dropped.value, 'event')}: the file was too slow")

        yield from _until(self, stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.handle == self.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        return f"millpond.Device({self.type!r}, {self.ordinal})"


def _history_options(path: Optional[PathLike], events: int, frames: int) -> _abi.HistoryOptions:
    return _abi.HistoryOptions(
        ctypes.sizeof(_abi.HistoryOptions), number_of(events, "events"), number_of(frames, "frames"),
        None if path is None else path_of(path),
    )


def history_on_signal(number: int, path: Optional[PathLike] = None, events: int = 0, frames: int = 0) -> None:
    """From now on this signal begins a history of each open device, and the next one ends them, and so on: for somebody
    outside the program. `%n` in the path counts them; the others are those of `Device.history`. Not a signal that the
    program handles itself."""
    options = _history_options(path, events, frames)
    check(library().millpond_history_on_signal(signed_of(number, "number"), ctypes.byref(options)))


_cuda: dict[int, Device] = {}


def cuda_device(ordinal: int) -> Device:
    """The CUDA device of that number, looked up once."""
    device = _cuda.get(ordinal)
    if device is None:
        device = _cuda.setdefault(ordinal, Device("cuda", ordinal))
    return device


def _split(options: str) -> list[str]:
    """Splits "key:value,key:[a:1,b:2]" at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in options:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def joined(options: dict[str, object]) -> bytes:
    """The text that the library takes. True and False are what the option calls them."""
    return chars_of(",".join(f"{key}:{_value(key, value)}" for key, value in options.items()), "an option")


def _value(key: str, value: object) -> str:
    words = {"True": "on", "False": "off"} if key in _ON_OR_OFF else {}
    return words.get(str(value), str(value))


_ON_OR_OFF = ("scatter", "peer_access", "streams_announced")  # other switches are True or False


@dataclass(frozen=True)
class DeviceType:
    """A kind of device; `reason` says why it has none."""

    name: str
    device_count: int
    reason: str


def device_types() -> list[DeviceType]:
    """What there is on this machine. Does not start CUDA."""
    lib, count = library(), ctypes.c_size_t()
    check(lib.millpond_device_type_get_count(ctypes.byref(count)))
    found = []
    for index in range(count.value):
        name = text_of(lib.millpond_device_type_get_name, index, capacity=_abi.TYPE_NAME_BYTES)
        devices = ctypes.c_size_t()
        check(lib.millpond_device_get_count(name.encode(), ctypes.byref(devices)))
        reason = text_of(lib.millpond_device_type_get_reason, name.encode(), capacity=1024)
        found.append(DeviceType(name, devices.value, reason))
    return found


def load_plugin(path: PathLike) -> str:
    """Loads a custom-runtime plugin, whose device type is there from now on; its name. The file's code runs. One
    without a slash is searched for as the dynamic loader does."""
    return text_of(library().millpond_device_type_load, path_of(path), capacity=_abi.TYPE_NAME_BYTES)


def set_default_options(type: Optional[str] = None, ordinal: int = -1, **options: object) -> None:
    """Options of devices that are opened from now on: of one type (None: all) and number (-1: all)."""
    name = None if type is None else chars_of(type, "the device type")
    check(library().millpond_set_default_options(name, signed_of(ordinal, "ordinal"), joined(options)))


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """What this thread allocates inside has that name, in reports of who holds memory."""
    check(library().millpond_tag_push(chars_of(name, "the tag")))
    with _callers.named():
        yield from _until(None, lambda: check_end(library().millpond_tag_pop()))


def history_stamp() -> int:
    """The clock that events of histories are stamped with: the events of a call are those of its thread whose `stamp` lies
    between a reading before it and one after it."""
    return int(library().millpond_history_stamp())


def annotate(note: str) -> None:
    """A note in the histories that are being kept."""
    check(library().millpond_history_annotate(chars_of(note, "the note")))
