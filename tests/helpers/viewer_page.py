"""A running viewer, and actions on its page in a browser."""

import shutil
import time
from contextlib import contextmanager
from threading import Thread

import numpy as np
import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the viewer needs uvicorn")
sync_api = pytest.importorskip("playwright.sync_api", reason="tests in a browser need playwright")
server = pytest.importorskip("phiseg.viewer.server", reason="the viewer needs FastAPI")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium; install it with: apt-get install chromium"
)


@contextmanager
def serving(model, *paths):
    """Run a viewer of a model and of some paths, and give its address."""
    viewer = server.Viewer.of(model, "tiny")
    viewer.add(paths)
    app = server.create_app(viewer)
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        running.should_exit = True
        thread.join()


@contextmanager
def running_browser():
    """Run a browser without a window."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


def wait_until(page, condition):
    """Wait until an expression of the page is true; the page's policy forbids playwright's own way."""
    end = time.monotonic() + 120
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.monotonic() < end, f"in vain: {condition}; {page.locator('#messages').inner_text()}"
        page.wait_for_timeout(30)


def open_page(page, address, link=""):
    page.goto(address + link)
    wait_until(page, "window.phiseg?.scan && !window.phiseg.busy")


def state_of(page):
    return page.evaluate("() => window.phiseg.state")


def result_of(page):
    """Wait for everything that a click gives, and return it."""
    wait_until(page, "window.phiseg?.result?.id && !window.phiseg.busy")
    return page.evaluate("() => window.phiseg.result")


def samples_of(result):
    """Return the samples (S, h, w) that the page shows."""
    box = result["box"]
    return np.array(result["samples"], np.uint8).reshape(-1, box["height"], box["width"])


def picture_of(page):
    """Return the pixels of the picture, after the next frame."""
    page.wait_for_timeout(60)
    return page.evaluate("() => document.getElementById('picture').toDataURL()")


def middle_of(page):
    box = page.locator("#picture").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def click(page, right=30, down=-20):
    """Click beside the middle of the picture, and return what came of it."""
    x, y = middle_of(page)
    page.mouse.click(x + right, y + down)
    return result_of(page)
