"""What PyTorch's test file for its allocator asks of torch.cuda.MemPool with another allocator, use_on_oom and no_split, by its
names for it (docs/torch.md)."""
import functools

from fake import MIB, all_given_back, collect, content, device_bytes, enabled, poke, since, used
from mempools import kept, number, pool_of_the_program, segments_of


def check_mempool_with_allocator():
    torch = enabled()
    outside = device_bytes(torch, 3 * MIB)
    before = used()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        inside = [device_bytes(torch, size) for size in (1000, 40 * MIB)]
        reserved = torch.cuda.memory_reserved()
    assert number("taken").value == 2, number("taken").value
    blocks = {b["address"] for s in segments_of(torch, pool) for b in s["blocks"] if b["state"] == "active_allocated"}
    assert blocks == {t.data_ptr() for t in inside}, blocks
    ids = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    assert ids == {(0, 0), tuple(pool.id)}, ids
    assert torch.cuda.memory_allocated() == outside.nbytes + 1024 + 40 * MIB
    assert reserved >= 3 * MIB + 42 * MIB
    outside_again = device_bytes(torch, 40 * MIB)
    assert number("taken").value == 2, "outside it is not asked"
    for t in [*inside, outside_again]:
        poke(t, 7)
        assert content(t) == 7
    places = {t.data_ptr() for t in inside}
    del inside, outside_again, t
    with torch.cuda.use_mem_pool(pool):
        again = [device_bytes(torch, size) for size in (1000, 40 * MIB)]
    assert {t.data_ptr() for t in again} == places and number("taken").value == 2, "its cache is its own"
    del again, pool
    all_given_back(torch, before)
    assert number("given").value == 2


@since("2.11", "ends with the allocator")
def check_tensor_delete_after_allocator_delete():
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        held = device_bytes(torch, MIB)
    del pool
    kept.clear()
    collect()
    torch.cuda.empty_cache()
    assert number("given").value == 0
    poke(held, 5)
    assert content(held) == 5
    del held
    torch.cuda.empty_cache()
    assert number("given").value == 1


def check_mempool_expandable():
    """And what NCCL takes from a snapshot to register it."""
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        held = device_bytes(torch, 40 * MIB)
    [segment] = segments_of(torch, pool)
    assert segment["address"] <= held.data_ptr() < segment["address"] + segment["total_size"]
    assert not segment["is_expandable"]


def exhausted(torch, size):
    try:
        device_bytes(torch, size)
    except torch.OutOfMemoryError:
        return True
    return False


def check_mempool_limited_memory_with_allocator():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(81 / (8 * 1024))
    for make in (torch.cuda.MemPool, functools.partial(pool_of_the_program, torch)):
        other, serves = make(), make(use_on_oom=True)
        with torch.cuda.use_mem_pool(other):
            a = device_bytes(torch, 40 * MIB)
        with torch.cuda.use_mem_pool(serves):
            b = device_bytes(torch, 40 * MIB)
        places = [a.data_ptr(), b.data_ptr()]
        filler = []
        while not exhausted(torch, 20 * MIB):
            filler.append(device_bytes(torch, 20 * MIB))
        del a, b
        c = device_bytes(torch, 30 * MIB)
        assert c.data_ptr() == places[1]
        assert exhausted(torch, 30 * MIB), "the other pool serves nobody"
        del c
        with torch.cuda.use_mem_pool(serves):
            assert device_bytes(torch, 20 * MIB).data_ptr() == places[1], "and it is its own pool still"
        del other, serves, filler
        collect()
        torch.cuda.empty_cache()


def check_deleted_mempool_not_used_on_oom():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(41 / (8 * 1024))
    for _ in range(10):
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            held = device_bytes(torch, 40 * MIB)
        del held, pool
        collect()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 40 * MIB)
    assert [device_bytes(torch, 20 * MIB) for _ in range(2)]
    del pool


@since("2.11", "has no such pools")
def check_mempool_no_split():
    torch = enabled()
    before = used()
    pools = [torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)]
    held = []
    for _ in range(2):
        for pool in pools:
            with torch.cuda.use_mem_pool(pool):
                held.append(device_bytes(torch, 4 * MIB))
    assert [len(s["blocks"]) for s in segments_of(torch, pools[1])] == [1, 1]
    assert len(segments_of(torch, pools[0])) == 1
    del held, pools, pool
    all_given_back(torch, before)


def check_mempool_empty_cache_inactive():
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        held = device_bytes(torch, MIB)
    del held
    with torch.cuda.use_mem_pool(pool):
        torch.cuda.empty_cache()
    collect()
    del pool
    torch.cuda.empty_cache()
    assert number("given").value == number("taken").value == 1
