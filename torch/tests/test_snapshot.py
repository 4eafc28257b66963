"""Snapshots as PyTorch's own tools read them: the `_memory_viz.py` of released wheels, and Python's pickle.

    test_snapshot.py <snapshot_writer>

`snapshot_writer` (snapshot_writer.cpp) writes the snapshots. Of each release in RELEASES only `_memory_viz.py` is kept,
under ~/.cache/millpond/wheels/memory_viz; the first run takes the smallest wheel that has it (60 to 140 MB each) and
deletes it again. MILLPOND_TEST_TORCH names other releases, or is `none`. A release that cannot be had is skipped, with
the reason; with none at all, the status is 77.
"""
import base64
import collections
import contextlib
import importlib.util
import io
import itertools
import json
import os
import pathlib
import pickle
import pickletools
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# The oldest and the newest of each form; with a Python that has a wheel for it.
RELEASES = {"2.3.1": "311", "2.6.0": "311", "2.9.1": "311", "2.15.0": "314"}
# Wheels of other systems have the same file, and are a tenth of the size.
PLATFORMS = ["macosx_11_0_arm64", "macosx_14_0_arm64"]
INSIDE = "torch/cuda/_memory_viz.py"
PIP_SECONDS = 600
# What MemoryViz.js, the viewer behind the plots, knows of pickle.
VIEWER_OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "DICT", "LIST", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE",
    "SHORT_BINUNICODE",
}


class NoWheel(Exception):
    """The wheel cannot be had."""


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "millpond" / "wheels" / "memory_viz"


def fetch(release):
    """The `_memory_viz.py` of a release; from the cache where it is there."""
    path = cache_dir() / f"memory_viz-{release}.py"
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
                   "--only-binary=:all:", "--dest", folder, "--python-version", RELEASES.get(release, "311")]
        command += [f"--platform={p}" for p in PLATFORMS] + [f"torch=={release}"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=PIP_SECONDS)
        except subprocess.TimeoutExpired:
            raise NoWheel("pip took too long") from None
        wheels = list(pathlib.Path(folder).glob("torch-*.whl"))
        if done.returncode != 0 or not wheels:
            raise NoWheel((done.stdout.strip().splitlines() or ["pip said nothing"])[-1])
        text = zipfile.ZipFile(wheels[0]).read(INSIDE)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(text)
    part.replace(path)
    return path


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_").replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embedded(html):
    """The snapshot that a plot carries, as the viewer gets it."""
    data = re.search(r'"base64": "([^"]*)"', html).group(1)
    return pickle.loads(base64.b64decode(data))


class Snapshots(unittest.TestCase):
    """Over one module at a time (`viz`), and snapshots of one kind of device."""

    tools = []  # (release, module)
    writer = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.sets = {}
        for kind in ["mapped", "segments"]:
            folder = pathlib.Path(cls.folder.name) / kind
            folder.mkdir()
            subprocess.run([cls.writer, folder, kind], check=True, timeout=300)
            cls.sets[kind] = folder

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def each(self):
        for kind, folder in self.sets.items():
            snapshots = [pickle.loads((folder / f"{n}.pickle").read_bytes()) for n in ["before", "after"]]
            told = [json.loads((folder / f"{n}.json").read_text()) for n in ["before", "after"]]
            yield kind, snapshots, told

    def each_tool(self):
        for (release, viz), (kind, snapshots, _) in itertools.product(self.tools, self.each()):
            with self.subTest(release=release, kind=kind):
                yield viz, snapshots

    def test_the_keys_are_pytorchs(self):
        for kind, snapshots, _ in self.each():
            for s in snapshots:
                self.assertEqual(list(s), ["segments", "device_traces", "allocator_settings", "external_annotations"])
                self.assertEqual(s["device_traces"][0], [], "the other device")
                kinds = collections.Counter(e["action"] for e in s["device_traces"][1])
                self.assertGreater(kinds["alloc"], 1500)
                self.assertEqual(kinds["snapshot"], 1 if s is snapshots[0] else 3, "of each there is a JSON, too")
                live = {}
                for e in s["device_traces"][1]:
                    if e["action"] == "alloc":
                        self.assertNotIn(e["addr"], live)
                        live[e["addr"]] = e["size"]
                    elif e["action"] == "free_requested":
                        del live[e["addr"]]
                blocks = [b for seg in s["segments"] for b in seg["blocks"] if b["state"] == "active_allocated"]
                self.assertEqual(set(live), {b["address"] for b in blocks})
                for seg in s["segments"]:
                    self.assertEqual(set(seg), {
                        "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
                        "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"})
                    self.assertEqual((seg["device"], seg["is_expandable"]), (1, kind == "mapped"))
                    self.assertIn(seg["segment_type"], ["small", "large"])
                    self.assertIsInstance(seg["segment_pool_id"], tuple)
                    for b in seg["blocks"]:
                        self.assertEqual(set(b), {"address", "size", "requested_size", "state", "frames"})
                settings = s["allocator_settings"]
                self.assertIn("backend:native", settings["PYTORCH_CUDA_ALLOC_CONF"])
                self.assertIs(settings["expandable_segments"], kind == "mapped")
                self.assertEqual(set(settings["roundup_power2_divisions"]), {str(1 << n) for n in range(16)})

    def test_blocks_tile_their_segments_and_segments_do_not_overlap(self):
        for kind, snapshots, _ in self.each():
            for s in snapshots:
                states, last = collections.Counter(), 0
                for seg in s["segments"]:
                    self.assertGreaterEqual(seg["address"], last)
                    at = seg["address"]
                    for b in seg["blocks"]:
                        self.assertEqual(b["address"], at)
                        self.assertLessEqual(b["requested_size"], b["size"])
                        at += b["size"]
                        states[b["state"]] += 1
                    last = seg["address"] + seg["total_size"]
                    self.assertEqual(at, last)
                    live = [b for b in seg["blocks"] if b["state"] == "active_allocated"]
                    active = [b for b in seg["blocks"] if b["state"] != "inactive"]
                    self.assertEqual(seg["allocated_size"], sum(b["size"] for b in live))
                    self.assertEqual(seg["active_size"], sum(b["size"] for b in active))
                    self.assertEqual(seg["requested_size"], sum(b["requested_size"] for b in active))
                self.assertGreater(states["active_allocated"], 900)
                self.assertGreater(states["inactive"], 20)
            self.assertEqual(states["active_pending_free"], 1, "in `after`")

    def test_the_sums_are_those_of_the_account(self):
        for kind, snapshots, told in self.each():
            for s, t in zip(snapshots, told):
                account = t["account"]["device"]
                self.assertEqual(account["in_transit_bytes"], 0)
                self.assertEqual(sum(seg["total_size"] for seg in s["segments"]), account["reserved_bytes"]["current"])
                live = [b for seg in s["segments"] for b in seg["blocks"] if b["state"] == "active_allocated"]
                self.assertEqual(len(live), account["blocks"]["current"])
                self.assertEqual(sum(b["requested_size"] for b in live), account["requested_bytes"]["current"])
                known = {b["address"]: b for seg in t["segments"] for b in seg["blocks"]}
                for b in live:
                    self.assertEqual(b["requested_size"], known[b["address"]]["requested_bytes"])
                pools = {p["id"]: p["name"] for p in t["account"]["pools"]}
                self.assertIn("weights", pools.values())
                self.assertLessEqual({seg["segment_pool_id"][1] for seg in s["segments"]}, set(pools))

    def test_callers_are_frames(self):
        """In the form that PyTorch's tools want: each has a file, a line and a name."""
        for kind, snapshots, told in self.each():
            for s, t in zip(snapshots, told):
                stacks = {b["address"]: b.get("stack") for seg in t["segments"] for b in seg["blocks"]}
                named = 0
                for seg in s["segments"]:
                    for b in seg["blocks"]:
                        frames = [f for f in b["frames"] if f["filename"] != "tag"]
                        # (The pickle was written before the JSON, when blocks were as they are.)
                        if b["state"] == "active_allocated":
                            self.assertGreater(len(frames), 3, b)
                            self.assertIsNotNone(stacks[b["address"]])
                        elif b["state"] == "inactive":
                            self.assertEqual(frames, [])
                        for f in frames:
                            self.assertEqual(set(f), {"filename", "line", "name", "offset"})
                            self.assertIsInstance(f["line"], int)
                            self.assertTrue(f["name"])
                            named += f["filename"].endswith(pathlib.Path(self.writer).name)
                self.assertGreater(named, 1000, "calls in the program itself")
                for e in s["device_traces"][1]:
                    if e["action"] in ["alloc", "free_requested"]:
                        self.assertGreater(len(e["frames"]), 3, e)
                self.assertEqual(t["stacks"][0], [])
                self.assertLess(max(n for stack in t["stacks"] for n in stack), len(t["frames"]))
        for viz, snapshots in self.each_tool():
            text = viz.segments(snapshots[1], format_flamegraph=lambda text: text)
            self.assertIn(pathlib.Path(self.writer).name + "+0x", text)
            plotted = embedded(viz.trace_plot(snapshots[1]))
            names = {f["name"] for e in plotted["device_traces"][1] for f in e["frames"]}
            self.assertTrue(any(n.startswith(pathlib.Path(self.writer).name) for n in names), names)

    def test_a_request_that_failed_has_what_the_device_had_free(self):
        for kind, snapshots, told in self.each():
            for s, t in zip(snapshots, told):
                oom = [e for e in s["device_traces"][1] if e["action"] == "oom"]
                self.assertEqual([e["size"] for e in oom], [1 << 40])
                self.assertGreater(oom[0]["device_free"], 1 << 20)
                self.assertLess(oom[0]["device_free"], 256 << 20, "some of it was taken")
                same = [e["device_free_bytes"] for e in t["events"] if e["action"] == "oom"]
                self.assertEqual(same, [oom[0]["device_free"]])
        for viz, snapshots in self.each_tool():
            self.assertRegex(viz.trace(snapshots[0]), r"raise OutOfMemoryError(\(\))? # (1024.0GiB|1.0TiB) requested, \d+\.\dMiB free")

    def test_notes_are_annotations_and_tags_metadata(self):
        for kind, snapshots, told in self.each():
            for s, t in zip(snapshots, told):
                notes = s["external_annotations"]
                self.assertEqual([(n["stage"], n["name"], n["device"]) for n in notes], [("START", "epoch 2", 1)])
                times = [e["time_us"] for e in s["device_traces"][1]]
                self.assertTrue(times[0] <= notes[0]["time_us"] <= times[-1])
                tagged = [e for e in s["device_traces"][1] if e.get("user_metadata") == "kv_cache"]
                # As in PyTorch, what was taken from the device for them has it too.
                self.assertEqual({e["action"] for e in tagged} - {"segment_alloc", "segment_map"}, {"alloc"})
                tagged = [e for e in tagged if e["action"] == "alloc"]
                self.assertEqual(len(tagged), 10)
                self.assertTrue(all(e["frames"][0]["name"] == "kv_cache" for e in tagged))
                self.assertTrue(all(e["pool_id"][0] == 0 for e in tagged))
                said = [e for e in t["events"] if e.get("tag") == "kv_cache" and e["action"] == "alloc"]
                self.assertEqual(sorted(e["requested_bytes"] for e in said), [n * 10**6 for n in range(1, 11)])
                self.assertEqual([e["text"] for e in t["events"] if e["action"] == "annotate"], ["epoch 2"])
                self.assertTrue(all(e["thread"] > 0 for e in t["events"]))
            uses = [e for e in told[1]["events"] if e["action"] == "record_stream"]
            self.assertEqual(len(uses), 1, "in `after`")

    def test_a_tag_is_the_first_frame(self):
        frame = {"filename": "tag", "line": 0, "name": "kv_cache"}
        for kind, snapshots, told in self.each():
            for s, t in zip(snapshots, told):
                tags = {b["address"]: b.get("tag") for seg in t["segments"] for b in seg["blocks"]}
                stacks = [(b["address"], b["frames"]) for seg in s["segments"] for b in seg["blocks"]]
                self.assertEqual(sum(tag == "kv_cache" for tag in tags.values()), 6, "four of ten are freed")
                for address, frames in stacks:
                    self.assertEqual(frames[:1] == [frame], bool(tags[address]))
                    self.assertNotIn(frame, frames[1:])
        for viz, snapshots in self.each_tool():
            for s in snapshots:
                self.assertIn("kv_cache", viz.segments(s, format_flamegraph=lambda text: text))

    def test_a_scattered_block_is_a_segment_of_its_own(self):
        wide = 5 * (2 << 20) + 12345
        for kind, snapshots, told in self.each():
            found = [seg for seg in snapshots[1]["segments"] for b in seg["blocks"] if b["requested_size"] == wide]
            self.assertEqual(len(found), kind == "mapped")
            for seg in found:
                self.assertEqual(len(seg["blocks"]), 1)
                kinds = [t["kind"] for t in told[1]["segments"] if t["address"] == seg["address"]]
                self.assertEqual(kinds, ["scattered"])

    def test_the_viewer_knows_every_opcode(self):
        """And batches stay small: it appends a batch by a call with that many arguments."""
        for folder in self.sets.values():
            for name in ["before.pickle", "after.pickle"]:
                data = (folder / name).read_bytes()
                ops = [(op.name, arg) for op, arg, _ in pickletools.genops(data)]
                self.assertLessEqual({name for name, _ in ops}, VIEWER_OPCODES)
                self.assertTrue(all(arg.bit_length() < 64 for name, arg in ops if name == "LONG1"))
                pickletools.optimize(data)  # reads it strictly
        batches = max(len(seg["blocks"]) for _, s, _ in self.each() for seg in s[1]["segments"])
        self.assertGreater(batches, 1000, "one list comes in several batches")

    def test_segments_and_memory(self):
        """The text that the tools make for the flame graph, without the script that they would fetch for it."""
        for viz, snapshots in self.each_tool():
            for s in snapshots:
                lines = viz.segments(s, format_flamegraph=lambda text: text).splitlines()
                total = sum(seg["total_size"] for seg in s["segments"])
                # A block takes two lines: what was asked for, and the rest of it.
                self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in lines), total)
                self.assertTrue(all(re.match(r"stream_\d+;seg_\d+;(active_\w+|inactive);", x) for x in lines))
                memory = viz.memory(s, format_flamegraph=lambda text: text).splitlines()
                self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in memory), total)

    def test_stats(self):
        for viz, snapshots in self.each_tool():
            for s in snapshots:
                text = viz.segsum(s)  # which checks that all sums fit
                self.assertIn(f"segments: {len(s['segments'])}\n", text)
                total = sum(seg["total_size"] for seg in s["segments"])
                self.assertIn(f"total_reserved: {viz.Bytes(total)}\n", text)

    def test_compare(self):
        for viz, (before, after) in self.each_tool():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                text = viz.compare(before["segments"], after["segments"], format_flamegraph=lambda text: text)
                same = viz.compare(after["segments"], after["segments"], format_flamegraph=lambda text: text)
            self.assertRegex(printed.getvalue(), r"only_after = \[\d+")
            self.assertIn("only_after;stream_", text)
            self.assertEqual(same, "")

    def test_plots(self):
        for viz, snapshots in self.each_tool():
            for s in snapshots:
                for html in [viz.trace_plot(s), viz.trace_plot(s, plot_segments=True), viz.segment_plot(s)]:
                    self.assertIn("MemoryViz.js", html)
                    self.assertEqual(embedded(html), s)

    def test_trace_of_events(self):
        """Events, from the bytes that the library's own test holds fast (src/runtime/snapshot/tests.rs)."""
        s = pickle.loads((HERE / "small_snapshot.pickle").read_bytes())
        self.assertEqual([len(t) for t in s["device_traces"]], [0, 4])
        for release, viz in self.tools:
            with self.subTest(release=release):
                text = viz.trace(s)
                self.assertIn("Device 1 ---", text)
                self.assertIn("= seg_0[0:512.0B]", text)
                self.assertRegex(text, r"del \d+ # 256.0B")
                self.assertRegex(text, r"raise OutOfMemoryError(\(\))? # 8.0GiB requested, 12.1KiB free in CUDA")
                self.assertEqual(embedded(viz.trace_plot(s)), s)
                for viz_s in [s, *(x[1] for x in self.each())]:
                    self.assertIsInstance(viz.trace(viz_s if viz_s is s else viz_s[0]), str)

    def test_the_command_reads_the_file(self):
        """As people call it: python _memory_viz.py stats snapshot.pickle."""
        for release, viz in self.tools:
            with self.subTest(release=release):
                for args in [["stats"], ["trace"], ["trace_plot", "-o", os.devnull], ["segment_plot", "-o", os.devnull]]:
                    command = [sys.executable, viz.__file__, args[0], str(self.sets["mapped"] / "after.pickle")]
                    done = subprocess.run(command + args[1:], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          timeout=120)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    if args == ["stats"]:
                        self.assertIn("total_reserved:", done.stdout)


def main():
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        sys.exit("give the built millpond_snapshot_writer")
    Snapshots.writer = sys.argv.pop(1)
    wanted = os.environ.get("MILLPOND_TEST_TORCH", " ".join(RELEASES)).split()
    for release in wanted:
        if release == "none":
            continue
        try:
            Snapshots.tools.append((release, load(fetch(release))))
        except NoWheel as why:
            print(f"SKIPPED: torch {release}: the wheel cannot be had ({why})", flush=True)
    program = unittest.main(exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    if not Snapshots.tools:
        print("SKIPPED: no release of PyTorch; only the form of the snapshots was tested", flush=True)
        sys.exit(77)


if __name__ == "__main__":
    main()
