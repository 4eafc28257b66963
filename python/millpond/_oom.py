"""Functions that are called when a request finds no memory, so that the program can free what it can do without.

As in _hooks, the library calls one function of this module for all of them, with a number.
"""
from __future__ import annotations

import atexit
import ctypes
import itertools
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _abi
from ._hooks import _alone
from ._library import MillpondError, check, ended, library
from ._report import OomReport, told
from ._sole import Sole

if TYPE_CHECKING:
    from ._device import Device


@dataclass(frozen=True)
class OomRequest:
    """A request that found no memory: its size in bytes, what its pool is called, its stream (0 where it has none), and who
    holds the memory, as a text and field by field."""

    size: int
    pool: str
    stream: int
    report: str
    details: OomReport


class OomHandler(Sole):
    """A function that is called when a request finds no memory, after everything else was tried: `device.oom_handler`,
    `pool.oom_handler`. It stays until `close`, or the end of a `with`, also when nobody has this object."""

    _id: int = 0
    _number: int = 0
    _failed: Optional[BaseException] = None

    def __init__(self, device: Device, pool: Optional[int], function: Callable[[OomRequest], object]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} is no function")
        self.device, self._function = device, function
        out, number, lib = ctypes.c_uint64(), next(_numbers), library()
        _handlers[number], self._number = self, number
        if pool is None:
            status = lib.millpond_device_add_oom_handler(device.handle, _told, number, ctypes.byref(out))
        else:
            status = lib.millpond_pool_add_oom_handler(pool, _told, number, ctypes.byref(out))
        if status != 0:
            del _handlers[number]
        check(status)
        self._id = out.value

    def close(self) -> None:
        """Ends it: the function is not called any more, and no other thread is in it. MillpondError, and it stays, in a stream
        callback, and in a hook or such a function if another thread is in it. Raises a copy of the first exception that the
        function has let out, if any. Hold no lock that the function takes."""
        id_ = self.__dict__.pop("_id", 0)  # one step: of two threads only one gets it
        if id_:
            status = library().millpond_device_remove_oom_callback(self.device.handle, id_)
            if not ended(status, _abi.E_INVALID_ARGUMENT, _abi.E_NOT_INITIALIZED):  # that is: ended with its device or pool
                self._id = id_
                check(status)
            _handlers.pop(self._number, None)
        failed: Optional[BaseException] = self.__dict__.pop("_failed", None)
        if failed is not None:
            raise failed

    def __enter__(self) -> OomHandler:
        return self

    def __exit__(self, kind: Optional[type], value: Optional[BaseException], where: Optional[TracebackType]) -> None:
        try:
            self.close()
        except BaseException:
            if kind is None:  # else the error of the body is the one to see
                raise

    def _ask(self, report: int) -> bool:
        try:
            details = told(library(), _abi.OomReport.from_address(report))
            request = OomRequest(
                details.requested_bytes, details.pool, details.stream or 0, details.text, details
            )
            return bool(self._function(request))
        except BaseException as why:  # ctypes would only print it
            if self._failed is None:
                try:
                    kept = _alone(why)
                except Exception:  # its own functions fail, too
                    kept = MillpondError(f"the function raised {type(why).__qualname__}, which cannot be copied")
                self.__dict__.setdefault("_failed", kept)  # of two threads the first
            return False

    def __repr__(self) -> str:
        return f"<millpond.OomHandler of {self.device.name}{'' if self._id else ', closed'}>"


_handlers: dict[int, OomHandler] = {}
_numbers = itertools.count(1)


def _ask_handler(number: int, report: int) -> bool:
    handler = _handlers.get(number)
    return handler is not None and handler._ask(report)


_told: Any = _abi.OomHandler(_ask_handler)


@atexit.register
def _close_all() -> None:
    """Before Python's own end: no thread may call it after that."""
    for handler in list(_handlers.values()):
        try:
            handler.close()
        except BaseException:  # nobody is left to tell
            pass
