"""Trains a small network on the device "pond", whose memory is a Millpond pool, and on the CPU: the losses are the same.

    python train.py LIBRARY        the back end, as README.md builds it
"""

import sys

import torch


class Pond:
    """What PyTorch asks of a back end's Python module: torch.pond."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """The processor's generator makes all random numbers."""


def load(library: str) -> None:
    torch.utils.rename_privateuse1_backend("pond")
    torch._register_device_module("pond", Pond)
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.ops.load_library(library)


def train(device: str, steps: int) -> list[float]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(768, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)
    ).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    losses = []
    for step in range(steps):
        pictures = torch.randn(8 + step % 3, 3, 16, 16).to(device)
        kinds = torch.randint(0, 10, (8 + step % 3,)).to(device)
        loss = torch.nn.functional.cross_entropy(model(pictures), kinds)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def other_streams() -> None:
    """Memory that another stream uses is not reused before that stream has passed, whoever drops the tensor."""
    size = 256 << 20
    here = torch.empty(size, dtype=torch.uint8)
    waited = False
    for _ in range(5):  # the copy may be over before this thread looks
        tensor = torch.zeros(size, dtype=torch.uint8, device="pond")
        stream = torch.Stream(device="pond")
        with stream:
            here.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)
        del tensor
        stats = torch.accelerator.memory_stats()
        waited |= stats["allocated_bytes.all.current"] < size <= stats["active_bytes.all.current"]
        stream.synchronize()
    assert waited, "the memory was free while it was read"


def out_of_memory() -> None:
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="pond")
    except torch.OutOfMemoryError as error:
        print("refused:", str(error).splitlines()[0])
    else:
        raise AssertionError("a PiB was served")


def main() -> None:
    load(sys.argv[1])
    here, there = train("cpu", 12), train("pond", 12)
    assert here == there, (here, there)
    print(f"the losses of {len(there)} steps are the CPU's, to the last bit: {there[0]:.4f} ... {there[-1]:.4f}")
    other_streams()
    out_of_memory()
    stats = torch.accelerator.memory_stats()
    assert stats["num_ooms"] == 1 and stats["allocation.all.allocated"] > 100, stats
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated() >= 0
    torch.accelerator.empty_cache()
    print(f"{stats['allocation.all.allocated']} tensors, {torch.accelerator.memory_allocated()} bytes live, "
          f"{torch.accelerator.memory_reserved()} reserved after empty_cache")
    assert torch.accelerator.memory_reserved() <= torch.accelerator.memory_allocated() + (2 << 20)


if __name__ == "__main__":
    main()
