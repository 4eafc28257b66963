"""Finds libmillpond.so.0, loads it, and turns its errors into exceptions.

One process has one pond: where something has loaded a libmillpond.so.0 before, that one is used, and what is loaded
later and linked to that name gets this one. Otherwise it is the file that MILLPOND_LIBRARY names, or the one in this
package.
"""
from __future__ import annotations

import ctypes
import dataclasses
import operator
import os
import pathlib
import re
import threading
from typing import Any, Mapping, Optional, TypeVar, Union

from . import _abi, _report
from ._report import OomReport

PathLike = Union[str, "os.PathLike[str]"]

SONAME = "libmillpond.so.0"
VARIABLE = "MILLPOND_LIBRARY"


class MillpondError(RuntimeError):
    """A call that failed. `code` is a MILLPOND_E_ number, `name` is what it is called, without that prefix."""

    def __init__(self, message: str, code: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.name = name


class OutOfMemoryError(MillpondError, MemoryError):
    """A request that found no memory. `report` tells who holds it, what was tried, and what to do; `details` has all of that
    field by field, and is None where it is not known (of pinned and unified memory)."""

    report: str = ""
    details: Optional[OomReport] = None


_HISTORY = re.compile("run with MILLPOND_HISTORY=.*")
_CALLERS = "run with MILLPOND_TAG_CALLERS=1"
_lock = threading.Lock()
_loaded: Optional[Any] = None
_path = ""
_process = 0  # the one that has loaded the library or, later, got a device
_T = TypeVar("_T")


def _file() -> str:
    named = os.environ.get(VARIABLE)
    if named:
        if not os.path.isfile(named):
            raise MillpondError(f"{VARIABLE} names {named!r}, which is no file; correct it, or unset it")
        return os.path.abspath(named)  # a name without a slash would be looked for elsewhere
    return str(prefix() / "lib" / SONAME)


def prefix() -> pathlib.Path:
    """Where this package has what a C or C++ program is built with: include/, lib/, lib/cmake/millpond/."""
    return pathlib.Path(__file__).resolve().parent


def _load() -> Any:
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW), SONAME
    except OSError:
        pass  # nobody has loaded one
    path = _file()
    try:
        return ctypes.CDLL(path), path
    except OSError as e:
        raise MillpondError(f"{path} cannot be loaded: {e}; install the package for this machine anew") from None


def library() -> Any:
    """The loaded library, with the signatures of its functions."""
    global _loaded, _path
    if _loaded is None:
        with _lock:
            if _loaded is None:
                lib, path = _load()
                try:
                    _abi.declare(lib)
                except AttributeError as e:
                    found = getattr(lib, "millpond_version", None)
                    raise MillpondError(
                        f"{path} is too old for this package ({e})" + ("" if found else "; or it is something else")
                    ) from None
                mine()
                _path = path
                _loaded = lib  # at last: from here on other threads take it without the lock
    return _loaded


def library_path() -> str:
    """The file of the library that this process uses."""
    library()
    if _path != SONAME:
        return _path
    with open("/proc/self/maps") as maps:
        for line in maps:
            if os.path.basename(line.rstrip("\n")).startswith("libmillpond.so."):
                return line.rstrip("\n").split(maxsplit=5)[5]
    return _path


def version() -> str:
    """The version of the library, such as "0.1.0"."""
    text: str = library().millpond_version().decode()
    return text


def error() -> MillpondError:
    """What the last call of this thread says that failed."""
    lib = library()
    code = lib.millpond_last_error_code()
    name = lib.millpond_error_name(code).decode()
    message = lib.millpond_last_error_message().decode(errors="replace") or name
    if code != _abi.E_OUT_OF_MEMORY:
        return MillpondError(message, code, name.replace("MILLPOND_E_", ""))
    # The callers that a history has are those of C: of Python they say nothing.
    found = OutOfMemoryError(_HISTORY.sub(_CALLERS, message), code, "OUT_OF_MEMORY")
    raw = _abi.OomReport(struct_size=ctypes.sizeof(_abi.OomReport))
    if lib.millpond_last_oom(ctypes.byref(raw)) == 0:
        details = _report.told(lib, raw)
        found.report = _HISTORY.sub(_CALLERS, details.text)
        found.details = dataclasses.replace(details, text=found.report)
    return found


def check(status: int) -> None:
    """Raises what the library says, unless the status is 0."""
    if status != 0:
        raise error()


def mine() -> None:
    """From now on the library's failures have nothing to do with a fork before this moment: it was loaded here, or has
    given this process a device, as it does to no child of one that had used it."""
    global _process
    _process = os.getpid()


def in_child() -> bool:
    """Whether the call of this thread that has just failed did so as this is a forked child, where all that has to do
    with the parent's devices is refused. The code alone does not say so: a callback may not do everything either."""
    return os.getpid() != _process and library().millpond_last_error_code() == _abi.E_NOT_PERMITTED


def check_end(status: int) -> None:
    """As `check`, of a call that ends something: in a forked child it is the parent's, and left alone."""
    if status != 0 and not in_child():
        raise error()


def ended(status: int, *gone: int) -> bool:
    """Whether a call that ends something needs no second try: it worked, or failed with one of the codes `gone`, or as
    this is a forked child."""
    return status == 0 or library().millpond_last_error_code() in gone or in_child()


def size_of(size: Any) -> int:
    """The number of bytes of a request, as the library can take it: what is more than that finds no memory."""
    return min(number_of(size, "size", 1 << 1024), (1 << 64) - 1)


def number_of(value: Any, what: str, end: int = 1 << 64) -> int:
    """A number for an unsigned argument, which ctypes would cut."""
    number = operator.index(value)
    if not 0 <= number < end:
        last = "2**64 - 1" if end >= 1 << 64 else str(end - 1)
        raise ValueError(f"{what} is {number}, which is not from 0 to {last}")
    return number


def counted(number: int, noun: str) -> str:
    """ "1 byte", "2 bytes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def signed_of(value: Any, what: str) -> int:
    """A number for an argument that is an int32_t, which ctypes would cut."""
    number = operator.index(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{what} is {number}, which is not from -2**31 to 2**31 - 1")
    return number


def chars_of(text: str, what: str) -> bytes:
    """A text for C, where it would end at its first NUL."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise ValueError(f"{what} has a NUL in it: {text!r}")
    return text.encode()


def path_of(path: PathLike) -> bytes:
    """A path for C."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"the path has a NUL in it: {path!r}")
    return name


def one_of(words: Mapping[str, _T], word: str) -> _T:
    """What a word means."""
    if word not in words:
        raise ValueError(f"{word!r} is not one of {', '.join(words)}")
    return words[word]


def text_of(call: Any, *args: Any, capacity: int) -> str:
    """The text that a function writes into (buffer, capacity), its last two arguments."""
    buffer = ctypes.create_string_buffer(capacity)
    check(call(*args, buffer, capacity))
    return buffer.value.decode(errors="replace")
