#!/usr/bin/env python3
"""Trains on the framework's shared library, which has Millpond inside.

    python3 train.py build/libtiny.so [--device host | cpu | cuda | PLUGIN.so] [--steps 200]

Says what the losses were, that they are those of the processor to the last bit, and that no memory was left behind.
Exit status 77: this machine has no such device.
"""
import argparse
import sys

from tiny import Tiny, TinyError


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("library", help="libtiny.so")
    words.add_argument("--device", default="host", help="a device type, or the path of a plugin")
    words.add_argument("--steps", type=int, default=200)
    options = words.parse_args()

    tiny = Tiny(options.library)
    kind = tiny.load_plugin(options.device) if "/" in options.device else options.device
    try:
        count = tiny.device_count(kind)
    except TinyError as why:
        print(f"SKIPPED: no device type {kind}: {why}")
        return 77
    if count == 0:
        print(f"SKIPPED: no device of type {kind}")
        return 77

    with tiny.session(kind, count - 1) as session:
        losses = session.train(options.steps)
    with tiny.session("cpu") as session:
        expected = session.train(options.steps)
    print(f"{kind}:{count - 1}  loss {losses[0]:.4f} -> {losses[-1]:.4f} after {options.steps} steps")
    if losses != expected:
        print("the losses are not those of the processor")
        return 1
    if not losses[-1] < losses[0] / 2:
        print("the loss did not fall")
        return 1
    for where in {(kind, count - 1), ("cpu", 0)}:
        if tiny.stats(*where).blocks != 0:
            print(f"{where} still has {tiny.stats(*where).blocks} blocks")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
