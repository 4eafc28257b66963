"""A device that is too small. The default answer lets PaddlePaddle drop its idle chunks and try again. Run with 64 MiB."""
import gc

import numpy as np

from support import MIB, main, same, to_device


def too_much(bytes_):
    try:
        t = to_device(np.zeros(bytes_, "uint8"))
    except MemoryError as e:
        return str(e)
    raise AssertionError(f"{t.shape} fitted")


def check_too_large_a_tensor_is_a_memory_error():
    text = too_much(512 * MIB)
    assert "512" in text, text


def check_the_process_goes_on():
    for _ in range(5):
        too_much(512 * MIB)
        array = np.random.default_rng(1).integers(0, 256, 20 * MIB).astype("uint8")
        same(to_device(array), array)


def check_idle_chunks_are_dropped_and_the_request_works():
    gc.collect()
    chunks = [to_device(np.full(6 * MIB, i, "uint8")) for i in range(8)]
    assert len(chunks) == 8
    chunks.clear()
    gc.collect()
    # PaddlePaddle keeps eight chunks of 6 MiB, none of which is large enough.
    array = np.full(52 * MIB, 7, "uint8")
    same(to_device(array), array)


def check_a_full_device_serves_again_when_tensors_die():
    gc.collect()
    held = []
    try:
        for i in range(1000):
            held.append(to_device(np.full(3 * MIB, i % 251, "uint8")))
        raise AssertionError("3 GB fitted")
    except MemoryError:
        pass
    assert 15 <= len(held) <= 21, len(held)
    for i, t in enumerate(held):
        same(t, np.full(3 * MIB, i, "uint8"))
    del held[::2]
    gc.collect()
    same(to_device(np.arange(MIB // 4)), np.arange(MIB // 4))


def check_the_other_device_is_not_touched():
    held = [to_device(np.zeros(40 * MIB, "uint8"), 1)]
    too_much(512 * MIB)
    assert held[0].numpy().sum() == 0


if __name__ == "__main__":
    main(globals())
