"""Functions that are told of each allocation and free of a device as it happens.

The library calls one function of this module for all hooks, with a number: what it might call late finds no hook there,
and no object of ctypes has to live as long as a hook.
"""
from __future__ import annotations

import atexit
import ctypes
import itertools
import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _abi
from ._library import check, ended, library

if TYPE_CHECKING:
    from ._device import Device


@dataclass(frozen=True)
class BlockEvent:
    """What happens to a block: `kind` is "alloc", "free" (it is about to be freed) or "free_failed" (it lives on)."""

    kind: str
    ptr: int
    size: int
    requested: int
    stream: Optional[int]


class Hook:
    """A function that is told of each block of a device that is allocated or freed: `device.hook`. It stays until `close`,
    or the end of a `with`, also when nobody has this object. What it lets out, an interrupt by Ctrl-C too, is kept until
    then."""

    _id: int = 0
    _failed: Optional[BaseException] = None

    def __init__(self, device: Device, function: Callable[[BlockEvent], object]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} is no function")
        self.device, self._function = device, function
        out, number = ctypes.c_uint64(), next(_numbers)
        _hooks[number] = self
        status = library().millpond_device_add_hook(device.handle, _told, number, _over, ctypes.byref(out))
        if status != 0:
            del _hooks[number]
        check(status)
        self._id = out.value

    def close(self) -> None:
        """Ends it: the function is not called any more, and no thread is in it, except where this is called from within a
        hook or a stream callback. Raises the first exception that the function has let out, if any. Hold no lock that the
        function takes."""
        id_ = self.__dict__.pop("_id", 0)  # one step: of two threads only one gets it
        if id_:
            status = library().millpond_device_remove_hook(self.device.handle, id_)
            if not ended(status, _abi.E_INVALID_ARGUMENT, _abi.E_NOT_INITIALIZED):  # that is: ended with its device
                self._id = id_
                check(status)
        failed: Optional[BaseException] = self.__dict__.pop("_failed", None)
        if failed is not None:
            raise failed

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, kind: Optional[type], value: Optional[BaseException], where: Optional[TracebackType]) -> None:
        try:
            self.close()
        except BaseException:
            if kind is None:  # else the error of the body is the one to see
                raise

    def _tell(self, event: Any) -> None:
        try:
            e = event.contents
            stream = (e.stream or 0) if e.has_stream else None
            kind = _abi.HOOKS.get(e.kind, str(e.kind))
            self._function(BlockEvent(kind, e.ptr or 0, e.size_bytes, e.requested_bytes, stream))
        except BaseException as why:  # ctypes would only print it
            if self._failed is None:
                self._failed = _alone(why)

    def __repr__(self) -> str:
        return f"<millpond.Hook of {self.device.name}{'' if self._id else ', closed'}>"


def _alone(why: BaseException) -> BaseException:
    """An exception that may be kept: its traceback would keep the frames of whoever allocates, and the blocks in them. It
    becomes a note, where exceptions have notes. What it was raised from is the program's own, and stays as it is."""
    if hasattr(why, "add_note"):
        why.add_note("In the hook:\n" + "".join(traceback.format_exception(type(why), why, why.__traceback__)))
    why.__traceback__ = why.__context__ = why.__cause__ = None
    return why


_hooks: dict[int, Hook] = {}
_numbers = itertools.count(1)


def _tell_hook(number: int, event: Any) -> None:
    hook = _hooks.get(number)
    if hook is not None:
        hook._tell(event)


def _forget_hook(number: int) -> None:
    _hooks.pop(number, None)


_told, _over = _abi.BlockHook(_tell_hook), _abi.HookDestroy(_forget_hook)


@atexit.register
def _close_all() -> None:
    """Before Python's own end: no thread may call it after that."""
    for hook in list(_hooks.values()):
        try:
            hook.close()
        except BaseException:  # nobody is left to tell
            pass
