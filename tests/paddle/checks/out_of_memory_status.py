"""With MILLPOND_PLUGIN_OOM=status the plain status is given, on which PaddlePaddle raises without a second attempt."""
import gc

import numpy as np

from support import MIB, main, same, to_device


def check_idle_chunks_are_not_dropped():
    chunks = [to_device(np.full(6 * MIB, i, "uint8")) for i in range(8)]
    assert len(chunks) == 8
    chunks.clear()
    gc.collect()
    try:
        to_device(np.zeros(52 * MIB, "uint8"))
    except Exception as e:
        assert str(e)
        return
    raise AssertionError("it was tried again")


def check_the_process_goes_on():
    array = np.full(6 * MIB, 3, "uint8")
    same(to_device(array), array)


if __name__ == "__main__":
    main(globals())
