"""Warp's device memory from Millpond's pools.

    import warp, millpond.warp
    millpond.warp.enable()                  # all CUDA devices; or warp.set_device_allocator(device, Allocator(...))

A block belongs to Warp's current stream of the moment, and its end is ordered on that stream.
"""
from __future__ import annotations

from typing import Any, Callable, Optional

from ._device import Device, Pool, cuda_device
from ._library import check, library
from ._memory import handle_of


def _current() -> tuple[Device, int]:
    import warp

    device = warp.get_cuda_device()
    return cuda_device(device.ordinal), handle_of(warp.get_stream(device))


class Allocator:
    """For warp.set_cuda_allocator and warp.set_device_allocator."""

    #: Warp need not make a context current around a free.
    deallocate_requires_context_guard = False

    def __init__(
        self, device: Optional[Device] = None, pool: Optional[Pool] = None, stream: Optional[Callable[[], Any]] = None
    ) -> None:
        """None: Warp's current device, its default pool, and Warp's current stream. `stream` returns another one."""
        self._device = pool.device if pool is not None else device
        self._pool, self._stream = pool, stream

    def allocate(self, size_in_bytes: int) -> int:
        """The address of a block; 0 for size 0."""
        if self._device is not None and self._stream is not None:
            device, stream = self._device, handle_of(self._stream())
        else:
            current, stream = _current()
            device = self._device or current
            if self._stream is not None:
                stream = handle_of(self._stream())
        return (self._pool or device.default_pool).alloc(size_in_bytes, stream).detach()

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Frees a block in the order of the stream that it was allocated on."""
        if ptr:
            check(library().millpond_device_free(self._device.handle, ptr) if self._device is not None
                  else library().millpond_free(ptr))


def enable(pool: Optional[Pool] = None) -> None:
    """From now on Warp's CUDA arrays come from Millpond."""
    import warp

    warp.set_cuda_allocator(Allocator(pool=pool))
