"""Under `naive_best_fit` PaddlePaddle takes one max chunk at first, and what is larger directly. Run with 256 MiB."""
import gc

import numpy as np

from support import MIB, Plugin, main, same, to_device

plugin = Plugin()


def check_the_first_chunk_is_one_request():
    tensor = to_device(np.arange(1000))
    used = plugin.used()
    assert used > 0
    tensors = [to_device(np.full(MIB, i, "uint8")) for i in range(20)]
    assert plugin.used() == used or used < 20 * MIB, (used, plugin.used())
    same(tensor, np.arange(1000))
    for i, t in enumerate(tensors):
        same(t, np.full(MIB, i, "uint8"))


def check_the_total_never_passes_the_capacity():
    total, free = plugin.memory()
    assert total == 256 * MIB and free <= total


def check_memory_is_used_again():
    for i in range(40):  # three times what there is
        array = np.full(20 * MIB, i, "uint8")
        same(to_device(array), array)
        gc.collect()


if __name__ == "__main__":
    main(globals())
