"""A headless Chromium, driven over a pipe by its own protocol, with nothing but Python.

    with Browser() as b:
        page = b.open(path)
        page.value("document.title")

Errors of a page (exceptions, console errors, refused loads) are kept in `page.errors`, and what it wanted to load from
anywhere in `page.requests`.
"""
import base64
import collections
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


def find():
    """The path of a Chromium, or None. One that only stands for a snap is there, but does not start."""
    return next((p for p in map(shutil.which, NAMES) if p and starts(p)), None)


def starts(program):
    try:
        done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class Failed(Exception):
    """The browser did not do what it was told."""


class Browser:
    def __init__(self, program=None):
        self.program = program or find()
        if not self.program:
            raise Failed("there is no Chromium that starts; install the package `chromium`")

    def __enter__(self):
        # In a sandbox first. In a container an ordinary user may not make one, and root never may: then without, as the
        # pages are our own.
        if os.geteuid() != 0:
            self.start([])
            try:
                self.call("Browser.getVersion", seconds=60)
                return self
            except (Failed, OSError):
                self.__exit__()
        self.start(["--no-sandbox"])
        try:
            self.call("Browser.getVersion", seconds=60)
        except (Failed, OSError) as e:
            self.__exit__()
            raise Failed(f"{self.program} does not start: {e}")
        return self

    def start(self, more):
        self.home = tempfile.mkdtemp(prefix="millpond-chromium-")
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-extensions",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--disable-background-networking",
            f"--user-data-dir={self.home}", *more,
        ]

        # The protocol is spoken over descriptors 3 and 4.
        def descriptors():
            os.dup2(to_read, 13)
            os.dup2(to_write, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)
            os.close(13)
            os.close(14)

        self.process = subprocess.Popen(
            [self.program, *flags], preexec_fn=descriptors, pass_fds=(3, 4, to_read, to_write),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.last, self.rest, self.events, self.answers = 0, b"", collections.deque(), {}

    def __exit__(self, *_):
        try:
            self.call("Browser.close", seconds=10)
            self.process.wait(10)
        except (Failed, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.home, ignore_errors=True)

    def read(self, until):
        """Takes one message; None where there is none in time."""
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], max(0, until - time.monotonic()))
            if not ready:
                return None
            more = os.read(self.back, 1 << 20)
            if not more:
                raise Failed("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, seconds=120, **arguments):
        self.last += 1
        number = self.last
        message = {"id": number, "method": method, "params": arguments}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        until = time.monotonic() + seconds
        while True:
            got = self.read(until)
            if got is None:
                raise Failed(f"no answer to {method} in {seconds} s")
            if got.get("id") == number:
                if "error" in got:
                    raise Failed(f"{method}: {got['error'].get('message')}")
                return got["result"]
            if "method" in got:
                self.events.append(got)

    def open(self, path, width=1280, height=900, dark=False, seconds=120, ready="document.documentElement?.dataset.ready === 'yes'"):
        """A page with a file in it, once `ready` holds there."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ["Page", "Runtime", "Log", "Network"]:
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.dark(dark)
        page.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        page.wait(ready, seconds)
        return page


class Page:
    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target
        self.found, self.requests = [], []

    def call(self, method, **arguments):
        return self.browser.call(method, session=self.session, **arguments)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def resize(self, width, height=900, ratio=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio, mobile=False)

    def dark(self, dark):
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    @property
    def errors(self):
        self.call("Runtime.evaluate", expression="0")  # what has happened is told before the answer
        for event in list(self.browser.events):
            if event.get("sessionId") != self.session:
                continue
            self.browser.events.remove(event)
            what, told = event["method"], event["params"]
            if what == "Runtime.exceptionThrown":
                detail = told["exceptionDetails"]
                self.found.append(detail.get("exception", {}).get("description") or detail["text"])
            elif what == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                self.found.append(" ".join(str(a.get("value", a.get("description"))) for a in told["args"]))
            elif what == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                self.found.append(told["entry"]["text"])
            elif what == "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
        return self.found

    def value(self, expression):
        """The value of an expression, or of a promise of it."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            detail = got["exceptionDetails"]
            raise Failed(detail.get("exception", {}).get("description") or detail["text"])
        return got["result"].get("value")

    def wait(self, expression, seconds=20):
        until = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > until or self.errors:
                raise Failed(f"`{expression}` did not come true; errors: {self.errors}")
            time.sleep(0.02)

    def settle(self):
        """Waits until what was asked for is drawn."""
        self.value("new Promise(f => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(f)), 160))")

    def click(self, x, y):
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"]:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def drag(self, x, y, to):
        move = lambda kind, x: self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        move("mouseMoved", x)
        move("mousePressed", x)
        for n in range(1, 6):
            move("mouseMoved", x + (to - x) * n / 5)
        move("mouseReleased", to)
        self.settle()

    def click_on(self, selector):
        """Clicks on the middle of an element, as a pointer does."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        self.click(*box)

    def press(self, key, code=None):
        known = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key)
        arguments = {"key": key, "code": code or key, "windowsVirtualKeyCode": known[key]}
        if text:
            arguments["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown", **arguments)
        self.call("Input.dispatchKeyEvent", type="keyUp", **arguments)
        self.settle()

    def type(self, text):
        self.call("Input.insertText", text=text)
        self.settle()

    def screenshot(self, path, whole=True, form="png", quality=None):
        arguments = {"format": form, "captureBeyondViewport": whole}
        if quality:
            arguments["quality"] = quality
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            arguments["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        data = self.call("Page.captureScreenshot", **arguments)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
