"""Captured graphs: their memory stays theirs as long as they live, whoever shares their pool."""
from fake import (MIB, all_given_back, apart, calls, calls_reset, collect, content, device_bytes, enabled, hold, poke, span,
                  used)


def copying_graph(torch, source, size, pool=None):
    """A graph that copies `source` by way of memory that it frees again, and its result. Its own `scratch` address is
    kept as a range."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        scratch = device_bytes(torch, size)
        scratch[:source.numel()].copy_(source)
        result = device_bytes(torch, source.numel())
        result.copy_(scratch[:source.numel()])
        where = span(scratch)
        del scratch
    return graph, result, where


def replays(torch, graph, source, result, value):
    """Whether a replay brings the source's content to the result."""
    poke(source, value)
    poke(result, 0)
    graph.replay()
    torch.cuda.synchronize()
    return content(result) == value


def check_the_first_of_two_graphs_goes():
    torch = enabled()
    source = device_bytes(torch, MIB)
    pool = torch.cuda.graph_pool_handle()
    one, first, _ = copying_graph(torch, source, 40 * MIB, pool)
    two, second, scratch = copying_graph(torch, source, 60 * MIB, pool)
    del one, first
    collect()
    torch.cuda.empty_cache()
    eager = [device_bytes(torch, 4 * MIB) for _ in range(60)]
    in_graph = [t for t in eager if t.data_ptr() in scratch or t.data_ptr() + t.nbytes - 1 in scratch]
    assert not in_graph, f"{len(in_graph)} eager tensors lie in the memory of a graph that lives"
    for t in eager:
        poke(t, 99)
    assert replays(torch, two, source, second, 7)
    assert all(content(t) == 99 for t in eager)


def check_three_graphs_share_a_pool():
    torch = enabled()
    source = device_bytes(torch, MIB)
    pool = torch.cuda.graph_pool_handle()
    graphs = [copying_graph(torch, source, size * MIB, pool) for size in (30, 50, 70)]
    kept, result, scratch = graphs[1]
    del graphs
    collect()
    torch.cuda.empty_cache()
    eager = [device_bytes(torch, 2 * MIB) for _ in range(120)]
    taken = sum(t.data_ptr() in scratch or not apart(t, result) for t in eager)
    assert taken == 0, f"{taken} eager tensors lie in the memory of a graph that lives"
    for round in range(1, 4):
        assert replays(torch, kept, source, result, round)


def check_the_last_graph_gives_the_memory_back():
    torch = enabled()
    source = device_bytes(torch, MIB)
    torch.cuda.synchronize()
    before = used()
    pool = torch.cuda.graph_pool_handle()
    graphs = [copying_graph(torch, source, 64 * MIB, pool) for _ in range(3)]
    assert used() >= before + 64 * MIB
    while graphs:
        assert used() >= before + 64 * MIB, "the memory went before the last graph"
        graphs.pop()
        collect()
    all_given_back(torch, before)


def check_a_graph_that_still_runs_is_dropped():
    """Dropping it does not wait, and its memory is nobody's before the replay has passed."""
    import threading
    import time
    torch = enabled()
    source = device_bytes(torch, MIB)
    graph, result, scratch = copying_graph(torch, source, 64 * MIB)
    torch.cuda.synchronize()
    hold(True)
    # A replay that never ends would block this check for ever.
    late = threading.Timer(20, hold, [False])
    late.start()
    graph.replay()
    began = time.monotonic()
    del graph
    collect()
    waited = time.monotonic() - began
    held = [device_bytes(torch, 4 * MIB) for _ in range(30)]
    assert time.monotonic() - began < 10, "the request waited for the replay"
    inside = [t for t in held if t.data_ptr() in scratch]
    late.cancel()
    hold(False)
    assert waited < 10, f"the drop waited {waited} s for the replay"
    assert not inside, "memory that a replay still uses was given away"
    torch.cuda.synchronize()
    del held, result
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert used() < 64 * MIB, f"{used()} bytes are left"


def check_a_graph_is_dropped_while_another_is_captured():
    torch = enabled()
    source = device_bytes(torch, MIB)
    old, old_result, _ = copying_graph(torch, source, 64 * MIB)
    new = torch.cuda.CUDAGraph()
    with torch.cuda.graph(new):
        scratch = device_bytes(torch, 32 * MIB)
        del old
        collect()
        scratch[:MIB].copy_(source)
        result = device_bytes(torch, MIB)
        result.copy_(scratch[:MIB])
        del scratch
    assert replays(torch, new, source, result, 5)
    del old_result
    torch.cuda.empty_cache()
    assert used() < 64 * MIB, f"{used()} bytes: those of the graph that is gone are still held"
    assert replays(torch, new, source, result, 6)


def broken_capture(torch):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            device_bytes(torch, 20 * MIB)
            torch.cuda.synchronize()  # not allowed in a capture
    except Exception:
        return graph
    raise AssertionError("the capture did not break")


def check_a_capture_breaks_and_later_graphs_are_safe():
    torch = enabled()
    source = device_bytes(torch, MIB)
    broken = broken_capture(torch)
    graph, result, scratch = copying_graph(torch, source, 40 * MIB)
    torch.cuda.empty_cache()
    eager = [device_bytes(torch, 4 * MIB) for _ in range(60)]
    assert not [t for t in eager if t.data_ptr() in scratch]
    assert replays(torch, graph, source, result, 3)
    del broken
    collect()
    assert replays(torch, graph, source, result, 4)


def check_a_capture_that_nobody_ended():
    """Up to 2.11 PyTorch tells the allocator neither the end nor the release of a capture that broke, and captures all
    graphs on one stream. So does this, whatever the release."""
    torch = enabled()
    source = device_bytes(torch, MIB)
    stream = torch.cuda.Stream()
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        torch._C._cuda_beginAllocateCurrentStreamToPool(0, pool)
        device_bytes(torch, 20 * MIB)
    # The next captures use that stream.
    graphs = []
    for size in (30, 40):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            scratch = device_bytes(torch, size * MIB)
            scratch[:MIB].copy_(source)
            result = device_bytes(torch, MIB)
            result.copy_(scratch[:MIB])
            where = span(scratch)
            del scratch
        graphs.append((graph, result, where))
    torch.cuda.empty_cache()
    with torch.cuda.stream(stream):
        eager = [device_bytes(torch, 4 * MIB) for _ in range(40)]
    eager += [device_bytes(torch, 4 * MIB) for _ in range(40)]
    taken = sum(t.data_ptr() in where for _, _, where in graphs for t in eager)
    assert taken == 0, f"{taken} eager tensors lie in the memory of graphs"
    for graph, result, _ in graphs:
        assert replays(torch, graph, source, result, 9)


def captures(torch):
    """What the driver is called for in each of several captures into one pool, and the program's own work after each."""
    source = device_bytes(torch, MIB)
    pool = torch.cuda.graph_pool_handle()
    graphs, made = [], []
    device_bytes(torch, 120 * MIB)
    for _ in range(2):
        calls_reset()
        graphs.append(copying_graph(torch, source, 24 * MIB, pool))
        device_bytes(torch, 120 * MIB)
        made.append(sum(calls(name) for name in ("cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease")))
    assert replays(torch, *graphs[-1][:1], source, graphs[-1][1], 5)
    return made


def check_a_second_capture_makes_no_memory_anew():
    """`torch.cuda.graph` empties the cache before each capture: what it keeps serves the program afterwards."""
    made = captures(enabled(floor=None))
    assert made[1] == 0, made


def check_a_second_capture_pays_for_a_cache_that_keeps_nothing():
    made = captures(enabled(floor=0))
    assert min(made) > 0, made  # a handle for each large request, while most of the device is free
