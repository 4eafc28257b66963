"""Streams and events from Python."""
import threading

import numpy as np
import paddle

from support import MIB, TYPE, main, same, to_device

DEVICE = f"{TYPE}:0"


def new_stream(ordinal=0):
    return paddle.device.Stream(f"{TYPE}:{ordinal}")


def new_event(ordinal=0):
    """`paddle.device.Event` of some releases passes its arguments in an order that its own binding refuses."""
    try:
        return paddle.device.Event(f"{TYPE}:{ordinal}")
    except TypeError:
        return paddle.base.core.CustomDeviceEvent(TYPE, ordinal)


def record(event, stream):
    event.record(stream.stream_base if type(event).__module__ == "paddle.base.libpaddle" else stream)


def wait(stream, event):
    if type(event).__module__ == "paddle.base.libpaddle":
        stream.stream_base.wait_event(event)
    else:
        stream.wait_event(event)


def check_a_stream_is_idle_at_first():
    stream = new_stream()
    assert stream.query()
    stream.synchronize()


def check_events_are_done_when_their_stream_is():
    stream, event = new_stream(), new_event()
    record(event, stream)
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()


def check_work_on_a_stream_gives_the_same_values():
    paddle.set_device(DEVICE)
    x = np.random.default_rng(3).standard_normal((256, 256)).astype("float32")
    paddle.set_device("cpu")
    want = (paddle.to_tensor(x) @ paddle.to_tensor(x)).numpy()
    paddle.set_device(DEVICE)
    for stream in [new_stream() for _ in range(3)]:
        with paddle.device.stream_guard(stream):
            y = to_device(x)
            z = y @ y
        stream.synchronize()
        same(z, want)


def check_one_stream_waits_for_another():
    paddle.set_device(DEVICE)
    a, b = new_stream(), new_stream()
    x = np.arange(MIB, dtype="int64")
    for i in range(5):
        done = new_event()
        with paddle.device.stream_guard(a):
            y = to_device(x) + i
        record(done, a)
        wait(b, done)
        with paddle.device.stream_guard(b):
            z = y * 2
        b.synchronize()
        same(z, (x + i) * 2)
        assert done.query()


def check_wait_stream():
    a, b = new_stream(), new_stream()
    b.wait_stream(a)
    b.synchronize()


def check_the_current_stream_can_be_asked_and_set():
    paddle.set_device(DEVICE)
    def handle(stream):
        return stream._as_parameter_.value

    before = handle(paddle.device.current_stream())
    mine = new_stream()
    assert handle(mine) != before
    with paddle.device.stream_guard(mine):
        assert handle(paddle.device.current_stream()) == handle(mine)
    assert handle(paddle.device.current_stream()) == before


def check_streams_of_each_device():
    for i in range(2):
        stream, event = new_stream(i), new_event(i)
        record(event, stream)
        stream.synchronize()
        event.synchronize()
        paddle.device.synchronize(f"{TYPE}:{i}")


def check_hundreds_of_streams_and_events_come_and_go():
    for _ in range(20):
        streams = [new_stream() for _ in range(20)]
        events = [new_event() for _ in streams]
        for s, e in zip(streams, events):
            record(e, s)
        for i, s in enumerate(streams):
            wait(s, events[i - 1])
        for s in streams:
            s.synchronize()
        assert all(e.query() for e in events)


def check_streams_of_many_threads():
    failures = []

    def work(seed):
        try:
            stream, event = new_stream(), new_event()
            for i in range(20):
                record(event, stream)
                event.synchronize()
                x = np.full(1000, seed * 100 + i, "int32")
                same(to_device(x), x)
                stream.synchronize()
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


if __name__ == "__main__":
    main(globals())
