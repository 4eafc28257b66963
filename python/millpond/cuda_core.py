"""A memory resource for cuda.core.

    import millpond.cuda_core
    resource = millpond.cuda_core.PondMemoryResource()          # the current device
    buffer = resource.allocate(1 << 20, stream=stream)

Both ends are in the order of the streams that cuda.core gives. `device.memory_resource = resource` makes it the one of
cuda.core's device.
"""
from __future__ import annotations

from typing import Any, Optional

from cuda.core import Buffer, MemoryResource

from ._device import Device, Pool, cuda_device
from ._library import check, library
from ._memory import handle_of


class PondMemoryResource(MemoryResource):  # type: ignore[misc]
    """The default pool of a CUDA device, or another pool."""

    def __init__(self, device: Optional[Device] = None, pool: Optional[Pool] = None) -> None:
        """None: cuda.core's current device."""
        if pool is None:
            if device is None:
                from cuda.core import Device as CoreDevice

                device = cuda_device(CoreDevice().device_id)
            pool = device.default_pool
        self.pool = pool

    def _native(self, stream: Any) -> int:
        # No other type knows CUDA's streams, and cuda.core names its default stream where it was given none.
        return handle_of(stream) if stream is not None and self.pool.device.type == "cuda" else 0

    def allocate(self, size: int, *, stream: Any = None) -> Buffer:
        """A buffer in the order of `stream`; None: the default stream."""
        block = self.pool.alloc(size, self._native(stream))
        if stream is None:
            made = Buffer.from_handle(block.ptr, size, mr=self)
        else:
            made = Buffer.from_handle(block.ptr, size, mr=self, stream=stream)
        block.detach()  # the buffer's from here on
        return made

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        """Gives a buffer back in the order of `stream`; its reuse waits for the stream of its allocation, too."""
        lib, device = library(), self.pool.device
        if lib.millpond_pool_free(self.pool.handle, int(ptr), self._native(stream)) != 0:
            # Such as a stream that has ended: the block goes in the order of the one it was allocated on.
            check(lib.millpond_device_free(device.handle, int(ptr)))

    @property
    def device_id(self) -> int:
        return self.pool.device.ordinal

    @property
    def is_device_accessible(self) -> bool:
        return self.pool.device.type == "cuda"

    @property
    def is_host_accessible(self) -> bool:
        return self.pool.device.has_host_access

    @property
    def is_managed(self) -> bool:
        return False
