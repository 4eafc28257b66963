"""CuPy, numba-cuda, cuda.core and PyTorch beside CuPy on Millpond, and two programs that share the card: rows for the table of
gpu/check. Each check is a process of its own.

    host_checks.py            all of them
"""
import ctypes
import os
import subprocess
import sys
import tempfile
import time

from checks import needs, run

MIB = 1 << 20


def cupy_arrays():
    """Kernels, products of matrices and reductions on arrays in the pond."""
    cupy = needs("cupy")
    import millpond
    import millpond.cupy
    millpond.cupy.enable()
    device = millpond.Device("cuda", 0)
    a = cupy.arange(4 * MIB, dtype=cupy.float32)
    assert a.data.ptr in [b.ptr for b in device.blocks("live")]
    assert float((a % 7).max()) == 6
    m = cupy.random.rand(1024, 1024)
    assert bool(cupy.allclose(m @ cupy.eye(1024), m))
    host = cupy.asnumpy(a)
    assert (host == range(4 * MIB)).all()
    del a, m
    assert device.stats().requested_bytes.current <= MIB, device.stats()  # what cuBLAS and the random states keep


def cupy_streams():
    """A block that is freed behind long work of its stream is not another stream's before that work is over."""
    cupy = needs("cupy")
    import millpond
    import millpond.cupy
    pool = millpond.Device("cuda", 0).create_pool("tight", limit_bytes=1 << 30)
    millpond.cupy.enable(pool=pool)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    results = []
    for turn in range(120):
        with streams[turn % 3]:
            block = cupy.full(8 * MIB, turn, dtype=cupy.float32)
            total = cupy.zeros(8 * MIB, dtype=cupy.float32)
            for _ in range(10):
                total += block
            results.append((turn, total[:: 4096].copy()))
            del block, total
    for stream in streams:
        stream.synchronize()
    wrong = [turn for turn, total in results if not bool((total == 10 * turn).all())]
    assert not wrong, f"wrong in {wrong}"


def cupy_pinned_memory():
    """Copies that overlap from and to pinned memory of Millpond's."""
    cupy = needs("cupy")
    import millpond.cupy
    import numpy
    millpond.cupy.enable()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for turn in range(20):
        found = []
        for i, stream in enumerate(streams):
            memory = cupy.cuda.alloc_pinned_memory(16 * MIB)
            host = numpy.frombuffer(memory, numpy.float32, 4 * MIB)
            host[:] = turn + i
            back = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(16 * MIB), numpy.float32, 4 * MIB)
            with stream:
                array = cupy.empty(4 * MIB, dtype=cupy.float32)
                array.set(host)
                (array * 2).get(out=back, blocking=False)
            found.append((back, 2 * (turn + i), host))
        for stream in streams:
            stream.synchronize()
        assert all((back == want).all() for back, want, _ in found), turn


def numba_kernels():
    """Compiled kernels on arrays in the pond, on two streams."""
    needs("numba.cuda")
    import millpond
    import millpond.numba
    millpond.numba.enable()
    import numpy
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack  # a release of numba-cuda that is older than NumPy 2.4 asks for it
    from numba import cuda

    @cuda.jit
    def add(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    count = 4 * MIB
    host = numpy.arange(count, dtype=numpy.float32)
    a = cuda.to_device(host)
    assert a.__cuda_array_interface__["data"][0] in [b.ptr for b in millpond.Device("cuda", 0).blocks("live")]
    streams = [cuda.stream(), cuda.stream()]
    cuda.synchronize()
    for turn in range(20):
        results = []
        for stream in streams:
            b = cuda.to_device(host * turn, stream=stream)
            c = cuda.device_array(count, numpy.float32, stream=stream)
            add[count // 256, 256, stream](a, b, c)
            results.append(c)
            del b, c
        cuda.synchronize()
        assert all((c.copy_to_host() == host + host * turn).all() for c in results), turn
        del results
    del a
    assert millpond.Device("cuda", 0).stats().requested_bytes.current == 0


def cuda_core():
    """Buffers of a memory resource of Millpond's."""
    needs("cuda.core")
    import millpond
    import millpond.cuda_core
    try:
        from cuda.core import Device
    except ImportError:
        from cuda.core.experimental import Device
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    resource = millpond.cuda_core.PondMemoryResource()
    buffers = [resource.allocate(size, stream=stream) for size in (40 * MIB, 40 * MIB, 1000)]
    live = [b.ptr for b in millpond.Device("cuda", 0).blocks("live")]
    assert all(int(b.handle) in live for b in buffers)
    driver = ctypes.CDLL("libcuda.so.1")
    told, back = os.urandom(MIB) * 40, ctypes.create_string_buffer(40 * MIB)
    assert driver.cuMemcpyHtoD_v2(ctypes.c_uint64(int(buffers[0].handle)), told, ctypes.c_size_t(len(told))) == 0
    buffers[0].copy_to(buffers[1], stream=stream)
    stream.sync()
    assert driver.cuMemcpyDtoH_v2(back, ctypes.c_uint64(int(buffers[1].handle)), ctypes.c_size_t(len(told))) == 0
    assert back.raw == told
    for b in buffers:
        b.close(stream)
    stream.sync()
    assert millpond.Device("cuda", 0).stats().requested_bytes.current == 0


def torch_beside_cupy():
    """Both in one pond: memory of each goes to the other through DLPack and by way of the cache."""
    cupy = needs("cupy")
    torch = needs("torch")
    import millpond
    import millpond.cupy
    import millpond_torch
    millpond_torch.enable(native=True)
    millpond.cupy.enable()
    tensor = torch.arange(4 * MIB, device="cuda", dtype=torch.float32)
    array = cupy.from_dlpack(tensor) * 2
    live = [b.ptr for b in millpond.Device("cuda", 0).blocks("live")]
    assert tensor.data_ptr() in live and array.data.ptr in live
    back = torch.from_dlpack(array)
    assert bool((back == 2 * tensor).all())
    place = array.data.ptr
    del array, back
    torch.cuda.synchronize()
    other = torch.empty(4 * MIB, device="cuda", dtype=torch.float32)
    assert other.data_ptr() == place, "what one has freed is the other's"


def holds(block, value):
    """The block is full of that byte: at its begin, its end and places between."""
    word = bytearray(4)
    for at in [*range(0, block.size, 64 * MIB), block.size - 4]:
        block.copy_to(memoryview(word), at)
        if word != bytes([value] * 4):
            return False
    return True


def member_with_a_cache(path):
    """The other program of `programs_that_share_a_card`: two blocks, and a cache of seven tenths of the card."""
    import millpond
    device = millpond.Device("cuda", 0)
    device.join_group(path, "has")
    kept = [device.alloc(size) for size in (300 * MIB, 5 * MIB)]
    for block in kept:
        block.fill(11)
    unused = [device.alloc(256 * MIB) for _ in range(device.info().total_bytes * 7 // 10 // (256 * MIB))]
    for block in unused:
        block.fill(12)
    device.synchronize()
    for block in unused:
        block.free()
    print(len(unused) * 256 * MIB, flush=True)
    sys.stdin.readline()
    print(all(holds(block, 11) for block in kept), device.stats().reserved_bytes.current, flush=True)


def programs_that_share_a_card():
    """A program whose cache holds most of the card gives of it to one that asks, and keeps its blocks; then it follows a
    budget that is set from outside."""
    import millpond
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "group")
        with subprocess.Popen([sys.executable, __file__, "--member", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as other:
            try:
                cached = int(other.stdout.readline())
                device = millpond.Device("cuda", 0)
                device.join_group(path, "asks", wait=20)
                size = device.info().total_bytes // 2
                began = time.monotonic()
                block = device.alloc(size)
                took = time.monotonic() - began
                block.fill(13)
                other_one = next(m for m in millpond.group_members(path) if m.name == "has")
                given = other_one.given_bytes
                assert 0 < given < cached, (given, cached)
                millpond.set_group_budget(path, other_one.member_id, 1024 * MIB)
                while next(m for m in millpond.group_members(path) if m.name == "has").budget_bytes != 1024 * MIB:
                    assert time.monotonic() < began + 60, "the budget was not followed"
                    time.sleep(0.01)
                right, reserved = other.communicate("look\n", timeout=60)[0].split()
                assert right == "True", "a block of the other program was written"
                assert int(reserved) <= 1024 * MIB, reserved
                assert holds(block, 13)
            finally:
                other.kill()
    print(f"SEEN {size >> 20} MiB asked, {given >> 20} MiB given, in {took * 1000:.0f} ms")


CHECKS = {"CuPy arrays": cupy_arrays, "CuPy streams": cupy_streams, "CuPy pinned memory": cupy_pinned_memory,
          "numba-cuda kernels": numba_kernels, "cuda.core buffers": cuda_core, "PyTorch beside CuPy": torch_beside_cupy,
          "programs that share a card": programs_that_share_a_card}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        member_with_a_cache(sys.argv[2])
    elif len(sys.argv) == 2:
        CHECKS[sys.argv[1]]()
    else:
        sys.exit(0 if all([run(__file__, name, name) for name in CHECKS]) else 1)
