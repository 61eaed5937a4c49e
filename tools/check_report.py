"""Open reports in headless Chromium, as a reader would, and check what happens.

    python -m tools.check_report [REPORT] [--screenshots FOLDER]

Without a report, it writes one of runs with seeds, hostile names, values that are not finite and
images, and one of a comparison. It needs Chromium and its driver: `apt-get install chromium
chromium-driver`.

For a wide screen and a phone, in light and dark mode, it checks that every chart is drawn, that
nothing is requested but the file itself, that the console has no error, that the page is not wider
than the screen, and that each control works. The exit status is 1 if a check fails.
"""

import argparse
import base64
import json
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composable.comparison import Comparison
from composable.report import write_report
from tests.comparison.studies import make_study
from tests.report.folders import ended, png, write_run

SCREENS = {
    "wide": {"width": 1400, "height": 900, "pixelRatio": 1, "touch": False, "mobile": False},
    "phone": {"width": 390, "height": 844, "pixelRatio": 2, "touch": True, "mobile": True},
}
HOSTILE = "<img src=x onerror=alert(1)>\"'&`${1}%{y}"
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
LONGEST = 60  # seconds until the charts are drawn

DRAW_ALL = """
    const charts = [...document.querySelectorAll(".chart")];
    const waiting = charts.find((one) => !one.querySelector(".main-svg"));
    if (waiting) waiting.scrollIntoView(); else scrollTo(0, 0);
    return document.documentElement.dataset.ready === "true" && !waiting;
"""
WIDTHS = "return [document.documentElement.scrollWidth, innerWidth]"
HAS_CHARTS = 'return document.getElementById("fault") !== null'
FAULT = 'return document.getElementById("fault").hidden'
DRAWN = """
    const plots = [...document.querySelectorAll(".chart:not([hidden]) .plot")];
    return plots.map((plot) => (plot.data || []).length);
"""
USE_CONTROLS = """
    const done = arguments[0], controls = document.querySelector("#controls");
    const drawn = () => new Promise((then) => requestAnimationFrame(() => setTimeout(then)));
    const set = async (one, value) => {
      one.value = value;
      ["input", "change"].forEach((name) => one.dispatchEvent(new Event(name)));
      await drawn();
    };
    (async () => {
      for (const select of controls.querySelectorAll("select"))
        for (const option of [...select.options].reverse()) await set(select, option.value);
      for (const one of controls.querySelectorAll("input[type=range]"))
        for (const value of [0, 10, 1]) await set(one, value);
      for (const one of controls.querySelectorAll("button, input[type=checkbox]"))
        for (const _ of [1, 2]) {
          one.click();
          await drawn();
        }
      for (const one of document.querySelectorAll("table.sortable th button"))
        for (const _ of [1, 2]) one.click();
      const first = controls.querySelector(".runs button");
      if (first) first.click();
      const shown = document.querySelectorAll("[data-run='0']:not([hidden])").length;
      if (first) first.click();
      await drawn();
      return !first || !shown;
    })().then(done);
"""


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

    def close(self) -> None:
        self.post("", {}, "DELETE")


def write_runs(folder: Path) -> list[Path]:
    """Write runs of all kinds: two seeds, a failed one with a hostile name, and an empty one."""
    losses = [2 / (1 + i / 50) + 0.1 * math.sin(i) for i in range(500)]
    results = [(batch, {"eval/accuracy": batch / 500}) for batch in range(9, 500, 50)]
    split = {f"time_split/{part}": 1.0 + i for i, part in enumerate(("data", "forward", "saving"))}
    metrics = [{"batch": batch, "norm/grad": 1 / batch, **split} for batch in range(1, 500)]
    warning = {"event": "warning", "batch": 3, "category": "UserWarning", "message": HOSTILE}
    plan = {"timeline": [{"name": HOSTILE, "stage": "mix", "spans": [[0, 0.8, [HOSTILE]]]}]}
    for name, seed in (("plain-1", 1), ("plain-2", 2)):
        noisy = [loss * (1 + seed / 100) for loss in losses]
        events = [*ended(500, 4000.0), warning]
        write_run(folder / name, noisy, seed=seed, results=results, events=events, metrics=metrics)
    failed = write_run(
        folder / HOSTILE,
        [*losses[:99], math.nan, math.inf],
        events=ended(101, 60.0, HOSTILE),
        metrics=[{"batch": 1, HOSTILE: 1.0}],
        algorithms={HOSTILE: HOSTILE},
        plan=plan,
        epoch_length=None,
    )
    (failed / "images").mkdir()
    for batch in range(0, 100, 5):
        (failed / "images" / f"{HOSTILE}-ba{batch}.png").write_bytes(png(32, 32, batch))
    return [folder / "plain-1", folder / "plain-2", failed, write_run(folder / "empty")]


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


def faults(driver: Driver, page: str) -> Iterator[str]:
    """Open the page, use its controls, and describe everything that is wrong."""
    driver.post("/url", {"url": page})
    if driver.run(HAS_CHARTS):
        yield from chart_faults(driver)
    width, screen = driver.run(WIDTHS)
    if width > screen:
        yield f"the page is {width} pixels wide, and the screen {screen}"
    for entry in driver.log("browser"):
        yield f"console: {entry['message'][:400]}"
    for address in requests(driver, page):
        yield f"requested: {address[:200]}"


def chart_faults(driver: Driver) -> Iterator[str]:
    """Describe what is wrong with the charts of a report of runs, and with its controls."""
    end = time.monotonic() + LONGEST
    while not driver.run(DRAW_ALL):
        if time.monotonic() > end:
            yield f"the charts are not drawn within {LONGEST} s"
            break
        time.sleep(0.2)
    if not driver.run(FAULT):
        yield "the page says that it cannot draw its charts"
    if 0 in (counts := driver.run(DRAWN)):
        yield f"a chart has no curve: {counts}"
    if not driver.run(USE_CONTROLS, "async"):
        yield "a run that is switched off is still shown"


def requests(driver: Driver, page: str) -> Iterator[str]:
    for entry in driver.log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            address = message["params"]["request"]["url"]
            if address.partition("#")[0] != page and not address.startswith(("data:", "blob:")):
                yield address


def screenshot(driver: Driver, path: Path) -> None:
    """Save the whole page as a picture."""
    size = driver.devtools("Page.getLayoutMetrics")["cssContentSize"]
    area = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    shot = driver.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=area)
    path.write_bytes(base64.b64decode(shot["data"]))


def main(arguments: list[str] | None = None) -> int:
    """Check reports on all screens, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "report", type=Path, nargs="?", help="default: of runs, and of a comparison"
    )
    parser.add_argument("--screenshots", type=Path, help="a folder for a picture of each screen")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        reports = [options.report] if options.report else write_reports(Path(folder))
        failed = [check(report, options.screenshots) for report in reports]
    return int(any(failed))


def write_reports(folder: Path) -> list[Path]:
    """Write a report of runs and one of a comparison."""
    runs = write_report(write_runs(folder / "runs"), folder / "runs.html")
    study = make_study({"baseline": 1.0, HOSTILE: 1.2, "Partly": 0.8}, failing={"Partly": 2})
    Comparison(study).save(folder / "comparison")
    return [runs, (folder / "comparison/report.html").rename(folder / "comparison.html")]


def check(report: Path, screenshots: Path | None) -> bool:
    """Check a report on all screens and in both modes, and return whether a check failed."""
    page, failed = report.resolve().as_uri(), False
    with chromedriver() as url:
        for name, screen in SCREENS.items():
            for theme in ("light", "dark"):
                driver = Driver(url, screen)
                try:
                    feature = {"name": "prefers-color-scheme", "value": theme}
                    driver.devtools("Emulation.setEmulatedMedia", features=[feature])
                    found = list(faults(driver, page))
                    if screenshots is not None:
                        screenshots.mkdir(parents=True, exist_ok=True)
                        screenshot(driver, screenshots / f"{report.stem}-{name}-{theme}.png")
                finally:
                    driver.close()
                print(f"{report.stem}, {name}, {theme}: {'; '.join(found) or 'no fault'}")
                failed |= bool(found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
