"""Take the pictures of the viewer for docs/how-to/view.md; needs chromium.

Usage: python docs/pictures/viewer.py SERIES DATASET

SERIES is the folder LIDC-IDRI-0003 of the archive. DATASET contains the largest slice of each nodule:

    phiseg prepare arrays lidc_maxslice71.npz DATASET --window -1000 400 --size 64 --classes background nodule \
        --centred-on nodule --modality CT --plane axial
"""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from phiseg.models import load_model
from phiseg.viewer.server import Viewer, create_app

MODEL = "lidc-nodule"
FOLDER = Path(__file__).parent
GROUND_GLASS = {"slice": 66, "point": "66,340,366", "samples": 50, "zoom": 5.385, "window": "-1350,150"}
"""A nodule of LIDC-IDRI-0003 that one of four readers outlined."""
CASE = "LIDC-IDRI-0110-00228"


def main(series: Path, dataset: Path) -> None:
    """Take all pictures."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium)
        with serving() as address, opened(browser, address, "light") as page:
            show(page, address, "synthetic example")
            save(page, "view-example.png")
        with serving(series) as address, opened(browser, address, "dark") as page:
            page.goto(address)
            name = page.locator("#scans option").first.inner_text()
            show(page, address, name, centre="343,362", **GROUND_GLASS)
            box = page.locator("#picture").bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2 + 54, box["y"] + box["height"] / 2 - 16)
            save(page, "view-scan.png")
            page.mouse.move(0, 0)
            planes = GROUND_GLASS | {"planes": 1, "cursor": "352,370", "centre": "352,370", "zoom": 8}
            show(page, address, name, **planes)
            save(page, "view-planes.png")
        with serving(dataset) as address, opened(browser, address, "light") as page:
            show(page, address, CASE, view="levels", seed=1)  # the first sample is not empty
            save(page, "view-levels.png")
        browser.close()


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """Run the viewer and return its address."""
    viewer = Viewer.of(load_model(Path(MODEL)), MODEL)
    viewer.add(paths)
    server = uvicorn.Server(uvicorn.Config(create_app(viewer), host="127.0.0.1", port=0, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@contextmanager
def opened(browser: Browser, address: str, theme: str) -> Iterator[Page]:
    """Open the page in a theme."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
    page.goto(address)
    wait(page, "window.phiseg?.scan && !window.phiseg.busy")
    yield page
    page.close()


def show(page: Page, address: str, scan: str, **settings: object) -> None:
    """Open a scan with a link, and wait for the samples; by default at the position where the scan opens."""
    page.locator("#scans").select_option(label=scan)
    wait(page, f"window.phiseg.scan.name === {scan!r} && !window.phiseg.busy")
    start = page.evaluate("() => window.phiseg.scan.start")
    settings = {"slice": start[0], "point": ",".join(map(str, start)), **settings}
    link = "&".join(f"{key}={value}" for key, value in settings.items())
    identity = page.evaluate("() => window.phiseg.state.scan")
    page.goto(f"{address}?new#model={MODEL}&scan={identity}&{link}")
    wait(page, "window.phiseg?.result?.id && !window.phiseg.busy")


def wait(page: Page, condition: str) -> None:
    """Wait for a condition; the page's content security policy forbids playwright's own function for this."""
    end = time.monotonic() + 600
    while not page.evaluate(f"() => Boolean({condition})"):
        if time.monotonic() > end:
            raise TimeoutError(f"{condition}: {page.locator('#messages').inner_text()}")
        page.wait_for_timeout(100)


def save(page: Page, name: str) -> None:
    """Save a screenshot next to this file."""
    page.wait_for_timeout(500)
    page.screenshot(path=FOLDER / name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
