"""More of what PyTorch's own test file for its allocator asks: streams, graphs and several devices. See upstream.py."""
from fake import MIB, content, device_bytes, driver, enabled, hold, poke, settings, span

# PyTorch's own tests differ between releases.
SINCE = "2.15", "these are the tests of 2.15's time"


@settings(FAKECUDA_CAPACITY="800M")
def check_caching_allocator_record_stream_oom():
    """Memory that waits for another stream serves a request that finds none otherwise."""
    torch = enabled()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        sum_ = device_bytes(torch, 16 * MIB)
    for _ in range(100):  # twice the device in all
        x = device_bytes(torch, 16 * MIB)
        with torch.cuda.stream(side):
            sum_.copy_(x)
        x.record_stream(side)
        del x
    torch.cuda.empty_cache()


def check_record_stream():
    torch = enabled()
    pinned = torch.tensor([1, 2, 3, 4], dtype=torch.uint8).pin_memory()
    result = device_bytes(torch, 4)
    side, main, place = torch.cuda.Stream(), torch.cuda.current_stream(), []

    def copy():
        with torch.cuda.stream(side):
            tmp = pinned.cuda(non_blocking=True)
            place.append(tmp.data_ptr())
        main.wait_stream(side)
        tmp.record_stream(main)
        hold(True)
        result.copy_(tmp)
    copy()
    with torch.cuda.stream(side):
        tmp2 = device_bytes(torch, 4)
        assert tmp2.data_ptr() != place[0], "reused while the other stream reads it"
    hold(False)
    torch.cuda.synchronize()
    assert result.tolist() == [1, 2, 3, 4]
    with torch.cuda.stream(side):
        # PyTorch's own allocator has it for the next request; ours when the chunk has nothing else.
        again = [device_bytes(torch, 4) for _ in range(5000)]
        assert place[0] in {t.data_ptr() for t in again}, "not reused when it may be"


def check_record_stream_on_shifted_view():
    torch = enabled()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        base = device_bytes(torch, 10 * MIB)
        view = base[5 * MIB:]
    assert view.data_ptr() != base.data_ptr()
    view.record_stream(torch.cuda.current_stream())
    hold(True)
    device_bytes(torch, MIB).zero_()  # the stream has something to do
    where = span(base)
    del base, view
    with torch.cuda.stream(side):
        assert device_bytes(torch, 10 * MIB).data_ptr() not in where
    hold(False)
    torch.cuda.synchronize()


def check_memory_stats_multigpu():
    torch = enabled()
    assert torch.cuda.device_count() == 2
    held = {device: [] for device in (0, 1)}
    for size in (1000, 3 * MIB, 30 * MIB):
        for device in (0, 1):
            other = torch.cuda.memory_allocated(1 - device)
            before = torch.cuda.memory_allocated(device)
            held[device].append(device_bytes(torch, size, f"cuda:{device}"))
            assert torch.cuda.memory_allocated(device) >= before + size
            assert torch.cuda.memory_allocated(1 - device) == other
            assert torch.cuda.max_memory_allocated(device) >= torch.cuda.memory_allocated(device)
    most = torch.cuda.max_memory_allocated(0)
    held[0].clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated(0) == 0 and torch.cuda.max_memory_allocated(0) == most
    torch.cuda.reset_peak_memory_stats(0)
    assert torch.cuda.max_memory_allocated(0) == 0 and torch.cuda.max_memory_allocated(1) > 30 * MIB


def check_graph_capture_oom():
    torch = enabled()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            device_bytes(torch, 1 << 40)
    except torch.OutOfMemoryError as e:
        assert "out of memory" in str(e)
    else:
        raise AssertionError("a tebibyte was there")
    # What comes later is as it was.
    graph = torch.cuda.CUDAGraph()
    source = device_bytes(torch, MIB)
    with torch.cuda.graph(graph):
        result = source.clone()
    poke(source, 3)
    graph.replay()
    torch.cuda.synchronize()
    assert content(result) == 3


def check_graph_record_stream():
    """A block that another stream uses is not asked about while a capture goes on, which that would break."""
    torch = enabled()
    side = torch.cuda.Stream()
    potential = device_bytes(torch, 8 * MIB)
    with torch.cuda.stream(side):
        potential.zero_()
    potential.record_stream(side)
    del potential
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    driver().fakecuda_calls_reset()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        kept = [device_bytes(torch, 8 * MIB) for _ in range(4)]
        kept[1].copy_(kept[0])
        graph.capture_end()
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()


def check_graph_two_successive():
    """Two graphs, one after the other, with pools of their own, with one that was named, and with the first one's."""
    torch = enabled()
    for kind in ("apart", "a handle", "the first one's"):
        source = device_bytes(torch, 2 * MIB)
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle() if kind == "a handle" else None
        with torch.cuda.graph(first, pool=pool):
            a = source.clone()
            for _ in range(5):
                a = a.clone()
        with torch.cuda.graph(second, pool=first.pool() if kind == "the first one's" else pool):
            b = a.clone()
            for _ in range(5):
                b = b.clone()
        for value in (1, 2, 3):
            poke(source, value)
            first.replay()
            second.replay()
            torch.cuda.synchronize()
            assert (content(a), content(b)) == (value, value), kind
        del first, second, a, b
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
