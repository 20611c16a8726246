"""Three planes of a volume in the viewer, and pictures with colours."""

import numpy as np
import pytest
from PIL import Image

from helpers.small_viewer import make_model
from helpers.viewer_page import (
    needs_chromium,
    open_page,
    picture_of,
    result_of,
    running_browser,
    serving,
    state_of,
    wait_until,
)
from phiseg.data.intensity import Intensity
from phiseg.data.writer import Case, write_dataset

pytestmark = needs_chromium

GRID = (12, 24, 32)
"""Slices, rows and columns."""
VIEWPORT = {"width": 1600, "height": 800}


@pytest.fixture(scope="module")
def browser():
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Volumes with one bright voxel in noise, which two annotators draw with its surroundings."""

    def case(number):
        image = np.random.default_rng(number).integers(0, 100, (1, *GRID)).astype(np.uint8)
        labels = np.zeros((2, *GRID), np.uint8)
        labels[0, 3:7, 5:12, 8:20] = 1
        labels[1, 4:9, 6:13, 9:18] = 1
        image[0, 5, 9, 14] = 255
        columns = {"slice_spacing_mm": 2.0}
        return Case(f"volume-{number}", f"patient-{number}", image, labels, np.ones(2, bool), columns)

    return write_dataset(
        tmp_path_factory.mktemp("data") / "volumes",
        name="volumes",
        dims=3,
        classes=("background", "lesion"),
        num_annotators=2,
        image_shape=(1, *GRID[1:]),
        image_dtype=np.uint8,
        intensity=Intensity(kind="window", low=0, high=255),
        spacing_mm=(1.0, 1.0),
        plane="axial",
        splits={"train": ["patient-0"], "val": ["patient-1"], "test": ["patient-2"]},
        cases=map(case, range(3)),
    )


@pytest.fixture(scope="module")
def address(dataset):
    model = make_model(dims=3, plane="axial", low=0, high=255, centred_on=None, patch_size=(8, 16, 16))
    with serving(model, dataset.path) as address:
        yield address


@pytest.fixture
def page(browser, address):
    page = browser.new_page(viewport=VIEWPORT)
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    open_page(page, address)
    result_of(page)
    yield page
    page.close()
    assert complaints == []


def cursor_of(page):
    """Return the cursor when the planes through it are painted, so that the next click lands in them."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate("() => window.phiseg.cursor")


def panes_of(page):
    """Return the middle of the axial, coronal and sagittal pane: a large one, and two small ones beside it."""
    box = page.locator("#picture").bounding_box()
    width, height = box["width"] - 28, box["height"]  # next to the slider
    places = ((0.3, 0.5), (0.8, 0.25), (0.8, 0.75))
    return [(box["x"] + right * width, box["y"] + down * height) for right, down in places]


def test_volume_case_shows_planes_annotations_and_scores(page, dataset):
    assert page.locator("#planes").get_attribute("aria-pressed") == "true"
    result = result_of(page)
    assert page.evaluate("() => window.phiseg.scan.annotators") == ["annotator 0", "annotator 1"]
    assert result["scores"]["ged"] is not None
    assert f"{result['scores']['ged']:.3f}" in page.locator("#scores").inner_text()
    with_annotations = picture_of(page)
    page.locator("#picture").focus()
    page.keyboard.press("a")
    assert picture_of(page) != with_annotations
    number, row, column = cursor_of(page)
    assert (dataset.annotations(2)[:, number, row, column] > 0).any()  # it opens at the lesion


def test_click_in_a_pane_moves_the_other_planes(page):
    before, point = cursor_of(page), state_of(page)["point"]
    axial, coronal, sagittal = panes_of(page)
    page.mouse.click(axial[0] + 37, axial[1] + 23)
    moved = cursor_of(page)
    assert moved[0] == before[0]
    assert moved[1] > before[1] or moved[2] > before[2]
    page.mouse.click(coronal[0] - 10, coronal[1] - 12)  # above the middle: towards the head
    up = cursor_of(page)
    assert (up[0] > moved[0], up[1]) == (True, moved[1])
    page.mouse.click(sagittal[0] + 10, sagittal[1] + 12)
    down = cursor_of(page)
    assert (down[0] < up[0], down[2]) == (True, up[2])
    assert state_of(page)["point"] == point  # nothing is drawn again
    page.mouse.move(*coronal)
    page.mouse.wheel(0, 100)
    wait_until(page, f"window.phiseg.cursor[1] === {down[1] + 1}")


def test_readout_shows_the_same_voxel_in_every_plane(page, dataset):
    image = dataset.stored_image(2)[0]
    for x, y in panes_of(page):
        page.mouse.move(x + 9, y + 7)
        page.wait_for_timeout(150)
        words = page.locator("#readout").inner_text().replace(",", "").split()
        number, row, column = int(words[1]) - 1, int(words[3]), int(words[5])
        assert float(words[words.index("value") + 1]) == image[number, row, column]


def test_double_click_draws_samples(page):
    axial, *_ = panes_of(page)
    point = state_of(page)["point"]
    page.mouse.dblclick(axial[0] + 40, axial[1] + 30)
    result = result_of(page)
    assert result["request"]["point"] == cursor_of(page) != point


def test_link_restores_planes_and_cursor(page, browser):
    axial, *_ = panes_of(page)
    page.mouse.click(axial[0] + 40, axial[1] + 30)
    page.keyboard.press("3")
    page.wait_for_timeout(300)
    other = browser.new_page(viewport=VIEWPORT)
    other.goto(page.url)
    result_of(other)
    assert cursor_of(other) == cursor_of(page)
    assert (state_of(other)["planes"], state_of(other)["view"]) == (True, "mean")
    other.locator("#planes").click()
    assert state_of(other)["planes"] is False
    other.close()


@pytest.mark.parametrize("key", ["1", "2", "3", "4"])
def test_every_map_is_shown_in_three_planes(page, key):
    page.locator("#picture").focus()
    page.keyboard.press(key)
    three = picture_of(page)
    page.keyboard.press("p")
    assert picture_of(page) != three


def test_picture_is_shown_with_its_colours(browser, tmp_path):
    colours = np.zeros((40, 40, 3), np.uint8)
    colours[:, :20], colours[:, 20:] = (200, 40, 10), (10, 60, 220)
    Image.fromarray(colours).save(tmp_path / "eye.png")
    model = make_model(channels=3, low=0, high=255, centred_on=None, has_colours=True)
    with serving(model, tmp_path / "eye.png") as address:
        page = browser.new_page(viewport=VIEWPORT)
        open_page(page, address)
        box = page.locator("#picture").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2 - 60, box["y"] + box["height"] / 2)
        page.wait_for_timeout(200)
        assert "value 200, 40, 10" in page.locator("#readout").inner_text()
        left, right = page.evaluate(PIXELS)
        assert left == [200, 40, 10]
        assert right == [10, 60, 220]
        page.close()


PIXELS = """() => {
  const canvas = document.getElementById("picture");
  const at = (x) => [...canvas.getContext("2d").getImageData(x, canvas.height / 2, 1, 1).data.slice(0, 3)];
  return [at(canvas.width / 2 - 60), at(canvas.width / 2 + 60)];
}"""
