"""Streams, blocks and pinned memory of a device.

What is made here ends with its Python object, at the latest: a block is freed in the order of the stream that it was
allocated on, and pinned memory when the copies that Millpond queued are done. `free` and `close` end it earlier. None of
it can be copied or pickled.
"""
from __future__ import annotations

import ctypes
import itertools
import operator
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _abi
from ._library import check, check_end, counted, ended, library, number_of, one_of, signed_of, size_of
from ._sole import Sole

if TYPE_CHECKING:
    from ._device import Device

# A number is the stream's handle (a CUstream), 0 the default stream. Other objects: see handle_of.
StreamLike = Union["Stream", int, Any]
_numbers = itertools.count(1)


def handle_of(stream: StreamLike) -> int:
    """The native handle of a stream of Millpond, PyTorch, CuPy, Numba, cuda.core or Warp, or of a number."""
    if isinstance(stream, int):
        return number_of(stream, "the stream's handle")
    if isinstance(stream, Stream):
        return stream.handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return number_of(int(pair[1]), "the stream's handle")
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return number_of(int(getattr(value, "value", value) or 0), "the stream's handle")
    raise TypeError(f"{type(stream).__name__} is no stream; give its native handle as a number")


class Stream(Sole):
    """A stream of a device: work queued on it runs in order."""

    _handle: Optional[int] = None

    def __init__(self, device: Device, priority: int = 0, non_blocking: bool = False) -> None:
        """Makes one; `device.stream()` is the same. MillpondError where the device has only the default stream.

        Work on a stream with a lower `priority` comes first; `device.stream_priorities` has the range. A stream that is
        `non_blocking` is not ordered with the default stream, where the device has such streams.
        """
        self.device = device
        out, flags = ctypes.c_void_p(), _abi.STREAM_NON_BLOCKING if non_blocking else 0
        call, rank = library().millpond_stream_create_with_priority, signed_of(priority, "priority")
        check(call(device.handle, rank, flags, ctypes.byref(out)))
        self._handle = out.value or 0

    @property
    def handle(self) -> int:
        """The native handle, a CUstream on the device type `cuda`."""
        if self._handle is None:
            raise ValueError("the stream is closed")
        return self._handle

    def synchronize(self) -> None:
        """Waits for everything that is queued on it."""
        check(library().millpond_stream_synchronize(self.device.handle, self.handle))

    def done(self) -> bool:
        """Whether everything that is queued on it is done. Does not wait."""
        out = ctypes.c_bool()
        check(library().millpond_stream_query(self.device.handle, self.handle, ctypes.byref(out)))
        return out.value

    def wait(self, other: StreamLike) -> None:
        """Work that is queued here from now on waits for what is queued on `other` so far. Nothing waits on the host."""
        lib, event = library(), ctypes.c_void_p()
        check(lib.millpond_event_create(self.device.handle, ctypes.byref(event)))
        try:
            check(lib.millpond_event_record(self.device.handle, handle_of(other), event))
            check(lib.millpond_stream_wait_event(self.device.handle, self.handle, event))
        finally:
            lib.millpond_event_destroy(self.device.handle, event)

    def close(self) -> None:
        """Ends it; what is queued still runs, and blocks of it stay valid. It stays open where that fails, as it does
        while the stream is captured."""
        handle: Optional[int] = self.__dict__.pop("_handle", None)  # one step: of two threads only one gets it
        if handle is None:
            return
        status = library().millpond_stream_destroy(self.device.handle, handle)
        if not ended(status, _abi.E_UNKNOWN_STREAM):
            self._handle = handle
        check_end(status)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: Optional[type], value: Optional[BaseException], where: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the device has ended, or Python is ending
            pass

    def __repr__(self) -> str:
        return f"<millpond.Stream {self._handle:#x} of {self.device.name}>" if self._handle else "<millpond.Stream>"


class _Heir:
    """Gives memory back when it ends."""

    def __init__(self, free: Callable[[], int]) -> None:
        self._free = free

    def __del__(self) -> None:
        try:
            self._free()
        except Exception:  # Python is ending
            pass


class _Memory(Sole):
    """What blocks and pinned memory have in common: an address, a size, and one end."""

    device: Device
    size: int
    _ptr: int = 0
    _owns: bool = False
    # What views are of, each by a number that no other has, so that an entry is made and removed in one step.
    _shown: Optional[dict[int, weakref.ref[Any]]] = None
    _last: Optional[weakref.ref[Any]] = None  # one of them, for the next view
    _heir: Optional[_Heir] = None

    @property
    def ptr(self) -> int:
        """The address; 0 for size 0."""
        if not self._owns and self.size:
            raise ValueError("the memory is freed")
        return self._ptr

    @property
    def is_freed(self) -> bool:
        return not self._owns

    @staticmethod
    def _returner(device: Device, ptr: int) -> Callable[[], int]:
        """What gives the memory back. It has nothing of the object itself."""
        raise NotImplementedError

    def _give_back(self) -> int:
        return self._returner(self.device, self._ptr)()

    def _take(self) -> bool:
        """Whether the caller is to end it: of several threads, one. BufferError while there is a view."""
        if not self.__dict__.pop("_owns", False):  # one step
            return False
        if self._has_views():
            self._owns = True
            raise BufferError("a view of the memory is in use: release() it, and what was made from it, first")
        return True

    def _has_views(self) -> bool:
        shown = self._shown
        if not shown:
            return False
        refs = [shown.get(number) for number in list(shown)]
        return any(ref is not None and ref() is not None for ref in refs)

    def _end(self, free: Callable[[], int]) -> None:
        if not self._take():
            return
        status = free()
        # Where it failed the memory is still ours, unless it never was.
        if not ended(status, _abi.E_UNKNOWN_POINTER, _abi.E_DOUBLE_FREE):
            self._owns = True
        check_end(status)

    def free(self) -> None:
        """Frees it now. The second time it does nothing. BufferError while a view of it is in use."""
        self._end(self._give_back)

    def detach(self) -> int:
        """Hands the address over to the caller, who frees it with millpond_free or its like. BufferError while a view of
        it is in use."""
        if not self._take() and self.size:
            raise ValueError("the memory is freed")
        return self._ptr

    def __len__(self) -> int:
        return self.size

    def __del__(self) -> None:
        if not self.__dict__.pop("_owns", False):
            return
        # A cycle of garbage is finalized before it is known who survives, as a view does that another finalizer has put
        # somewhere: the heir ends with this object, and not before.
        heir = _Heir(self._returner(self.device, self._ptr))
        if self._shown is not None:
            self._heir = heir

    def _view(self) -> memoryview:
        if not self.size:
            return memoryview(bytearray())
        array = None if self._last is None else self._last()
        if array is None:
            array = (ctypes.c_ubyte * self.size).from_address(self.ptr)
            array._owner = self  # type: ignore[attr-defined]
            # Threads that come here at once make one each: all of them are known, whichever is the last.
            shown: dict[int, weakref.ref[Any]] = self.__dict__.setdefault("_shown", {})
            number = next(_numbers)
            shown[number] = ref = weakref.ref(array, lambda _: shown.pop(number, None))
            self._last = ref  # after that, for whoever takes it has a view at once
        if not self._owns:  # another thread has freed it before it could see the reference
            raise ValueError("the memory is freed")
        return memoryview(array).cast("B")


class Block(_Memory):
    """A block of device memory. It is freed on the stream it was allocated on, when this object ends.

    `fill` without a stream, `copy_from`, `copy_to` and `bytes` wait for all work queued on the device before; while a stream
    is captured, only for the block's own stream and what the default one waits for. They are done when they return.
    """

    def __init__(self, device: Device, ptr: int, size: int, stream: Optional[int]) -> None:
        self.device, self._ptr, self.size, self._stream = device, ptr, operator.index(size), stream
        self._owns = ptr != 0

    @property
    def stream(self) -> Optional[int]:
        """The handle of the stream that orders its reuse; None: it waits for all of them."""
        return self._stream

    @staticmethod
    def _returner(device: Device, ptr: int) -> Callable[[], int]:
        return lambda: int(library().millpond_device_free(device.handle, ptr))

    def free(self, stream: Optional[StreamLike] = None) -> None:
        """Frees it now: on its own stream, or on another one, and then its reuse waits for both."""
        if stream is None or not self._owns:
            super().free()
            return
        pool, native = self.device.default_pool.handle, handle_of(stream)
        self._end(lambda: library().millpond_pool_free(pool, self._ptr, native))

    def export_dmabuf(self) -> tuple[int, int]:
        """A dma-buf of it for the driver of another device: a descriptor, which the caller closes, and where in it the
        block begins. The block must live as long as anybody uses that. MillpondError where device or driver have none."""
        fd, offset = ctypes.c_int(-1), ctypes.c_uint64()
        check(library().millpond_export_dmabuf(self.ptr, self.size, ctypes.byref(fd), ctypes.byref(offset)))
        return fd.value, offset.value

    def try_expand(self, size: int) -> bool:
        """Makes it a block of `size` bytes where it is, larger or smaller, with its contents: whether that could be. It
        never moves, and nothing is waited for. BufferError while a view of it is in use. No other thread may use it
        meanwhile."""
        ptr, lib = self.ptr, library()
        if self._has_views():
            raise BufferError("a view of the memory is in use: release() it, and what was made from it, first")
        status = lib.millpond_try_expand(ptr, size_of(size))
        if status != 0 and lib.millpond_last_error_code() == _abi.E_OUT_OF_MEMORY:
            return False
        check(status)
        self.size = operator.index(size)
        return True

    @property
    def usable_size(self) -> int:
        """Bytes that are there for it: at least `size`. `try_expand` to so many succeeds."""
        if not self.size:
            return 0
        out = ctypes.c_size_t()
        check(library().millpond_get_usable_size(self.ptr, ctypes.byref(out)))
        return out.value

    def record_stream(self, stream: StreamLike) -> None:
        """Another stream uses it, too: after its free, its reuse waits for what is queued there at the free."""
        check(library().millpond_record_stream(self.ptr, handle_of(stream)))

    def _await_stream(self) -> None:
        """While a stream is captured, blocking copies and fills wait only for what the default stream waits for, which a
        non-blocking stream is not part of."""
        if not self._stream:
            return
        lib, device = library(), self.device.handle
        status = lib.millpond_stream_synchronize(device, self._stream)
        if status != 0 and lib.millpond_last_error_code() == _abi.E_UNKNOWN_STREAM:
            status = lib.millpond_device_synchronize(device)  # it has ended, but its work may still run
        check(status)

    def fill(self, value: int, stream: Optional[StreamLike] = None) -> None:
        """Sets all bytes to `value` (0 to 255): queued on `stream`, or done when this returns."""
        value = number_of(value, "value", 256)
        lib, device = library(), self.device.handle
        if stream is None:
            self._await_stream()
            check(lib.millpond_memset(device, self.ptr, value, self.size))
        else:
            check(lib.millpond_memset_async(device, handle_of(stream), self.ptr, value, self.size))

    def copy_from(self, data: Any, offset: int = 0) -> None:
        """Copies what has Python's buffer protocol (bytes, numpy arrays) to here; done when this returns."""
        source = memoryview(data).cast("B")
        self._check_range(offset, len(source))
        array = ctypes.c_char * len(source)
        # ctypes gives no address of what is only readable.
        held = array.from_buffer_copy(source) if source.readonly else array.from_buffer(source)
        to = self.ptr + offset
        self._await_stream()
        check(library().millpond_copy(self.device.handle, _abi.COPY_H2D, to, ctypes.addressof(held), len(source)))

    def copy_to(self, data: Any, offset: int = 0) -> None:
        """Copies from here to what has a writable buffer; done when this returns."""
        target = memoryview(data).cast("B")
        self._check_range(offset, len(target))
        address = ctypes.addressof((ctypes.c_char * len(target)).from_buffer(target))
        start = self.ptr + offset
        self._await_stream()
        check(library().millpond_copy(self.device.handle, _abi.COPY_D2H, address, start, len(target)))

    def __bytes__(self) -> bytes:
        data = bytearray(self.size)
        if self.size:
            self.copy_to(data)
        return bytes(data)

    def _check_range(self, offset: int, size: int) -> None:
        if offset < 0 or offset + size > self.size:
            raise ValueError(f"{counted(size, 'byte')} at {offset}: not inside a block of {self.size}")

    def view(self) -> memoryview:
        """Its bytes for Python, where the host can access the device's memory; else ValueError. It keeps the block, which
        cannot be freed by hand meanwhile."""
        if not self.device.has_host_access:
            raise ValueError(f"the host cannot access memory of {self.device.name}; copy_to copies it")
        return self._view()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.type != "cuda":
            raise AttributeError(f"{self.device.name} is no CUDA device")
        # 0 is not allowed there: 1 is the legacy default stream. None: whoever uses it need not wait.
        stream = None if self._stream is None else self._stream or 1
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.ptr, False), "version": 3, "stream": stream}

    def __repr__(self) -> str:
        state = "freed" if self.size and not self._owns else f"at {self._ptr:#x}"
        return f"<millpond.Block of {counted(self.size, 'byte')} {state} on {self.device.name}>"


class HostBlock(_Memory):
    """Pinned host memory, fast to copy to and from its device."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, operator.index(size)
        out = ctypes.c_void_p()
        check(library().millpond_host_alloc(device.handle, size_of(size), ctypes.byref(out)))
        self._ptr = out.value or 0
        self._owns = self._ptr != 0

    @staticmethod
    def _returner(device: Device, ptr: int) -> Callable[[], int]:
        return lambda: int(library().millpond_host_free(device.handle, ptr))

    def record_stream(self, stream: StreamLike) -> None:
        """Work on `stream` uses it: after its free, its reuse waits for what is queued there at the free."""
        check(library().millpond_host_record_stream(self.device.handle, self.ptr, handle_of(stream)))

    def view(self) -> memoryview:
        """Its bytes. The view keeps the memory, which cannot be freed by hand meanwhile."""
        return self._view()

    def __repr__(self) -> str:
        state = "freed" if self.size and not self._owns else f"at {self._ptr:#x}"
        return f"<millpond.HostBlock of {counted(self.size, 'byte')} {state} for {self.device.name}>"


class UnifiedBlock(_Memory):
    """Memory that the processor and the device access at the same address. When it ends, it waits for the work that may
    still use it."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, operator.index(size)
        out = ctypes.c_void_p()
        check(library().millpond_unified_alloc(device.handle, size_of(size), ctypes.byref(out)))
        self._ptr = out.value or 0
        self._owns = self._ptr != 0

    @staticmethod
    def _returner(device: Device, ptr: int) -> Callable[[], int]:
        return lambda: int(library().millpond_unified_free(device.handle, ptr))

    def prefetch(self, stream: StreamLike, to: str = "device") -> None:
        """Queues on a stream of its device that its pages go there, or (`to="host"`) to the processor's memory: work that
        is queued after it finds them."""
        place = _place_of(to)
        native = handle_of(stream)
        check(library().millpond_unified_prefetch(self.device.handle, native, self.ptr, self.size, place))

    def advise(self, advice: str, by: str = "device") -> None:
        """Says how its device, or (`by="host"`) the processor, will use it: "read_mostly", "preferred", "accessed_by", or
        one of these after "unset_"."""
        number, place = one_of(_abi.ADVICE, advice), _place_of(by)
        check(library().millpond_unified_advise(self.device.handle, self.ptr, self.size, number, place))

    def view(self) -> memoryview:
        """Its bytes. The view keeps the memory, which cannot be freed by hand meanwhile."""
        return self._view()

    def __repr__(self) -> str:
        state = "freed" if self.size and not self._owns else f"at {self._ptr:#x}"
        return f"<millpond.UnifiedBlock of {counted(self.size, 'byte')} {state} on {self.device.name}>"


def _place_of(place: str) -> int:
    return one_of({"device": _abi.PLACE_DEVICE, "host": _abi.PLACE_HOST}, place)
