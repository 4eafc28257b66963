"""Tensors of the framework in numpy, by DLPack, without a copy: `numpy_exchange.py LIBRARY`."""
import gc
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "framework"))
sys.dont_write_bytecode = True

from checks import run_checks  # noqa: E402
from tiny import Tiny  # noqa: E402

tiny = Tiny(sys.argv[1])


def check_numpy_sees_the_weights():
    with tiny.session() as session:
        weights = np.from_dlpack(session.weights())
        assert weights.dtype == np.float32 and weights.shape == (2, 32), weights
        assert np.isfinite(weights).all() and weights.any()
        del weights


def check_it_is_the_same_memory():
    with tiny.session() as session:
        weights = np.from_dlpack(session.weights())
        before = weights.copy()
        session.train(3)
        again = np.from_dlpack(session.weights())
        assert again.ctypes.data == weights.ctypes.data
        assert (weights == again).all() and (weights != before).any()
        del weights, again


def check_the_array_outlives_the_session():
    session = tiny.session("host", 1)
    session.train(3)
    weights = np.from_dlpack(session.weights())
    values = weights.copy()
    session.close()
    with tiny.session("host", 1) as other:
        other.train(10)  # would be writing into the same memory, had it been freed
    assert (weights == values).all()
    del weights
    gc.collect()
    assert tiny.stats("host", 1).blocks == 0, "the array's end did not free the block"


def check_the_layout_before_1_0():
    class Old:
        """As producers were that know no `max_version`."""

        def __init__(self, weights):
            self.weights = weights

        def __dlpack_device__(self):
            return self.weights.__dlpack_device__()

        def __dlpack__(self, **_):
            return self.weights.__dlpack__()

    with tiny.session() as session:
        assert session.weights().__dlpack_device__() == (1, 0)
        weights = np.from_dlpack(Old(session.weights()))
        assert (weights == np.from_dlpack(session.weights())).all()
        del weights


def check_nothing_is_left():
    gc.collect()
    assert tiny.stats("host").blocks == 0


run_checks(globals())
