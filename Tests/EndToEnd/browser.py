"""Chromium, driven by its DevTools protocol over two pipes: no driver and no package is needed for it."""
import base64
import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile

import pytest
from kit import GUARD, ROOT, Deadline, until

CHROMIUM = shutil.which("chromium")
AXE = ROOT / ".build/axe/axe.min.js"
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no chromium here")


def _higher(descriptor: int) -> int:
    higher = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return higher


class Browser:
    """One page of a headless Chromium with a profile of its own."""

    def __init__(self, width: int = 1280, height: int = 800):
        self._profile = tempfile.TemporaryDirectory(prefix="bw-chromium-", ignore_cleanup_errors=True)
        # Chromium reads commands from descriptor 3 and writes answers to 4: away from there, so that neither is overwritten.
        to_browser, self._out = map(_higher, os.pipe())
        self._in, from_browser = map(_higher, os.pipe())
        words = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--ignore-certificate-errors", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser} {to_browser}<&- {from_browser}>&-', "bash", *words],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._numbers, self._session = b"", itertools.count(1), None
        # What the page's console, its policy and its errors say.
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        try:
            target = self._begin()
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> str:
        found = until(
            lambda: [t["targetId"] for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"], what="a page")
        return found[0]

    def call(self, method: str, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data):]
        while (answer := self._receive()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _receive(self) -> dict:
        deadline = Deadline(GUARD)
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], deadline.left)
            assert ready, "Chromium does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict):
        kind, data = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(data["exceptionDetails"].get("exception", data["exceptionDetails"])))
        elif kind == "Log.entryAdded" and data["entry"]["level"] == "error":
            self.complaints.append(f"{data['entry']['source']}: {data['entry']['text']} {data['entry'].get('url', '')}")
        elif kind == "Page.javascriptDialogOpening":
            self.dialogs.append(data["message"])

    # The page

    def resize(self, width: int, height: int):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def scheme(self, word: str):
        """"light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": word}])

    def open(self, url: str):
        self.call("Page.navigate", url=url)

    def run(self, script: str):
        """The value of an expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, what: str = "", seconds: float = GUARD):
        """Waits until the expression is true, and returns its value."""
        return until(lambda: self.run(script), seconds, what or script, every=0.05)

    def text(self, selector: str) -> str:
        """What is to be seen of it."""
        return self.run(f"(one => one?.checkVisibility() ? one.innerText : '')(document.querySelector({json.dumps(selector)}))")

    def texts(self, selector: str) -> list[str]:
        return self.run(f"Array.from(document.querySelectorAll({json.dumps(selector)}), (one) => one.innerText)")

    def shows(self, selector: str, text: str):
        """Waits until the element has the text."""
        until(lambda: text in self.text(selector), what=f"{text!r} in {selector}", every=0.05)

    def click(self, selector: str):
        """As a mouse does it: at its middle, where nothing may be above it."""
        place = self.run(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center" }});
            const {{ left, top, width, height }} = element.getBoundingClientRect();
            return {{ x: left + width / 2, y: top + height / 2 }};
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def type(self, selector: str, text: str):
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str):
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}
        code, text = codes[key]
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: str, whole: bool = False):
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(answer["data"]))

    def violations(self) -> list[str]:
        """What axe-core finds in the page as it is."""
        if not self.run("typeof axe === 'object'"):
            self.run(AXE.read_text() + "; true")
        found = self.run("axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations)")
        return [f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}" for one in found]

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
