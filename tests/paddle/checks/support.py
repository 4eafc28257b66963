"""What the scripts beside this one share: the device's name, and the loop that runs the checks of a script.

A check is a function `check_<what>`. Each one's outcome goes to the file that MILLPOND_CHECK_REPORT names, as soon as it
is known, so that a crash of a later one does not hide it.
"""
import ctypes
import json
import os
import pathlib
import socket
import sys
import tempfile
import traceback

import numpy as np
import paddle

TYPE = os.environ.get("MILLPOND_PLUGIN_TYPE", "millpond")
RELEASE = tuple(int(part) for part in paddle.__version__.split(".")[:3])
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class NotHere(Exception):
    """This release of PaddlePaddle does not offer what the check wants."""


def place(ordinal=0):
    return paddle.CustomPlace(TYPE, ordinal)


def cpu():
    return paddle.CPUPlace()


def to_device(array, ordinal=0):
    return paddle.to_tensor(array, place=place(ordinal))


def raw(array):
    """The bytes of an array or tensor."""
    if isinstance(array, paddle.Tensor):
        array = array.numpy()
    return np.ascontiguousarray(array).tobytes()


def same(a, b):
    """Bit by bit."""
    assert raw(a) == raw(b), f"{a} is not {b}"


def empty_cache(capacity):
    """PaddlePaddle's cache gives back its idle chunks, on both devices. Older releases have no call for it, but do so
    when a request finds no memory, and more than the `capacity` (bytes) finds none."""
    if hasattr(paddle.device, "empty_cache"):
        paddle.device.empty_cache()
        return
    for ordinal in range(2):
        try:
            to_device(np.zeros(capacity + 1, "uint8"), ordinal)
        except MemoryError:
            continue
        raise AssertionError("more than the capacity fitted")


class Plugin:
    """The plugin that PaddlePaddle has loaded, asked over its own table: what it says without PaddlePaddle between.

    The offsets are those of custom_runtime.h, in the part that all releases share.
    """

    PARAMS_BYTES, TABLE_BYTES = 96, 1128
    STATS_AT = 416  # device_memory_stats

    def __init__(self):
        path = next(pathlib.Path(os.environ["CUSTOM_DEVICE_ROOT"]).glob("*.so"))
        self.library = ctypes.CDLL(str(path))
        self.table = (ctypes.c_uint64 * (self.TABLE_BYTES // 8))(self.TABLE_BYTES)
        params = (ctypes.c_uint64 * (self.PARAMS_BYTES // 8))(self.PARAMS_BYTES, ctypes.addressof(self.table))
        self.library.InitPlugin(params)

    def memory(self, ordinal=0):
        """(total, free) in bytes."""
        total, free = ctypes.c_size_t(), ctypes.c_size_t()
        device = ctypes.c_int(ordinal)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        status = kind(self.table[self.STATS_AT // 8])(
            ctypes.byref(device), ctypes.byref(total), ctypes.byref(free))
        assert status == 0, f"device_memory_stats gave {status}"
        return total.value, free.value

    def used(self, ordinal=0):
        total, free = self.memory(ordinal)
        return total - free


def resident_bytes():
    """What the process has in RAM; the host device's memory is part of it."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def program(text, env, warnings):
    """Runs a program in a process of its own, forked from one that has not started PaddlePaddle (served.py); its output and
    its errors. Its status must be 0."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/out", "w+") as out, open(f"{folder}/err", "w+") as err:
        pathlib.Path(folder, "program.py").write_text(text)
        request = {"script": [f"{folder}/program.py"], "environment": env, "folder": folder, "warnings": warnings}
        asked = socket.socket(fileno=int(os.environ["MILLPOND_CHECK_PROGRAMS"]))
        try:
            socket.send_fds(asked, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
            status = int(asked.recv(100))
        finally:
            asked.detach()
        out.seek(0)
        err.seek(0)
        said, errors = out.read(), err.read()
    assert status == 0, (status, said, errors)
    return said, errors


def main(names):
    """Runs the checks of the script whose globals these are."""
    report = open(os.environ.get("MILLPOND_CHECK_REPORT", os.devnull), "a")
    for name, check in [(n, f) for n, f in names.items() if n.startswith("check_")]:
        try:
            check()
            outcome = "ok"
        except NotHere as why:
            outcome = f"not here: {why}"
        except Exception:
            outcome = traceback.format_exc()
        report.write(f"{name} {outcome}\0")
        report.flush()
        if "MILLPOND_CHECK_REPORT" not in os.environ:
            print(f"{name}: {outcome}")
    report.close()
    sys.stdout.flush()
