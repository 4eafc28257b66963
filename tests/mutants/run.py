"""Breaks the library on purpose, one small mutant at a time, and sees that a test notices.

The mutants are in the lists beside this file. Each names a text that occurs once in a file, and what stands there
instead. With « and » in it, only what is between them is replaced, and the rest says where. All of them are built into
one copy of the sources, under target/mutants, each behind a switch that an environment variable turns on: so there is
one build, and src/ is never touched.

    test        the suite that must fail, that of the core (CORE) unless told: a test program, "lib" for the tests beside
                the code, and a filter
    find, put   lists of the same length change several places at once; with a list of files, each in its own
    equivalent  why nothing that a test could see changes; it is built but not run
    open        why no test has it yet; it is run, and may survive

Usage: run.py [--look SUITE]... [--open] [WORDS]: only mutants whose name has all the words, or whose list has that
name. With --look, those suites are tried
one after the other on each, for a mutant of which it is not known yet who catches it; with --open, only on those that
their list calls open.
"""

import argparse
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"
# Not one of the MILLPOND_ variables, which tests keep from the processes that they start.
SWITCH = "MUTANT_OF_MILLPOND"
# Without the tests of huge devices, which take longest.
CORE = "lib core:: --skip core::tests::scale"
LONGEST = 300  # [s] of a run that hangs
ON = f"""
/// Whether the mutant of that number is switched on.
#[allow(missing_docs, unreachable_pub, clippy::undocumented_unsafe_blocks)]
pub mod mutants {{
    use std::ffi::{{c_char, c_int}};
    use std::sync::atomic::{{AtomicI64, Ordering::Relaxed}};

    unsafe extern "C" {{
        fn getenv(name: *const c_char) -> *const c_char;
        fn atoi(text: *const c_char) -> c_int;
    }}

    static WHICH: AtomicI64 = AtomicI64::new(-1);

    pub fn on(number: u32) -> bool {{
        let mut which = WHICH.load(Relaxed);
        if which < 0 {{
            // Without the heap: a test may have ended it.
            which = unsafe {{
                let set = getenv(c"{SWITCH}".as_ptr());
                if set.is_null() {{ 0 }} else {{ atoi(set).into() }}
            }};
            WHICH.store(which, Relaxed);
        }}
        which == i64::from(number)
    }}
}}
"""


def fail(text):
    sys.exit(f"mutants: {text}")


def load():
    """All mutants, with their numbers from 1 on."""
    mutants = []
    for path in sorted(HERE.glob("*.toml")):
        for mutant in tomllib.loads(path.read_text())["mutant"]:
            unknown = set(mutant) - {"name", "file", "find", "put", "test", "equivalent", "open"}
            if unknown:
                fail(f"{path.name}: {mutant.get('name')}: {sorted(unknown)} is not known")
            mutants.append(dict(mutant, list=path.stem))
    names = [m["name"] for m in mutants]
    for name in names:
        if names.count(name) > 1:
            fail(f"two mutants are called {name!r}")
    for number, mutant in enumerate(mutants, 1):
        mutant["number"] = number
    return mutants


def files(mutant):
    return [mutant["file"]] if isinstance(mutant["file"], str) else mutant["file"]


def changes(mutant, file):
    """What is replaced in a file, and by what: one place, or several at once."""
    find, put = mutant["find"], mutant["put"]
    if isinstance(find, str):
        return [(find, put)]
    there = files(mutant) if isinstance(mutant["file"], list) else [file] * len(find)
    return [(f, p) for at, f, p in zip(there, find, put, strict=True) if at == file]


def place(mutant, file, find, text):
    """Where the replaced text begins and ends."""
    bare = find.replace("«", "").replace("»", "")
    if text.count(bare) != 1:
        fail(f"{file}: the text of {mutant['name']!r} occurs {text.count(bare)} times, not once")
    at = text.index(bare)
    if "«" not in find:
        return at, at + len(bare)
    begin = at + find.index("«")
    return begin, begin + find.index("»") - find.index("«") - 1


def switched(was, there):
    """The text with its mutants, which are all for the same place, behind their switches."""
    is_statement = was.endswith(";") or was.startswith("for ")
    out = "".join(f"if crate::mutants::on({m['number']}) {{ {put} }} else " for m, put in there)
    out += f"{{ {was} }}"
    return out if is_statement else f"({out})"


def with_switches(mutants, file):
    text = (ROOT / file).read_text()
    places = {}
    for mutant in mutants:
        for find, put in changes(mutant, file):
            places.setdefault(place(mutant, file, find, text), []).append((mutant, put))
    before = len(text) + 1
    for (begin, end), there in sorted(places.items(), reverse=True):
        if end > before:
            fail(f"{file}: {there[0][0]['name']!r} overlaps the next one")
        text = text[:begin] + switched(text[begin:end], there) + text[end:]
        before = begin
    return text


def write_tree(mutants):
    """The copy of the sources. What has not changed keeps its time, so that little is built anew."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    tracked = {f for f in listed.decode().split("\0") if f and (ROOT / f).is_file()}
    broken = {f for m in mutants for f in files(m)}
    if not broken <= tracked:
        fail(f"no such file: {sorted(broken - tracked)}")
    for file in sorted(tracked):
        to = TREE / file
        if file in broken:
            new = with_switches([m for m in mutants if file in files(m)], file).encode()
        else:
            new = (ROOT / file).read_bytes() + (ON.encode() if file == "src/lib.rs" else b"")
        if not to.is_file() or to.read_bytes() != new:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(new)
            shutil.copymode(ROOT / file, to)
    for old in [p for p in TREE.rglob("*") if p.is_file()]:
        if str(old.relative_to(TREE)) not in tracked:
            old.unlink()


def build(suites):
    """The test programs of the suites, by name."""
    programs = {s.split()[0] for s in suites}
    found = build_programs(sorted(programs - {"loom"}), "build", "-Awarnings") if programs - {"loom"} else {}
    if "loom" in programs:
        # As scripts/loom.sh builds it.
        found |= build_programs(["loom"], "loom", "-Awarnings --cfg loom", "--release")
    return found


def build_programs(programs, folder, flags, *options):
    wanted = [w for p in programs for w in (["--lib"] if p == "lib" else ["--test", p])]
    command = ["cargo", "test", "--locked", "-p", "millpond", "--no-run", "--message-format=json", *options, *wanted]
    env = dict(os.environ, CARGO_TARGET_DIR=str(WORK / folder), RUSTFLAGS=flags)
    env |= {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
    done = subprocess.run(command, cwd=TREE, env=env, stdout=subprocess.PIPE, text=True)
    found = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-message" and message["message"]["level"] == "error":
            print(message["message"]["rendered"], file=sys.stderr)
        if message.get("executable") and message.get("profile", {}).get("test"):
            target = message["target"]
            found["lib" if "lib" in target["kind"][0] else target["name"]] = message["executable"]
    if done.returncode != 0:
        fail("the sources with their mutants do not build")
    return found


def run(programs, suite, number):
    """Runs a suite until its first failure. What failed, or None."""
    program, *words = suite.split()
    env = dict(os.environ, CARGO_TARGET_DIR=str(WORK / "build"), **{SWITCH: str(number)})
    env.setdefault("LOOM_MAX_PREEMPTIONS", "3")
    child = subprocess.Popen(
        [programs[program], *words, "--nocapture"],
        cwd=TREE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )
    end = time.monotonic() + LONGEST
    seen = b""
    what = None
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ)
        while what is None:
            if time.monotonic() > end:
                what = "hangs"
            elif ready.select(timeout=1):
                some = os.read(child.stdout.fileno(), 1 << 16)
                if not some:
                    break
                seen += some
                panic = re.search(rb"thread '([^']*)'[^\n]* panicked at ([^\n]*):\n([^\n]*)\n", seen)
                failed = re.search(rb"test (\S+) \.\.\. FAILED", seen)
                if panic:
                    what = " ".join(g.decode(errors="replace") for g in panic.groups())
                elif failed:
                    what = failed.group(1).decode()
                elif child.poll() is not None and not ready.select(timeout=0):
                    break
    if what is not None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    child.stdout.close()
    status = child.wait()
    if what is None and status != 0:
        what = f"ends with {status}"
    return what


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--look", action="append", default=[])
    parse.add_argument("--open", action="store_true")
    parse.add_argument("words", nargs="*")
    args = parse.parse_args()
    mutants = load()
    write_tree(mutants)
    chosen = [m for m in mutants if all(w in m["name"] or w == m["list"] for w in args.words)]
    chosen = [m for m in chosen if "open" in m or not args.open]
    to_run = [m for m in chosen if "equivalent" not in m]
    suites_of = lambda m: args.look or [m.get("test", CORE)]
    suites = sorted({s for m in to_run for s in suites_of(m)})
    programs = build(suites)
    for suite in suites:
        if what := run(programs, suite, 0):
            fail(f"{suite} fails without a mutant: {what}")
    caught = {}
    survivors = []
    for mutant in to_run:
        start = time.monotonic()
        for suite in suites_of(mutant):
            if what := run(programs, suite, mutant["number"]):
                caught[suite] = caught.get(suite, 0) + 1
                note = f"caught by {suite}: {what}"
                break
        else:
            note = f"survived; open: {mutant['open']}" if "open" in mutant else "SURVIVED"
            survivors.append(mutant)
        print(f"{time.monotonic() - start:5.1f} s  {mutant['name']}: {note[:200]}", flush=True)
    of = ", ".join(f"{n} by {suite}" for suite, n in sorted(caught.items()))
    print(f"{len(to_run)} mutants run, {sum(caught.values())} caught ({of}), {len(survivors)} survived, "
          f"{len(chosen) - len(to_run)} equivalent")
    bad = [m for m in survivors if "open" not in m]
    for m in bad:
        print(f"SURVIVED: {m['name']} ({', '.join(files(m))})")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
