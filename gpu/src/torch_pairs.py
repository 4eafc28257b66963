"""What PyTorch's caching allocator costs: rows for the table of gpu/check."""
import sys
import time

try:
    import torch
except ImportError as e:
    print(f"row\tcost: PyTorch\tnot installed: {e}\t\tskip")
    sys.exit(0)

if not torch.cuda.is_available():
    print("row\tcost: PyTorch\tsees no card\t\tskip")
    sys.exit(0)


def text(size):
    return f"{size / 2**20:.2f} MiB" if size >= 1 << 20 else f"{size} B"


def best_of(runs, loops, call):
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter_ns()
        for _ in range(loops):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / loops)
    return best


torch.cuda.init()
alloc, free = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
# What the two calls cost in Python without an allocator behind them cannot be taken away; it is in the number.
for size in (4096, 1 << 20, 20 << 20):
    ns = best_of(5, 20000, lambda: free(alloc(size)))
    print(f"row\tcost: alloc + free of {text(size)}, PyTorch from Python\t{ns:.0f} ns\t\tinfo")
for size, name in ((1 << 30, "first 1 GiB"), (64 << 20, "64 MiB more")):
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        begin = time.perf_counter_ns()
        at = alloc(size)
        best = min(best, time.perf_counter_ns() - begin)
        free(at)
    torch.cuda.empty_cache()
    print(f"row\tcost: {name}, PyTorch {torch.__version__}\t{best / 1000:.0f} us\t\tinfo")
