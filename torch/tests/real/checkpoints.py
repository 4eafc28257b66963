"""Checkpoints of pools, as torch.compile's trees of graphs use them: a layout comes back, and the tensors in it own their
memory again."""
from fake import MIB, collect, content, device_bytes, enabled, poke
from graphs import replays


def captured(torch, function, pool=None):
    """A graph of what the function allocates and copies, its outputs, and the number of its pool."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        outputs = function()
    return graph, outputs


def live(torch, pool):
    """Addresses of the blocks that live in a pool."""
    return {b["address"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)
            for b in s["blocks"] if b["state"] == "active_allocated"}


def all_live(torch, pool):
    found = live(torch, pool)
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, found)
    assert not torch._C._cuda_checkPoolLiveAllocations(0, pool, found | {1 << 40})
    return found


def as_a_view_of(torch, tensor):
    """A tensor in the same memory which does not own it, as a replay's outputs are made anew."""
    meta = {"storage_offset": 0, "dtype": tensor.dtype, "device": tensor.device, "size": tensor.shape,
            "stride": tensor.stride(), "nbytes": tensor.untyped_storage().nbytes(), "data_ptr": tensor.data_ptr()}
    storage = torch._C._construct_storage_from_data_pointer(meta["data_ptr"], meta["device"], meta["nbytes"])
    made = torch.empty([0], device="cuda", dtype=meta["dtype"])
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(meta, storage), made


def storages(*tensors):
    return [t.untyped_storage()._cdata for t in tensors]


def check_a_layout_comes_back_after_another_graph():
    torch = enabled()
    source = device_bytes(torch, MIB)

    def first():
        big, small = device_bytes(torch, 20 * MIB), device_bytes(torch, MIB)
        big[:MIB].copy_(source)
        small.copy_(big[:MIB])
        return [small]
    one, outputs = captured(torch, first)
    pool = one.pool()
    before = all_live(torch, pool)
    assert before == {outputs[0].data_ptr()}
    state = torch._C._cuda_getCheckpointState(0, pool)

    def second():
        return [device_bytes(torch, n * MIB) for n in (3, 7)]
    two, more = captured(torch, second, pool)
    assert len(all_live(torch, pool)) == 3
    # What is given to it as stale does not free what it does not have any more.
    torch._C._cuda_setCheckpointPoolState(0, state, storages(*more), [])
    assert all_live(torch, pool) == before
    del more
    collect()
    assert all_live(torch, pool) == before
    third, again = captured(torch, second, pool)
    assert all_live(torch, pool) == before | {t.data_ptr() for t in again}
    assert replays(torch, one, source, outputs[0], 5)
    del two, third


def check_a_tensor_that_died_lives_again_and_owns_its_memory():
    torch = enabled()

    def allocate():
        return [device_bytes(torch, n * MIB) for n in (2, 5)]
    graph, outputs = captured(torch, allocate)
    pool = graph.pool()
    both = all_live(torch, pool)
    state = torch._C._cuda_getCheckpointState(0, pool)
    one, empty = as_a_view_of(torch, outputs[0])
    two, _ = as_a_view_of(torch, outputs[1])
    del outputs, empty, _
    assert all_live(torch, pool) == set()
    torch._C._cuda_setCheckpointPoolState(0, state, [], storages(one, two))
    assert all_live(torch, pool) == both
    poke(one, 3)
    assert content(one) == 3
    del one
    collect()
    assert all_live(torch, pool) == {two.data_ptr()}
    del two
    collect()
    assert all_live(torch, pool) == set()


def check_what_dies_after_a_checkpoint_is_freed_by_hand():
    """An output that died since its replay is freed by its address."""
    torch = enabled()
    graph, outputs = captured(torch, lambda: [device_bytes(torch, MIB) for _ in range(3)])
    pool = graph.pool()
    state = torch._C._cuda_getCheckpointState(0, pool)
    places = [t.data_ptr() for t in outputs]
    torch._C._cuda_setCheckpointPoolState(0, state, storages(*outputs), [])
    del outputs
    collect()
    assert all_live(torch, pool) == set(places), "nobody owns them now"
    torch._C._cuda_cudaCachingAllocator_raw_delete(places[1])
    assert all_live(torch, pool) == {places[0], places[2]}


def check_a_stale_tensor_must_be_named():
    torch = enabled()
    graph, outputs = captured(torch, lambda: [device_bytes(torch, MIB)])
    state = torch._C._cuda_getCheckpointState(0, graph.pool())
    other, more = captured(torch, lambda: [device_bytes(torch, MIB)], graph.pool())
    try:
        torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    except RuntimeError as e:
        assert "must be passed" in str(e), e
    else:
        raise AssertionError("a tensor lost its memory unheard")


def check_checkpoints_that_cannot_be():
    torch = enabled()
    device_bytes(torch, MIB)
    for call in (lambda: torch._C._cuda_getCheckpointState(0, (7, 7)),
                 lambda: torch._C._cuda_checkPoolLiveAllocations(0, (7, 7), set())):
        try:
            call()
        except RuntimeError as e:
            assert "no" in str(e) and "pool" in str(e), e
        else:
            raise AssertionError("a pool that there is not")
    graph, outputs = captured(torch, lambda: [device_bytes(torch, MIB)])
    state = torch._C._cuda_getCheckpointState(0, graph.pool())
    del graph, outputs
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    try:
        torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    except RuntimeError as e:
        assert "there is no pool" in str(e), e
    else:
        raise AssertionError("a pool that is gone")


def check_inductors_own_watch_over_a_pool():
    """torch._inductor.cudagraph_trees asks after each step whether exactly its tensors live in the pool."""
    torch = enabled()
    from torch._inductor import cudagraph_trees
    graph, outputs = captured(torch, lambda: [device_bytes(torch, n * MIB) for n in (1, 2)])
    pool = graph.pool()
    refs = [cudagraph_trees.StorageWeakRefWrapper(t) for t in outputs]
    cudagraph_trees.check_memory_pool(0, pool, refs)
    assert set(cudagraph_trees.get_block_addrs(pool)) == {t.data_ptr() for t in outputs}
    extra = outputs.pop()
    try:
        cudagraph_trees.check_memory_pool(0, pool, refs[:1])
    except RuntimeError as e:
        assert "cudagraph" in str(e).lower() or "pool" in str(e).lower(), e
    else:
        raise AssertionError("a tensor nobody knows of")
    del extra
