"""Programs that share a card, and give each other the memory that they do not use."""
from __future__ import annotations

import ctypes
import os
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional

from . import _abi
from ._library import PathLike, chars_of, check, check_end, library, number_of, path_of
from ._sole import Sole
from ._statistics import _listed


@dataclass(frozen=True)
class GroupMember:
    """A member of a group: a device of one program. What it has is as it was when the member last looked."""

    member_id: int
    process_id: int
    name: str
    device: str
    card: bytes
    reserved_bytes: int
    unused_bytes: int
    budget_bytes: int
    given_bytes: int
    received_bytes: int
    looked_ms: Optional[int]
    """How long ago it last looked for what others want; None: never."""


def group_members(path: PathLike) -> list[GroupMember]:
    """The members of the group whose file is `path`, by their numbers. No device is opened."""
    name, lib = path_of(path), library()
    found = _listed(_abi.GroupMember, lambda *to: lib.millpond_group_list(name, *to))
    return [
        GroupMember(
            m.member_id, m.process_id, m.name.decode(errors="replace"), m.device.decode(errors="replace"), bytes(m.card),
            m.reserved_bytes, m.unused_bytes, m.budget_bytes, m.given_bytes, m.received_bytes,
            None if m.looked_ms == (1 << 64) - 1 else m.looked_ms,
        )
        for m in found
    ]


def set_group_budget(path: PathLike, member_id: int, budget_bytes: int) -> None:
    """Tells a member of the group to take no more than that from its card, which it follows when it next looks; 0: no
    budget."""
    member, budget = number_of(member_id, "member_id"), number_of(budget_bytes, "budget_bytes")
    check(library().millpond_group_set_budget(path_of(path), member, budget))


class Group(Sole):
    """The membership of a device in a group: `device.join_group`. A context manager that leaves at its end."""

    def __init__(self, device: Any, path: PathLike, name: str, wait: float, serves: bool) -> None:
        self.device, self.path = device, os.fspath(path)
        member = ctypes.c_uint64()
        check(library().millpond_device_join_group(
            device.handle, path_of(path), chars_of(name, "the name"), number_of(round(wait * 1000), "wait"), ctypes.byref(member)))
        self.member_id: int = member.value
        self._thread: Optional[threading.Thread] = None
        if serves:
            # It ends with the membership, and with the device.
            self._thread = threading.Thread(target=_serve, args=(device.handle,), name="millpond group", daemon=True)
            self._thread.start()

    def serve(self, timeout: float = 0.0) -> int:
        """Gives back what others want, and follows a budget from outside; returns after that or after `timeout` seconds, with
        the bytes that went back. Only needed without a thread (`serves=False`)."""
        given, ms = ctypes.c_uint64(), number_of(round(timeout * 1000), "timeout")
        check(library().millpond_device_serve_group(self.device.handle, ms, ctypes.byref(given)))
        return given.value

    def leave(self) -> None:
        """Leaves the group, and waits for its thread, which may be giving memory back. Once is enough."""
        if self.member_id:
            self.member_id = 0
            check_end(library().millpond_device_leave_group(self.device.handle))
            if self._thread is not None:
                self._thread.join()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.leave()


def _serve(handle: int) -> None:
    lib = library()
    while True:
        if lib.millpond_device_serve_group(handle, 1000, None) != 0:
            if lib.millpond_last_error_code() != _abi.E_OUT_OF_MEMORY:
                return
            time.sleep(0.02)  # the host has no memory for the call just now
