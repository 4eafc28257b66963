"""Writes the log logged.csv with RMM's own logging adaptor, from its released wheel:

    python -m venv env && env/bin/pip install rmm-cu12 && env/bin/python log.py logged.csv

The memory is malloc's, and no GPU is needed: the adaptor is what matters here. RMM puts the device's number before the
file's extension.
"""
import ctypes
import sys
import threading

import rmm._cuda.gpu as gpu
import rmm.mr
from rmm.pylibrmm.stream import DEFAULT_STREAM, LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM


class Runtime:
    """CUDA's runtime, which has a device."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def cudaGetDevice(self):
        return self.real.cudaError_t.cudaSuccess, 0


gpu.runtime = Runtime(gpu.runtime)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def give(size, stream):
    if size > 1 << 40:
        raise MemoryError("there is less")
    return libc.malloc(size)


log = rmm.mr.LoggingResourceAdaptor(
    rmm.mr.CallbackMemoryResource(give, lambda at, size, stream: libc.free(at)), sys.argv[1]
)
wanted = [
    (100, DEFAULT_STREAM), (1000, LEGACY_DEFAULT_STREAM), (70000, PER_THREAD_DEFAULT_STREAM), (3 << 20, DEFAULT_STREAM),
]
blocks = [(log.allocate(size, stream=stream), size, stream) for size, stream in wanted]


def other():
    at = log.allocate(5000, stream=PER_THREAD_DEFAULT_STREAM)
    log.deallocate(at, 5000, stream=PER_THREAD_DEFAULT_STREAM)


thread = threading.Thread(target=other)
thread.start()
thread.join()
try:
    log.allocate(1 << 45)
except MemoryError:
    pass
for at, size, stream in [blocks.pop(1), *blocks[:2]]:
    log.deallocate(at, size, stream=stream)
log.flush()
