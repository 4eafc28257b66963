"""Tags that say who asked: where no tag is in force on a thread, a block gets the function, file and line of its caller.

Off, unless `tag_callers()` or MILLPOND_TAG_CALLERS=1 switches it on. It costs a walk up the stack for each request, and one
tag for each line that allocates, of which a process has room for some thousands; later lines get none.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from typing import Any, Callable, Iterator, Optional

from ._library import library

VARIABLE = "MILLPOND_TAG_CALLERS"
MOST = 31  # [B] of a tag

on = os.environ.get(VARIABLE, "") not in ("", "0")
_numbers: dict[tuple[Any, int], int] = {}  # of tags, by code and line; 0: there is none to be had
_own = threading.local()


def tag_callers(wanted: bool = True) -> None:
    """From now on each block that this package allocates without a tag in force has its caller as tag, as in
    "load_weights (train.py:12)", shortened to the 31 bytes of a tag: in reports of who holds memory, statistics, snapshots and histories. The environment
    variable MILLPOND_TAG_CALLERS=1 does the same from the start."""
    global on
    on = wanted


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Inside, the program's own tags are in force, and callers give none."""
    _own.depth = getattr(_own, "depth", 0) + 1
    try:
        yield
    finally:
        _own.depth -= 1


def _name(frame: Any) -> bytes:
    """"function (file.py:12)"; where that is too long for a tag, "function:12", and as much of the function as fits."""
    function, line = str(frame.f_code.co_name), int(frame.f_lineno)
    whole = f"{function} ({os.path.basename(frame.f_code.co_filename)}:{line})".encode(errors="replace")
    if len(whole) <= MOST:
        return whole
    end = f":{line}".encode()
    return function.encode(errors="replace")[:MOST - len(end)].decode(errors="ignore").encode() + end


def _number() -> int:
    frame: Optional[Any] = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "millpond":
        frame = frame.f_back
    if frame is None:
        return 0
    key = (frame.f_code, frame.f_lineno)
    number = _numbers.get(key)
    if number is None:
        out = ctypes.c_uint32()
        failed = library().millpond_tag_get_number(_name(frame), ctypes.byref(out))
        number = _numbers[key] = 0 if failed else out.value
    return number


def asked(call: Callable[[], None]) -> None:
    """Makes the request; with its caller as tag where that is wanted."""
    number = _number() if on and not getattr(_own, "depth", 0) else 0
    if number == 0 or library().millpond_tag_push_number(number) != 0:
        call()
        return
    try:
        call()
    finally:
        library().millpond_tag_pop()
