"""Forked children that leave by sys.exit, and let go of tensors of their parent's on the way. In 2.6 the end of a tensor
makes an event, records it and asks for it, in a destructor: what fails there ends the process."""
import gc
import os
import signal
import sys

import numpy as np

from support import main, same, to_device


def status_of(work):
    """The exit status of a child that does the work; below 0: a signal."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        work()  # leaves by an exception, through all frames
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_a_child_leaves_while_tensors_of_its_frames_end():
    tensor = to_device(np.arange(1000))
    sums = tensor + tensor
    for status in [0, 3]:
        assert status_of(lambda: sys.exit(status)) == status
    same(sums, 2 * np.arange(1000))


def check_a_child_ends_a_tensor_and_leaves():
    keep = [to_device(np.arange(100_000), i % 2) for i in range(4)]

    def work():
        keep.clear()
        gc.collect()
        sys.exit(5)

    assert status_of(work) == 5
    for tensor in keep:
        same(tensor, np.arange(100_000))


def check_a_child_waits_for_the_device_and_leaves():
    import paddle

    keep = to_device(np.arange(1000))

    def work():
        paddle.device.synchronize()
        sys.exit(0)

    assert status_of(work) == 0
    same(keep, np.arange(1000))


if __name__ == "__main__":
    main(globals())
