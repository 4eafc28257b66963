"""The log of a program tells why a request found no memory, and who holds it. Run with 64 MiB."""
import os
import pathlib
import tempfile

from support import TYPE, main, program

# Tensors of 6 MiB until there is no memory left.
PROGRAM = f"""
import numpy as np
import paddle
held = []
try:
    while len(held) < 100:
        held.append(paddle.to_tensor(np.zeros(6 << 20, "uint8"), place=paddle.CustomPlace("{TYPE}", 0)))
except MemoryError:
    print("held", len(held))
"""


def run(where):
    env = dict(os.environ, MILLPOND_PLUGIN_OOM_REPORT=where)
    env.pop("MILLPOND_CHECK_REPORT", None)
    said, errors = program(PROGRAM, env, [])
    held = int(said.rsplit("held ", 1)[1])
    assert 8 <= held <= 10, held
    return errors, held


def tells_why(text, held):
    start = text.index("out of memory: ")
    report = text[start:]
    for part in ["asked for: ", "reserved: ", "of the device's 64.0 MiB", f"{held} blocks", "tried:", "advice: "]:
        assert part in report, f"no {part!r} in\n{report}"


def check_the_log_has_the_report():
    tells_why(*run("stderr"))


def check_a_file_has_it():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "oom.log"
        log, held = run(str(path))
        assert "tried:" not in log, log
        tells_why(path.read_text(), held)


def check_nothing_is_printed_unasked():
    assert "tried:" not in run("")[0]


if __name__ == "__main__":
    main(globals())
