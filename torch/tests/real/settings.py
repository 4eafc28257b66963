"""torch.cuda.memory._set_allocator_settings in the middle of a program, and torch._C._accelerator_setAllocatorSettings: what they
set counts for Millpond, too."""
import warnings

import millpond_torch
from fake import MIB, NATIVE, device_bytes, enabled, since


def setters(torch):
    """The names by which this release has it."""
    found = [torch.cuda.memory._set_allocator_settings]
    found += [getattr(torch._C, n) for n in ("_accelerator_setAllocatorSettings",
                                             "_cuda_cudaCachingAllocator_set_allocator_settings") if hasattr(torch._C, n)]
    assert len(found) == 2
    return found


def refused(call, text):
    try:
        call(text)
    except (ValueError, RuntimeError) as e:
        return str(e)
    raise AssertionError(f"{text} was taken")


def charge(torch, size):
    before = millpond_torch.memory_allocated(0)
    block = device_bytes(torch, size)
    taken = millpond_torch.memory_allocated(0) - before
    del block
    return taken


def check_sizes_are_rounded_from_now_on():
    torch = enabled()
    warnings.simplefilter("ignore", FutureWarning)
    for call in setters(torch):
        assert charge(torch, 1200 * MIB) == 1200 * MIB
        call("roundup_power2_divisions:4")
        assert charge(torch, 1200 * MIB) == 1280 * MIB
        call("garbage_collection_threshold:0.5, roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
        assert charge(torch, 600 * MIB) == 768 * MIB and charge(torch, 1200 * MIB) == 1280 * MIB
        call("")
        assert charge(torch, 1200 * MIB) == 1200 * MIB, "PyTorch sets it back where a text leaves it out"


def check_devices_that_are_opened_later_have_it():
    torch = enabled()
    setters(torch)[1]("roundup_power2_divisions:4")
    assert charge(torch, 1200 * MIB) == 1280 * MIB
    before = millpond_torch.memory_allocated(1)
    block = device_bytes(torch, 1200 * MIB, "cuda:1")
    assert millpond_torch.memory_allocated(1) - before == 1280 * MIB
    del block


def check_what_pytorch_refuses_changes_nothing():
    torch = enabled()
    call = setters(torch)[1]
    device_bytes(torch, MIB)
    call("roundup_power2_divisions:4")
    for text in ("foo:1", "garbage_collection_threshold:1.2", "max_split_size_mb:2", "roundup_power2_divisions:3",
                 "release_lock_on_cudamalloc:none"):
        assert refused(call, text)
        assert charge(torch, 1200 * MIB) == 1280 * MIB, text


def check_what_millpond_has_no_use_for_is_left_out():
    torch = enabled()
    call = setters(torch)[1]
    device_bytes(torch, MIB)
    call("expandable_segments:False,release_lock_on_cudamalloc:True,roundup_power2_divisions:4")
    assert charge(torch, 1200 * MIB) == 1280 * MIB
    call("backend:native,roundup_power2_divisions:2")
    assert charge(torch, 1200 * MIB) == 1536 * MIB
    call("backend:native")
    assert charge(torch, 1200 * MIB) == 1200 * MIB
    assert refused(call, "backend:cudaMallocAsync")
    call("expandable_segments:True")


def check_a_block_above_the_largest_split_stays_whole():
    torch = enabled()
    setters(torch)[1]("max_split_size_mb:100,max_non_split_rounding_mb:20" if not torch.__version__.startswith("2.9")
                      else "max_split_size_mb:100")
    block = device_bytes(torch, 200 * MIB)
    place = block.data_ptr()
    del block
    small = device_bytes(torch, 50 * MIB)
    assert not place <= small.data_ptr() < place + 200 * MIB
    again = device_bytes(torch, 190 * MIB)
    assert again.data_ptr() == place


@since("2.11", "has no such setting")
def check_a_part_of_the_device():
    torch = enabled()
    device_bytes(torch, MIB)
    setters(torch)[1]("per_process_memory_fraction:0.0625")  # 512 MiB
    device_bytes(torch, 400 * MIB)
    try:
        device_bytes(torch, 600 * MIB)
    except RuntimeError as e:
        assert "out of memory" in str(e)
    else:
        raise AssertionError("that is more than the part")


@since("2.11", "has no such setting")
def check_devices_that_are_opened_later_have_what_later_texts_leave_out():
    torch = enabled()
    device_bytes(torch, MIB)
    call = setters(torch)[1]
    call("per_process_memory_fraction:0.0625")
    call("max_split_size_mb:512")
    try:
        device_bytes(torch, 600 * MIB, "cuda:1")
    except RuntimeError as e:
        assert "out of memory" in str(e)
    else:
        raise AssertionError("that is more than the part")


def check_what_millpond_refuses_is_not_kept():
    """PyTorch has taken the text by then."""
    from millpond_torch import _library
    torch = enabled()
    device_bytes(torch, MIB)
    setters(torch)[1]("roundup_power2_divisions:4")
    assert _library.library().millpond_torch_settings(b"roundup_power2_divisions:3") != 0
    before = [millpond_torch.memory_allocated(device) for device in (0, 1)]
    held = [device_bytes(torch, 1200 * MIB, f"cuda:{device}") for device in (0, 1)]
    assert [millpond_torch.memory_allocated(device) - b for device, b in enumerate(before)] == 2 * [1280 * MIB]
    del held


def check_a_snapshot_tells_the_settings():
    if not NATIVE:
        return
    torch = enabled()
    held = device_bytes(torch, MIB)
    call = setters(torch)[1]
    call("max_split_size_mb:100,roundup_power2_divisions:4")
    told = torch.cuda.memory._snapshot()["allocator_settings"]
    assert told["max_split_size"] == 100 * MIB and told["roundup_power2_divisions"]["1024"] == 4, told
    assert told["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:100,roundup_power2_divisions:4", told
    call("")
    assert torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == -1
    del held


def check_devices_that_are_opened_later_do_not_map():
    torch = enabled()
    held = [device_bytes(torch, MIB)]
    setters(torch)[1]("expandable_segments:False")
    held += [device_bytes(torch, 4 * MIB), device_bytes(torch, 4 * MIB, "cuda:1")]
    assert {(s["device"], s["is_expandable"]) for s in millpond_torch.snapshot()} == {(0, True), (1, False)}
    del held
