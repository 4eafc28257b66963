"""Several GPUs: copies between them, with and without access to each other, and devices that nobody uses."""
import ctypes

from fake import MIB, NATIVE, content, device_bytes, driver, enabled, poke, settings


def copies(torch):
    """Between both devices, both ways, of tensors that were there before and of later ones."""
    first = device_bytes(torch, 3 * MIB, "cuda:0")
    for round in range(1, 5):
        size = round * 7 * MIB
        for here, there in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
            source = device_bytes(torch, size, here)
            poke(source, round)
            copied = source.to(there)
            into = device_bytes(torch, size, there)
            into.copy_(source, non_blocking=True)
            for index in (0, 1):
                torch.cuda.synchronize(index)
            assert (content(copied), content(into)) == (round, round), (here, there, round)
    poke(first, 77)
    back = first.to("cuda:1").to("cuda:0")
    torch.cuda.synchronize(0)
    assert content(back) == 77


def check_copies_between_devices():
    copies(enabled())


@settings(FAKECUDA_NO_PEER="1")
def check_copies_between_devices_without_peer_access():
    torch = enabled()
    assert not torch.cuda.can_device_access_peer(0, 1)
    copies(torch)


@settings(MILLPOND_ALLOC_CONF="backend:cudaMallocAsync")
def check_copies_between_devices_with_the_drivers_own_pool():
    copies(enabled())


@settings(MILLPOND_ALLOC_CONF="backend:cudaMallocAsync", FAKECUDA_NO_PEER="1")
def check_copies_with_the_drivers_own_pool_without_peer_access():
    torch = enabled()
    if NATIVE:
        return copies(torch)  # by cudaMemcpyPeerAsync, which stages any memory
    # PyTorch copies by cudaMemcpyAsync under a pluggable allocator, which the driver cannot stage for such memory.
    source = device_bytes(torch, MIB, "cuda:0")
    try:
        source.to("cuda:1")
    except RuntimeError as e:
        assert "invalid argument" in str(e), e
    else:
        raise AssertionError("the copy was staged")


@settings(FAKECUDA_DEVICES="4", FAKECUDA_NO_PEER="1")
def check_copies_between_four_devices_without_peer_access():
    round_of_four(enabled())


@settings(FAKECUDA_DEVICES="4", FAKECUDA_PEERS="0-1,2-3")
def check_copies_between_four_devices_of_which_some_reach_each_other():
    round_of_four(enabled())


@settings(FAKECUDA_DEVICES="4")
def check_copies_between_four_devices():
    round_of_four(enabled())


def round_of_four(torch):
    source = device_bytes(torch, 5 * MIB, "cuda:3")
    poke(source, 9)
    for index in (2, 0, 1, 3):
        source = source.to(f"cuda:{index}")
        torch.cuda.synchronize()
        for other in range(4):
            torch.cuda.synchronize(other)
        assert content(source) == 9, index


def active(device):
    flags, on = ctypes.c_uint(), ctypes.c_int()
    assert driver().cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(on)) == 0
    return bool(on.value)


@settings(FAKECUDA_DEVICES="4")
def check_a_device_that_is_not_used_is_not_started():
    torch = enabled()
    import millpond_torch
    held = device_bytes(torch, MIB, "cuda:1")
    before = [active(d) for d in range(4)]
    assert [s["device"] for s in millpond_torch.snapshot()] == [1]
    for d in range(4):
        assert millpond_torch.memory_allocated(d) == (held.nbytes if d == 1 else 0)
        millpond_torch.memory_stats(d)
        millpond_torch.reset_peak_memory_stats(d)
    torch.cuda.empty_cache()
    assert [active(d) for d in range(4)] == before
    assert not all(before)
