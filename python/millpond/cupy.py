"""CuPy's memory from Millpond's pools.

    import cupy, millpond.cupy
    millpond.cupy.enable()                  # device and pinned memory; before the arrays that are to come from it

A block belongs to CuPy's current stream of the moment, and its end is ordered on that stream. An array that other
streams use, too, must live until they are done, or be told to them: millpond.cupy.record_stream(array, stream).
`Allocator` and `PinnedAllocator` also serve cupy.cuda.using_allocator.
"""
from __future__ import annotations

from typing import Any, Optional

import cupy

from ._device import Device, Pool, cuda_device
from ._library import check, library
from ._memory import StreamLike, handle_of


def _device(given: Optional[Device]) -> Device:
    """The device that was given, or the one that CuPy's current one is."""
    return cuda_device(cupy.cuda.runtime.getDevice()) if given is None else given


def _stream_of(device: Device) -> int:
    # No other type knows CuPy's streams.
    return cupy.cuda.get_current_stream().ptr if device.type == "cuda" else 0


class Allocator:
    """For cupy.cuda.set_allocator: the current device's default pool, or `pool`."""

    def __init__(self, device: Optional[Device] = None, pool: Optional[Pool] = None) -> None:
        """`device`: always that one. On a type other than "cuda" blocks belong to the default stream."""
        self._device = pool.device if pool is not None else device
        self._pool = pool

    def __call__(self, size: int) -> Any:
        """Memory of `size` bytes, which its owner gives back on the stream of this moment."""
        device = _device(self._device)
        if size == 0:
            memory = cupy.cuda.UnownedMemory(0, 0, None, device.ordinal)
        else:
            block = (self._pool or device.default_pool).alloc(size, _stream_of(device))
            memory = cupy.cuda.UnownedMemory(block.ptr, size, block, device.ordinal)
        return cupy.cuda.MemoryPointer(memory, 0)


class _Pinned:
    """What cupy.cuda.PinnedMemoryPointer wants of its memory. The block goes when this does."""

    def __init__(self, device: Device, size: int) -> None:
        self._block = device.alloc_host(size)
        self.ptr, self.size, self.device_id = self._block.ptr, size, device.ordinal


class PinnedAllocator:
    """For cupy.cuda.set_pinned_memory_allocator: pinned memory of exactly the size, from the device's cache."""

    def __init__(self, device: Optional[Device] = None) -> None:
        self._device = device

    def __call__(self, size: int) -> Any:
        return cupy.cuda.PinnedMemoryPointer(_Pinned(_device(self._device), size), 0)


def enable(device: Optional[Device] = None, pool: Optional[Pool] = None) -> None:
    """From now on CuPy's device and pinned memory come from Millpond; what it has stays where it is."""
    cupy.cuda.set_allocator(Allocator(device, pool))
    cupy.cuda.set_pinned_memory_allocator(PinnedAllocator(pool.device if pool is not None else device))


def disable() -> None:
    """CuPy allocates from its own pools again; what it has from here stays valid."""
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


def record_stream(array: Any, stream: StreamLike) -> None:
    """`stream` uses the array's memory, too: after its end, its reuse waits for what is queued there at that time."""
    check(library().millpond_record_stream(array.data.mem.ptr, handle_of(stream)))
