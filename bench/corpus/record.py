"""Records what a PyTorch program asks of its allocator, without a device: on PyTorch's `meta` device, whose tensors
have shapes and storages but no bytes. Autograd, modules and optimizers are the real ones; each storage that an
operator makes is an allocation, and its end is the free, in the program's order.

What it does not see is what kernels take for themselves while they run (workspaces of libraries, temporary buffers of
reductions and sorts). Nothing may depend on the value of a tensor.
"""
import collections
import contextlib
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# So many operators later the device has done what another stream had to do, and a block that it used is free.
TRAIL = 256


class Trace:
    """The events of one program, in order."""

    def __init__(self):
        self.events = []  # (id, bytes, stream), or (id,) for a free
        self.steps = []
        self.now = self.peak = self.last = 0
        self.bytes_of = {}

    def alloc(self, size, stream=0):
        self.last += 1
        self.events.append((self.last, size, stream))
        self.bytes_of[self.last] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        return self.last

    def free(self, block):
        self.events.append((block,))
        self.now -= self.bytes_of.pop(block)

    def step(self):
        self.steps.append(len(self.events))

    def write(self, path, name, source):
        with open(path, "w", encoding="utf-8") as out:
            out.write(f"# name: {name}\n# source: {source}\n")
            out.write(f"# peak_live_bytes: {self.peak}\n# events: {len(self.events)}\n")
            if self.steps:
                out.write(f"# step_starts: {','.join(map(str, self.steps))}\n")
            for e in self.events:
                out.write(f"f {e[0]}\n" if len(e) == 1 else f"a {e[0]} {e[1]} {e[2]}\n")


class Recorder(TorchDispatchMode):
    """Within it, and within `torch.device("meta")`, everything is recorded into `trace`."""

    def __init__(self, trace):
        super().__init__()
        self.trace = trace
        self.current = 0  # the stream
        self.live = {}  # storage -> [block, weak reference, whether another stream has used it]
        self.late = collections.deque()  # (operator from which on, block)
        self.operators = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.operators += 1
        while self.late and self.late[0][0] <= self.operators:
            self.trace.free(self.late.popleft()[1])
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
                self.see(leaf)
        return out

    def see(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.live or size == 0:
            return
        block = self.trace.alloc(size, self.current)
        self.live[key] = [block, weakref.ref(storage, lambda _: self.gone(key)), False]

    def gone(self, key):
        block, _, elsewhere = self.live.pop(key)
        if elsewhere:
            self.late.append((self.operators + TRAIL, block))
        else:
            self.trace.free(block)

    @contextlib.contextmanager
    def stream(self, number):
        before, self.current = self.current, number
        try:
            yield
        finally:
            self.current = before

    def record_stream(self, tensor):
        """Another stream has used it: its block is free only when the device is past that."""
        self.live[tensor.untyped_storage()._cdata][2] = True


def record(program, rng):
    """The trace of `program(rng, recorder)`."""
    torch.manual_seed(0)
    trace = Trace()
    recorder = Recorder(trace)
    with torch.device("meta"), recorder:
        program(rng, recorder)
    return trace
