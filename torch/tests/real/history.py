"""PyTorch's own recording of memory, over Millpond as its allocator: torch.cuda.memory._record_memory_history and what
PyTorch's tools make of it."""
import os
import pickle
import tempfile
import threading
import time

from fake import MIB, built, collect, device_bytes, enabled, freed_while_another_stream_reads, hold, settings, since

GIB = 1024 * MIB


def recorded(torch, **options):
    torch.cuda.memory._record_memory_history(**options)
    return lambda: torch.cuda.memory._snapshot()["device_traces"]


def of(trace, tensor_or_address):
    address = tensor_or_address if isinstance(tensor_or_address, int) else tensor_or_address.data_ptr()
    return [e for e in trace if e.get("addr") == address and not e["action"].startswith("segment")]


def names(entry):
    return [f["name"] for f in entry.get("frames", [])]


def a_function_with_a_name(torch, size):
    return device_bytes(torch, size)


def check_what_happened_with_its_frames():
    torch = enabled()
    before = device_bytes(torch, MIB)
    began = time.time()
    trace = recorded(torch, stacks="python")
    assert torch._C._cuda_isHistoryEnabled()
    one = a_function_with_a_name(torch, 3 * MIB)
    address = one.data_ptr()

    def the_end():
        nonlocal one
        del one
    the_end()
    del before
    events = of(trace()[0], address)
    assert [e["action"] for e in events] == ["alloc", "free_requested", "free_completed"], events
    assert "a_function_with_a_name" in names(events[0]), events[0]
    assert "the_end" in names(events[1]) and "the_end" in names(events[2]), events[1]
    assert {e["size"] for e in events} == {3 * MIB}, events
    # Processes' clocks are read at different moments: some milliseconds.
    assert all(began - 0.01 <= e["time_us"] / 1e6 <= time.time() + 0.01 for e in events), (began, events)
    everything = trace()[0]
    assert everything[-1]["action"] == "snapshot", "of the snapshot before"
    assert {"segment_alloc", "snapshot"} <= {e["action"] for e in everything}, everything
    grown = [e for e in everything if e["action"] == "segment_alloc"]
    assert "a_function_with_a_name" in names(grown[-1]), "who made it grow"
    times = [e["time_us"] for e in everything]
    assert times == sorted(times)


@since("2.15", "has no question for the frames of one block")
def check_live_blocks_have_the_frames_of_their_request():
    torch = enabled()
    recorded(torch, context="state", stacks="python")
    held = a_function_with_a_name(torch, 3 * MIB)
    found = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == held.data_ptr()]
    assert "a_function_with_a_name" in names(found[0]), found
    assert any(f["name"] == "a_function_with_a_name" for f in torch.cuda.memory._allocation_traceback(held.data_ptr()))
    # Frames of live blocks outlast the recording, up to the free.
    torch.cuda.memory._record_memory_history(None)
    assert torch.cuda.memory._allocation_traceback(held.data_ptr())
    address = held.data_ptr()
    del held
    again = device_bytes(torch, 3 * MIB)
    assert again.data_ptr() == address and not torch.cuda.memory._allocation_traceback(address)


def check_the_contexts_that_are_asked_for():
    torch = enabled()
    for context, with_alloc, with_free in ((None, False, False), ("state", False, False), ("alloc", True, False),
                                           ("all", True, True)):
        trace = recorded(torch, context=context, stacks="python", clear_history=True)
        device_bytes(torch, 3 * MIB)
        events = {e["action"]: e for e in trace()[0]}
        assert bool(names(events["alloc"])) == with_alloc, (context, events)
        assert bool(names(events["free_requested"])) == with_free, (context, events)
        torch.cuda.memory._record_memory_history(None)


def check_no_recording_no_history():
    torch = enabled()
    assert not torch._C._cuda_isHistoryEnabled()
    device_bytes(torch, MIB)
    assert not any(torch.cuda.memory._snapshot()["device_traces"])
    trace = recorded(torch)
    device_bytes(torch, MIB)
    assert trace()[0]
    torch.cuda.memory._record_memory_history(None)
    assert not torch._C._cuda_isHistoryEnabled() and not any(trace())
    recorded(torch)
    assert not [e for e in trace()[0] if e["action"] == "alloc"], "what an earlier one had is gone"


@since("2.11", "leaves no actions out of its history")
def check_a_bound_and_actions_left_out():
    torch = enabled()
    trace = recorded(torch, max_entries=10)
    for _ in range(100):
        device_bytes(torch, MIB)
    newest = trace()[0]
    assert len(newest) == 10 and [e["action"] for e in newest[-2:]] == ["free_requested", "free_completed"], newest
    trace = recorded(torch, clear_history=True, skip_actions=["free_requested"])
    device_bytes(torch, MIB)
    actions = [e["action"] for e in trace()[0]]
    assert actions[:2] == ["alloc", "free_completed"], actions
    trace = recorded(torch, enabled="state", clear_history=True)
    for _ in range(3):
        device_bytes(torch, MIB)
    assert len(trace()[0]) == 1


def check_a_free_that_waits():
    torch = enabled()
    trace = recorded(torch)
    where = freed_while_another_stream_reads(torch, 3 * MIB).start
    assert [e["action"] for e in of(trace()[0], where)] == ["alloc", "free_requested"]
    hold(False)
    torch.cuda.synchronize()
    torch.cuda.memory_stats()
    assert [e["action"] for e in of(trace()[0], where)] == ["alloc", "free_requested", "free_completed"]


@since("2.15", "has no pools in its events")
def check_out_of_memory_and_pools():
    torch = enabled()
    trace = recorded(torch)
    try:
        device_bytes(torch, 9 * GIB)
    except torch.OutOfMemoryError:
        pass
    oom = [e for e in trace()[0] if e["action"] == "oom"]
    assert len(oom) == 1 and oom[0]["size"] == 9 * GIB and 0 < oom[0]["device_free"] <= 8 * GIB, oom
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = device_bytes(torch, 3 * MIB)
    assert of(trace()[0], inside)[0]["pool_id"] == tuple(pool.id), of(trace()[0], inside)


def check_a_device_that_comes_later():
    torch = enabled()
    trace = recorded(torch)
    one = device_bytes(torch, 3 * MIB, "cuda:1")
    assert [e["action"] for e in of(trace()[1], one)] == ["alloc"]
    assert not of(trace()[0], one)


def check_many_threads_each_with_its_frames():
    torch = enabled()
    trace = recorded(torch, stacks="python")

    def work():
        for n in range(300):
            a_function_with_a_name(torch, (n % 7 + 1) * 100_000)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    events = [e for e in trace()[0] if e["action"] in ("alloc", "free_requested")]
    assert len(events) == 2400, len(events)
    without = [e for e in events if not {"a_function_with_a_name", "work"} & set(names(e))]
    assert not without, (len(without), without[0])


@since("2.15", "there is no question for notes, and none on a block that lives")
def check_notes_of_the_program():
    torch = enabled()
    assert torch.cuda.memory._memory_metadata_supported()
    trace = recorded(torch, global_record_annotations=True)
    torch.cuda.memory._set_memory_metadata("step 7")
    held = device_bytes(torch, 3 * MIB)
    assert torch.cuda.memory._get_memory_metadata() == "step 7"
    torch.cuda.memory._set_memory_metadata("")
    torch._C._cuda_annotateMemory(held.data_ptr(), "weights")
    with torch.autograd.profiler.record_function("forward"):
        device_bytes(torch, MIB)
    events = of(trace()[0], held)
    assert [(e["action"], e["user_metadata"]) for e in events] == [("alloc", "step 7"), ("annotate", "weights")], events
    annotations = torch.cuda.memory._snapshot()["external_annotations"]
    assert any("forward" in str(a) for a in annotations), annotations
    assert all(abs(a["time_us"] / 1e6 - time.time()) < 60 for a in annotations), annotations


def check_pytorchs_viewer_reads_it():
    torch = enabled()
    from torch.cuda import _memory_viz
    recorded(torch)
    layers = [a_function_with_a_name(torch, n * MIB) for n in range(1, 9)]
    for _ in range(3):
        step = [device_bytes(torch, 5 * MIB) for _ in range(4)]
        del step
    del layers[::2]
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "memory.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as f:
            data = pickle.load(f)
    for text in (_memory_viz.trace_plot(data), _memory_viz.trace_plot(data, plot_segments=True),
                 _memory_viz.segment_plot(data), _memory_viz.segsum(data)):
        assert len(text) > 100
    # What trace_plot does: a block is drawn from its alloc to its free_completed; what lives at the end is in the segments.
    live = {}
    for e in data["device_traces"][0]:
        if e["action"] == "alloc":
            assert e["addr"] not in live, "two blocks at one address"
            live[e["addr"]] = e["size"]
        elif e["action"] == "free_completed":
            assert live.pop(e["addr"]) == e["size"]
    blocks = {b["address"]: b["size"] for s in data["segments"] for b in s["blocks"] if b["state"] == "active_allocated"}
    assert live == blocks, (live, blocks)
    text = _memory_viz.trace(data)
    assert text.count("cudaMalloc(") >= 8 and text.count("del ") >= 16, text


@settings(MILLPOND_HISTORY="/dev/null")
def check_millponds_own_history_goes_on():
    torch = enabled()
    device_bytes(torch, MIB)
    trace = recorded(torch)
    one = device_bytes(torch, 3 * MIB)
    assert [e["action"] for e in of(trace()[0], one)] == ["alloc"]
    torch.cuda.memory._record_memory_history(None)
    recorded(torch)
    assert not of(trace()[0], one)


TRACKER = """
#include <c10/cuda/CUDACachingAllocator.h>
#include <atomic>
#include <stdexcept>
static std::atomic<long> count[16];
static std::atomic<long> bytes[16];
static std::atomic<int> fails{-1};
extern "C" void fail(int action) { fails = action; }
extern "C" void attach() {
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const auto& entry) {
    count[entry.action_] += 1;
    bytes[entry.action_] += entry.size_;
    if (entry.action_ == fails) throw std::runtime_error("the tracker fails");
  });
}
extern "C" long counted(int action) { return count[action]; }
extern "C" long counted_bytes(int action) { return bytes[action]; }

/// Segments of the pool whose place in NCCL's registration is that of none before them; where this
/// release has no such places, all.
template <typename Segment>
static bool comes_after(const Segment& one, long& last) {
  if constexpr (requires { one.registration_counter; }) {
    if (one.registration_counter <= last) return false;
    last = one.registration_counter;
  }
  return true;
}
extern "C" long in_order(unsigned long long first, unsigned long long second) {
  long count = 0, last = -1;
  for (const auto& s : c10::cuda::CUDACachingAllocator::snapshot({first, second}).segments)
    count += comes_after(s, last);
  return count;
}
"""


def check_segments_have_their_places_in_a_registration():
    """As ProcessGroupNCCL asks for them when it registers a pool."""
    torch = enabled()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = [device_bytes(torch, size) for size in (1000, 30 * MIB, 500 * MIB)]
    found = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool.id)]
    assert len(found) > 1 and built_tracker(torch).in_order(*pool.id) == len(found)
    del held


def check_a_tracker_hears_of_it():
    """As ProcessGroupNCCL attaches one, to register memory."""
    torch = enabled()
    device_bytes(torch, MIB)
    tracker = built_tracker(torch)
    counted, counted_bytes = tracker.counted, tracker.counted_bytes
    alloc, free_requested, segments = 0, 1, ((3, 5), (4, 6))  # TraceEntry::Action

    def total(actions):
        return sum(counted_bytes(a) for a in actions)
    tracker.attach()
    assert total(segments[0]) == 0, "what is there already is not told"
    held = device_bytes(torch, 100 * MIB - 5)
    other = device_bytes(torch, 10 * MIB, "cuda:1")
    assert counted(alloc) == 2 and counted_bytes(alloc) == 110 * MIB - 5
    assert 108 * MIB <= total(segments[0]) <= 120 * MIB, total(segments[0])
    del held, other
    assert counted(free_requested) == 2 and counted_bytes(free_requested) == 110 * MIB - 5
    assert total(segments[1]) == 0
    torch.cuda.empty_cache()
    # The MiB from before the tracker goes, too.
    assert total(segments[0]) <= total(segments[1]) <= total(segments[0]) + 2 * MIB
    assert not torch._C._cuda_isHistoryEnabled() and not any(torch.cuda.memory._snapshot()["device_traces"])


def built_tracker(torch):
    import ctypes
    import pathlib
    from millpond_torch import _native
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    tracker = built("tracker", TRACKER, *[f"-isystem{h}" for h in _native._headers(torch, True)], f"-L{libraries}", "-lc10", "-lc10_cuda")
    tracker.counted.restype = tracker.counted_bytes.restype = tracker.in_order.restype = ctypes.c_long
    tracker.in_order.argtypes = [ctypes.c_ulonglong] * 2
    return tracker


def check_a_tracker_that_fails_loses_no_memory():
    torch = enabled()
    tracker = built_tracker(torch)
    tracker.attach()

    def live():
        collect()
        return torch.cuda.memory_stats()["allocated_bytes.all.current"]
    for segment in (3, 5, 4, 6):  # while Millpond takes memory or gives it back
        tracker.fail(segment)
        held = device_bytes(torch, 50 * MIB)
        assert live() == 50 * MIB
        del held
        torch.cuda.empty_cache()
    tracker.fail(1)  # while a tensor goes
    held = device_bytes(torch, MIB)
    del held
    assert live() == 0
    tracker.fail(0)  # a request
    try:
        device_bytes(torch, MIB)
    except RuntimeError as e:
        assert "the tracker fails" in str(e), e
    else:
        raise AssertionError("the failure was not told")
    assert live() == 0
    tracker.fail(-1)
    device_bytes(torch, MIB)


@since("2.11", "leaves no actions out of its history")
def check_a_recording_that_cannot_begin_is_none():
    torch = enabled()
    try:
        torch.cuda.memory._record_memory_history(skip_actions=["nonsense"])
    except (RuntimeError, ValueError):
        pass
    else:
        raise AssertionError("there is no such action")
    assert not torch._C._cuda_isHistoryEnabled()
    device_bytes(torch, MIB)
    trace = recorded(torch)
    one = device_bytes(torch, 3 * MIB)
    assert [e["action"] for e in of(trace()[0], one)] == ["alloc"]
