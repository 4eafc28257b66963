"""Memory statistics and who keeps what, under PaddlePaddle's default strategy, which caches above the plugin.

Three views of the same memory must agree: PaddlePaddle's own counters, what the plugin says through
`device_memory_stats`, and what the process really has in RAM, where the host device's memory lies. Run with 1 GiB.
"""
import gc

import numpy as np
import paddle

from support import GIB, MIB, NotHere, Plugin, TYPE, empty_cache, main, resident_bytes, to_device

DEVICE = f"{TYPE}:0"
# [B] what Millpond may keep of small chunks that are back: less than two granules.
KEPT = 4 * MIB
plugin = Plugin()


def drop():
    gc.collect()
    empty_cache(GIB)


def counter(name):
    if not hasattr(paddle.device, name):
        raise NotHere(f"PaddlePaddle {paddle.__version__} has no paddle.device.{name}")
    return getattr(paddle.device, name)(DEVICE)


def check_the_capacity_is_told():
    total, free = plugin.memory()
    assert total == GIB and 0 < free <= total, (total, free)


def check_paddles_counters_follow_tensors():
    drop()
    before = counter("memory_allocated")
    tensor = to_device(np.zeros(8 * MIB, "uint8"))
    grown = counter("memory_allocated") - before
    assert 8 * MIB <= grown <= 8 * MIB + 64 * 1024, grown
    assert counter("max_memory_allocated") >= before + grown
    assert counter("memory_reserved") >= counter("memory_allocated")
    del tensor
    gc.collect()
    assert counter("memory_allocated") == before


def check_the_plugin_counts_what_paddle_reserves():
    drop()
    tensors = [to_device(np.zeros(n, "uint8")) for n in [100, 5000, 70000, MIB, 3 * MIB + 1, 40 * MIB]]
    reserved, used = counter("memory_reserved"), plugin.used()
    assert reserved <= used + KEPT and used <= reserved + KEPT, (reserved, used)
    assert len(tensors) == 6


def check_what_paddle_gives_back_leaves_the_process():
    """No second cache: what PaddlePaddle drops goes to the device at once."""
    drop()
    before, used_before = resident_bytes(), plugin.used()
    tensor = to_device(np.ones(256 * MIB, "uint8"))
    gc.collect()
    assert resident_bytes() - before > 200 * MIB, "the check sees nothing"
    del tensor
    gc.collect()
    assert plugin.used() - used_before > 200 * MIB, "PaddlePaddle keeps it"
    drop()
    left = resident_bytes() - before
    assert left < 32 * MIB, f"{left} bytes stay"
    assert plugin.used() - used_before <= KEPT


def check_many_small_chunks_leave_too():
    drop()
    used_before, before = plugin.used(), resident_bytes()
    tensors = [to_device(np.ones(256 * 1024, "uint8")) for _ in range(400)]
    assert plugin.used() - used_before >= 99 * MIB
    del tensors
    drop()
    assert plugin.used() - used_before <= KEPT, plugin.used() - used_before
    assert resident_bytes() - before < 32 * MIB


def check_the_same_request_again_and_again_takes_no_more():
    drop()
    for _ in range(3):
        to_device(np.zeros(16 * MIB, "uint8"))
    before = plugin.used()
    for _ in range(50):
        to_device(np.zeros(16 * MIB, "uint8"))
    assert plugin.used() == before


def check_each_device_has_its_own_account():
    drop()
    zero, one = plugin.used(0), plugin.used(1)
    tensor = to_device(np.zeros(32 * MIB, "uint8"), 1)
    assert plugin.used(0) == zero
    assert plugin.used(1) - one >= 32 * MIB - KEPT
    assert tensor.shape == [32 * MIB]


if __name__ == "__main__":
    main(globals())
