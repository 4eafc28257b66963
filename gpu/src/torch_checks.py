"""PyTorch on Millpond, on a card: rows for the table of gpu/check. Each check is a process of its own, under the pluggable
allocator and under the native one, which is built here.

    torch_checks.py                all of them
    torch_checks.py CHECK...       these, by the names of their functions
"""
import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile

from checks import row, run, skip

MIB = 1 << 20


def enabled(native):
    import millpond_torch
    import torch
    millpond_torch.enable(native=native)
    return torch


def full(torch, value, count=MIB):
    return torch.full((count,), float(value), device="cuda")


def exit_with_live_tensors(native):
    """A process that ends with tensors, a graph and work in flight ends cleanly."""
    torch = enabled(native)
    kept = [full(torch, i, 5 * MIB) for i in range(8)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = kept[0] + kept[1]
    graph.replay()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(50):
            kept.append(kept[0] * 2)
    sys.modules["kept"] = (kept, graph, result)  # beyond the end of this function


def loader_workers(native):
    """Workers of a DataLoader are forks of a process that uses the card."""
    torch = enabled(native)
    kept = full(torch, 3)
    data = torch.utils.data.TensorDataset(torch.arange(4096, dtype=torch.float32))
    loader = torch.utils.data.DataLoader(data, batch_size=256, num_workers=2, pin_memory=True)
    total = sum(x.cuda(non_blocking=True).sum().item() for (x,) in loader)
    assert total == 4096 * 4095 / 2, total
    assert bool((kept == 3).all())


def two_graphs_in_one_pool(native):
    """The first of two graphs that share a pool is dropped; the second one's memory is nobody else's."""
    torch = enabled(native)
    source = full(torch, 1)
    pool = torch.cuda.graph_pool_handle()
    graphs = []
    for size in (4, 7):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            scratch = source.repeat(size) * 2
            result = scratch[:MIB] + 1
            del scratch
        graphs.append((graph, result))
    first = graphs.pop(0)
    del first
    torch.cuda.empty_cache()
    eager = [full(torch, 9, 2 * MIB) for _ in range(40)]
    for value in (5, 6):
        source.fill_(value)
        graphs[0][0].replay()
        assert bool((graphs[0][1] == 2 * value + 1).all()), "the replay is wrong"
        assert all(bool((t == 9).all()) for t in eager), "the replay wrote into a tensor of others"


def growing_and_shrinking(native):
    """Tensors of all sizes under a limit, each checked before it goes."""
    torch = enabled(native)
    torch.cuda.set_per_process_memory_fraction((256 << 20) / torch.cuda.mem_get_info()[1])
    state, live, refused = 7, [], 0
    for step in range(600):
        state = (state * 1103515245 + 12345) % (1 << 31)
        count = 1 << (8 + state % 17)
        try:
            live.append((full(torch, step, count), step))
        except RuntimeError as e:
            assert str(e).startswith("CUDA out of memory."), e
            refused += 1
            del live[: len(live) // 2]
        while len(live) > 60 or live and state % 5 == 0:
            tensor, value = live.pop(state % len(live))
            assert bool((tensor == value).all()), step
            break
    assert refused > 0, "nothing was refused: the limit is too high"


def nccl_group(native):
    torch = enabled(native)
    import torch.distributed as dist
    if not dist.is_nccl_available():
        skip("this PyTorch has no NCCL")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    return torch, dist


def nccl(native):
    """An all-reduce over NCCL, on as many cards as there are, in buffers of ours."""
    torch, dist = nccl_group(native)
    for count in (1000, 5 * MIB, 40 * MIB):
        tensor = full(torch, 3, count)
        dist.all_reduce(tensor)
        assert bool((tensor == 3).all())
    dist.destroy_process_group()


def compiled(native):
    """torch.compile with graph trees, whose graphs share memory by checkpoints of the allocator; without those (pluggable)
    compiled kernels alone."""
    if importlib.util.find_spec("triton") is None:
        skip("no Triton")
    torch = enabled(native)
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()

    def step(x):
        return net(x).relu().sum(dim=1) * 2

    fast = torch.compile(step, mode="reduce-overhead" if native else None)
    inputs = [torch.randn(64, 256, device="cuda") for _ in range(4)] + [torch.randn(32, 256, device="cuda")]
    for turn in range(4):
        for x in inputs:
            waste = [full(torch, 9, n) for n in (3000, 70000)]
            torch.compiler.cudagraph_mark_step_begin()  # results of the step before may be overwritten
            with torch.no_grad():
                got, want = fast(x).clone(), step(x)
            assert torch.allclose(got, want, atol=1e-4, rtol=1e-4), turn
            assert all(bool((w == 9).all()) for w in waste), "a graph wrote into a tensor of others"
    if native:
        from torch._inductor.cudagraph_trees import get_manager
        assert get_manager(0, create_if_none_exists=False) is not None, "no graph trees were used"
    for x in inputs[:3]:
        net.zero_grad(set_to_none=True)  # gradients lie in the memory of the graphs, too
        torch.compiler.cudagraph_mark_step_begin()
        fast(x).sum().backward()
        got = [p.grad.clone() for p in net.parameters()]
        net.zero_grad(set_to_none=True)
        step(x).sum().backward()
        assert all(torch.allclose(a, p.grad, atol=1e-3, rtol=1e-3) for a, p in zip(got, net.parameters())), "gradients"
        del got
    torch.cuda.empty_cache()


def reduced_in_a_registered_pool(native, own):
    if not native:
        skip("needs pools of PyTorch's")
    torch, dist = nccl_group(native)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda", 0))
    dist.all_reduce(full(torch, 1))  # makes the communicator
    try:
        pool = torch.cuda.MemPool(backend.mem_allocator) if own else torch.cuda.MemPool()
    except RuntimeError as e:  # not on this card, or not by this NCCL
        dist.destroy_process_group()
        skip(str(e).splitlines()[0])
    with torch.cuda.use_mem_pool(pool):
        tensors = [full(torch, 5, count) for count in (1000, 5 * MIB, 40 * MIB)]
    backend.register_mem_pool(pool)
    for tensor in tensors:
        dist.all_reduce(tensor)
        assert bool((tensor == 5).all())
    backend.deregister_mem_pool(pool)
    del tensors, tensor, pool
    torch.cuda.empty_cache()
    dist.destroy_process_group()


def nccl_registers_a_pool(native):
    """A pool of Millpond's."""
    reduced_in_a_registered_pool(native, own=False)


def nccl_registers_its_own_memory(native):
    """A pool of NCCL's own allocator."""
    reduced_in_a_registered_pool(native, own=True)


ALLOCATOR = """
#include <cstddef>
#include <sys/types.h>
extern "C" {
int cuMemAlloc_v2(unsigned long long*, std::size_t);
int cuMemFree_v2(unsigned long long);
int taken, given;
void* take(ssize_t size, int, void*) {
  unsigned long long at = 0;
  if (cuMemAlloc_v2(&at, static_cast<std::size_t>(size)) != 0) return nullptr;
  ++taken;
  return reinterpret_cast<void*>(at);
}
void give(void* at, ssize_t, int, void*) {
  ++given;
  cuMemFree_v2(reinterpret_cast<unsigned long long>(at));
}
}
"""


def pools_of_another_allocator(native):
    """Tensors, a second stream, a graph and an end at out of memory in a MemPool whose allocator is the program's."""
    if not native:
        skip("needs pools of PyTorch's")
    torch = enabled(native)
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "liballocator.so")
        subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", made], input=ALLOCATOR.encode(), check=True)
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        loaded = ctypes.CDLL(made)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(made, "take", "give").allocator()
    taken = ctypes.c_int.in_dll(loaded, "taken")
    source = full(torch, 1)
    pool = torch.cuda.MemPool(allocator, use_on_oom=True)
    side = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        held = [full(torch, i, 3 * MIB) for i in range(8)]
        for turn in range(30):
            tensor, result = held.pop(0), None
            with torch.cuda.stream(side):
                side.wait_stream(torch.cuda.default_stream())
                for _ in range(5):
                    result = tensor * 2
            tensor.record_stream(side)
            del tensor
            held.append(full(torch, turn + 8, 3 * MIB))
            side.synchronize()
            assert bool((result == 2 * turn).all()), turn
    assert taken.value > 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        scratch = source.repeat(7) * 2
        result = scratch[:MIB] + 1
        del scratch
    eager = [full(torch, 9, 2 * MIB) for _ in range(20)]
    for value in (5, 6):
        source.fill_(value)
        graph.replay()
        assert bool((result == 2 * value + 1).all()), "the replay is wrong"
        assert all(bool((t == 9).all()) for t in eager), "the replay wrote into a tensor of others"
    # What is free in the pool serves others at out of memory.
    del held, eager
    before = taken.value
    torch.cuda.set_per_process_memory_fraction(0.001)
    tensor = full(torch, 3, 2 * MIB)
    assert bool((tensor == 3).all()) and taken.value == before


def emptied_caches(native):
    """The cache is emptied again and again beside live tensors: what goes to the device and comes back is right."""
    torch = enabled(native)
    kept = [full(torch, i, (i + 1) * MIB) for i in range(6)]
    for turn in range(20):
        waste = [full(torch, turn, n * MIB) for n in (1, 3, 9, 27)]
        assert all(bool((t == turn).all()) for t in waste)
        del waste
        torch.cuda.empty_cache()
        assert all(bool((t == i).all()) for i, t in enumerate(kept)), turn


def history_of_a_training(native):
    """Each event of a recorded training has the frames of its call, and what the events add up to is what the statistics say.
    Autograd's threads have no frames of Python's, with any allocator: there those of C++ are asked for."""
    if not native:
        skip("needs PyTorch's own recording")
    torch = enabled(native)
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.Adam(net.parameters())

    def train(turns):
        for turn in range(turns):
            optimizer.zero_grad(set_to_none=True)
            net(torch.randn(64 + turn * 9, 512, device="cuda")).sum().backward()
            optimizer.step()

    def changes():
        torch.cuda.synchronize()
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        return [e for e in events if e["action"] in ("alloc", "free_requested")]
    train(1)  # what cuBLAS and the optimizer keep
    torch.cuda.memory._record_memory_history(stacks="all")
    train(2)
    bare = [e for e in changes() if not e.get("frames")]
    assert not bare, f"{len(bare)} of {len(changes())} events have no frames"
    torch.cuda.memory._record_memory_history(None)
    peak = total = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(stacks="python")
    train(20)
    found = changes()
    assert len(found) > 500
    for event in found:
        total += event["size"] if event["action"] == "alloc" else -event["size"]
        peak = max(peak, total)
    told = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    assert (total, peak) == told, (total, peak, *told)
    print(f"SEEN {len(found)} events")


CHECKS = [exit_with_live_tensors, two_graphs_in_one_pool, loader_workers, growing_and_shrinking, nccl, nccl_registers_a_pool,
          nccl_registers_its_own_memory, pools_of_another_allocator, emptied_caches, compiled,
          history_of_a_training]


def main():
    try:
        import torch
    except ImportError as e:
        row("PyTorch: is there", f"not installed: {e}", "", "skip")
        return 0
    if not torch.cuda.is_available():
        row("PyTorch: is there", "sees no card", "", "skip")
        return 0
    names = sys.argv[1:]
    chosen = [check for check in CHECKS if not names or check.__name__ in names]
    kinds = {"pluggable": False}
    try:
        import millpond_torch
        millpond_torch.build_native()
        kinds["native"] = True
        row("PyTorch: the native allocator builds", torch.__version__, "builds", "pass")
    except Exception as e:  # no compiler on this machine, or another release
        print(e, file=sys.stderr)  # the whole of it, for the log
        # What is wrong, of all that a compiler says.
        e = next((line for line in str(e).splitlines() if "error:" in line), e)
        row("PyTorch: the native allocator builds", e, "", "skip" if "cannot be run" in str(e) else "fail")
    bad = 0
    for how, native in kinds.items():
        for check in chosen:
            name = f"{check.__name__.replace('_', ' ')}, {how}"
            bad += not run(__file__, f"PyTorch: {name}", check.__name__, str(int(native)))
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] in ("0", "1"):
        {f.__name__: f for f in CHECKS}[sys.argv[1]](sys.argv[2] == "1")
    else:
        sys.exit(main())
