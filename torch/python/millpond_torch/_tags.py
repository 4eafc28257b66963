"""Tags: what memory is for."""
from __future__ import annotations

import contextlib
import ctypes
from typing import Iterator

from ._library import check, library


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """What this thread allocates inside has the tag `name` (1 to 31 bytes): `with millpond_torch.tag("kv_cache"):`.

    Tags nest, and the innermost counts. A block keeps its tag until its memory can be used again. The report of a request
    that finds no memory names the tags that hold the most. MillpondError for a bad name.
    """
    lib = library()
    check(lib, lib.millpond_torch_tag_push(name.encode()))
    try:
        yield
    finally:
        lib.millpond_torch_tag_pop()


def tag_bytes(name: str, device: int = 0) -> int:
    """Bytes in live blocks of the device (its number) that have this tag."""
    lib, out = library(), ctypes.c_uint64()
    check(lib, lib.millpond_torch_tag_bytes(int(device), name.encode(), ctypes.byref(out)))
    return out.value
