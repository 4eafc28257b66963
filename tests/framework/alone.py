"""The framework's shared library in a process of Python, with nothing else there: `alone.py LIBRARY WAY`.

Each way leaves the process differently. It prints `left` and nothing else, and must end with status 0.
"""
import os
import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "framework"))
sys.dont_write_bytecode = True

from tiny import Tiny, TinyError  # noqa: E402  (the path comes first)

keep = []


def leave_after_training(tiny):
    with tiny.session() as session:
        assert session.train(5) != session.train(5)


def leave_with_a_session_alive(tiny):
    keep.append(tiny.session("host", 1))
    keep[0].train(5)


def leave_with_work_queued(tiny):
    keep.append(tiny.session())
    # No losses are asked for, so nothing has waited.
    assert tiny.calls.tiny_session_train(keep[0]._handle, 20, None) == 0


def leave_with_a_tensor_out(tiny):
    session = tiny.session()
    keep.append(tiny.calls.tiny_session_weights(session._handle, 0))
    session.close()


def leave_after_threads(tiny):
    def work(ordinal):
        with tiny.session("host", ordinal) as session:
            keep.append(session.train(5))

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keep) == 4 and all(losses == keep[0] for losses in keep)


def leave_after_a_fork(tiny):
    session = tiny.session()
    first = session.train(5)
    child = os.fork()
    if child == 0:
        # Nothing works here, and everything says so; the way out is an ordinary one, destructors and all.
        weights = session.weights()
        for call in [lambda: session.train(1), tiny.session, lambda: tiny.stats("host"), weights.__dlpack__]:
            try:
                call()
            except TinyError as why:
                assert "fork" in str(why), why
            else:
                os._exit(3)
        session.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert session.train(5) != first
    keep.append(session)


def leave_in_a_thread(tiny):
    keep.append(tiny.session())
    threading.Thread(target=lambda: keep[0].train(50)).start()  # the interpreter waits for it at exit


def leave_without_any_use(_):
    pass


if __name__ == "__main__":
    globals()[sys.argv[2]](Tiny(sys.argv[1]))
    print("left", flush=True)
