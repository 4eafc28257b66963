"""Numba's device memory (numba-cuda) from Millpond's pools.

    import millpond.numba
    millpond.numba.enable()                 # before Numba's first context

or, without a line of code, NUMBA_CUDA_MEMORY_MANAGER=millpond.numba in the environment. Numba names no stream: a block
is there for all of them, and its reuse waits for all that was queued when it was freed. IPC handles are refused: they
name whole driver allocations. Pinned and mapped host memory stays Numba's own.
"""
from __future__ import annotations

import ctypes
import importlib
import weakref
from typing import Any, Optional

from ._device import Device, cuda_device
from ._library import MillpondError

cuda: Any = importlib.import_module("numba.cuda")


class Manager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """The memory manager of one context; Numba makes it."""

    #: A device to be used whatever the context is; None: the CUDA device of the context.
    device: Optional[Device] = None

    def _device(self) -> Device:
        if self.device is None:
            if self.context is None:
                raise MillpondError("Numba made no context, so there is no CUDA device; give enable() a device")
            return cuda_device(self.context.device.id)
        return self.device

    def initialize(self) -> None:
        """Nothing to do: a device opens at its first block."""

    def memalloc(self, size: int) -> Any:
        """A block for all streams."""
        block = self._device().alloc(max(size, 1))  # Numba takes no NULL from a manager
        context = None if self.context is None else weakref.proxy(self.context)
        return cuda.MemoryPointer(context, ctypes.c_void_p(block.ptr), size, finalizer=block.free)

    def get_memory_info(self) -> Any:
        """What the device has, and what of it is free: in it, and in the pool."""
        device = self._device()
        info, stats = device.info(), device.stats()
        if info.total_bytes == 0:
            raise NotImplementedError(f"{device} does not say how much memory it has")
        idle = stats.reserved_bytes.current - stats.active_bytes.current
        return cuda.MemoryInfo(free=min(info.total_bytes, info.free_bytes + idle), total=info.total_bytes)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Always an error."""
        raise NotImplementedError("Millpond's blocks have no CUDA IPC handles; docs/sharing.md says how they are shared")

    @property
    def interface_version(self) -> int:
        return 1


_numba_memory_manager = Manager


def enable(device: Optional[Device] = None) -> None:
    """From now on Numba's device memory comes from Millpond. Before its first context."""
    manager = Manager if device is None else type("Manager", (Manager,), {"device": device})
    cuda.set_memory_manager(manager)
