"""Finds libmillpond-torch.so and declares what this package calls in it.

Looked for, in this order: the file that MILLPOND_TORCH_LIBRARY names; the folder of this package; the prefix that
Python is installed in, and the usual ones; what the dynamic loader finds. It is loaded once, on first use.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import threading
from typing import Any, Iterator, Optional, Tuple

NAME = "libmillpond-torch.so"
VARIABLE = "MILLPOND_TORCH_LIBRARY"


class MillpondError(RuntimeError):
    """What went wrong, and what to do about it."""


class Counter(ctypes.Structure):
    _fields_ = [("current", ctypes.c_uint64), ("peak", ctypes.c_uint64), ("total", ctypes.c_uint64)]


class Stats(ctypes.Structure):
    """millpond_torch::Stats of pluggable.hpp."""

    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, Counter)
        for name in ["requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "blocks", "segments"]
    ] + [(name, ctypes.c_uint64) for name in ["driver_calls", "out_of_memory_count", "limit_bytes"]]


class Block(ctypes.Structure):
    """millpond_torch::Block of pluggable.hpp."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ["address", "size_bytes", "requested_bytes", "stream", "pool_first", "pool_second"]
    ]


class Segment(ctypes.Structure):
    """millpond_torch::Segment of pluggable.hpp."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ["address", "size_bytes", "stream", "pool_first", "pool_second"]),
        ("blocks", ctypes.c_size_t), ("mapped", ctypes.c_bool), ("small", ctypes.c_bool), ("sleeps", ctypes.c_bool),
    ]


class SegmentBlock(ctypes.Structure):
    """millpond_torch::SegmentBlock of pluggable.hpp."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ["address", "size_bytes", "requested_bytes", "span_bytes"]),
        ("live", ctypes.c_bool), ("waiting", ctypes.c_bool),
    ]


EachSegment = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Segment), ctypes.POINTER(SegmentBlock))

_lock = threading.Lock()
_loaded: Optional[Tuple[str, Any]] = None


def _candidates() -> Iterator[pathlib.Path]:
    yield pathlib.Path(__file__).parent / NAME
    for prefix in [sys.prefix, sys.base_prefix, "/usr/local", "/opt/millpond", "/usr"]:
        base = pathlib.Path(prefix)
        yield base / "lib" / NAME
        yield base / "lib64" / NAME
        yield from sorted(base.glob(f"lib/*-linux-gnu/{NAME}"))


def library_path() -> str:
    """Where libmillpond-torch.so is, as text. MillpondError where there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.path.isfile(named):
            raise MillpondError(f"{VARIABLE} names {named!r}, which is no file; correct it, or unset it")
        return named
    for path in _candidates():
        if path.is_file():
            return str(path)
    raise MillpondError(
        f"{NAME} was not found; build it from Millpond's repository (cmake -S . -B build && cmake --build build && "
        f"cmake --install build --prefix {sys.prefix}), or set {VARIABLE} to the file"
    )


def library() -> Any:
    """The loaded library, with the signatures of its functions."""
    global _loaded
    with _lock:
        if _loaded is None:
            path = library_path()
            try:
                lib = ctypes.CDLL(path)
                _declare(lib)
            except (OSError, AttributeError) as e:
                raise MillpondError(
                    f"{path} cannot be used ({e}); it must be {NAME} of the same version as this package, "
                    "built for this machine"
                ) from None
            _loaded = (path, lib)
        return _loaded[1]


def _declare(lib: ctypes.CDLL) -> None:
    c_int, c_size, c_u64 = ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64
    to = ctypes.POINTER
    for name, result, arguments in [
        ("millpond_torch_device_count", c_int, [to(c_size)]),
        ("millpond_torch_stats", c_int, [c_int, to(Stats)]),
        ("millpond_torch_memory_stats", c_int, [c_int, to(c_u64), c_size, to(c_size)]),
        ("millpond_torch_memory_stats_name", ctypes.c_char_p, [c_size]),
        ("millpond_torch_host_memory_stats", c_int, [c_int, to(c_u64), c_size, to(c_size)]),
        ("millpond_torch_host_memory_stats_name", ctypes.c_char_p, [c_size]),
        ("millpond_torch_cpu_stats", c_int, [to(Stats)]),
        ("millpond_torch_cpu_reset_peaks", c_int, []),
        ("millpond_torch_reset_accumulated", c_int, [c_int]),
        ("millpond_torch_memory", c_int, [c_int, to(c_u64), to(c_u64)]),
        ("millpond_torch_reset_peaks", c_int, [c_int]),
        ("millpond_torch_blocks", c_size, [c_int, to(Block), c_size]),
        ("millpond_torch_segments", c_int, [c_int, EachSegment, ctypes.c_void_p]),
        ("millpond_torch_tag_push", c_int, [ctypes.c_char_p]),
        ("millpond_torch_tag_pop", c_int, []),
        ("millpond_torch_tag_bytes", c_int, [c_int, ctypes.c_char_p, to(c_u64)]),
        ("millpond_torch_init", None, [c_int]),
        ("millpond_torch_settings", c_int, [ctypes.c_char_p]),
        ("millpond_torch_no", c_int, []),
        ("millpond_torch_pool_hold", c_int, [c_int, c_u64, c_u64]),
        ("millpond_torch_pool_drop", None, [c_int, c_u64, c_u64]),
        ("millpond_torch_last_error", ctypes.c_char_p, []),
        ("millpond_torch_version", ctypes.c_char_p, []),
    ]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def last_error(lib: Any) -> str:
    text: bytes = lib.millpond_torch_last_error() or b""
    return text.decode(errors="replace")


def check(lib: Any, status: int) -> None:
    """Raises what the library says, unless the status is 0."""
    if status != 0:
        raise MillpondError(last_error(lib))


def device_count(lib: Any) -> int:
    """How many devices Millpond sees; MillpondError with the reason where there is none."""
    count = ctypes.c_size_t()
    if lib.millpond_torch_device_count(ctypes.byref(count)) != 0 or count.value == 0:
        kind = os.environ.get("MILLPOND_TORCH_DEVICE") or "cuda"
        why = last_error(lib)
        raise MillpondError(
            f"Millpond finds no device of type {kind!r}" + (f": {why}" if why else "") +
            ("; an NVIDIA GPU and its driver are needed (nvidia-smi shows both)" if kind == "cuda" else "")
        )
    return count.value


def version() -> str:
    """The version of the Millpond library, such as "0.1.0"."""
    text: bytes = library().millpond_torch_version()
    return text.decode()
