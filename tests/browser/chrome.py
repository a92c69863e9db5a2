"""A real Chromium without a window, driven over two pipes by its own protocol (CDP).

    Chrome(program, folder) -> page -> goto, evaluate, wait_for, screenshot
        -> console errors, failed and all requests, as they came

No package is needed: messages are JSON with a zero byte behind each.  One thread reads.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

from waiting import LIMIT_S, until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--no-sandbox",
    "--disable-extensions", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--mute-audio",
    "--disable-features=Translate,OptimizationHints,MediaRouter", "--password-store=basic",
    "--disable-breakpad", "--no-default-browser-check", "--remote-debugging-pipe",
)  # fmt: skip


def program() -> str | None:
    """The path of a Chromium here."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Chrome:
    """One Chromium with one page.

    Parameters
    ----------
    path : str
        Its program.
    folder : Path
        For its profile.

    Attributes
    ----------
    problems : list of str
        Errors and warnings of the console, exceptions, requests that failed.
    requests : list of str
        Addresses of all requests that the page made.
    """

    def __init__(self, path: str, folder: Path) -> None:
        to_it, ours_out = os.pipe()
        ours_in, from_it = os.pipe()
        # It reads descriptor 3 and writes 4; a shell moves them there, whatever they are here.
        # It goes first from 3 and 4 themselves, which these may be.
        moved = [os.dup2(to_it, 40), os.dup2(from_it, 41)]
        for descriptor in moved:
            os.set_inheritable(descriptor, True)
        script = 'exec 3<&40 4>&41 40<&- 41>&-; exec "$0" "$@"'
        home = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
        self._process = subprocess.Popen(
            ["bash", "-c", script, path, *ARGUMENTS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=moved,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=home,
            start_new_session=True,
        )
        for descriptor in (to_it, from_it, *moved):
            os.close(descriptor)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._next = 0
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        target = self.call("Target.createTarget", {"url": "about:blank"}, of_page=False)
        self._session: str | None = self.call(
            "Target.attachToTarget",
            {"targetId": target["targetId"], "flatten": True},
            of_page=False,
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    # --- what tests do ---------------------------------------------------------------------------

    def goto(self, url: str) -> None:
        """Opens a page, without waiting for it."""
        self.call("Page.navigate", {"url": url})

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True},
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str, limit_s: float = LIMIT_S) -> Any:
        """The value of an expression as soon as it is true."""
        tried = f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()"
        return until(
            lambda: self.evaluate(tried),
            lambda: f"{script}; {self.text()[:2000]}",
            limit_s=limit_s,
        )

    def text(self) -> str:
        """All that a reader sees."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def key(self, name: str) -> None:
        """Presses a key: a name as in KeyboardEvent.key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        event = {"key": name, "code": name, "windowsVirtualKeyCode": codes.get(name, 0)}
        if name == "Enter":
            event["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, **event})

    def look(
        self, width: int, *, dark: bool = False, height: int = 900, mobile: bool = False
    ) -> None:
        """Sets the size of the window, and light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def settle(self) -> None:
        """Waits for two frames, in which sizes are observed and drawn, and for what glides."""
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => "
            "Promise.all(document.getAnimations().filter((one) => "
            "one.effect.getTiming().iterations !== Infinity).map((one) => one.finished))"
            ".then(done, done))))"
        )

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError, AssertionError, ValueError):
            self.call("Browser.close", of_page=False, limit_s=5.0)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(LIMIT_S)
        self._thread.join(LIMIT_S)
        self._out.close()
        self._in.close()

    # --- the protocol ----------------------------------------------------------------------------

    def call(
        self,
        method: str,
        parameters: dict[str, Any] | None = None,
        *,
        of_page: bool = True,
        limit_s: float = LIMIT_S,
    ) -> dict[str, Any]:
        """One call; its result."""
        with self._lock:
            self._next += 1
            number = self._next
            answers = self._answers[number] = queue.SimpleQueue()
            message: dict[str, Any] = {"id": number, "method": method, "params": parameters or {}}
            if of_page:
                message["sessionId"] = self._session
            self._out.write(json.dumps(message).encode() + b"\0")
            self._out.flush()
        try:
            answer = answers.get(timeout=limit_s)
        except queue.Empty:
            raise AssertionError(f"Chromium has not answered {method} for {limit_s} s") from None
        assert "error" not in answer, f"{method}: {answer}"
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> None:
        rest = b""
        while True:
            data = os.read(self._in.fileno(), 1 << 20)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\0")
            for one in whole:
                message = json.loads(one)
                if "id" in message:
                    self._answers.pop(message["id"]).put(message)
                else:
                    self._note(message["method"], message["params"])

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Network.loadingFailed" and not event.get("canceled"):
            self.problems.append(f"a request failed: {event.get('errorText')}")
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(str(details.get("exception", details).get("description", details)))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.problems.append(str([one.get("value") for one in event["args"]]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(event["entry"]["text"])
