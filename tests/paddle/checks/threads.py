"""Many threads at once, on several devices."""
import threading

import numpy as np
import paddle

from support import TYPE, main, place, same, to_device

THREADS = 8


def run(work):
    failures = []

    def guarded(i):
        try:
            work(i)
        except BaseException as e:
            failures.append(f"thread {i}: {e!r}")

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


def check_threads_read_back_what_they_wrote():
    def work(i):
        random = np.random.default_rng(i)
        for _ in range(60):
            array = random.integers(0, 1 << 30, size=int(random.integers(1, 100_000)))
            same(to_device(array, i % 2), array)

    run(work)


def check_threads_compute():
    x = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    paddle.set_device("cpu")
    want = paddle.to_tensor(x) @ paddle.to_tensor(x) + 1

    def work(i):
        for _ in range(20):
            a = to_device(x, i % 2)
            b = a @ a + 1
            assert str(b.place) == f"Place({TYPE}:{i % 2})"
            same(b, want)

    run(work)


def check_each_thread_sets_its_own_device():
    def work(i):
        for k in range(30):
            paddle.set_device(f"{TYPE}:{(i + k) % 2}")
            t = paddle.full([100], i)
            assert str(t.place) in (f"Place({TYPE}:0)", f"Place({TYPE}:1)")
            same(t, np.full(100, i, "float32"))

    run(work)


def check_tensors_die_on_other_threads():
    box = [None] * THREADS
    for _ in range(10):
        def make(i):
            box[i] = to_device(np.full(50_000, i, "int64"), i % 2)

        run(make)

        def end(i):
            k = (i + 3) % THREADS
            same(box[k], np.full(50_000, k, "int64"))
            box[k] = None

        run(end)


def check_copies_between_devices_from_many_threads():
    def work(i):
        array = np.random.default_rng(i).standard_normal(30_000)
        t = to_device(array, 0)
        for k in range(20):
            t = t._copy_to(place((k + i) % 2), True)
        same(t, array)

    run(work)


if __name__ == "__main__":
    main(globals())
