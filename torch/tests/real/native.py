"""Millpond as PyTorch's own kind of allocator: what torch.cuda itself says and does then."""
from fake import (MIB, all_given_back, collect, content, device_bytes, driver, enabled, freed_while_another_stream_reads,
                  hold, poke, settings, since, used)
from graphs import replays

GIB = 1024 * MIB


def check_pytorchs_own_statistics():
    torch = enabled()
    import millpond_torch
    held = [device_bytes(torch, 3 * MIB), device_bytes(torch, 1000)]
    device_bytes(torch, 20 * MIB)
    ours, theirs = millpond_torch.memory_stats(), torch.cuda.memory_stats()
    different = {k: (v, ours.get(k)) for k, v in theirs.items() if not k.startswith("reserved_bytes_by_private")
                 and ours.get(k) != v}
    assert not different, different
    assert torch.cuda.memory_allocated() == 3 * MIB + 1024 == held[0].nbytes + 1024
    assert torch.cuda.max_memory_allocated() >= 23 * MIB
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 * MIB + 1024
    assert torch.cuda.memory_reserved() >= 3 * MIB
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
    assert torch.cuda.memory_stats(1)["allocation.all.current"] == 0
    assert torch.cuda.get_allocator_backend() == "millpond"


def check_pytorchs_own_snapshot():
    torch = enabled()
    held = [device_bytes(torch, size) for size in (3 * MIB, 1000, 5 * MIB)]
    gone = device_bytes(torch, 40 * MIB).data_ptr()
    waits = freed_while_another_stream_reads(torch, 9 * MIB).start
    segments, stats = torch.cuda.memory_snapshot(), torch.cuda.memory_stats()
    hold(False)
    blocks = {b["address"]: b for s in segments for b in s["blocks"]}
    for t in held:
        assert blocks[t.data_ptr()]["requested_size"] == t.nbytes, blocks
        assert blocks[t.data_ptr()]["state"] == "active_allocated"
    assert blocks[waits]["state"] == "active_pending_free"
    assert any(b["state"] == "inactive" and gone <= b["address"] < gone + 40 * MIB for b in blocks.values())
    for s in segments:
        assert s["address"] + sum(b["size"] for b in s["blocks"]) == s["address"] + s["total_size"], s
        assert s["is_expandable"] and tuple(s["segment_pool_id"]) == (0, 0)
    for key, stat in (("total_size", "reserved"), ("allocated_size", "allocated"), ("active_size", "active")):
        for kind in ("small", "large"):
            total = sum(s[key] for s in segments if s["segment_type"] == kind)
            assert total == stats[f"{stat}_bytes.{kind}_pool.current"], (key, kind, total)
    assert torch.cuda.memory._snapshot()["segments"]


def check_pytorchs_own_error():
    torch = enabled()
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    try:
        device_bytes(torch, 9 * GIB)
    except torch.OutOfMemoryError as e:
        assert str(e).startswith("CUDA out of memory."), e
        assert "advice:" in str(e), e
    else:
        raise AssertionError("9 GiB of 8")
    assert len(seen) == 1 and seen[0][:3] == (0, 9 * GIB, 8 * GIB) and 0 < seen[0][3] <= 8 * GIB, seen
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert device_bytes(torch, GIB).data_ptr() != 0


def check_a_mempool():
    torch = enabled()
    before = used()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = [device_bytes(torch, 32 * MIB) for _ in range(4)]
    assert pool.use_count() == 1
    places = {t.data_ptr() for t in inside}
    blocks = {b["address"] for s in pool.snapshot() for b in s["blocks"] if b["state"] == "active_allocated"}
    assert blocks == places, (blocks, places)
    del inside
    outside = [device_bytes(torch, 32 * MIB) for _ in range(8)]
    assert not places & {t.data_ptr() for t in outside}, "the pool's memory is its own"
    del outside, pool
    all_given_back(torch, before)


@since("2.15", "a graph does not keep a MemPool that was used while it was captured")
def check_a_mempool_in_a_capture():
    torch = enabled()
    source = device_bytes(torch, MIB)
    pool = torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with torch.cuda.use_mem_pool(pool):
            scratch = device_bytes(torch, 30 * MIB)
            scratch[:MIB].copy_(source)
        result = device_bytes(torch, MIB)
        result.copy_(scratch[:MIB])
        place = range(scratch.data_ptr(), scratch.data_ptr() + scratch.nbytes)
        del scratch
    del pool
    collect()
    torch.cuda.empty_cache()
    eager = [device_bytes(torch, MIB) for _ in range(64)]
    assert not [t for t in eager if t.data_ptr() in place]
    assert replays(torch, graph, source, result, 5)


@settings(FAKECUDA_NO_PEER="1")
def check_memory_is_mapped_without_peer_access():
    """PyTorch lets an allocator of its own kind choose the copy."""
    torch = enabled()
    source = device_bytes(torch, 40 * MIB, "cuda:0")
    poke(source, 6)
    copied = source.to("cuda:1")
    for index in (0, 1):
        torch.cuda.synchronize(index)
    assert content(copied) == 6
    assert driver().fakecuda_calls(b"cuMemMap") > 0


def check_a_limit_and_what_pytorch_says_of_it():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.25) < 1e-6
    try:
        device_bytes(torch, 3 * GIB)
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("3 GiB of a limit of 2")
    assert torch.cuda.mem_get_info()[1] == 8 * GIB


def check_enable_after_pytorchs_own_was_used():
    driver()
    import torch
    device_bytes(torch, 100 * MIB)
    torch.zeros(1000).pin_memory()
    import millpond_torch
    millpond_torch.enable(native=True)
    assert torch.cuda.get_allocator_backend() == "millpond"
    held = device_bytes(torch, 3 * MIB)
    assert torch.cuda.memory_allocated() == held.nbytes
