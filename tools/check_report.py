"""Open reports in headless Chromium, as a reader would, and check what happens.

    python -m tools.check_report [REPORT] [--screenshots FOLDER]

Without a report, it writes one of runs with seeds, hostile names, and values that are not finite,
and one of a comparison. It needs Chromium and its driver: `apt-get install chromium
chromium-driver`.

For a wide screen and a phone, in light and dark mode, it checks that every chart is drawn, that
nothing is requested but the file itself, that the console has no error, that the page is not wider
than the screen, and that each control works. The exit status is 1 if a check fails.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from composable.comparison import Comparison
from composable.report import write_report
from tests.comparison.synthetic import make_study
from tests.report.folders import ended, write_run
from tools.browser import LONGEST, Driver, views

HOSTILE = "<img src=x onerror=alert(1)>\"'&`${1}%{y}"

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


def write_runs(folder: Path) -> list[Path]:
    """Write runs of all kinds: two seeds, a failed one with a hostile name, and an empty one."""
    losses = [2 / (1 + i / 50) + 0.1 * math.sin(i) for i in range(500)]
    results = [(batch, {"eval/accuracy": batch / 500}) for batch in range(9, 500, 50)]
    split = {f"time_split/{part}": 1.0 + i for i, part in enumerate(("data", "forward", "saving"))}
    metrics = [{"batch": batch, "norm/grad": 1 / batch, **split} for batch in range(1, 500)]
    warning = {"event": "warning", "batch": 3, "category": "UserWarning", "message": HOSTILE}
    plan = {"steps": [{"event": HOSTILE, "who": HOSTILE, "stage": "mix", "why": HOSTILE}]}
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
    return [folder / "plain-1", folder / "plain-2", failed, write_run(folder / "empty")]


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
    for address in driver.requests():
        if address.partition("#")[0] != page and not address.startswith(("data:", "blob:")):
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
    for view, driver in views():
        found = list(faults(driver, page))
        if screenshots is not None:
            driver.screenshot(screenshots / f"{report.stem}-{view}.png")
        print(f"{report.stem}, {view}: {'; '.join(found) or 'no fault'}")
        failed |= bool(found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
