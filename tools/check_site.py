"""Open the built site in headless Chromium, as a reader would, and check what happens.

    python -m tools.check_site docs/_build/html [PAGE ...] [--screenshots FOLDER]

For a wide screen and a phone, in light and dark mode, it checks that no page is wider than the
screen, that nothing but what scrolls is clipped, that all pictures load, that each formula is
rendered, that nothing is requested from elsewhere, and that the console has no error. The exit
status is 1 if a check fails. It also asks a question. It needs Chromium and its driver, as
`tools/check_report.py` does.
"""

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools.browser import Driver, views
from tools.site_search import SiteSearch

FAULTS = """
    const faults = [], screen = innerWidth, page = document.documentElement;
    const scrolls = (one) => {
      for (let box = one; box; box = box.parentElement)
        if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return true;
      return false;
    };
    const name = (one) => `<${one.tagName.toLowerCase()}> ${one.textContent.trim().slice(0, 40)}`;
    if (page.scrollWidth > screen)
      faults.push(`the page is ${page.scrollWidth} pixels wide, and the screen ${screen}`);
    for (const one of document.querySelectorAll("article *")) {
      const box = one.getBoundingClientRect();
      if (box.width > 1 && (box.right > screen + 1 || box.left < -1) && !scrolls(one))
        faults.push(`clipped: ${name(one)}`);
    }
    for (const one of document.images) {
      one.loading = "eager";
      if (one.complete && !one.naturalWidth) faults.push(`no picture: ${one.src}`);
    }
    for (const one of document.querySelectorAll("article math"))
      if (!one.getBoundingClientRect().width) faults.push(`an empty formula: ${name(one)}`);
    if (!document.querySelector("article")) faults.push("no text");
    return faults.slice(0, 5);
"""
QUESTION = "Where is the learning rate set, and how do I warm it up?"
FIRST_RESULT = """
    const [done] = arguments;
    const look = () => {
      const first = document.querySelector("#search-results li a");
      if (first && document.querySelector("#search-results li .context")) done(first.pathname);
      else setTimeout(look, 50);
    };
    look();
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Write nothing."""

    def handle(self) -> None:
        """Answer; the browser may have left the page."""
        with suppress(ConnectionError):
            super().handle()


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the folder on a free port of this machine, and return the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def faults(driver: Driver, address: str, page: str) -> Iterator[str]:
    """Open a page, and describe everything that is wrong."""
    driver.post("/url", {"url": f"{address}/{page}"})
    yield from driver.run(FAULTS)
    for entry in driver.log("browser"):
        yield f"console: {entry['message'][:400]}"
    for requested in driver.requests():
        if not requested.startswith((address, "data:", "blob:")):
            yield f"requested: {requested[:200]}"


def search_faults(driver: Driver, address: str, expected: str) -> Iterator[str]:
    """Ask the question, and describe what is wrong."""
    yield from faults(driver, address, f"search.html?q={quote(QUESTION)}")
    first = driver.run(FIRST_RESULT, "async")
    if first != f"/{expected}.html":
        yield f"the first result is {first}, and without a browser {expected}"
    for entry in driver.log("browser"):
        yield f"console: {entry['message'][:400]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check pages of a site on all screens, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("pages", nargs="*", help="such as methods/ema.html; default: all")
    parser.add_argument("--screenshots", type=Path, help="a folder for a picture of each screen")
    options = parser.parse_args(arguments)
    every = (path.relative_to(options.site).as_posix() for path in options.site.rglob("*.html"))
    pages = options.pages or sorted(page for page in every if not page.startswith("_"))
    expected, failed = SiteSearch(options.site).pages(QUESTION)[0], 0
    with served(options.site) as address:
        for view, driver in views():
            for page in pages:
                found = list(faults(driver, address, page))
                if options.screenshots is not None:
                    stem = page.removesuffix(".html").replace("/", "-")
                    driver.screenshot(options.screenshots / f"{stem}-{view}.png")
                failed += bool(found)
                print(f"{page}, {view}: {'; '.join(found)}\n" if found else "", end="")
            found = list(search_faults(driver, address, expected))
            failed += bool(found)
            print(f"{view}: {len(pages)} pages; the search: {'; '.join(found) or 'no fault'}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
