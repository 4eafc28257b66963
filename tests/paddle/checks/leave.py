"""Ways to leave a process that uses the device; the argument names one. Prints `left`, and must end with status 0.

run.py runs these again and again; nothing else may be printed.
"""
import os
import sys
import threading

import numpy as np
import paddle

TYPE = "millpond"
keep = []


def tensor(ordinal=0, size=200_000):
    return paddle.to_tensor(np.ones(size, "float32"), place=paddle.CustomPlace(TYPE, ordinal))


def leave_with_tensors_alive():
    keep.extend([tensor(0), tensor(1), tensor(0) + 1])


def leave_with_streams_at_work():
    paddle.set_device(f"{TYPE}:0")
    stream = paddle.device.Stream(f"{TYPE}:0")
    with paddle.device.stream_guard(stream):
        for _ in range(5):
            keep.append(tensor() * 2)
    keep.append(stream)


def leave_after_training():
    paddle.set_device(f"{TYPE}:1")
    net = paddle.nn.Linear(16, 16)
    optimizer = paddle.optimizer.Adam(parameters=net.parameters())
    net(paddle.ones([4, 16])).sum().backward()
    optimizer.step()
    keep.extend([net, optimizer])


def leave_with_a_thread_in_the_middle():
    started = threading.Event()

    def work():
        while True:
            keep[:] = [tensor(1, 1000) + 1]
            started.set()

    threading.Thread(target=work, daemon=True).start()
    started.wait()
    # The interpreter would freeze the thread at any point, inside PaddlePaddle too, which then crashes without us as
    # well. So the process ends as a training script does that has had enough.
    sys.stdout.write("left\n")
    sys.stdout.flush()
    os._exit(0)


def leave_after_forks():
    keep.append(tensor())
    for _ in range(2):
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    keep.append(tensor())


def leave_without_any_use():
    assert TYPE in paddle.device.get_all_custom_device_type()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("left", flush=True)
