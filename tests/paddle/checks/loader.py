"""Data loading with forked worker processes, before and after the device was used."""
import os
import signal

import numpy as np
import paddle
from paddle import nn

from support import TYPE, main, same, to_device

DEVICE = f"{TYPE}:0"


class Rows(paddle.io.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return np.full(6, i, "float32"), np.array([i], "int64")


def rows(device, workers):
    paddle.set_device(device)
    loader = paddle.io.DataLoader(Rows(), batch_size=8, num_workers=workers, shuffle=False)
    return [(x.numpy(), y.numpy()) for x, y in loader]


def compare(workers):
    want = rows("cpu", 0)
    got = rows(DEVICE, workers)
    assert len(got) == len(want) == 6
    for (a, b), (c, d) in zip(got, want):
        same(a, c)
        same(b, d)


def check_workers_before_the_device_was_used():
    compare(2)


def check_workers_after_the_device_was_used():
    keep = to_device(np.arange(100_000))
    compare(2)
    same(keep, np.arange(100_000))


def check_without_workers():
    compare(0)


def check_training_from_workers():
    paddle.set_device(DEVICE)
    paddle.seed(1)
    net = nn.Linear(6, 1)
    optimizer = paddle.optimizer.SGD(1e-5, parameters=net.parameters())
    losses = []
    for _ in range(3):
        total = 0.0
        for x, y in paddle.io.DataLoader(Rows(), batch_size=8, num_workers=2):
            loss = nn.functional.mse_loss(net(x), y.astype("float32"))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            total += float(loss)
        losses.append(total)
    assert losses[-1] < losses[0], losses


def check_a_loader_that_is_left_early():
    paddle.set_device(DEVICE)
    for _ in range(3):
        for _ in paddle.io.DataLoader(Rows(), batch_size=4, num_workers=2):
            break


def check_a_forked_child_ends_as_it_wants():
    keep = to_device(np.arange(1000))
    for status in [0, 3]:
        child = os.fork()
        if child == 0:
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
    child = os.fork()
    if child == 0:
        signal.pause()
    # Not SIGTERM: PaddlePaddle's own handler of it may wait for ever in a forked child, also without a plugin.
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    same(keep, np.arange(1000))


if __name__ == "__main__":
    main(globals())
