"""Copies between devices of the plugin's type that PaddlePaddle does not wait for. It queues them on the stream of the
destination (paddle/phi/core/tensor_utils.cc and paddle/phi/core/memory/memcpy.cc, 2.6 to 3.3). Run with three devices."""
import numpy as np

from support import KIB, MIB, TYPE, main, place, same, to_device

DEVICES = 3
SIZES = [1, 3 * KIB, 3 * MIB]


def random(size):
    return np.random.default_rng(size).standard_normal(size).astype("float32")


def check_a_copy_that_is_not_waited_for_arrives():
    for size in SIZES:
        array = random(size)
        source = to_device(array, 0)
        for i in range(1, DEVICES):
            copy = source._copy_to(place(i), False)
            assert str(copy.place) == f"Place({TYPE}:{i})"
            same(copy, array)


def check_copies_of_both_kinds_in_a_row_arrive():
    for size in SIZES:
        array = random(size)
        tensor = to_device(array, 0)
        # PaddlePaddle orders a copy that it does not wait for with nothing on its source's device. So every second one
        # is waited for: that one comes after all work on its source, the copy before included.
        for n, i in enumerate([1, 2, 0, 2, 1, 0]):
            tensor = tensor._copy_to(place(i), n % 2 == 1)
        same(tensor, array)


def check_work_on_the_destination_comes_after_the_copy():
    array = random(MIB)
    for _ in range(10):
        same(to_device(array, 0)._copy_to(place(1), False) + 1, array + np.float32(1))


def check_the_source_may_end_while_it_is_copied():
    arrays = [random(MIB + i) for i in range(8)]
    for _ in range(5):
        copies = []
        for array in arrays:
            # The source is nobody's when the copy has been queued, and the next one may get its memory.
            copies.append(to_device(array, 0)._copy_to(place(1), False))
        for copy, array in zip(copies, arrays):
            same(copy, array)


if __name__ == "__main__":
    main(globals())
