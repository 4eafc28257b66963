"""A program whose every byte is written for real: CPU tensors in Millpond's memory (enable_cpu)."""
import gc
import os
import subprocess
import sys
import threading

PROGRAM = """
import hashlib, sys, threading, time
import torch
import millpond_torch
ours = sys.argv[1] == "ours"
if ours:
    millpond_torch.enable_cpu()
torch.manual_seed(7)
torch.set_num_threads(2)
kind, steps = sys.argv[2], int(sys.argv[3])

class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(512, 128)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = torch.nn.Linear(128, 512)

    def forward(self, x):
        return self.out(self.body(self.embed(x)))

if kind == "words":
    model, loss = Words(), torch.nn.CrossEntropyLoss()
    def batch(step):  # lengths vary, as sentences do
        x = torch.randint(0, 512, (8, 24 + step * 7 % 41))
        return x, x.roll(1, 1)
    def error(x, y): return loss(model(x).flatten(0, 1), y.flatten())
else:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 10))
    def batch(step):
        return torch.randn(16, 3, 32 + step % 3 * 8, 48), torch.randint(0, 10, (16,))
    def error(x, y): return torch.nn.functional.cross_entropy(model(x), y)

optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = hashlib.sha256()
began = None
for step in range(steps):
    if step == steps // 4:
        began = time.process_time()
    optimiser.zero_grad()
    value = error(*batch(step))
    value.backward()
    optimiser.step()
    text.update(value.detach().numpy().tobytes())
took = (time.process_time() - began) / (steps - steps // 4)
for p in model.parameters():
    text.update(p.detach().numpy().tobytes())
import resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
stats = millpond_torch.cpu_memory_stats() if ours else {}
print(text.hexdigest(), took, peak, stats.get("allocated_bytes.peak", 0), stats.get("reserved_bytes.peak", 0), stats.get("blocks.total", 0))
"""


def run(who, kind, steps):
    done = subprocess.run([sys.executable, "-c", PROGRAM, who, kind, str(steps)], stdout=subprocess.PIPE, text=True, check=True)
    return answer(done.stdout)


def forked(who, kind, steps):
    """The same in a child of this process, which has loaded PyTorch and done nothing with it; its peak means nothing."""
    output, ours = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(ours, 1)
            sys.argv = ["-c", who, kind, str(steps)]
            exec(PROGRAM, {"__name__": "__main__"})
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    os.close(ours)
    with open(output) as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer(text)


def answer(said):
    text, *numbers = said.split()
    return text, [float(n) for n in numbers]


def on_ours():
    import torch
    import millpond_torch
    millpond_torch.enable_cpu()
    return torch, millpond_torch


def live(millpond_torch):
    gc.collect()
    return millpond_torch.cpu_memory_stats()["blocks.current"]


def check_losses_and_weights_are_the_same_bit_by_bit():
    for kind, steps in [("words", 24), ("pictures", 24)]:
        (usual, _), (ours, numbers) = forked("theirs", kind, steps), forked("ours", kind, steps)
        assert usual == ours, kind
        assert numbers[4] > 1000, f"{kind}: only {numbers[4]} blocks were Millpond's"


def check_all_goes_back():
    torch, millpond_torch = on_ours()
    before = live(millpond_torch)
    kept = [torch.ones(n * 1000) for n in range(1, 200)]
    assert all(t.data_ptr() % 64 == 0 for t in kept)
    assert live(millpond_torch) == before + len(kept)
    total = sum(t.sum().item() for t in kept)
    assert total == 1000 * sum(range(1, 200))
    del kept
    assert live(millpond_torch) == before


def check_what_was_there_before_stays_and_may_go():
    import torch
    old = [torch.full((n * 100,), float(n)) for n in range(1, 100)]
    torch, millpond_torch = on_ours()
    before = live(millpond_torch)
    assert all(bool((t == n).all()) for n, t in enumerate(old, 1))
    grown = [t.resize_(t.numel() * 2) for t in old]  # a storage that grows takes the allocator of its own
    assert all(bool((t[:n * 100] == n).all()) for n, t in enumerate(grown, 1))
    del old, grown
    assert live(millpond_torch) == before


def check_threads_free_each_others_tensors():
    torch, millpond_torch = on_ours()
    before, lock, shelf, wrong = live(millpond_torch), threading.Lock(), [], []

    def work(number):
        for i in range(400):
            t = torch.full((1 + (i * 37 + number) % 5000,), float(number * 1000 + i))
            with lock:
                shelf.append((t, number * 1000 + i))
                old = shelf.pop(0) if len(shelf) > 20 else None
            if old is not None and not bool((old[0] == old[1]).all()):
                wrong.append(old[1])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and all(bool((t == n).all()) for t, n in shelf)
    shelf.clear()
    assert live(millpond_torch) == before


def check_the_workers_of_a_data_loader():
    torch, millpond_torch = on_ours()
    held = torch.arange(100_000)

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            held.add_(1)  # the worker's copy
            more = torch.zeros(50_000) + i  # the worker's own memory
            return more[:100].clone() + held[0] * 0

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        batches = torch.cat(list(loader))
        assert torch.equal(batches[:, 0], torch.arange(64.0)), batches[:, 0]
    assert torch.equal(held, torch.arange(100_000)), "a worker's work came to its parent"


def check_a_request_that_cannot_be_served():
    torch, millpond_torch = on_ours()
    before = live(millpond_torch)
    try:
        torch.empty(1 << 50, dtype=torch.uint8)
    except RuntimeError as e:
        assert "Millpond: not enough memory: you tried to allocate 1125899906842624 bytes" in str(e), e
        assert "cpu" in str(e), e
    else:
        raise AssertionError("a PiB was served")
    assert live(millpond_torch) == before
    assert torch.ones(10).sum() == 10


def check_the_profiler_sees_it():
    torch, _ = on_ours()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        t = torch.ones(1 << 20)
        del t
    assert max(e.self_cpu_memory_usage for e in seen.key_averages()) >= 4 << 20


if __name__ == "__main__":
    print("| program | bit by bit the same | ms of processor a step: PyTorch's, Millpond | peak of the process [MiB]: PyTorch's, Millpond | Millpond's blocks, reserved [MiB] |")
    print("| --- | --- | --- | --- | --- |")
    for kind, steps in [("words", 120), ("pictures", 120)]:
        rounds = [(run("theirs", kind, steps), run("ours", kind, steps)) for _ in range(5)]
        (text, _), (same, numbers) = rounds[0]
        times = [sorted(r[who][1][0] for r in rounds)[2] * 1000 for who in (0, 1)]
        peaks = [sorted(r[who][1][1] for r in rounds)[2] / 2**20 for who in (0, 1)]
        print(f"| {kind} | {'yes' if all(a[0] == b[0] == text == same for a, b in rounds) else 'NO'} | {times[0]:.2f}, {times[1]:.2f} | "
              f"{peaks[0]:.0f}, {peaks[1]:.0f} | {numbers[2] / 2**20:.1f}, {numbers[3] / 2**20:.1f} |")
