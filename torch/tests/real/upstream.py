"""What PyTorch's own test file for its allocator (test/test_cuda.py) asks, where no kernel has to compute: checks of our own
under the names of those tests, `check_X` for `test_X`. docs/torch.md has the table, and what is left out and why."""
import json
import random
import tempfile
import threading
from collections import defaultdict

from checkpoints import all_live, as_a_view_of, captured, storages
from fake import MIB, collect, content, device_bytes, enabled, poke, settings

GIB = 1024 * MIB

# PyTorch's own tests differ between releases.
SINCE = "2.15", "these are the tests of 2.15's time"


def refused(torch, size, *words, error=None):
    try:
        device_bytes(torch, size)
    except (error or RuntimeError) as e:
        assert all(w in str(e) for w in words), e
    else:
        raise AssertionError(f"{size} bytes were there")


def recording(torch, *how, **options):
    torch.cuda.memory.empty_cache()
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(*how, **options)


def text_of(torch):
    return json.dumps(torch.cuda.memory._snapshot())


def segments_of(torch, pool):
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)]


# ---- TestCuda ----

def check_memory_allocation():
    torch = enabled()
    before = torch.cuda.memory_allocated()
    mem = torch.cuda.caching_allocator_alloc(1)
    assert torch.cuda.memory_allocated() > before
    torch.cuda.caching_allocator_delete(mem)
    assert torch.cuda.memory_allocated() == before


def check_memory_stats():
    torch = enabled()
    device_bytes(torch, MIB)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    a = torch.accelerator
    assert a.memory_allocated() == a.max_memory_allocated() and a.memory_reserved() == a.max_memory_reserved()
    before = a.memory_stats()["active_bytes.all.current"]
    held = device_bytes(torch, 1024)
    assert a.memory_stats()["active_bytes.all.current"] == before + 1024 and a.memory_stats()["active_bytes.all.freed"] == 0
    del held
    a.empty_cache()
    stats = a.memory_stats()
    assert stats["active_bytes.all.current"] == before and stats["active_bytes.all.freed"] == 1024
    a.reset_peak_memory_stats()
    assert a.max_memory_allocated() == a.memory_allocated()


def check_out_of_memory():
    torch = enabled()
    held = device_bytes(torch, 1024)
    refused(torch, 800000000 * GIB, "Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of 8.00 GiB")
    refused(torch, 8000000000 * GIB, "Tried to allocate more than 1EB memory")
    held.fill_(1)


def check_out_of_memory_retry():
    torch = enabled()
    half = int(torch.cuda.get_device_properties(0).total_memory * 0.5)
    one = device_bytes(torch, half)
    device_bytes(torch, MIB)
    held = device_bytes(torch, MIB)
    refused(torch, half, "Tried to allocate")
    del one
    assert device_bytes(torch, half).nbytes == half and held.nbytes


def check_set_per_process_memory_fraction():
    torch = enabled()
    for wrong, error in ((1, TypeError), (-0.1, ValueError), (2.0, ValueError)):
        try:
            torch.cuda.set_per_process_memory_fraction(wrong)
        except error:
            continue
        raise AssertionError(wrong)
    device_bytes(torch, 1024)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5, 0)
    held = device_bytes(torch, int(total * 0.499) - torch.cuda.max_memory_reserved())
    del held
    torch.cuda.empty_cache()
    kept = device_bytes(torch, 1024)
    refused(torch, int(total * 0.5), "out of memory", error=torch.OutOfMemoryError)
    kept.fill_(1)


def check_get_per_process_memory_fraction():
    torch = enabled()
    for value in (1.0, 0.0, 0.123, 0.5, 0.876):
        torch.cuda.set_per_process_memory_fraction(value)
        assert abs(torch.cuda.get_per_process_memory_fraction() - value) < 1e-7, value


def check_cuda_graph_allocator_propagates_stream():
    torch = enabled()
    device_bytes(torch, MIB)
    x, y = torch.empty(10240000, device="cuda"), torch.empty(10240000, device="cuda")
    graph, one, two = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    one.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(one):
        graph.capture_begin()
        z = x + y
    with torch.cuda.stream(two):
        two.wait_stream(one)
        z + y
    one.wait_stream(two)
    with torch.cuda.stream(one):
        graph.capture_end()
    found = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
    assert len({tuple(s["segment_pool_id"]) for s in found}) == 1 and {s["stream"] for s in found} == {
        one.cuda_stream, two.cuda_stream}, found


# ---- TestCudaMallocAsync ----

def check_memory_snapshot():
    torch = enabled()
    recording(torch, "state", stacks="python")
    torch.empty(2 * 311, 411, device="cuda")
    unused = torch.empty(310, 410, device="cuda")
    x = torch.empty(311, 411, device="cuda")
    tensors = [torch.empty(128, device="cuda") for _ in range(1000)]
    while tensors:
        del tensors[random.randint(0, len(tensors) - 1)]
    torch.empty(128 * 5, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    assert all("frames" in s for s in snapshot["segments"])
    found = [b for s in snapshot["segments"] for b in s["blocks"] if b["requested_size"] == 311 * 411 * 4]
    assert [b["address"] for b in found] == [x.untyped_storage().data_ptr()]
    assert "upstream.py" in found[0]["frames"][0]["filename"]
    del unused, x
    torch.cuda.empty_cache()
    last = torch.cuda.memory._snapshot()["device_traces"][0][-1]
    assert last["action"] in ("segment_free", "segment_unmap"), last


def check_memory_snapshot_with_cpp():
    torch = enabled()
    recording(torch, "state", stacks="all")
    held = torch.empty(311, 411, device="cuda")
    found = [b for s in torch.cuda.memory._snapshot()["segments"] for b in s["blocks"]
             if b["requested_size"] == held.nbytes]
    assert "::empty" in str(found[0]["frames"]), found


def check_memory_profiler_viz():
    torch = enabled()
    from torch.cuda._memory_viz import _profile_to_snapshot, profile_plot
    # What traces GPUs (CUPTI) has none here.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, profile_memory=True,
                                record_shapes=True) as profile:
        x = torch.empty(128, 128, device="cuda")
        y = x * x
        del x
    assert profile_plot(profile) and y.nbytes
    snapshot = _profile_to_snapshot(profile)
    text = json.dumps(snapshot)
    assert "upstream.py" in text and "check_memory_profiler_viz" in text and "category" in text, text[:2000]
    told = [e["action"] for t in snapshot["device_traces"] for e in t if e["size"] == 128 * 128 * 4]
    assert "alloc" in told and "free_completed" in told, told


def check_memory_plots():
    torch = enabled()
    from torch.cuda._memory_viz import segment_plot, trace_plot
    for context, stacks in (("all", "all"), ("all", "python"), (None, "python")):
        recording(torch, "all", context=context, stacks=stacks)

        def run():
            x = torch.empty(128, 128, device="cuda")
            x * x + x * x
        run()
        snapshot = torch.cuda.memory._snapshot()
        trace_plot(snapshot), trace_plot(snapshot, filter_freed=True), segment_plot(snapshot)
        text = json.dumps(snapshot)
        assert ("check_memory_plots" in text) == (context is not None)
        assert ("::empty" in text) == (stacks == "all") and str(128 * 128 * 4) in text


def check_memory_plots_free_stack():
    torch = enabled()
    for context in ("alloc", "all", "state"):
        recording(torch, context=context)
        x = None

        def thealloc():
            nonlocal x
            x = torch.empty(3, 4, device="cuda")

        def thefree():
            nonlocal x
            del x
        thealloc()
        thefree()
        text = text_of(torch)
        assert ("thefree" in text) == (context == "all") and ("thealloc" in text) == (context != "state"), context


def check_memory_plots_history_context():
    torch = enabled()
    x = None

    def should_capture1():
        nonlocal x
        x = torch.empty(4, 4, device="cuda")

    def should_not_capture():
        nonlocal x
        x = torch.empty(3, 4, device="cuda")

    def should_capture2():
        nonlocal x
        x = torch.empty(4, 4, device="cuda")
    for context, function in (("all", should_capture1), (None, should_not_capture), ("all", should_capture2)):
        torch.cuda.memory._record_memory_history(context=context, stacks="python")
        function()
    text = text_of(torch)
    assert "should_capture1" in text and "should_not_capture" not in text and "should_capture2" in text


def check_memory_plots_free_segment_stack():
    torch = enabled()
    for context in ("alloc", "all", "state"):
        recording(torch, context=context)
        torch.empty(3, 4, device="cuda")
        torch.cuda.memory.empty_cache()
        assert ("empty_cache" in text_of(torch)) == (context == "all"), context


def check_memory_plots_metadata():
    torch = enabled()
    for context in ("alloc", "all", "state"):
        torch.cuda.memory.empty_cache()
        torch.cuda.memory._set_memory_metadata("metadata test")
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history(context=context)
        torch.empty(3, 4, device="cuda")
        torch.cuda.memory.empty_cache()
        torch.cuda.memory._set_memory_metadata("")
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        assert events and {e["user_metadata"] for e in events} == {"metadata test"}, (context, events)


def check_memory_snapshot_skip_actions():
    torch = enabled()
    for skipped in (["free_requested"], ["free_requested", "free_completed"], ["alloc"], ["segment_alloc", "segment_free"],
                    [], None):
        recording(torch, context="all", stacks="python", skip_actions=skipped)
        torch.empty(128, 128, device="cuda")
        torch.cuda.synchronize()
        actions = {e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]}
        assert actions and not actions & set(skipped or []), (skipped, actions)


def within(torch, mib):
    total = torch.cuda.memory.mem_get_info()[1]
    torch.cuda.memory.set_per_process_memory_fraction((mib * MIB + torch.cuda.memory_reserved()) / total)


@settings(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:40")
def check_max_split_expandable():
    torch = enabled()
    within(torch, 120)
    held = [device_bytes(torch, 40 * MIB) for _ in range(3)]
    refused(torch, 40 * MIB, "out of memory", error=torch.OutOfMemoryError)
    del held
    device_bytes(torch, 120 * MIB)


@settings(PYTORCH_CUDA_ALLOC_CONF="garbage_collection_threshold:0.5")
def check_garbage_collect_expandable():
    torch = enabled()
    within(torch, 120)
    held = [device_bytes(torch, 40 * MIB) for _ in range(2)]
    del held
    device_bytes(torch, 80 * MIB)


def check_cachingAllocator_raw_alloc():
    torch = enabled()
    device_bytes(torch, MIB)

    def requested():
        key = "requested_bytes.all.allocated"
        before = torch.cuda.memory_stats()[key]
        ptr = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, torch._C._cuda_getCurrentRawStream(0))
        after = torch.cuda.memory_stats()[key]
        torch._C._cuda_cudaCachingAllocator_raw_delete(ptr)
        return after - before
    torch.cuda.caching_allocator_enable(False)
    assert requested() == 0
    plain = device_bytes(torch, MIB)
    torch.cuda.caching_allocator_enable(True)
    assert requested() == MIB
    poke(plain, 3)
    assert content(plain) == 3
    del plain  # by whom it was given


def check_raises_oom():
    torch = enabled()
    refused(torch, 1024 * GIB, error=torch.cuda.OutOfMemoryError)


def check_notifies_oom():
    torch = enabled()
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: told.append(numbers))
    refused(torch, 1024 * GIB, error=torch.cuda.OutOfMemoryError)
    assert len(told) == 1


def check_allocator_fuzz():
    """10 000 steps; the contents are written and read by the driver."""
    torch = enabled()
    chance, held, total = random.Random(123), [], 0
    for n in range(10000):
        while total >= GIB // 10:
            mark, t = held.pop(chance.randrange(len(held)))
            assert content(t) == mark
            total -= t.nbytes
        step = chance.choices(("alloc", "free", "empty"), weights=(1, 1 if held else 0, 0.1))[0]
        if step == "alloc":
            t = device_bytes(torch, chance.randrange(2 * MIB, 20 * MIB))
            t.fill_(0)  # a memset
            poke(t[:64], n % 251)
            held.append((n % 251, t))
            total += t.nbytes
        elif step == "free":
            mark, t = held.pop(chance.randrange(len(held)))
            assert content(t) == mark
            total -= t.nbytes
        else:
            torch.cuda.memory.empty_cache()
        t = None


# ---- TestBlockStateAbsorption ----

def shape_of(torch, pool):
    """PyTorch asks for the same free blocks, too; here free ones that lie side by side may be told of as one."""
    return [[s[k] for k in ("device", "address", "total_size", "allocated_size", "active_size", "segment_type")] +
            [(b["address"], b["size"], b["state"]) for b in s["blocks"] if b["state"] != "inactive"]
            for s in segments_of(torch, pool)]


def comes_back(sizes, kept):
    torch = enabled()
    graph, outputs = captured(torch, lambda: [t for n, t in enumerate([device_bytes(torch, s) for s in sizes]) if n in kept])
    pool = graph.pool()
    before = shape_of(torch, pool)
    state = torch._C._cuda_getCheckpointState(0, pool)
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    assert before and shape_of(torch, pool) == before
    assert all_live(torch, pool) == {t.data_ptr() for t in outputs}
    del graph, outputs
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert not segments_of(torch, pool)


def check_simple():
    comes_back([8 * MIB, 8 * MIB] + [MIB] * 6, {1, 4, 7})


def check_allocated_in_middle_of_segment():
    comes_back([512] * 11, {5})


def check_multiple_middle_allocations():
    comes_back([512] * 11, {5, 8})


def check_middle_allocations_contiguous():
    comes_back([512] * 11, {5, 6})


def check_additional_free_following_checkpoint():
    torch = enabled()
    graph, outputs = captured(torch, lambda: [device_bytes(torch, 512)])
    pool = graph.pool()
    before = segments_of(torch, pool)
    state = torch._C._cuda_getCheckpointState(0, pool)
    second, more = captured(torch, lambda: [device_bytes(torch, 512)], pool)
    torch._C._cuda_setCheckpointPoolState(0, state, storages(*more), [])
    del more
    collect()
    after = {s["address"]: s for s in segments_of(torch, pool)}
    for s in before:
        live = [[(b["address"], b["size"]) for b in x["blocks"] if b["state"] != "inactive"] for x in (s, after[s["address"]])]
        assert live[0] == live[1], live


def check_tensor_dies_after_checkpoint():
    torch = enabled()
    graph, outputs = captured(torch, lambda: [device_bytes(torch, 512), device_bytes(torch, 512)])
    state = torch._C._cuda_getCheckpointState(0, graph.pool())
    places = [t.data_ptr() for t in outputs]
    del outputs
    collect()
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    for left in (2, 1, 0):
        assert len(all_live(torch, graph.pool())) == left
        if left:
            torch._C._cuda_cudaCachingAllocator_raw_delete(places.pop())


def check_assigning_back_deleter_fns_to_tensor():
    torch = enabled()
    source = device_bytes(torch, 20 * MIB)

    def fill():
        made = [device_bytes(torch, n * MIB) for n in (2, 2, 20)]
        for t in made:
            t.copy_(source[:t.nbytes])
        return made
    poke(source, 2)
    graph, outputs = captured(torch, fill)
    pool = graph.pool()
    graph.replay()
    torch.cuda.synchronize()
    assert [content(t) for t in outputs] == [2, 2, 2]
    state = torch._C._cuda_getCheckpointState(0, pool)
    places = [t.data_ptr() for t in outputs]
    views = [as_a_view_of(torch, t)[0] for t in outputs]
    assert len(all_live(torch, pool)) == 3
    del outputs
    collect()
    assert len(all_live(torch, pool)) == 0
    poke(source, 3)
    graph.replay()
    torch.cuda.synchronize()
    assert [content(t) for t in views] == [3, 3, 3]
    torch._C._cuda_setCheckpointPoolState(0, state, [], storages(*views[:2]))
    for left in (3, 2, 1, 1):  # the third was not named
        assert len(all_live(torch, pool)) == left
        views = views[1:]
        collect()
    torch._C._cuda_cudaCachingAllocator_raw_delete(places[2])
    assert len(all_live(torch, pool)) == 0


def check_check_pool_live_allocations():
    torch = enabled()
    pool = torch.cuda.graph_pool_handle()
    graph, outputs = captured(torch, lambda: [torch.empty([4], device="cuda")], pool)

    def live(these):
        return torch._C._cuda_checkPoolLiveAllocations(0, pool, these)
    assert live({outputs[0].data_ptr()}) and not live({outputs[0].data_ptr(), 0}) and not live(set())
    del outputs
    collect()
    assert live(set())


def check_allocate_in_thread_to_pool():
    torch = enabled()
    pool = torch.cuda.graph_pool_handle()
    graph, outputs = captured(torch, lambda: [torch.empty([4], device="cuda")], pool)
    del outputs
    collect()
    assert len(segments_of(torch, pool)) == 1
    elsewhere = []

    def use_pool():
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
            for _ in range(10):
                [device_bytes(torch, 20 * MIB) for _ in range(3)]
            torch._C._cuda_endAllocateToPool(0, pool)
            torch._C._cuda_releasePool(0, pool)

    def no_pool():
        for _ in range(10):
            elsewhere.extend(device_bytes(torch, 20 * MIB).data_ptr() for _ in range(2))
    threads = [threading.Thread(target=f) for f in (use_pool, no_pool)]
    [t.start() for t in threads], [t.join() for t in threads]
    inside = segments_of(torch, pool)
    # At least two: memory that the other thread takes meanwhile may lie between two parts of the pool's.
    assert len(inside) >= 2 and sum(s["total_size"] for s in inside) >= 60 * MIB, inside
    assert not [a for a in elsewhere for s in inside if s["address"] <= a < s["address"] + s["total_size"]]
    del graph
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert not segments_of(torch, pool)


# ---- TestMemPool ----

def check_mempool_id():
    torch = enabled()
    one, two = torch.cuda.graph_pool_handle(), torch.cuda.MemPool().id
    assert one[0] == two[0] == 0 and one[1] < two[1]


def check_mempool_empty_cache():
    torch = enabled()
    pool = torch.cuda.MemPool()
    x = torch.empty(1024, 1024, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        y = torch.empty(1024, 1024, device="cuda")
    del x, y, pool
    assert torch.cuda.memory._snapshot()["segments"]


def check_mempool_multithread():
    torch = enabled()
    ids = []
    threads = [threading.Thread(target=lambda: ids.append(torch.cuda.MemPool().id)) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(set(ids)) == 4


def check_mempool_emptycache_multithread():
    torch = enabled()

    def use(pool):
        with torch.cuda.use_mem_pool(pool):
            device_bytes(torch, 16)
            torch.cuda.empty_cache()
    pools = [torch.cuda.MemPool() for _ in range(4)]
    threads = [threading.Thread(target=use, args=(p,)) for p in pools]
    [t.start() for t in threads], [t.join() for t in threads]
    assert [len(p.snapshot()) for p in pools] == [1] * 4


def check_nested_mempool():
    torch = enabled()
    pools, places = [torch.cuda.MemPool() for _ in range(3)], defaultdict(set)
    held = []

    def allocate(n):
        held.append(device_bytes(torch, 80 * MIB))
        places[n].add(held[-1].data_ptr())
    with torch.cuda.use_mem_pool(pools[0]):
        allocate(0)
        with torch.cuda.use_mem_pool(pools[1]):
            allocate(1)
            with torch.cuda.use_mem_pool(pools[2]):
                allocate(2)
            allocate(1)
        allocate(0)
    for n, pool in enumerate(pools):
        found = {b["address"] for s in torch.cuda.memory.memory_snapshot(pool.id) for b in s["blocks"]
                 if b["state"] == "active_allocated"}
        assert found == places[n], (n, found, places)


def check_mempool_ctx_multithread():
    torch = enabled()
    ready, done, seen = threading.Event(), threading.Event(), []

    def main():
        pool = torch.cuda.MemPool()
        out1 = device_bytes(torch, MIB)
        with torch.cuda.use_mem_pool(pool):
            device_bytes(torch, MIB)
            ready.set()
            done.wait(20)
        return out1

    def side():
        ready.wait(20)
        out = device_bytes(torch, MIB)
        seen.append(torch.cuda.memory._snapshot()["segments"])
        done.set()
        return out
    threads = [threading.Thread(target=f) for f in (main, side)]
    [t.start() for t in threads], [t.join(20) for t in threads]
    active = defaultdict(int)
    for s in seen[0]:
        active[tuple(s["segment_pool_id"])] += s["active_size"]
    assert len(active) == 2 and active.pop((0, 0)) == 2 * MIB and set(active.values()) == {0}


def check_save_segment_usage():
    """What test_memory_snapshot writes to a file, which fetches a program from the net, is left out; the rest of it is here."""
    torch = enabled()
    from torch.cuda import _memory_viz
    device_bytes(torch, MIB)
    with tempfile.NamedTemporaryFile() as f:
        torch.cuda.memory._dump_snapshot(f.name)
    assert "segments" in _memory_viz.segsum(torch.cuda.memory._snapshot())


def check_allocator_settings():
    from settings import charge, refused, setters
    torch = enabled()
    call = setters(torch)[1]
    for text, size, taken in [("roundup_power2_divisions:4", 1200, 1280), ("roundup_power2_divisions:8", 1200, 1280),
                              ("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:8,>:1]", 600, 768), ("", 600, 600),
                              ("max_split_size_mb:40,garbage_collection_threshold:0.6", 45, 45)]:
        call(text)
        assert charge(torch, size * MIB) == taken * MIB, text
    for text in ("foo:1,bar:2", "garbage_collection_threshold:1.2", "max_split_size_mb:2", "release_lock_on_cudamalloc:none",
                 "pinned_use_cuda_host_register:none", "pinned_num_register_threads:none", "pinned_num_register_threads:1024"):
        assert refused(call, text), text
    call("pinned_use_background_threads:True") if torch.__version__ >= "2.11" else None


def check_the_table_names_what_is_here():
    import pathlib
    import re
    text = (pathlib.Path(__file__).parents[3] / "docs" / "torch.md").read_text()
    rows = dict(re.findall(r"^\| (pass[^|]*) \| (.*) \|$", text, re.M))
    named = {n for row in rows.values() for n in re.findall(r"`(\w+)`", row)}
    import upstream_pools
    import upstream_streams
    all_of_them = {**globals(), **vars(upstream_streams), **vars(upstream_pools)}
    here = {n.removeprefix("check_") for n in all_of_them if n.startswith("check_")}
    assert here - named == {"save_segment_usage", "the_table_names_what_is_here"}, here - named
    assert not named - here, named - here
