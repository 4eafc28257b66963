"""Makes the pickles beside this file, with PyTorch's own allocator: what `millpond view` is tested with.

    scripts/torch.sh -- python cli/tests/torch/train.py segments.pickle
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True scripts/torch.sh -- python cli/tests/torch/train.py expandable.pickle

They are of PyTorch 2.15.0 over the fake driver. It prints what PyTorch's own statistics say, which the tests expect.
"""
import sys

import torch

memory = torch.cuda.memory


def empty(size, device="cuda:0"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def load_weights():
    return [empty(3_000_000) for _ in range(3)]


def forward(n):
    return empty(1_000_000 * n)


def main():
    older = [empty(700_000), empty(4_000_000)]
    memory._record_memory_history(stacks="python", max_entries=10000)
    weights = load_weights()
    other = empty(5_000, "cuda:1")
    kept = []
    for n in range(1, 6):
        x = forward(n)
        if n % 2:
            kept.append(forward(n))
        del x
    del older[0]
    memory._set_memory_metadata("side")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        side = forward(2)
    memory._set_memory_metadata("")
    used = forward(9)
    used.record_stream(stream)
    del used
    try:
        empty(1 << 40)
    except torch.OutOfMemoryError:
        pass
    memory._dump_snapshot(sys.argv[1])
    stats = torch.cuda.memory_stats()
    for name in ["allocated_bytes.all.peak", "allocated_bytes.all.current", "reserved_bytes.all.current", "requested_bytes.all.current"]:
        print(name, stats[name])
    del weights, other, kept, side, older


main()
