"""Tensors for other processes: torch.multiprocessing, with two real processes and the fake driver between them."""
import os
import sys

from fake import MIB, all_given_back, collect, content, device_bytes, enabled, poke, settings


def other(jobs, answers):
    """The other process: does what it is told with what it is sent."""
    torch = enabled()
    held = {}
    for name, what, *more in iter(jobs.get, None):
        try:
            if what == "keep":
                held[name] = more[0]
                answers.put([content(t) for t in held[name]])
            elif what == "write":
                list(map(poke, held[name], more[0]))
                answers.put("written")
            elif what == "same":
                answers.put(held[name][0].untyped_storage().data_ptr() == more[0].untyped_storage().data_ptr())
            elif what == "drop":
                del held[name]
                more = None
                collect()
                torch.cuda.synchronize()
                answers.put("dropped")
        except Exception as e:
            answers.put(repr(e))
    held.clear()
    collect()


class Other:
    """That process, from here."""

    def __init__(self, torch):
        multiprocessing = torch.multiprocessing.get_context("spawn")
        self.jobs, self.answers = multiprocessing.Queue(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=other, args=(self.jobs, self.answers), daemon=True)
        self.process.start()

    def __call__(self, *job):
        self.jobs.put(job)
        return self.answers.get(timeout=180)  # it loads PyTorch first, and this machine may have more to do

    def end(self):
        self.jobs.put(None)
        self.process.join(60)
        assert self.process.exitcode == 0, self.process.exitcode


def shared_both_ways():
    torch = enabled()
    to = Other(torch)
    held = [device_bytes(torch, size) for size in (1000, 5 * MIB, 70 * MIB)]
    list(map(poke, held, (1, 2, 3)))  # no variable of a loop keeps one of them
    assert to("a", "keep", held) == [1, 2, 3]
    assert to("a", "write", [11, 12, 13]) == "written"
    assert [content(t) for t in held] == [11, 12, 13]
    assert to("b", "keep", [held[1][MIB:]]) == [12], "a view of it"
    assert to("a", "same", held[0]) is True, "one address for one block"
    places = [t.data_ptr() for t in held]
    del held
    collect()
    torch.cuda.ipc_collect()
    again = [device_bytes(torch, size) for size in (1000, 5 * MIB, 70 * MIB)]
    assert not set(places) & {t.data_ptr() for t in again}, "memory that another process uses was handed out"
    list(map(poke, again, (99, 99, 99)))
    assert to("c", "keep", again[:1]) == [99]
    for name in "abc":
        assert to(name, "drop") == "dropped"
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 75 * MIB + 1024, "it is free again"
    to.end()
    del again
    collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0
    all_given_back(torch, 0)


def check_mapped_memory_for_another_process():
    shared_both_ways()


@settings(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")
def check_segments_for_another_process():
    shared_both_ways()


def check_a_tensor_of_another_device():
    torch = enabled()
    to = Other(torch)
    held = device_bytes(torch, 3 * MIB, "cuda:1")
    poke(held, 7)
    assert to("a", "keep", [held]) == [7]
    to.end()


def check_the_other_process_dies():
    """The tensor stays whole. PyTorch's count of its users never goes to zero, so it is never freed, as with PyTorch's own."""
    torch = enabled()
    to = Other(torch)
    held = device_bytes(torch, 5 * MIB)
    poke(held, 4)
    assert to("a", "keep", [held]) == [4]
    to.process.kill()
    to.process.join()
    poke(held, 5)
    assert content(held) == 5
    sys.stdout.flush()
    os._exit(0)  # PyTorch crashes at the end of a process that has shared what nobody gave back, whatever the allocator


def check_what_cannot_be_opened_says_why():
    torch = enabled()
    held = device_bytes(torch, MIB)
    device, handle, *rest = held.untyped_storage()._share_cuda_()
    assert handle[:8] == b"MPTORCH1"

    def opened(bytes_):
        try:
            torch.UntypedStorage._new_shared_cuda(device, bytes_, *rest)
        except RuntimeError as e:
            return str(e)
        raise AssertionError("it was opened")
    assert "not shared by Millpond" in opened(b"\0" * 64)
    assert "not shared by Millpond" in opened(b"MPTO")
    assert "not whole" in opened(handle[:-1])
    assert "not whole" in opened(handle + b"\0")
    wrong = bytearray(handle)
    wrong[40:44] = (2 ** 22 - 1).to_bytes(4, sys.byteorder)  # the process
    assert "cannot be found" in opened(bytes(wrong))
    wrong = bytearray(handle)
    wrong[8] ^= 1  # when it began
    assert "has ended" in opened(bytes(wrong))
    wrong = bytearray(handle)
    wrong[60] ^= 255  # what Millpond wrote
    assert opened(bytes(wrong))
    # The count that the receiver would have lowered; PyTorch crashes at the end of a process that has shared what nobody
    # gave back, also with its own allocator.
    torch.UntypedStorage._release_ipc_counter_cuda(rest[2], rest[3])
    del held
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


def check_a_forked_child_withholds_nothing():
    """It has copies of all descriptors, so memory that the parent has shared and freed would stay in use as long as it lives."""
    torch = enabled()
    held = device_bytes(torch, 5 * MIB)
    device, handle, *rest = held.untyped_storage()._share_cuda_()
    until, end = os.pipe()
    told, runs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(runs, b"1")
        os.read(until, 1)
        os._exit(0)
    assert os.read(told, 1) == b"1"
    for fd in descriptors(handle):
        assert not os.path.lexists(f"/proc/{child}/fd/{fd}"), fd
        assert os.path.lexists(f"/proc/self/fd/{fd}"), fd
    torch.UntypedStorage._release_ipc_counter_cuda(rest[2], rest[3])
    del held
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0
    all_given_back(torch, 0)
    os.close(end)
    assert os.waitpid(child, 0)[1] == 0


def descriptors(handle):
    """The numbers of the sender's descriptors, which end what it sends."""
    count = int.from_bytes(handle[32:40], sys.byteorder)
    return [int.from_bytes(handle[len(handle) - 4 * n:][:4], sys.byteorder) for n in range(count, 0, -1)]
