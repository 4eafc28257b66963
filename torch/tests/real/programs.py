"""What whole programs do: streams, threads, captures of several streams, forks, and an end with everything alive."""
import threading

from fake import (MIB, apart, collect, content, device_bytes, driver, enabled, freed_while_another_stream_reads, hold,
                  poke, settings, since, span, used)
from graphs import broken_capture, copying_graph, replays


def check_record_stream_is_kept():
    torch = enabled()
    place = freed_while_another_stream_reads(torch, 64 * MIB)
    others = [device_bytes(torch, 16 * MIB) for _ in range(8)]
    assert not [t for t in others if t.data_ptr() in place], "the other stream has not read it yet"
    hold(False)
    torch.cuda.synchronize()


def check_a_capture_of_several_streams():
    torch = enabled()
    source = device_bytes(torch, MIB)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        first = device_bytes(torch, 30 * MIB)
        first[:MIB].copy_(source)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            second = device_bytes(torch, 40 * MIB)
            second[:MIB].copy_(first[:MIB])
            result = device_bytes(torch, MIB)
            result.copy_(second[:MIB])
            places = [span(first), span(second)]
            del second
        main.wait_stream(side)
        del first
    torch.cuda.empty_cache()
    eager = [device_bytes(torch, 4 * MIB) for _ in range(60)]
    with torch.cuda.stream(side):
        eager += [device_bytes(torch, 4 * MIB) for _ in range(60)]
    taken = [t for t in eager if any(t.data_ptr() in place for place in places)]
    assert not taken, f"{len(taken)} eager tensors lie in the graph's memory"
    for value in (3, 4):
        assert replays(torch, graph, source, result, value)


def check_captures_of_several_threads():
    torch = enabled()
    made, errors = [], []
    torch.cuda.synchronize()
    sources = [device_bytes(torch, MIB) for _ in range(4)]

    def capture(number):
        try:
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                scratch = device_bytes(torch, (20 + number) * MIB)
                scratch[:MIB].copy_(sources[number])
                result = device_bytes(torch, MIB)
                result.copy_(scratch[:MIB])
                place = span(scratch)
                del scratch
                graph.capture_end()
            made.append((number, graph, result, place))
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=capture, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
    places = sorted((place.start, place.stop) for _, _, _, place in made)
    assert all(a[1] <= b[0] for a, b in zip(places, places[1:])), "two graphs share memory"
    for number, graph, result, _ in made:
        assert replays(torch, graph, sources[number], result, 10 + number)


def check_the_cache_is_emptied_in_a_capture():
    torch = enabled()
    source = device_bytes(torch, MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch = device_bytes(torch, 30 * MIB)
        scratch[:MIB].copy_(source)
        result = device_bytes(torch, MIB)
        result.copy_(scratch[:MIB])
        del scratch
        torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    assert replays(torch, graph, source, result, 6)


@settings(FAKECUDA_CAPACITY="1G")
def check_no_memory_in_a_capture():
    torch = enabled()
    source = device_bytes(torch, MIB)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            device_bytes(torch, 100 * MIB)
            device_bytes(torch, 2000 * MIB)
    except RuntimeError as e:
        assert "out of memory" in str(e), e
    else:
        raise AssertionError("2000 MiB of 1 GiB")
    del graph
    collect()
    graph, result, _ = copying_graph(torch, source, 600 * MIB)
    assert replays(torch, graph, source, result, 3)


@since("2.15", "PyTorch does not release the pool of a capture that broke, whoever allocates")
def check_many_captures_break():
    torch = enabled()
    torch.cuda.synchronize()
    for _ in range(20):
        del_me = broken_capture(torch)
        del del_me
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert used() < 64 * MIB, f"{used() // MIB} MiB are left"


def check_training_gives_all_memory_back():
    torch = enabled()
    import millpond_torch
    weights = [torch.nn.Parameter(torch.zeros(1 << 18, device="cuda")) for _ in range(6)]
    optimiser = torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=False)
    live = []
    for step in range(30):
        x = torch.zeros(1 << 18, device="cuda")
        for w in weights:
            x = torch.relu(x * w + step)
        x.sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        del x
        live.append(millpond_torch.memory_allocated())
    assert len(set(live[2:])) == 1, live
    del weights, optimiser, w
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert millpond_torch.memory_allocated() == 0 == used(), (millpond_torch.memory_allocated(), used())


def check_the_workers_of_a_data_loader():
    torch = enabled()
    held = device_bytes(torch, 8 * MIB)
    poke(held, 5)
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    batches = [batch[0].to("cuda", non_blocking=True) for batch in loader]
    torch.cuda.synchronize()
    assert torch.equal(torch.cat([b.cpu() for b in batches]), torch.arange(64.0))
    assert content(held) == 5


def check_a_limit():
    torch = enabled()
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        device_bytes(torch, 3 << 30)
    except RuntimeError as e:
        assert str(e).startswith("CUDA out of memory."), e
    else:
        raise AssertionError("3 GiB of a limit of 2")
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert device_bytes(torch, 3 << 30).data_ptr() != 0


@settings(MILLPOND_ALLOC_CONF="streams_announced:off")
def check_a_stream_of_others_ends_before_its_block():
    # PyTorch destroys none of its own streams, so the promise that it tells is given by enable(). Who brings others takes it back.
    import ctypes
    torch = enabled()
    torch.cuda.synchronize()
    handle = ctypes.c_void_p()
    assert driver().cuStreamCreate(ctypes.byref(handle), 1) == 0
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        tensor = device_bytes(torch, 64 * MIB)
    assert driver().cuStreamSynchronize(handle) == 0
    assert driver().cuStreamDestroy_v2(handle) == 0
    del tensor
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert used() == 0, f"{used() // MIB} MiB are left"


def pools_on_another_backend():
    torch = enabled()
    import millpond_torch
    pool = millpond_torch.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        inside = [device_bytes(torch, 8 * MIB) for _ in range(3)]
    poke(inside[0], 9)
    outside = device_bytes(torch, 8 * MIB)
    assert all(apart(t, outside) for t in inside) and content(inside[0]) == 9
    del inside, pool
    collect()
    return torch


@settings(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
def check_pools_without_caching():
    pools_on_another_backend()


@settings(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
def check_pools_and_graphs_of_the_drivers_pool():
    torch = pools_on_another_backend()
    source = device_bytes(torch, MIB)
    graph, result, _ = copying_graph(torch, source, 16 * MIB)
    assert replays(torch, graph, source, result, 4)


def check_the_end_with_everything_alive():
    """The interpreter goes while tensors, graphs, pools and streams live; the status of this process is the check."""
    global everything
    torch = enabled()
    import millpond_torch
    source = device_bytes(torch, MIB)
    pool = millpond_torch.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        inside = device_bytes(torch, 8 * MIB)
    graph = copying_graph(torch, source, 32 * MIB)
    graph[0].replay()
    everything = [source, pool, inside, graph, torch.cuda.Stream(), device_bytes(torch, MIB, "cuda:1")]
