"""torch.cuda.MemPool with an allocator of the program's, with use_on_oom and with no_split, while Millpond is PyTorch's
allocator: as NCCL and engines that sleep use it."""
import ctypes
import threading

from fake import MIB, built, collect, device_bytes, driver, enabled, hold, settings, used

# An allocator as a program brings one; it counts, and fails when it is told to.
SOURCE = """
#include <cstddef>
#include <sys/types.h>
extern "C" {
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
int taken, given, refusing;
void* take(ssize_t size, int, void*) {
  void* ptr = nullptr;
  if (refusing || cudaMalloc(&ptr, static_cast<std::size_t>(size)) != 0) return nullptr;
  ++taken;
  return ptr;
}
void give(void* ptr, ssize_t, int, void*) {
  ++given;
  cudaFree(ptr);
}
}
"""


def library():
    return built("allocator", SOURCE)


def number(name):
    return ctypes.c_int.in_dll(library(), name)


kept = []  # up to 2.9 a pool does not keep its allocator


def pool_of_the_program(torch, **options):
    """As with torch.cuda.memory.CUDAPluggableAllocator, which wants a file."""
    take, give = (ctypes.cast(getattr(library(), name), ctypes.c_void_p).value for name in ("take", "give"))
    kept.append(torch._C._cuda_customAllocator(take, give))
    return torch.cuda.MemPool(kept[-1], **options)


def segments_of(torch, pool):
    return torch.cuda.memory.memory_snapshot(pool.id)


def check_the_innermost_pool_counts():
    torch = enabled()
    ours, theirs = torch.cuda.MemPool(), pool_of_the_program(torch)
    found = {}

    def into(name):
        found.setdefault(name, []).append(device_bytes(torch, 21 * MIB))
    with torch.cuda.use_mem_pool(theirs):
        into("theirs")
        with torch.cuda.use_mem_pool(ours):
            into("ours")
        into("theirs")
    into("none")
    with torch.cuda.use_mem_pool(ours):
        with torch.cuda.use_mem_pool(theirs):
            into("theirs")
        into("ours")
    for name, pool in (("ours", ours), ("theirs", theirs)):
        places = {b["address"] for s in segments_of(torch, pool) for b in s["blocks"] if b["state"] == "active_allocated"}
        assert places == {t.data_ptr() for t in found[name]}, name
    assert number("taken").value == 3


def check_other_threads_are_served_as_before():
    torch = enabled()
    pool, served = pool_of_the_program(torch), []
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: served.append(device_bytes(torch, MIB)))
        thread.start()
        thread.join()
    assert number("taken").value == 0 and served[0].data_ptr() != 0


def check_another_stream_is_waited_for():
    torch = enabled()
    pool = pool_of_the_program(torch)
    side = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        block = device_bytes(torch, 32 * MIB)
        place = block.data_ptr()
        torch.cuda.synchronize()
        hold(True)
        with torch.cuda.stream(side):
            device_bytes(torch, MIB).copy_(block[:MIB])
        block.record_stream(side)
        del block
        other = device_bytes(torch, 32 * MIB)
        hold(False)
    assert other.data_ptr() != place, "a stream still reads there"


def check_a_graph_in_such_a_pool():
    from graphs import copying_graph, replays
    torch = enabled()
    pool = pool_of_the_program(torch)
    source = device_bytes(torch, MIB)
    graph, result, scratch = copying_graph(torch, source, 32 * MIB, pool.id)
    assert number("taken").value > 0
    eager = [device_bytes(torch, MIB) for _ in range(64)]
    assert not any(t.data_ptr() in scratch for t in eager)
    assert replays(torch, graph, source, result, 8)
    del graph, result  # in 2.9 before the pool
    collect()


def check_what_has_no_memory_is_out_of_memory():
    torch = enabled()
    pool = pool_of_the_program(torch)
    number("refusing").value = 1
    with torch.cuda.use_mem_pool(pool):
        try:
            device_bytes(torch, 32 * MIB)
        except torch.OutOfMemoryError as e:
            assert "out of memory" in str(e)
        else:
            raise AssertionError("its allocator has refused")
    assert device_bytes(torch, 32 * MIB).data_ptr() != 0


@settings(FAKECUDA_CAPACITY="1G")
def check_what_millpond_caches_goes_before_such_a_pool_fails():
    torch = enabled()
    pool = pool_of_the_program(torch)
    device_bytes(torch, 600 * MIB)
    assert used() >= 600 * MIB
    with torch.cuda.use_mem_pool(pool):
        assert device_bytes(torch, 600 * MIB).data_ptr() != 0


def check_a_pool_in_use_is_no_spare_one():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(41 / (8 * 1024))
    pool = pool_of_the_program(torch, use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 40 * MIB)
        errors = []

        def ask():
            try:
                device_bytes(torch, 60 * MIB)
            except torch.OutOfMemoryError as e:
                errors.append(e)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert len(errors) == 1 and "With Millpond" in str(errors[0]), errors


def check_other_devices_have_such_pools_too():
    torch = enabled()
    driver()
    if torch.cuda.device_count() < 2:
        return
    with torch.cuda.device(1):
        pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool, device=1):
        inside = device_bytes(torch, 40 * MIB, "cuda:1")
    assert number("taken").value == 1
    assert {s["device"] for s in segments_of(torch, pool)} == {1}
    assert inside.device.index == 1
