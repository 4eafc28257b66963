"""The device type, its devices, and tensors of every type there and back. Run with three devices."""
import numpy as np
import paddle

from support import KIB, MIB, RELEASE, NotHere, cpu, main, place, raw, same, to_device, TYPE

DEVICES = 3
SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 4), (1000, 33)]
# With NumPy's own bytes as the truth.
NUMPY_TYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
               "complex128"]
# PaddlePaddle's own, made from float32.
OTHER_TYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


def check_the_device_type_appears():
    assert TYPE in paddle.device.get_all_custom_device_type()
    assert paddle.device.is_compiled_with_custom_device(TYPE) in (True, False)  # it answers


def check_the_devices_are_listed():
    wanted = [f"{TYPE}:{i}" for i in range(DEVICES)]
    assert paddle.device.get_available_custom_device() == wanted, paddle.device.get_available_custom_device()
    assert paddle.base.core.get_custom_device_count(TYPE) == DEVICES


def check_a_device_can_be_set():
    for i in reversed(range(DEVICES)):
        paddle.set_device(f"{TYPE}:{i}")
        assert paddle.device.get_device() == f"{TYPE}:{i}"
        assert str(paddle.ones([2]).place) == f"Place({TYPE}:{i})"


def check_tensors_of_every_numpy_type_go_there_and_back():
    random = np.random.default_rng(1)
    for name in NUMPY_TYPES:
        for shape in SHAPES:
            bits = random.integers(0, 256, size=int(np.prod(shape, dtype=int)) * np.dtype(name).itemsize)
            array = bits.astype("uint8").view(name).reshape(shape)
            if name == "bool":
                array = (bits % 2).astype(bool).reshape(shape)
            tensor = to_device(array)
            assert str(tensor.place) == f"Place({TYPE}:0)" and tensor.shape == list(shape), (name, shape)
            assert tensor.numpy().dtype == np.dtype(name)
            same(tensor, array)


def check_tensors_of_paddles_own_types_go_there_and_back():
    values = np.linspace(-3, 3, 1001).astype("float32")
    for name in OTHER_TYPES:
        if not hasattr(paddle, name):
            continue
        before = paddle.to_tensor(values, place=cpu()).astype(name)
        there = before._copy_to(place(), True)
        back = there._copy_to(cpu(), True)
        assert str(there.place) == f"Place({TYPE}:0)" and there.dtype == before.dtype
        assert raw(back) == raw(before) and len(raw(back)) == (2002 if name == "bfloat16" else 1001), name


def check_large_tensors_go_there_and_back():
    for size in [MIB - 1, MIB, 5 * MIB + 3, 24 * MIB]:
        array = np.random.default_rng(size).integers(0, 256, size=size).astype("uint8")
        same(to_device(array), array)


def check_results_stay_on_the_device_of_their_operands():
    for i in range(DEVICES):
        a = to_device(np.arange(12, dtype="float32").reshape(3, 4), i)
        b = paddle.matmul(a, a, transpose_y=True) + 1
        assert str(b.place) == f"Place({TYPE}:{i})"
        x = np.arange(12, dtype="float32").reshape(3, 4)
        same(b, x @ x.T + 1)


def check_copies_between_devices():
    for size in [1, 3 * KIB, 3 * MIB]:
        array = np.random.default_rng(size).standard_normal(size).astype("float32")
        tensor = to_device(array, 0)
        for i in [1, 2, 0, 2]:
            tensor = tensor._copy_to(place(i), True)
            assert str(tensor.place) == f"Place({TYPE}:{i})"
        same(tensor, array)


def check_writes_in_place():
    paddle.set_device(f"{TYPE}:1")
    a = paddle.zeros([4, 4])
    a[1] = 3.0
    a[:, 2] = 5.0
    want = np.zeros((4, 4), "float32")
    want[1] = 3
    want[:, 2] = 5
    same(a, want)


def check_a_device_that_is_not_there_is_an_error():
    if RELEASE < (3, 2):
        raise NotHere("before 3.2 PaddlePaddle ends the process there, before it asks the plugin")
    for use in [lambda: paddle.set_device(f"{TYPE}:{DEVICES}"),
                lambda: to_device(np.ones(3), DEVICES).numpy()]:
        try:
            use()
        except Exception:
            continue
        raise AssertionError(f"there are only {DEVICES} devices")
    same(to_device(np.ones(3)), np.ones(3))  # and the others still work


def check_saved_tensors_load_again():
    array = np.random.default_rng(5).standard_normal((64, 64)).astype("float32")
    paddle.save({"w": to_device(array)}, "saved.pdparams")
    same(paddle.load("saved.pdparams")["w"], array)


if __name__ == "__main__":
    main(globals())
