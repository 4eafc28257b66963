"""torch.cuda.MemPool over Millpond's segments, and what takes its place once Millpond is the allocator."""
from fake import MIB, all_given_back, collect, device_bytes, driver, enabled, settings, since, used

GIB = 1024 * MIB


def pool_beside_pytorchs_own():
    driver()
    import millpond_torch
    import torch
    torch.cuda.init()
    return torch, millpond_torch.mem_pool()


def check_a_mempool_gives_its_memory_back():
    torch, pool = pool_beside_pytorchs_own()
    with torch.cuda.use_mem_pool(pool):
        held = [device_bytes(torch, 512 * MIB) for _ in range(12)]
    assert used() >= 6 * GIB
    del held, pool
    collect()
    torch.cuda.empty_cache()
    assert used() < 64 * MIB, f"{used() // MIB} MiB are left"


@since("2.15", "PyTorch gives nothing of its cache back for a request in a MemPool (pytorch#159674)")
def check_a_mempool_retries_after_pytorchs_cache():
    torch, pool = pool_beside_pytorchs_own()
    device_bytes(torch, 6 * GIB)  # freed at once, and in PyTorch's cache
    assert used() >= 6 * GIB
    with torch.cuda.use_mem_pool(pool):
        inside = device_bytes(torch, 5 * GIB)
    assert used() < 6 * GIB and inside.data_ptr() != 0


def check_a_mempool_without_memory_raises_pytorchs_own_error():
    torch, pool = pool_beside_pytorchs_own()
    with torch.cuda.use_mem_pool(pool):
        try:
            device_bytes(torch, 9 * GIB)
        except torch.OutOfMemoryError as e:
            assert "CUDA out of memory" in str(e)
        else:
            raise AssertionError("9 GiB of 8")
        assert device_bytes(torch, GIB).data_ptr() != 0


def check_a_graph_in_a_mempool():
    from graphs import copying_graph, replays
    torch, pool = pool_beside_pytorchs_own()
    source = device_bytes(torch, MIB)
    graph, result, _ = copying_graph(torch, source, 32 * MIB, pool.id)
    torch.cuda.empty_cache()
    assert replays(torch, graph, source, result, 8)
    del graph, result, pool
    collect()
    torch.cuda.empty_cache()
    assert used() < 64 * MIB, f"{used() // MIB} MiB are left"


def check_a_pool_under_millpond():
    torch = enabled()
    import millpond_torch
    before = used()
    pool = millpond_torch.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        inside = [device_bytes(torch, 32 * MIB) for _ in range(4)]
    places = {t.data_ptr() for t in inside}
    del inside
    outside = [device_bytes(torch, 32 * MIB) for _ in range(8)]
    assert not places & {t.data_ptr() for t in outside}, "the pool's memory is its own"
    with torch.cuda.use_mem_pool(pool):
        again = [device_bytes(torch, 32 * MIB) for _ in range(4)]
    assert {t.data_ptr() for t in again} == places
    ids = {s["segment_pool_id"] for s in millpond_torch.snapshot()}
    assert tuple(pool.id) in ids, ids
    del again, outside, pool
    all_given_back(torch, before)


def check_a_graph_in_a_pool_under_millpond():
    from graphs import copying_graph, replays
    torch = enabled()
    import millpond_torch
    pool = millpond_torch.mem_pool()
    source = device_bytes(torch, MIB)
    for handle in (pool, pool.id):
        graph, result, scratch = copying_graph(torch, source, 32 * MIB, handle)
        eager = [device_bytes(torch, MIB) for _ in range(64)]
        assert not any(t.data_ptr() in scratch for t in eager)
        assert replays(torch, graph, source, result, 8)
        del graph, result


@settings(FAKECUDA_CAPACITY="1G")
def check_memory_of_graphs_that_are_gone_serves_a_request():
    from graphs import copying_graph
    torch = enabled()
    source = device_bytes(torch, MIB)
    graph, result, _ = copying_graph(torch, source, 600 * MIB)
    graph.replay()
    del graph, result
    collect()
    assert device_bytes(torch, 700 * MIB).data_ptr() != 0
