"""What the checks share: the fake driver's controls, and PyTorch on Millpond. Kernels compute nothing here: contents come
from copies and memsets, which are real, and graphs replay these too."""
import ctypes
import functools
import gc
import os
import pathlib
import subprocess
import tempfile

MIB = 1 << 20
NATIVE = os.environ.get("MILLPOND_TORCH_CHECK_NATIVE") == "1"


def settings(**environment):
    """Environment variables of a check's process."""
    def note(check):
        check.environment = environment
        return check
    return note


def since(release, why):
    """For a check of what earlier releases of PyTorch do not do or have, whoever allocates."""
    def note(check):
        check.since = release, why
        return check
    return note


@functools.lru_cache(None)
def built(name, source, *flags):
    """A shared library of a check's own, which the first one of a run that wants it compiles."""
    file = pathlib.Path(os.environ["MILLPOND_TORCH_CHECKS_BUILD"], f"lib{name}.so")
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made, text = pathlib.Path(folder, file.name), pathlib.Path(folder, f"{name}.cpp")
            text.write_text(source)
            subprocess.run(["g++", "-std=c++20", "-O0", "-fPIC", "-shared", "-o", made, text, *flags], check=True,
                           env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
            made.rename(file)
    return ctypes.CDLL(str(file))


@functools.lru_cache(None)
def driver():
    """The driver's library, which must be the fake one."""
    library = ctypes.CDLL("libcuda.so.1")
    library.fakecuda_used.restype = ctypes.c_uint64
    assert library.fakecuda_version() == 1
    return library


def calls(name):
    """Calls of a driver's function since `calls_reset`."""
    driver().fakecuda_calls.restype = ctypes.c_uint64
    return driver().fakecuda_calls(name.encode())


def calls_reset():
    driver().fakecuda_calls_reset()


def used(device=0):
    """Bytes of physical memory that are in use on a device."""
    return driver().fakecuda_used(device)


def hold(on):
    """While it is on, no stream of the driver runs anything."""
    driver().fakecuda_hold(1 if on else 0)


def content(tensor):
    """The first byte of a tensor of bytes, as the device has it, in whatever state its streams are."""
    byte = ctypes.c_ubyte()
    assert driver().fakecuda_read(tensor.device.index, ctypes.c_uint64(tensor.data_ptr()), ctypes.byref(byte), 1) == 0
    return byte.value


def poke(tensor, value):
    """Writes all bytes of a tensor at once."""
    data = bytes([value]) * tensor.nbytes
    assert driver().fakecuda_write(tensor.device.index, ctypes.c_uint64(tensor.data_ptr()), data, len(data)) == 0


def span(tensor):
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def apart(one, other):
    """Whether two tensors have no byte in common."""
    a, b = span(one), span(other)
    return a.stop <= b.start or b.stop <= a.start


def enabled(floor=0):
    """PyTorch, with Millpond as its allocator. An emptied cache keeps `floor` MiB, or as much as by default."""
    driver()
    if floor is not None:
        options = os.environ.get("MILLPOND_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") \
            or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        os.environ["MILLPOND_ALLOC_CONF"] = ",".join(filter(None, [options, f"empty_cache_floor_mb:{floor}"]))
    import millpond_torch
    import torch
    millpond_torch.enable(native=NATIVE)
    return torch


def device_bytes(torch, size, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def collect():
    gc.collect()


def all_given_back(torch, before):
    """What is gone is the device's again."""
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert used() <= before, f"{(used() - before) / MIB} MiB are left"


def freed_while_another_stream_reads(torch, size):
    """The addresses of a tensor that is gone; what a stream that stands still has to do will read it. `hold(False)` lets
    it go on."""
    side = torch.cuda.Stream()
    tensor = device_bytes(torch, size)
    torch.cuda.synchronize()
    hold(True)
    with torch.cuda.stream(side):
        device_bytes(torch, MIB).copy_(tensor[:MIB])
    tensor.record_stream(side)
    return span(tensor)
