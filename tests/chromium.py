"""A headless Chromium, spoken to over a pipe: opens files, clicks, asks, takes pictures."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def installed():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One window; a context manager that ends the browser."""

    def __init__(self, width=1500, height=900):
        read, self._out = os.pipe()
        self._in, write = os.pipe()
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [
            installed(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
            f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        script = f'exec "$@" 3<&{read} 4>&{write}'  # the numbers that Chromium looks at
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *command],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._rest, self._count, self._session = b"", 0, None
        self.errors = []  # of scripts
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        self.call("Page.enable")
        self.call("Runtime.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method, **params):
        """One command of the DevTools protocol and its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self):
        while b"\0" not in self._rest:
            piece = os.read(self._in, 1 << 16)
            assert piece, "Chromium ended"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        event = json.loads(text)
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(event["params"]["exceptionDetails"])
        return event

    def open(self, path):
        self.call("Page.navigate", url=f"file://{path}")
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def seconds_busy(self):
        """Of the page's main thread, once Performance is enabled with threadTicks."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def click(self, selector):
        """A mouse click in the middle of what a selector finds first."""
        box = self.ask(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)  # fmt: skip

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
