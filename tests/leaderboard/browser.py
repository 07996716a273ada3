"""Headless Chromium by its own driver (Debian: chromium, chromium-driver), by the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def axe_source() -> str | None:
    """axe-core's script: the file AXE_CORE names, or that of `npm install axe-core` in the checkout."""
    places = [os.environ.get("AXE_CORE"), Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"]
    for place in places:
        if place and Path(place).is_file():
            return Path(place).read_text(encoding="utf-8")
    return None


class Browser:
    """One window. Use as a context manager."""

    def __enter__(self) -> Browser:
        self._process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        port = None
        while port is None:
            line = self._process.stdout.readline()
            assert line, "chromedriver ended before it listened"
            found = re.search(r"successfully on port (\d+)", line)
            port = None if found is None else found[1]
        self._url = f"http://127.0.0.1:{port}"
        options = {
            "binary": CHROMIUM,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        }
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        try:
            self._url += f"/session/{self._send('POST', '/session', wanted)['sessionId']}"
        except OSError:
            self._process.terminate()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._send("DELETE", "", None)
        finally:
            self._process.terminate()
            self._process.wait()

    def _send(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]

    def open(self, page: Path, width: int = 1280, height: int = 1000) -> None:
        """A file, in a window whose page is `width` CSS pixels wide."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._send(
            "POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        )
        self._send("POST", "/url", {"url": page.absolute().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of a function of JavaScript returns."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, script: str) -> Any:
        """As `run`, of a body that calls `arguments[0]` with what it found."""
        return self._send("POST", "/execute/async", {"script": script, "args": []})

    def click(self, css: str) -> None:
        found = self._send("POST", "/element", {"using": "css selector", "value": css})
        self._send("POST", f"/element/{found[_ELEMENT]}/click", {})

    def press(self, css: str, keys: str) -> None:
        """Type into an element; of keys, \\ue007 is Enter."""
        found = self._send("POST", "/element", {"using": "css selector", "value": css})
        self._send("POST", f"/element/{found[_ELEMENT]}/value", {"text": keys})

    @property
    def url(self) -> str:
        return self._send("GET", "/url", None)

    def screenshot(self) -> bytes:
        return base64.b64decode(self._send("GET", "/screenshot", None))
