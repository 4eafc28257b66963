"""Functions that are told of each allocation and free of a device as it happens.

The library calls one function of this module for all hooks, with a number: what it might call late finds no hook there,
and no object of ctypes has to live as long as a hook.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import traceback
from dataclasses import dataclass
from types import GetSetDescriptorType, MemberDescriptorType, TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _abi
from ._library import MillpondError, check, ended, library
from ._sole import Sole

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


class Hook(Sole):
    """A function that is told of each block of a device that is allocated or freed: `device.hook`. It stays until `close`,
    or the end of a `with`, also when nobody has this object. What it lets out, an interrupt by Ctrl-C too, is kept until
    then."""

    _id: int = 0
    _number: int = 0
    _failed: Optional[BaseException] = None

    def __init__(self, device: Device, function: Callable[[BlockEvent], object]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} is no function")
        self.device, self._function = device, function
        out, number = ctypes.c_uint64(), next(_numbers)
        _hooks[number], self._number = self, number
        status = library().millpond_device_add_hook(device.handle, _told, number, _over, ctypes.byref(out))
        if status != 0:
            del _hooks[number]
        check(status)
        self._id = out.value

    def close(self) -> None:
        """Ends it: the function is not called any more, and no thread is in it, except where this is called from within a
        hook or a stream callback. Raises a copy of the first exception that the function has let out, if any, with where it
        was raised as a note. Hold no lock that the function takes."""
        id_ = self.__dict__.pop("_id", 0)  # one step: of two threads only one gets it
        if id_:
            status = library().millpond_device_remove_hook(self.device.handle, id_)
            if not ended(status, _abi.E_INVALID_ARGUMENT, _abi.E_NOT_INITIALIZED):  # that is: ended with its device
                self._id = id_
                check(status)
            if status != 0:  # then nobody else forgets it
                _forget_hook(self._number)
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
                try:
                    kept = _alone(why)
                except Exception:  # its own functions fail, too
                    kept = MillpondError(f"the hook raised {type(why).__qualname__}, which cannot be copied")
                self.__dict__.setdefault("_failed", kept)  # of two threads the first

    def __repr__(self) -> str:
        return f"<millpond.Hook of {self.device.name}{'' if self._id else ', closed'}>"


def _alone(why: BaseException) -> BaseException:
    """A copy of an exception that may be kept: its own traceback keeps the frames of whoever allocates, and the blocks in
    them. The traceback becomes a note, where exceptions have notes. What it was raised from, and in, is copied, too: the
    exceptions themselves are the program's own, and stay as they are."""
    copies: dict[int, BaseException] = {}
    found = [why]
    for one in found:  # which grows meanwhile
        if id(one) not in copies:
            copies[id(one)] = _copy(one)
            found += [other for other in (one.__cause__, one.__context__) if other is not None]
    for one in found:
        copy, cause, context = copies[id(one)], one.__cause__, one.__context__
        copy.__cause__ = None if cause is None else copies[id(cause)]
        copy.__context__ = None if context is None else copies[id(context)]
        copy.__suppress_context__ = one.__suppress_context__
    return copies[id(why)]


def _copy(why: BaseException) -> BaseException:
    """Of the same type, with the same arguments and attributes, without what it was raised from. Not by way of the type's
    own functions, which may take other arguments."""
    kind, parts = type(why), getattr(why, "exceptions", None)
    base = next(k for k in kind.__mro__ if not k.__flags__ & _HEAP_TYPE)
    args, own = why.args, dict(why.__dict__)
    if base.__name__.endswith("ExceptionGroup") and parts is not None:
        args = (*args[:1], [_copy(part) for part in parts])
    if isinstance(own.get("__notes__"), list):
        own["__notes__"] = own["__notes__"].copy()
    try:
        copy: BaseException = base.__new__(kind, *args)
    except Exception:
        copy = MillpondError("".join(traceback.format_exception_only(kind, why)).strip())
    copy.__dict__.update(own)
    for name, field in {n: f for k in kind.__mro__ for n, f in vars(k).items()}.items():
        if isinstance(field, (GetSetDescriptorType, MemberDescriptorType)) and name not in _NOT_COPIED:
            with contextlib.suppress(Exception):  # not set, or not to be set
                value = field.__get__(why, kind)
                if value is not getattr(copy, name, _NOT_COPIED):  # what OSError has not been given is not None
                    field.__set__(copy, value)
    if hasattr(copy, "add_note"):
        told = traceback.format_exception(kind, why, why.__traceback__, chain=False)
        copy.add_note("Where it was raised:\n" + "".join(told))
    return copy


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a `class` of Python made it
_NOT_COPIED = ("__dict__", "__weakref__", "__traceback__", "__context__", "__cause__", "args", "exceptions")


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
