"""A program is recorded: what PaddlePaddle asks of the plugin, as `millpond replay` reads it."""
import os
import pathlib
import tempfile

from support import KIB, MIB, main, program

SIZES = [5 * MIB, 300 * KIB, 3 * MIB]
PROGRAM = f"""
import numpy as np
import paddle
for bytes in {SIZES}:
    for _ in range(4):
        x = paddle.to_tensor(np.zeros(bytes, "uint8"), place=paddle.CustomPlace("millpond", 0))
        del x
print("done")
"""


def recorded(**flags):
    """The live bytes after each event, the sizes asked for, and the last line."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "paddle.trace"
        env = dict(os.environ, MILLPOND_RECORD=str(file), **flags)
        said = program(PROGRAM, env, ["ignore"])
        assert said[0] == "done\n", said
        lines = file.read_text().splitlines()
    assert lines[1].startswith("# source: recorded by Millpond from ") and lines[1].endswith("device host:0"), lines[:2]
    live, asked, totals = {}, [], []
    for line in lines:
        word, *numbers = line.split()
        if word == "a":
            block, size, _stream = map(int, numbers)
            assert block not in live, line
            live[block] = size
            asked.append(size)
        elif word == "f":
            del live[int(numbers[0])]
        else:
            assert word == "#", line
            continue
        totals.append(sum(live.values()))
    return totals, asked, lines[-1]


def check_the_requests_of_a_program_are_in_its_recording():
    totals, asked, last = recorded()
    # What goes back at the end, if anything does, is not PaddlePaddle's word but its destructors'.
    assert max(totals) >= max(SIZES) and max(asked) >= max(SIZES), asked
    assert last.startswith(("# exit: ", "# events: ")), last


def check_without_idle_chunks_each_tensor_is_in_it():
    totals, asked, _ = recorded(FLAGS_free_idle_chunk="1", FLAGS_allocator_strategy="auto_growth")
    for size in SIZES:
        near = [a for a in asked if size <= a <= size + 64 * KIB]
        assert len(near) == 4, (size, asked)
    assert min(totals) == 0 and max(totals) < 2 * max(SIZES), totals


if __name__ == "__main__":
    main(globals())
