"""Nothing is printed: with the plugin, programs say exactly what they say without it."""
import os
import subprocess
import sys

from support import main

PROGRAM = """
import os, gc
import numpy as np
import paddle
paddle.set_device(os.environ["DEVICE"])
def place():
    return paddle.CustomPlace("millpond", 0) if os.environ["DEVICE"] != "cpu" else paddle.CPUPlace()
x = paddle.to_tensor(np.arange(100000, dtype="float32"))
y = (x + 1).sum()
held = [paddle.to_tensor(np.zeros(1 << 20)) for _ in range(4)]
del held
gc.collect()
try:
    if os.environ["DEVICE"] != "cpu":
        paddle.to_tensor(np.zeros(1 << 28, "uint8"))
except MemoryError:
    pass
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print(float(y))
"""


def output(device):
    # Below the level of fatal errors the host's own log is left out, so that what stays is said by nobody of it.
    env = dict(os.environ, DEVICE=device, GLOG_minloglevel="3", GLOG_v="0", MILLPOND_HOST_CAPACITY="64M")
    if device == "cpu":
        del env["CUSTOM_DEVICE_ROOT"]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done
    return done.stdout, done.stderr


def check_a_program_says_what_it_says_without_us():
    without, with_us = output("cpu"), output("millpond:0")
    assert without == with_us == (without[0], ""), (without, with_us)


if __name__ == "__main__":
    main(globals())
