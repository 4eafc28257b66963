#!/usr/bin/env python3
"""Trains small programs on a GPU under Millpond and under PyTorch's own allocators, and prints one table.

    python3 torch/compare.py [--runs 5] [--steps 30] [--json FILE] [--only resnet,graph,...] [--quick] [--rows]

Each program runs in processes of its own, `--runs` times under each allocator in rotated order, from the same seeds and with
deterministic kernels:

    native           PyTorch's caching allocator
    expandable       the same with expandable_segments:True
    millpond         Millpond, switched on by millpond_torch.enable()
    millpond-native  Millpond as PyTorch's own kind of allocator, enable(native=True); left out where that does not build

Programs: a ResNet; the same with another batch size in each step; a transformer whose sequences have another length in each
step, once as it is and once with torch.cuda.empty_cache() after each step, and once with so much of the card taken that just
an eighth more is left than it needs under `native`; a network that is captured into a CUDA graph and replayed; a program of
several streams with record_stream. At the end the largest batch of the ResNet that fits is searched under each
(`--only largest`: that alone).

The data is made on the device, and nothing waits for it inside the steps. Compared are the losses, which must be those of
`native` bit by bit, the bytes that the process takes of the card (mem_get_info, at its highest after a step, without the
context), and the time of a step: the shortest, median and longest of the runs.

Needs a GPU, a PyTorch built with CUDA, and libmillpond-torch.so (MILLPOND_TORCH_LIBRARY, or installed). torchvision is
not needed. The exit status is 0 when each program ran and all losses are equal.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ALLOCATORS = ["native", "expandable", "millpond", "millpond-native"]
WARM = 5


# ---- programs: each yields one loss for each step ----

def resnet(torch, steps, batches=(32,)):
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
    for step in range(steps):
        batch = batches[step % len(batches)]
        x = torch.randn(batch, 3, 224, 224, device="cuda")
        y = torch.randint(100, (batch,), device="cuda")
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss


def batches(torch, steps):
    yield from resnet(torch, steps, (32, 5, 61, 18, 47, 9, 64, 26))


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
        tokens = torch.randint(1000, (16, length), device="cuda")
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
        x.normal_()
        y.normal_()
        # Ordinary work between the replays, that must not get the graph's memory.
        waste = [torch.full((n, 1000), 7.0, device="cuda") for n in (3, 700, 90)]
        captured.replay()
        # A copy, as the next replay writes there; and whether all of the others are as they were, without a wait.
        good = torch.stack([(w == 7.0).all() for w in waste]).all()
        yield torch.where(good, loss.detach(), torch.full_like(loss, float("nan")))


def streams(torch, steps):
    sides = [torch.cuda.Stream() for _ in range(4)]
    weight = torch.randn(1024, 1024, device="cuda") / 32
    main = torch.cuda.current_stream()
    for step in range(steps):
        parts = []
        for i, side in enumerate(sides):
            x = torch.randn(512 + 64 * ((step + i) % 5), 1024, device="cuda")
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


def emptied(torch, steps):
    for loss in transformer(torch, steps):
        yield loss
        torch.cuda.empty_cache()


PROGRAMS = {"resnet": resnet, "batches": batches, "transformer": transformer, "emptied": emptied, "limit": transformer,
            "graph": graph, "streams": streams}
QUICK = ["batches", "transformer", "graph", "limit"]


# ---- one process: one program under one allocator ----

def prepared(allocator):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if allocator.startswith("millpond"):
        import millpond_torch

        millpond_torch.enable(native=allocator == "millpond-native")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return torch


def taken(torch):
    """Bytes that the card lacks. The driver answers without waiting for work."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def one(program, allocator, steps, leave):
    """Runs in the child; prints one line of JSON. `leave`: bytes of the card that are left to it."""
    torch = prepared(allocator)
    torch.cuda.init()
    if leave:
        # From the driver, so that no allocator knows it.
        free, _ = torch.cuda.mem_get_info()
        at = ctypes.c_uint64()
        driver = ctypes.CDLL("libcuda.so.1")
        status = driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(max(free - leave, 1)))
        assert status == 0, f"cuMemAlloc of the rest of the card: {status}"
    before = taken(torch)
    torch.manual_seed(11)
    torch.cuda.manual_seed(11)
    losses, most, began = [], 0, 0.0
    for step, loss in enumerate(PROGRAMS[program](torch, steps)):
        losses.append(loss.detach().clone())
        most = max(most, taken(torch) - before)
        if step + 1 == WARM:
            torch.cuda.synchronize()
            began = time.perf_counter()
    torch.cuda.synchronize()
    passed = time.perf_counter() - began
    print("RESULT " + json.dumps({
        "losses": [loss.item().hex() for loss in losses],
        "taken_bytes": most,
        "step_seconds": passed / (steps - WARM),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }), flush=True)


def fits(allocator, batch):
    """Whether three steps of the ResNet with this batch fit; runs in the child."""
    torch = prepared(allocator)
    try:
        for _ in resnet(torch, 3, (batch,)):
            torch.cuda.synchronize()
    except RuntimeError as e:
        if "out of memory" not in str(e):
            raise
        print('RESULT {"fits": false}', flush=True)
        return
    print('RESULT {"fits": true}', flush=True)


def child(allocator, *words):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    here = str(pathlib.Path(__file__).resolve().parent / "python")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [here, env.get("PYTHONPATH")]))
    if allocator == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, __file__, "--child", allocator, *map(str, words)]
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


def largest_batch(allocator, near=None):
    """The largest batch that fits, to a 32nd of it, searched from `near` on; None where that cannot be told."""
    least, most, at = 0, None, near or 32
    step = max(at // 16, 1) if near else at
    while most is None or most - least > max(least // 32, 1):
        result = child(allocator, "fits", at)
        if "error" in result:
            return None
        if result["fits"]:
            least = at
        else:
            most = at
        if most is None:
            at, step = at + step, 2 * step
        elif least == 0 and near:
            at, step = max(at - step, 1), 2 * step
        else:
            at = (least + most) // 2
    return least


# ---- the table ----

class Table:
    """Markdown, or rows of gpu/check."""

    def __init__(self, rows):
        self.rows = rows
        if not rows:
            print("| program | allocator | losses | taken of the card | step: shortest, median, longest, of how many |")
            print("| --- | --- | --- | --- | --- |")

    def left_out(self, program):
        """No time was left for this program."""
        if self.rows:
            print(f"row\ttraining: {program}\tno time was left\t\tskip", flush=True)
        else:
            print(f"| {program} | | no time was left | | |", flush=True)

    def add(self, program, allocator, losses, bytes_, times, good):
        if self.rows:
            state = "info" if losses == "" else "pass" if good else "fail"
            value = ", ".join(filter(None, [bytes_, times])) or losses
            print(f"row\ttraining: {program}, {allocator}\t{value}\t{'losses equal' if state != 'info' else ''}\t{state}",
                  flush=True)
        else:
            print(f"| {program} | {allocator} | {losses} | {bytes_} | {times} |", flush=True)


def measure(program, allocators, options, table, leave, until):
    """Runs of a program under each allocator, in rotated order.

    No turn begins that would end after `until`, but for the first. Returns the results, whether all is well, and how many
    seconds the last turn took.
    """
    runs = {allocator: [] for allocator in allocators}
    took = 0.0
    for turn in range(options.runs):
        begin = time.monotonic()
        if turn > 0 and begin + took > until:
            break
        for i in range(len(allocators)):
            allocator = allocators[(i + turn) % len(allocators)]
            runs[allocator].append(child(allocator, "run", program, options.steps, leave))
        took = time.monotonic() - begin
    native = next((r["losses"] for r in runs[allocators[0]] if "losses" in r), None)
    good = True
    for allocator in allocators:
        errors = [r["error"] for r in runs[allocator] if "error" in r]
        if errors:
            good = False
            table.add(program, allocator, errors[0], "", "", False)
            continue
        equal = all(r["losses"] == native for r in runs[allocator])
        good = good and equal
        times = sorted(r["step_seconds"] * 1e3 for r in runs[allocator])
        spread = f"{times[0]:.2f}, {statistics.median(times):.2f}, {times[-1]:.2f} ms of {len(times)}"
        most = max(r["taken_bytes"] for r in runs[allocator])
        table.add(program, allocator, "equal" if equal else "DIFFERENT", f"{most / 2**20:.1f} MiB", spread, equal)
    return runs, good, took


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--runs", type=int, default=5)
    words.add_argument("--steps", type=int, default=30)
    words.add_argument("--seconds", type=float, default=float("inf"),
                       help="fewer runs, and then fewer programs, where this is over otherwise")
    words.add_argument("--only", help="programs, with commas between")
    words.add_argument("--quick", action="store_true", help="fewer programs, 15 steps, and no search for the largest batch")
    words.add_argument("--rows", action="store_true", help="rows of gpu/check instead of a table")
    words.add_argument("--json", type=pathlib.Path, help="all numbers go there too")
    words.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = words.parse_args()
    end = time.monotonic() + options.seconds
    if options.child:
        allocator, what, *rest = options.child
        if what == "fits":
            fits(allocator, int(rest[0]))
        else:
            one(rest[0], allocator, int(rest[1]), int(rest[2]))
        return 0
    if options.quick:
        options.steps = min(options.steps, 15)
    programs = options.only.split(",") if options.only else QUICK if options.quick else list(PROGRAMS)
    wants_largest = "largest" in programs or not options.quick and not options.only
    programs = [program for program in programs if program != "largest"]
    for program in programs:
        if program not in PROGRAMS:
            words.error(f"{program!r} is none of {', '.join(PROGRAMS)}, largest")
    if options.steps <= WARM or options.runs < 1:
        words.error(f"more than {WARM} steps, and at least one run")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "python"))
    try:
        import torch
    except ImportError as e:
        sys.exit(f"PyTorch cannot be imported ({e}); install it with CUDA support, see https://pytorch.org/get-started")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU (torch.cuda.is_available() is false); this needs one, and a PyTorch built with CUDA")

    allocators = list(ALLOCATORS)
    try:
        import millpond_torch

        millpond_torch.build_native()
    except Exception as e:  # no compiler, or another release
        allocators.remove("millpond-native")
        print(f"enable(native=True) is left out: {e}", file=sys.stderr)
    table = Table(options.rows)
    good, results, took = True, {}, 0.0
    for program in programs:
        if time.monotonic() + took > end:  # a turn of another program takes about as long
            table.left_out(program)
            continue
        leave = 0
        if program == "limit":
            first = child("native", "run", "transformer", options.steps, 0)
            if "error" in first:
                table.add(program, "native", first["error"], "", "", False)
                good = False
                continue
            leave = first["taken_bytes"] * 9 // 8
        now = time.monotonic()
        share = (end - now) / (len(programs) - programs.index(program))
        results[program], well, took = measure(program, allocators, options, table, leave, now + share)
        good = good and well
    if wants_largest:
        batch = None
        for allocator in allocators:
            batch = results[f"largest batch/{allocator}"] = largest_batch(allocator, batch)
            table.add("resnet, the largest batch that fits", allocator, "" if options.rows else "-", str(batch), "", True)
    first = next((r for p in results.values() if isinstance(p, dict) for a in p.values() for r in a if "device" in r), None)
    if first and not options.rows:
        print(f"\n{first['device']}, PyTorch {first['torch']}, up to {options.runs} runs of {options.steps} steps; losses beside "
              "those of `native`, bit by bit")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
