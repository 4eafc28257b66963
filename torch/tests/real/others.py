"""Pools whose memory is not Millpond's, where it gets hard: beside captures, without memory, at their end, on several threads,
in checkpoints and in other processes."""
import gc
import os
import threading

from checkpoints import as_a_view_of, captured, storages
from fake import MIB, all_given_back, collect, content, device_bytes, driver, enabled, poke, settings, since, used
from graphs import replays
from mempools import kept, number, pool_of_the_program, segments_of
from processes import Other


def blocks_of(torch, pool):
    return {b["address"] for s in segments_of(torch, pool) for b in s["blocks"] if b["state"] == "active_allocated"}


def out_of_memory(torch, size):
    try:
        return device_bytes(torch, size) is None
    except torch.OutOfMemoryError:
        return True


# ---- work of other streams, and graphs ----

def check_blocks_that_another_stream_has_used_come_back():
    torch = enabled()
    pool, side = pool_of_the_program(torch), torch.cuda.Stream()
    for _ in range(12):
        with torch.cuda.use_mem_pool(pool):
            block = device_bytes(torch, 32 * MIB)
        block.record_stream(side)
        del block
        torch.cuda.synchronize()
        device_bytes(torch, MIB)
    assert number("taken").value <= 2, number("taken").value


def freed_in_a_capture(torch, pool, graph_pool):
    """A block that the captured stream uses is freed before the capture ends; the graph."""
    with torch.cuda.use_mem_pool(pool):
        source, result = device_bytes(torch, 32 * MIB), device_bytes(torch, 32 * MIB)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(), pool=graph_pool):
        result.copy_(source)
        source.record_stream(torch.cuda.current_stream())
        del source
        device_bytes(torch, MIB)
    return graph


def check_a_block_is_freed_while_a_graph_is_captured_elsewhere():
    torch = enabled()
    before = used()
    pool = pool_of_the_program(torch)
    for graph_pool in (None, torch.cuda.MemPool()):
        graph = freed_in_a_capture(torch, pool, graph_pool and graph_pool.id)
        for _ in range(3):
            with torch.cuda.use_mem_pool(pool):
                device_bytes(torch, 32 * MIB)
            graph.replay()
            torch.cuda.synchronize()
    del graph, graph_pool
    torch.cuda.empty_cache()
    del pool
    all_given_back(torch, before)


def check_such_a_pool_is_made_while_a_graph_is_captured():
    """PyTorch's allocator comes into use beside it."""
    torch = enabled()
    source = device_bytes(torch, MIB)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        pool = pool_of_the_program(torch)
        with torch.cuda.use_mem_pool(pool):
            result = device_bytes(torch, 32 * MIB)
        result[:MIB].copy_(source)
        result.record_stream(torch.cuda.Stream())
        del result
        kept_by_it = device_bytes(torch, MIB)
        kept_by_it.copy_(source)
    assert replays(torch, graph, source, kept_by_it, 9)
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 32 * MIB)
    del graph, kept_by_it
    collect()


def check_a_capture_in_such_a_pool_breaks():
    torch = enabled()
    pool = pool_of_the_program(torch)
    source = device_bytes(torch, MIB)
    other = torch.cuda.Stream()
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=torch.cuda.MemPool().id if _ else None):
                with torch.cuda.use_mem_pool(pool):
                    device_bytes(torch, 32 * MIB)[:MIB].copy_(source)
                other.wait_stream(torch.cuda.current_stream())  # and is never joined
                with torch.cuda.stream(other):
                    device_bytes(torch, MIB).copy_(source)
        except RuntimeError:
            pass
        else:
            raise AssertionError("nobody joined the other stream")
        del graph
        collect()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with torch.cuda.use_mem_pool(pool):
            result = device_bytes(torch, 32 * MIB)
        result[:MIB].copy_(source)
    assert replays(torch, graph, source, result, 4)
    assert blocks_of(torch, pool) == {result.data_ptr()}
    del graph, result
    collect()


def check_a_checkpoint_of_such_a_pool():
    torch = enabled()
    pool = pool_of_the_program(torch)

    def allocate(sizes):
        return [device_bytes(torch, n * MIB) for n in sizes]
    one, outputs = captured(torch, lambda: allocate([4]), pool.id)
    assert torch._C._has_Standard_Deleter(outputs[0].untyped_storage()._cdata)
    before, state = blocks_of(torch, pool), torch._C._cuda_getCheckpointState(0, pool.id)
    for _ in range(2):
        two, more = captured(torch, lambda: allocate([3, 7]), pool.id)
        assert len(blocks_of(torch, pool)) == 3
        # Both lose what they own; what is made anew owns it.
        again, empty = as_a_view_of(torch, outputs[0])
        del empty
        torch._C._cuda_setCheckpointPoolState(0, state, storages(outputs[0], *more), storages(again))
        assert blocks_of(torch, pool) == before == {again.data_ptr()}
        del more
        outputs = [again]
        del two
        collect()
        assert blocks_of(torch, pool) == before
    del outputs, again
    collect()
    assert not blocks_of(torch, pool), "it owned its memory"
    del one
    collect()


# ---- no memory ----

def check_observers_hear_of_such_pools_and_once():
    torch = enabled()
    heard = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: heard.append(what))
    pool = pool_of_the_program(torch)
    number("refusing").value = 1
    with torch.cuda.use_mem_pool(pool):
        assert out_of_memory(torch, 32 * MIB)
    assert [what[:3] for what in heard] == [(0, 32 * MIB, 8 << 30)], heard
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    number("refusing").value = 0
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 32 * MIB)
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["num_ooms"] == 0


@settings(FAKECUDA_CAPACITY="1G")
def check_a_request_that_is_served_at_last_is_not_out_of_memory():
    torch = enabled()
    heard = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: heard.append(what))
    pool = pool_of_the_program(torch)
    device_bytes(torch, 600 * MIB)
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 600 * MIB)
    assert not heard and torch.cuda.memory_stats()["num_ooms"] == 0


@settings(FAKECUDA_CAPACITY="1G")
def check_what_an_ended_pool_caches_goes_before_millpond_fails():
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        block = device_bytes(torch, 600 * MIB)
    if torch.__version__ < "2.11":
        kept.append(pool)  # which the allocator's segments need
        return
    del pool
    collect()
    del block
    assert used() >= 600 * MIB and number("given").value == 0
    assert device_bytes(torch, 600 * MIB).data_ptr() != 0
    assert number("given").value == 1 and torch.cuda.memory_stats()["num_ooms"] == 0


@settings(FAKECUDA_CAPACITY="1G")
def check_a_graph_that_is_captured_does_not_see_that():
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        block = device_bytes(torch, 600 * MIB)
    del pool
    collect()
    graph = torch.cuda.CUDAGraph()
    source = device_bytes(torch, MIB)
    with torch.cuda.graph(graph):
        del block
        result = device_bytes(torch, MIB)
        assert out_of_memory(torch, 600 * MIB)
        result.copy_(source)
    assert replays(torch, graph, source, result, 3)


def check_a_spare_pool_takes_no_new_memory():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(190 / (8 * 1024))
    pool = pool_of_the_program(torch, use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        inside = device_bytes(torch, 64 * MIB)
    place, taken, filler = inside.data_ptr(), number("taken").value, []
    while len(filler) < 20 and not out_of_memory(torch, 40 * MIB):
        filler.append(device_bytes(torch, 40 * MIB))
    assert len(filler) == 4 and number("taken").value == taken, "what the program limits is full"
    del inside
    assert device_bytes(torch, 60 * MIB).data_ptr() == place
    assert torch.cuda.memory_stats()["num_ooms"] == 1, "this one was served"
    small = pool_of_the_program(torch, use_on_oom=True)
    with torch.cuda.use_mem_pool(small):
        device_bytes(torch, 1000)
    taken = number("taken").value
    assert out_of_memory(torch, 100 * MIB) and number("taken").value == taken
    assert torch.cuda.memory_stats()["num_ooms"] == 2


@since("2.11", "has no such pools")
def check_a_spare_pool_that_splits_nothing():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(41 / (8 * 1024))
    pool = torch.cuda.MemPool(use_on_oom=True, no_split=True)
    with torch.cuda.use_mem_pool(pool):
        place = device_bytes(torch, 40 * MIB).data_ptr()
    outside = device_bytes(torch, 40 * MIB)
    assert outside.data_ptr() != place
    assert device_bytes(torch, 40 * MIB).data_ptr() == place
    assert torch.cuda.memory_stats()["num_ooms"] == 0, "every request was served"


def check_a_graph_takes_nothing_of_a_spare_pool():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(130 / (8 * 1024))
    pool = pool_of_the_program(torch, use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 64 * MIB)
    filler = device_bytes(torch, 120 * MIB)
    source = device_bytes(torch, MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = device_bytes(torch, MIB)
        assert out_of_memory(torch, 64 * MIB)
        result.copy_(source)
    assert not blocks_of(torch, pool)
    assert device_bytes(torch, 64 * MIB).data_ptr() in {b["address"] for s in segments_of(torch, pool) for b in s["blocks"]}
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        assert out_of_memory(torch, 64 * MIB), "nor does another pool"
    del filler


@settings(PYTORCH_CUDA_ALLOC_CONF="roundup_power2_divisions:2")
def check_a_spare_pool_and_sizes_that_are_rounded():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(21 / (8 * 1024))
    pool = pool_of_the_program(torch, use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        place = device_bytes(torch, 48 * MIB).data_ptr()
    assert number("taken").value == 1
    for size in (33, 47, 48):
        assert device_bytes(torch, size * MIB).data_ptr() == place
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:1")
    with torch.cuda.use_mem_pool(pool):
        small = device_bytes(torch, 40 * MIB)
        other = device_bytes(torch, 40 * MIB)
    del other
    taken = number("taken").value
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:2")
    assert out_of_memory(torch, 36 * MIB) and number("taken").value == taken
    del small
    assert not out_of_memory(torch, 36 * MIB) and number("taken").value == taken


# ---- ends ----

def check_who_begins_twice_is_told_and_counts_once():
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        try:
            with torch.cuda.use_mem_pool(pool):
                raise AssertionError("PyTorch's allocator has one begin of a pool")
        except RuntimeError as e:
            assert "already recording" in str(e), e
        assert pool.use_count() == 2
        inside = device_bytes(torch, 4 * MIB)
        assert blocks_of(torch, pool) == {inside.data_ptr()}
    assert pool.use_count() == 1
    del inside
    torch.cuda.empty_cache()
    before = number("taken").value
    del pool
    collect()
    assert number("given").value == before


def check_a_pool_in_use_keeps_its_uses_without_memory():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(41 / (8 * 1024))
    pool = pool_of_the_program(torch, use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 40 * MIB)
        thread = threading.Thread(target=lambda: out_of_memory(torch, 60 * MIB))
        thread.start()
        thread.join()
        assert pool.use_count() == 2
    assert pool.use_count() == 1


def check_a_pool_ends_while_another_is_in_use():
    torch = enabled()
    for other in (pool_of_the_program(torch), torch.cuda.MemPool()):
        pool, given = pool_of_the_program(torch), number("given").value
        with torch.cuda.use_mem_pool(pool):
            device_bytes(torch, 32 * MIB)
        with torch.cuda.use_mem_pool(other):
            del pool
            collect()
        assert number("given").value == given + 1


def check_tensors_of_such_a_pool_live_to_the_end_of_the_process():
    import builtins
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        builtins.held_to_the_end = [pool, device_bytes(torch, MIB)]
    builtins.held_to_the_end[1].record_stream(torch.cuda.Stream())


def check_a_forked_child_frees_tensors_of_such_a_pool():
    torch = enabled()
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        held = device_bytes(torch, MIB)
    ours = device_bytes(torch, MIB)
    poke(held, 3)
    poke(ours, 4)
    child = os.fork()
    if child == 0:
        del held, ours
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (content(held), content(ours), number("given").value) == (3, 4, 0)


# ---- several threads ----

def race(seconds, *actions):
    """Each action again and again, on a thread of its own; what they raised."""
    import time
    end, errors = time.monotonic() + seconds, []

    def run(action):
        try:
            while time.monotonic() < end and not errors:
                action()
        except Exception as e:  # the thread's, for the check to tell
            errors.append(f"{action.__name__}: {e!r}")
    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def check_pools_come_and_go_on_several_threads():
    torch = enabled()
    before, passed = used(), []
    snapshots = torch.__version__ >= "2.15"  # before, two at a time break Python, whoever allocates

    def allocates():
        pool, ours = pool_of_the_program(torch), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            a = device_bytes(torch, 3 * MIB)
            with torch.cuda.use_mem_pool(ours):
                b = device_bytes(torch, 2 * MIB)
            c = device_bytes(torch, 1000)
            if snapshots:
                assert {a.data_ptr(), c.data_ptr()} <= blocks_of(torch, pool)
        assert pool.use_count() == 1
        passed.append([a, b, pool])

    def frees():
        if passed:
            passed.pop()

    def empties():
        torch.cuda.empty_cache()
        torch.cuda.memory_stats()
        torch.cuda.reset_peak_memory_stats()
        if snapshots:
            torch.cuda.memory_snapshot()
    assert race(4, allocates, allocates, frees, frees, empties) == []
    passed.clear()
    kept.clear() if torch.__version__ >= "2.11" else None
    all_given_back(torch, before)
    assert number("given").value == number("taken").value > 0


def check_a_spare_pool_is_begun_by_others_meanwhile():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(21 / (8 * 1024))
    pool = pool_of_the_program(torch, use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, 40 * MIB)
    filler = device_bytes(torch, 20 * MIB)

    def lacks():
        out_of_memory(torch, 30 * MIB)

    def begins():
        with torch.cuda.use_mem_pool(pool):
            out_of_memory(torch, 1000)
    assert race(4, lacks, lacks, begins) == []
    assert pool.use_count() == 1
    assert number("taken").value <= 3 + 1, "only what is used at once in it"
    del filler


# ---- numbers, devices and processes ----

def check_numbers_of_two_devices():
    torch = enabled()
    driver()
    if torch.cuda.device_count() < 2:
        return
    pools, blocks = [], []
    for device in (0, 1):
        with torch.cuda.device(device):
            pools.append(pool_of_the_program(torch))
            with torch.cuda.use_mem_pool(pools[-1]):
                blocks.append(device_bytes(torch, (40 + 2 * device) * MIB, f"cuda:{device}"))
    for device in (0, 1):
        assert torch.cuda.memory_allocated(device) == (40 + 2 * device) * MIB
        torch.cuda.reset_peak_memory_stats(device)
        assert torch.cuda.max_memory_allocated(device) == (40 + 2 * device) * MIB
        assert {s["device"] for s in segments_of(torch, pools[device])} == {device}
        assert sum(s["total_size"] for s in torch.cuda.memory_snapshot() if s["device"] == device) \
            == torch.cuda.memory_reserved(device)
    poke(blocks[0], 6)
    there = device_bytes(torch, 40 * MIB, "cuda:1")
    there.copy_(blocks[0])
    torch.cuda.synchronize()
    assert content(there) == 6


@since("2.11", "has no such pools")
@settings(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def check_a_pool_that_splits_nothing_in_segments_that_grow():
    torch = enabled()
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        block = device_bytes(torch, 40 * MIB)
    there = device_bytes(torch, 40 * MIB, "cuda:1")
    poke(there, 6)
    block.copy_(there)
    torch.cuda.synchronize()
    torch.cuda.synchronize(1)
    assert content(block) == 6


def check_tensors_of_such_a_pool_go_to_other_processes():
    torch = enabled()
    to = Other(torch)
    pool = pool_of_the_program(torch)
    with torch.cuda.use_mem_pool(pool):
        held = device_bytes(torch, 5 * MIB)
    poke(held, 8)
    assert to("a", "keep", [held[MIB:]]) == [8]
    assert to("a", "write", [11]) == "written"
    assert content(held[MIB:]) == 11
    assert to("a", "drop") == "dropped"
    to.end()
    torch.cuda.ipc_collect()
