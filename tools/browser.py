"""Headless Chromium, as a reader of a page would have it, through chromedriver.

It needs Chromium and its driver: `apt-get install chromium chromium-driver`.
"""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["LONGEST", "Driver", "views"]

SCREENS = {
    "wide": {"width": 1400, "height": 900, "pixelRatio": 1, "touch": False, "mobile": False},
    "phone": {"width": 390, "height": 844, "pixelRatio": 2, "touch": True, "mobile": True},
}
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
LONGEST = 60  # seconds for one command


class Driver:
    """A session of chromedriver, through the WebDriver protocol."""

    def __init__(self, url: str, screen: dict[str, Any]) -> None:
        options = {"args": OPTIONS, "mobileEmulation": {"deviceMetrics": screen}}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        self.url = f"{url}/session"
        session = self.post("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self.url = f"{url}/session/{session}"

    def post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        raw = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, raw, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=LONGEST) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"chromedriver: {json.load(error)['value']['message']}") from error

    def run(self, script: str, kind: str = "sync") -> Any:
        return self.post(f"/execute/{kind}", {"script": script, "args": []})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind: str) -> list[dict[str, Any]]:
        return self.post("/se/log", {"type": kind})

    def requests(self) -> Iterator[str]:
        """Yield the addresses that were requested since the last call."""
        for entry in self.log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                yield message["params"]["request"]["url"]

    def screenshot(self, path: Path) -> None:
        """Save the whole page as a picture."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        area = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=area)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.post("", {}, "DELETE")


def views() -> Iterator[tuple[str, Driver]]:
    """Yield a name and a driver for a wide screen and a phone, in light and dark mode."""
    with chromedriver() as url:
        for name, screen in SCREENS.items():
            for theme in ("light", "dark"):
                driver = Driver(url, screen)
                try:
                    feature = {"name": "prefers-color-scheme", "value": theme}
                    driver.devtools("Emulation.setEmulatedMedia", features=[feature])
                    yield f"{name}-{theme}", driver
                finally:
                    driver.close()


@contextmanager
def chromedriver() -> Iterator[str]:
    """Start chromedriver on a free port, and return its address."""
    program = shutil.which("chromedriver")
    if program is None:
        raise SystemExit("chromedriver is not installed: apt-get install chromium chromium-driver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([program, f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
