"""The framework's library and PaddlePaddle with Millpond's plugin in one process: two copies that must never meet.

`together.py LIBRARY ORDER`; ORDER is `framework` or `paddle`, whoever is loaded and used first. Run with
CUSTOM_DEVICE_ROOT, two host devices of 256 MiB each by environment; the framework sets three for itself.
"""
import gc
import os
import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "framework"))
sys.dont_write_bytecode = True

from checks import run_checks  # noqa: E402
from tiny import Tiny, TinyError  # noqa: E402

MIB = 1 << 20
LIBRARY, ORDER = sys.argv[1:3]
keep = []  # alive until the process ends


def start_framework():
    tiny = Tiny(LIBRARY)
    tiny.configure_host(3, 256 * MIB)
    keep.append(tiny.session("host", 2))
    keep[-1].train(5)
    return tiny


def start_paddle():
    import paddle

    keep.append(paddle.to_tensor([1.0, 2.0], place=paddle.CustomPlace("millpond", 0)) + 1)
    return paddle


if ORDER == "framework":
    tiny = start_framework()
    paddle = start_paddle()
else:
    paddle = start_paddle()
    tiny = start_framework()

import numpy as np  # noqa: E402  (PaddlePaddle brings it)

PLACE = paddle.CustomPlace("millpond", 0)
DEVICE = "millpond:0"


def paddle_bytes():
    return paddle.device.memory_allocated(DEVICE)


def filled(size_bytes):
    return paddle.to_tensor(np.ones(size_bytes, "uint8"), place=PLACE)


def check_each_has_its_own_devices():
    assert tiny.device_count("host") == 3
    assert [d for d in paddle.device.get_available_custom_device() if d.startswith("millpond")] == \
        ["millpond:0", "millpond:1"]
    try:
        tiny.device_count("millpond")
    except TinyError:
        pass
    else:
        raise AssertionError("the framework's copy knows the plugin's device type")


def check_each_counts_its_own_memory():
    gc.collect()
    ours, theirs = tiny.stats("host", 0).allocated_bytes, paddle_bytes()
    tensor = filled(32 * MIB)
    assert paddle_bytes() - theirs >= 32 * MIB
    assert tiny.stats("host", 0).allocated_bytes == ours
    block = tiny.alloc("host", 0, 48 * MIB)
    assert tiny.stats("host", 0).allocated_bytes - ours == 48 * MIB
    assert 32 * MIB <= paddle_bytes() - theirs < 33 * MIB
    tiny.free(block)
    del tensor
    gc.collect()
    assert (tiny.stats("host", 0).allocated_bytes, paddle_bytes()) == (ours, theirs)


def check_each_has_its_own_pool():
    """160 of 256 MiB each: together they would not fit into one."""
    block = tiny.alloc("host", 0, 160 * MIB)
    tensor = filled(160 * MIB)
    try:
        tiny.alloc("host", 0, 160 * MIB)
    except TinyError as why:
        assert "no room" in str(why), why
    else:
        raise AssertionError("the framework's device gave more than it has")
    try:
        filled(160 * MIB)
    except MemoryError:
        pass
    else:
        raise AssertionError("PaddlePaddle's device gave more than it has")
    tiny.free(block)
    del tensor
    gc.collect()


def check_neither_takes_the_others_block():
    tensor = filled(MIB)
    address = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor._ptr()
    try:
        tiny.free(address)
    except TinyError:
        pass
    else:
        raise AssertionError("the framework freed PaddlePaddle's memory")
    assert (tensor.numpy() == 1).all()


def paddle_losses(steps, place):
    paddle.seed(3)
    rng = np.random.default_rng(5)
    start = rng.standard_normal((4, 1)).astype("float32")
    weight = paddle.to_tensor(start, place=place, stop_gradient=False)
    out = []
    for _ in range(steps):
        x = paddle.to_tensor(rng.standard_normal((16, 4)).astype("float32"), place=place)
        loss = ((x @ weight) ** 2).mean()
        loss.backward()
        with paddle.no_grad():
            weight = paddle.to_tensor((weight - 0.1 * weight.grad).numpy(), place=place, stop_gradient=False)
        out.append(float(loss))
    return out


def check_both_train_and_the_values_are_the_processors():
    with tiny.session("cpu") as session:
        want_ours = session.train(20)
    want_theirs = paddle_losses(8, paddle.CPUPlace())
    got = {}

    def ours():
        with tiny.session("host", 1) as session:
            got["ours"] = session.train(20)

    thread = threading.Thread(target=ours)
    thread.start()
    got["theirs"] = paddle_losses(8, PLACE)
    thread.join()
    assert got["ours"] == want_ours, (got["ours"], want_ours)
    assert got["theirs"] == want_theirs, (got["theirs"], want_theirs)
    assert want_theirs[-1] < want_theirs[0]


def check_a_tensor_of_the_framework_in_paddle():
    session = tiny.session("host", 1)
    session.train(2)
    values = np.array(np.from_dlpack(session.weights()))
    tensor = paddle.utils.dlpack.from_dlpack(session.weights().__dlpack__())
    session.close()
    assert tensor.shape == [2, 32] and (tensor.numpy() == values).all()
    on_device = paddle.to_tensor(tensor.numpy(), place=PLACE) * 2
    assert (on_device.numpy() == values * 2).all()
    assert tiny.stats("host", 1).blocks != 0, "the tensor's memory went with the session"
    del tensor
    gc.collect()
    assert tiny.stats("host", 1).blocks == 0, "PaddlePaddle did not give the tensor back"


def check_a_forked_child():
    child = os.fork()
    if child == 0:
        try:
            keep[-1].train(1) if hasattr(keep[-1], "train") else keep[0].train(1)
        except TinyError as why:
            os._exit(0 if "fork" in str(why) else 3)
        os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    tiny.free(tiny.alloc("host", 0, MIB))
    filled(MIB)


run_checks(globals())
# Whatever is in `keep` goes when the process does.
