# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A headless Chromium that is told what to do through a pipe (DevTools protocol), without further packages."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

TIMEOUT_S = 30


class Browser:
    """One browser with one page. Everything that the page logs or asks for is remembered."""

    def __init__(self):
        program = shutil.which("chromium")
        if program is None:
            raise RuntimeError("chromium is missing, and the report's page is tested in it: run `scripts/setup.sh test` as root")
        self.profile = tempfile.TemporaryDirectory(prefix="kbp-browser-")
        self.unread = b""
        self.events = []
        self.number = 0
        self.session = None
        self.start(program)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def start(self, program):
        """The browser reads commands from descriptor 3 and answers on descriptor 4."""
        their_in, self.to_browser = os.pipe()
        self.from_browser, their_out = os.pipe()
        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}"]
        options += ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
        options += ["--disable-sync", "--disable-extensions", "--force-color-profile=srgb"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        shell = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *options],
            pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)

    def close(self):
        """Ends the browser, kindly first, and removes its profile."""
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(TIMEOUT_S)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        # Helpers of the browser may still write into the profile for a moment.
        for _ in range(50):
            shutil.rmtree(self.profile.name, ignore_errors=True)
            if not os.path.exists(self.profile.name):
                break
            time.sleep(0.1)
        self.profile.cleanup()

    def receive(self, deadline):
        """The next message of the browser."""
        while b"\0" not in self.unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.from_browser], [], [], left)[0]:
                raise RuntimeError(f"chromium said nothing for {TIMEOUT_S} s")
            data = os.read(self.from_browser, 1 << 20)
            if not data:
                raise RuntimeError(f"chromium ended with code {self.process.wait()}; can `chromium --headless` run here?")
            self.unread += data
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        """Calls a method of the protocol and returns its result; events that come meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self.receive(deadline)
            if answer.get("id") != self.number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def wait_for(self, method):
        """Waits for an event that has not come yet."""
        deadline = time.monotonic() + TIMEOUT_S
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive(deadline))

    def seen(self, method):
        """The parameters of all events of this kind so far."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def open(self, path, width, height, scheme="light"):
        """Opens a file in a window of this size; what was seen before is forgotten."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.scheme(scheme)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, script):
        """The value of a JavaScript expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key, code):
        """Presses a key in the element that has the focus."""
        for kind, text in (("keyDown", "\r" if key == "Enter" else " "), ("keyUp", "")):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=13 if key == "Enter" else 32, text=text)

    def picture(self, path, height_max=4500):
        """Writes the page, from its top, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height_max), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def complaints(self):
        """Errors and warnings of the page, and uncaught exceptions; not the advice on tests that read a canvas often."""
        said = [entry["entry"]["text"] for entry in self.seen("Log.entryAdded") if entry["entry"]["level"] in ("error", "warning")]
        said += [str(call["args"]) for call in self.seen("Runtime.consoleAPICalled") if call["type"] in ("error", "warning")]
        said = [text for text in said if "willReadFrequently" not in text]
        return said + [str(thrown["exceptionDetails"]) for thrown in self.seen("Runtime.exceptionThrown")]

    def requests(self):
        """Every address that the page asked for."""
        return [request["request"]["url"] for request in self.seen("Network.requestWillBeSent")]
