"""How Millpond becomes PyTorch's allocator, and what a program sees then."""
from fake import MIB, collect, device_bytes, driver, enabled, freed_while_another_stream_reads, hold, settings

GIB = 1024 * MIB


def on_millpond(torch):
    import millpond_torch
    before = millpond_torch.memory_allocated()
    tensor = device_bytes(torch, 3 * MIB)
    assert millpond_torch.memory_allocated() == before + 3 * MIB
    del tensor
    assert millpond_torch.memory_allocated() == before


def after(touch):
    driver()
    import torch
    touch(torch)
    import millpond_torch
    millpond_torch.enable()
    on_millpond(torch)
    return torch


def check_enable_before_anything():
    on_millpond(enabled())


def check_enable_after_set_device():
    after(lambda torch: torch.cuda.set_device(0))


def check_enable_after_device_properties():
    after(lambda torch: torch.cuda.get_device_properties(0))


def check_enable_after_mem_get_info():
    after(lambda torch: torch.cuda.mem_get_info())


def check_enable_after_pinned_memory():
    pinned = []
    torch = after(lambda torch: pinned.append(torch.zeros(1000).pin_memory()))
    assert pinned[0].to("cuda").cpu().equal(pinned[0])
    torch.cuda.synchronize()


def check_enable_after_a_tensor_that_is_gone():
    def touch(torch):
        device_bytes(torch, 100 * MIB)
    after(touch)


def refused(millpond_torch, why):
    """enable() fails, since PyTorch's own allocator has memory."""
    try:
        millpond_torch.enable()
    except millpond_torch.MillpondError as e:
        assert why in str(e), e
    else:
        raise AssertionError("PyTorch's own allocator has memory")


def check_enable_after_a_tensor_that_lives():
    driver()
    import torch
    held = device_bytes(torch, MIB)
    import millpond_torch
    refused(millpond_torch, "before the first CUDA tensor")
    assert not millpond_torch.is_enabled()
    # All goes on as before.
    more = device_bytes(torch, MIB)
    assert torch.cuda.memory_allocated() == held.nbytes + more.nbytes


def check_enable_while_a_pool_lives():
    driver()
    import torch
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        device_bytes(torch, MIB)
    import millpond_torch
    assert torch.cuda.memory_allocated() == 0
    refused(millpond_torch, "a torch.cuda.MemPool that is alive")
    del pool
    collect()
    millpond_torch.enable()
    on_millpond(torch)


def check_the_text_of_out_of_memory():
    torch = enabled()
    try:
        device_bytes(torch, 9 * GIB)
    except RuntimeError as e:
        assert str(e).startswith("CUDA out of memory. Tried to allocate 9.00 GiB"), e
        assert "advice:" in str(e), e
    else:
        raise AssertionError("9 GiB of 8")
    assert device_bytes(torch, GIB).data_ptr() != 0


@settings(MILLPOND_TORCH_OOM="null")
def check_no_tensor_lies_at_address_0():
    torch = enabled()
    try:
        tensor = device_bytes(torch, 9 * GIB)
    except RuntimeError:
        return
    raise AssertionError(f"a tensor of 9 GiB at {tensor.data_ptr():#x}")


def by_hand():
    driver()
    import millpond_torch
    import torch
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(
        millpond_torch.library_path(), "millpond_torch_alloc", "millpond_torch_free"))
    return torch


def check_another_stream_uses_a_block_without_hooks():
    """record_stream does nothing then, so nobody tells us."""
    torch = by_hand()
    place = freed_while_another_stream_reads(torch, 64 * MIB)
    collect()
    assert device_bytes(torch, 64 * MIB).data_ptr() != place.start, "the other stream has not read it yet"
    hold(False)
    torch.cuda.synchronize()


def check_a_graph_without_hooks_is_refused():
    torch = by_hand()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            device_bytes(torch, MIB)
    except RuntimeError as e:
        assert "millpond_torch.enable()" in str(e) or "millpond_torch.enable()" in str(e.__context__), e
    else:
        raise AssertionError("the memory of this graph is not kept")


def check_the_keys_of_memory_stats():
    driver()
    import torch
    device_bytes(torch, MIB)
    native = set(torch.cuda.memory_stats())
    import millpond_torch
    torch.cuda.empty_cache()
    lacking = native - set(millpond_torch.memory_stats())
    assert not lacking, sorted(lacking)


def check_the_keys_of_host_memory_stats():
    driver()
    import torch
    torch.zeros(1000).pin_memory()
    native = set(torch.cuda.host_memory_stats())
    import millpond_torch
    lacking = native - set(millpond_torch.host_memory_stats())
    assert not lacking, sorted(lacking)
