#!/usr/bin/env python3
"""Trains small programs on a GPU under Millpond and under PyTorch's own allocators, and prints one table.

    python3 torch/compare.py [--steps 30] [--json FILE] [--only resnet,transformer,graph,streams]

Each program runs in a process of its own, once for each allocator, from the same seeds and with deterministic kernels:

    native      PyTorch's caching allocator
    expandable  the same with expandable_segments:True
    millpond    Millpond, switched on by millpond_torch.enable()

Programs: a ResNet; a transformer whose sequences have another length in each step; a network that is captured into a
CUDA graph and replayed; a program of several streams with record_stream. Compared are the losses, which must be those
of `native` bit by bit, the peak of the reserved bytes, and the time of a step (median, after the warm-up).

Needs a GPU, a PyTorch built with CUDA, and libmillpond-torch.so (MILLPOND_TORCH_LIBRARY, or installed). torchvision is
not needed. The exit status is 0 when each program ran and all losses are equal.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ALLOCATORS = ["native", "expandable", "millpond"]
WARM = 5


# ---- programs: each yields one loss for each step ----

def resnet(torch, steps):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, come, go, stride):
            super().__init__()
            self.path = nn.Sequential(
                nn.Conv2d(come, go, 3, stride, 1, bias=False), nn.BatchNorm2d(go), nn.ReLU(inplace=True),
                nn.Conv2d(go, go, 3, 1, 1, bias=False), nn.BatchNorm2d(go))
            self.short = nn.Identity() if come == go and stride == 1 else nn.Sequential(
                nn.Conv2d(come, go, 1, stride, bias=False), nn.BatchNorm2d(go))

        def forward(self, x):
            return torch.relu(self.path(x) + self.short(x))

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    come = 64
    for go, stride in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]:
        layers.append(Block(come, go, stride))
        come = go
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    for _ in range(steps):
        x = torch.randn(32, 3, 224, 224).cuda(non_blocking=True)
        y = torch.randint(100, (32,)).cuda(non_blocking=True)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss


def transformer(torch, steps):
    nn = torch.nn

    class Layer(nn.Module):
        """Attention by hand: the library's fused kernels are not deterministic everywhere."""

        def __init__(self, width):
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            n, length, width = x.shape
            q, k, v = self.qkv(self.a(x)).view(n, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
            weight = torch.softmax(q @ k.transpose(-1, -2) / (width // 8) ** 0.5, -1)
            x = x + self.out((weight @ v).transpose(1, 2).reshape(n, length, width))
            return x + self.mlp(self.b(x))

    embed, head = nn.Embedding(1000, 512).cuda(), nn.Linear(512, 1000).cuda()
    body = nn.Sequential(*[Layer(512) for _ in range(6)]).cuda()
    parameters = [p for m in (embed, body, head) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-4)
    for step in range(steps):
        length = 64 + (step * 193) % 449
        tokens = torch.randint(1000, (16, length)).cuda()
        # A product instead of a look-up: the gradient of a look-up adds in no fixed order.
        x = nn.functional.one_hot(tokens, 1000).to(torch.float32) @ embed.weight
        loss = nn.functional.cross_entropy(head(body(x)).flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss


def graph(torch, steps):
    nn = torch.nn
    net = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    x, y = torch.zeros(256, 1024, device="cuda"), torch.zeros(256, 10, device="cuda")

    def step():
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()
    for _ in range(steps):
        x.copy_(torch.randn(256, 1024))
        y.copy_(torch.randn(256, 10))
        # Ordinary work between the replays, that must not get the graph's memory.
        waste = [torch.full((n, 1000), 7.0, device="cuda") for n in (3, 700, 90)]
        captured.replay()
        assert all(bool((w == 7.0).all()) for w in waste)
        yield loss


def streams(torch, steps):
    sides = [torch.cuda.Stream() for _ in range(4)]
    weight = torch.randn(1024, 1024).cuda() / 32
    main = torch.cuda.current_stream()
    for step in range(steps):
        parts = []
        for i, side in enumerate(sides):
            x = torch.randn(512 + 64 * ((step + i) % 5), 1024).cuda()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                y = torch.relu(x @ weight)
                for _ in range(4):
                    y = torch.tanh(y @ weight)
                x.record_stream(side)
                del x
                parts.append(y.square().mean())
                y.record_stream(main)
        for side, part in zip(sides, parts):
            main.wait_stream(side)
            part.record_stream(main)
        yield torch.stack(parts).sum()


PROGRAMS = {"resnet": resnet, "transformer": transformer, "graph": graph, "streams": streams}


# ---- one process: one program under one allocator ----

def one(program, allocator, steps):
    """Runs in the child; prints one line of JSON."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if allocator == "millpond":
        import millpond_torch

        millpond_torch.enable()
        reserved, allocated = millpond_torch.max_memory_reserved, millpond_torch.max_memory_allocated
    else:
        reserved, allocated = torch.cuda.max_memory_reserved, torch.cuda.max_memory_allocated
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(11)
    losses, times = [], []
    began = time.perf_counter()
    for loss in PROGRAMS[program](torch, steps):
        torch.cuda.synchronize()
        losses.append(loss.item().hex())
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
    print("RESULT " + json.dumps({
        "losses": losses,
        "reserved_bytes": reserved(),
        "allocated_bytes": allocated(),
        "step_seconds": statistics.median(times[WARM:] or times),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }), flush=True)


def child(program, allocator, steps):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    here = str(pathlib.Path(__file__).resolve().parent / "python")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [here, env.get("PYTHONPATH")]))
    if allocator == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, __file__, "--child", program, allocator, "--steps", str(steps)]
    try:
        done = subprocess.run(command, env=env, text=True, timeout=600,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return {"error": "took longer than 600 s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT ") and done.returncode == 0:
            return json.loads(line[len("RESULT "):])
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
    return {"error": f"status {done.returncode}: {lines[-1]}"}


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--steps", type=int, default=30)
    words.add_argument("--only", default=",".join(PROGRAMS), help="programs, with commas between")
    words.add_argument("--json", type=pathlib.Path, help="all numbers go there too")
    words.add_argument("--child", nargs=2, metavar=("PROGRAM", "ALLOCATOR"), help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.child:
        one(*options.child, options.steps)
        return 0
    programs = options.only.split(",")
    for program in programs:
        if program not in PROGRAMS:
            words.error(f"{program!r} is none of {', '.join(PROGRAMS)}")
    try:
        import torch
    except ImportError as e:
        sys.exit(f"PyTorch cannot be imported ({e}); install it with CUDA support, see https://pytorch.org/get-started")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU (torch.cuda.is_available() is false); this needs one, and a PyTorch built with CUDA")

    good, results = True, {}
    print("| program | allocator | losses | reserved, peak | allocated, peak | step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for program in programs:
        native = None
        for allocator in ALLOCATORS:
            result = child(program, allocator, options.steps)
            results[f"{program}/{allocator}"] = result
            if "error" in result:
                good = False
                print(f"| {program} | {allocator} | {result['error']} | | | |", flush=True)
                continue
            native = native or result["losses"]
            equal = result["losses"] == native
            good = good and equal
            print(f"| {program} | {allocator} | {'equal' if equal else 'DIFFERENT'} | "
                  f"{result['reserved_bytes'] / 2**20:.1f} MiB | {result['allocated_bytes'] / 2**20:.1f} MiB | "
                  f"{result['step_seconds'] * 1e3:.2f} ms |", flush=True)
    first = next((r for r in results.values() if "device" in r), None)
    if first:
        print(f"\n{first['device']}, PyTorch {first['torch']}, {options.steps} steps; losses beside those of `native`, "
              "bit by bit")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
