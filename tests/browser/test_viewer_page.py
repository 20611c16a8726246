"""The viewer in a browser: shown values equal those of Python, and mouse and keys control the page."""

import json
from itertools import product

import nibabel
import numpy as np
import pytest
import torch

from helpers.known_models import KnownModel, noisy
from helpers.viewer_page import (
    click,
    middle_of,
    needs_chromium,
    open_page,
    picture_of,
    result_of,
    running_browser,
    samples_of,
    serving,
    state_of,
    wait_until,
)
from phiseg.data.intensity import Intensity
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import level_outputs, predict_volume
from phiseg.inference.slice_noise import Level
from phiseg.inference.usual_values import UsualValues
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.phiseg_ensemble import PHiSegEnsembleConfig
from phiseg.models.probunet import ProbUNetConfig
from phiseg.models.registry import build_model

pytestmark = needs_chromium

SPACING = (1.0, 1.5, 2.0)
"""Of voxels along i, j and k: columns, rows and slices of the axial plane."""
RECORD_BAR = """
const { fillText, fillRect } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  if (/^[0-9.]+ mm$/.test(text)) window.barText = text;
  return fillText.call(this, text, ...rest);
};
CanvasRenderingContext2D.prototype.fillRect = function (x, y, width, height) {
  if (height === 2) window.barWidth = width;
  return fillRect.call(this, x, y, width, height);
};
"""
"""Records the label and the width of the scale bar."""


def make_model(config):
    """A model with random weights: no two of its samples are the same."""
    torch.manual_seed(0)
    model = build_model(config).eval()
    model.preprocessing = {
        "classes": ["background", "lesion"],
        "image_channels": 1,
        "size": [16, 16],
        "intensity": {"kind": "window", "low": -1000, "high": 400},
        "centred_on": "lesion",
    }
    return model


@pytest.fixture(scope="module")
def model():
    """An ensemble, as the model that comes with phiseg, with three levels."""
    settings = {"channels": (4, 5, 6, 7), "num_levels": 3, "blocks_per_level": 1, "head_init": 1.0}
    return make_model(PHiSegEnsembleConfig(members=2, **settings))


@pytest.fixture(scope="module")
def scan():
    """A volume of 40 columns, 28 rows and 7 slices."""
    values = np.random.default_rng(0).normal(-500, 200, (40, 28, 7)).astype(np.float32)
    return Volume(values, np.diag([-SPACING[0], -SPACING[1], SPACING[2], 1]))


@pytest.fixture(scope="module")
def dataset(lesions, tmp_path_factory):
    """The lesions, as if they were CT."""
    source = Dataset.open(lesions)

    def case(row):
        name, patient = source.cases[row]["case"], source.cases[row]["patient"]
        image = (1400 * source.images[row].astype(np.float32) - 1000).astype(np.float32)
        return Case(name, patient, image, source.labels[row], source.valid[row])

    folder = tmp_path_factory.mktemp("data") / "lesions-ct"
    write_dataset(
        folder,
        name="lesions-ct",
        classes=source.info.classes,
        num_annotators=4,
        image_shape=source.images.shape[1:],
        image_dtype=np.float32,
        intensity=Intensity(kind="window", low=-1000, high=400),
        cases=map(case, range(source.num_cases)),
        splits=source.splits,
    )
    return Dataset.open(folder)


@pytest.fixture(scope="module")
def address(model, scan, dataset, tmp_path_factory):
    """The address of a running viewer of the scan and the dataset."""
    file = tmp_path_factory.mktemp("scans") / "noise.nii.gz"
    write_nifti(file, scan)
    with serving(model, file, dataset.path) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with running_browser() as browser:
        yield browser


@pytest.fixture
def page(browser, address):
    """A page of 1280 x 800; in the end, nothing was asked of anybody else and the browser had no complaint."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    complaints, requests = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.complaints = complaints
    yield page
    page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((address, f"blob:{address}"))] == []


def open_noise(page, address, link=""):
    """Open the page on the scan of noise."""
    open_page(page, address, link)
    page.locator("#scans").select_option(label="noise")
    wait_until(page, "window.phiseg.scan.name === 'noise' && !window.phiseg.busy")


def in_python(model, scan, result, **changes):
    """Return what Python predicts in the clicked slice."""
    number, row, column = result["request"]["point"]
    sampling = Sampling(**({"num_samples": 16, "seed": 0, "reach_mm": 0.0} | changes))
    return predict_volume(model, scan, point=(column, row, number), sampling=sampling, name="noise")


def test_wheel_and_keys_scroll_slices(page, address):
    open_noise(page, address)
    first = state_of(page)["slice"]
    page.mouse.move(*middle_of(page))
    page.mouse.wheel(0, 100)
    wait_until(page, f"window.phiseg.state.slice === {first + 1}")
    page.locator("#picture").focus()
    for key, expected in (("ArrowUp", first), ("PageUp", 0), ("ArrowUp", 0), ("PageDown", 6), ("ArrowDown", 6)):
        page.keyboard.press(key)
        assert state_of(page)["slice"] == expected
    assert page.locator("#slice-number").inner_text() == "Slice 7 of 7"


def test_keys_act_on_the_image_only(page, address):
    open_noise(page, address)
    for selector, expected in (("#copy-link", 3), ("#picture", 4)):
        page.locator(selector).focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("p")
        assert state_of(page)["slice"] == expected
        assert state_of(page)["planes"] == (selector == "#picture")
    page.locator("#zoom-in").click()  # the mouse leaves the focus to the image
    page.keyboard.press("p")
    assert not state_of(page)["planes"]


def test_character_keys_can_be_turned_off(page, address):
    open_noise(page, address)
    page.keyboard.press("?")
    page.get_by_label("Use single letters, digits and symbols").uncheck()
    page.keyboard.press("Escape")
    for _ in range(2):
        page.locator("#picture").focus()
        page.keyboard.press("p")
        page.keyboard.press("?")
        page.keyboard.press("ArrowUp")
        assert (state_of(page)["planes"], state_of(page)["slice"]) == (False, 2)
        page.goto("about:blank")
        open_noise(page, address)  # the setting is kept


def test_pixels_are_isotropic_in_mm(page, address, scan):
    open_noise(page, address)
    x, y = middle_of(page)

    def place(right, down):
        page.mouse.move(x + right, y + down)
        page.wait_for_timeout(60)
        words = page.locator("#readout").inner_text().replace(",", "").split()
        return int(words[1]), int(words[3])

    (top, left), (bottom, right) = place(-180, -180), place(180, 180)
    assert (bottom - top) * SPACING[1] == pytest.approx((right - left) * SPACING[0], abs=2.5)
    assert right - left > 10


def test_readout_shows_voxel_value(page, address, scan):
    open_noise(page, address)
    x, y = middle_of(page)
    page.mouse.move(x + 50, y + 70)
    page.wait_for_timeout(60)
    words = page.locator("#readout").inner_text().replace(",", "").split()
    row, column, value = int(words[1]), int(words[3]), float(words[words.index("value") + 1])
    assert value == pytest.approx(scan.values[column, row, state_of(page)["slice"]], rel=1e-3)


def test_drag_and_presets_set_the_window(page, address):
    open_noise(page, address)
    x, y = middle_of(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=4)
    page.mouse.up()
    low, high = state_of(page)["window"]
    assert high - low > 1400
    assert page.evaluate("() => window.phiseg.result") is None
    page.get_by_role("button", name="Soft tissue").click()
    assert state_of(page)["window"] == [-160, 240]
    page.keyboard.press("w")
    assert state_of(page)["window"] == [-1000, 400]


def test_click_shows_samples_of_python(page, address, model, scan):
    open_noise(page, address)
    result = click(page)
    prediction = in_python(model, scan, result)
    expected = prediction.labels[:, 0]
    assert len(np.unique(expected, axis=0)) > 8
    np.testing.assert_array_equal(samples_of(result), expected)
    mean = np.array(result["mean"]).reshape(expected.shape[1:])
    np.testing.assert_allclose(mean / 255, prediction.mean_probs[1, 0], atol=0.003)
    number, row, column = result["request"]["point"]
    outputs = level_outputs(model, prediction.stack, point=(column, row, number), sampling=Sampling(seed=0))
    shown = np.array(result["levelOutputs"]).reshape(outputs.shape)
    np.testing.assert_allclose(shown / 255, outputs, atol=0.003)


def test_page_shows_shares_of_levels_and_members(page, address, model, scan):
    open_noise(page, address)
    result = click(page)
    prediction = in_python(model, scan, result)
    expected = measure(prediction).level_shares
    rows = page.locator("#levels li")
    titles = [title.split(":")[0].split() for title in rows.locator(".title").all_inner_texts()]
    assert [" ".join(words[:2]).lower() for words in titles] == ["member which", "level 3", "level 2", "level 1"]
    page.mouse.move(5, 5)
    page.wait_for_timeout(60)
    wholes = [expected[name] for name in ("member", "level 3", "level 2", "level 1")]
    assert rows.locator(".share").all_inner_texts() == [f"{round(100 * share)} %" for share in wholes]

    variance = prediction.level_variance[:, 0]
    shares = np.array(result["levelShares"]).reshape(variance.shape) / 255
    np.testing.assert_allclose(shares, variance / np.maximum(variance.sum(0), 1e-12), atol=0.003)
    page.mouse.move(*(place + shift for place, shift in zip(middle_of(page), (30, -20), strict=True)))
    page.wait_for_timeout(60)
    _, row, column = result["request"]["point"]
    here = shares[:, row - result["box"]["row"], column - result["box"]["column"]]
    shown = [int(share.rstrip(" %")) for share in rows.locator(".share").all_inner_texts()]
    np.testing.assert_allclose(shown, 100 * here[::-1], atol=0.6)


@pytest.mark.parametrize(
    ("config", "num_rows", "num_views"),
    [
        (PHiSegConfig(channels=(4, 5, 6), num_levels=2, blocks_per_level=1), 2, 7),
        (ProbUNetConfig(channels=(4, 5, 6), latent_dimensions=2, blocks_per_level=1), 0, 6),
    ],
    ids=["phiseg", "probunet"],
)
def test_page_shows_levels_of_the_model(browser, config, num_rows, num_views):
    with serving(make_model(config)) as address:
        page = browser.new_page()
        open_page(page, address)
        result_of(page)
        assert page.locator("#levels li").count() == page.locator("#levels input").count() == num_rows
        assert page.locator("#hierarchy").is_visible() == (num_rows > 0)
        assert page.locator("#views button").count() == num_views
        page.close()


def test_warnings_and_numbers_if_present_are_shown(browser, tmp_path):
    values = np.full((40, 28, 5), -100, np.float32)
    values[18:22, 12:16] = 0  # some samples have it
    write_nifti(tmp_path / "faint.nii.gz", Volume(values, np.diag([-1, -1, 1, 1])))
    usual = UsualValues.of([np.linspace(0.3, 0.5, 256, dtype=np.float32).reshape(1, 16, 16)] * 60)
    model = KnownModel(noisy, centred_on="lesion", usual_values=usual.model_dump(mode="json"))
    with serving(model, tmp_path / "faint.nii.gz") as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        open_page(page, address)
        found = click(page, 0, 0)["numbers"]["classes"]["lesion"]
        assert 0 < found["present"] < 1
        assert "does not look like the model's training images" in page.locator("#numbers .warning").inner_text()
        volume = f"{found['size_if_present']['median']:.3f} ml"
        assert f"Among samples with lesion: volume {volume}" in page.locator("#numbers").inner_text()
        page.close()


def test_levels_and_members_are_controlled(page, address, model, scan):
    open_noise(page, address)
    before = samples_of(click(page))
    page.locator('input[data-level="2"]').fill("0")
    page.get_by_role("button", name="Hold level 2").click()
    page.get_by_role("button", name="Redraw level 1").click()
    result = result_of(page)
    levels = (Level(seed=1), Level(hold=True), Level(temperature=0.0))
    expected = in_python(model, scan, result, levels=(*levels, Level())).labels[:, 0]
    assert (expected != before).any()
    np.testing.assert_array_equal(samples_of(result), expected)
    assert page.get_by_role("slider", name="Temperature of member").count() == 0
    page.get_by_role("button", name="Redraw member").click()
    page.get_by_role("button", name="Hold member").click()
    result = result_of(page)
    held = in_python(model, scan, result, levels=(*levels, Level(seed=1, hold=True))).labels[:, 0]
    assert (held != expected).any()
    np.testing.assert_array_equal(samples_of(result), held)
    page.get_by_role("button", name="Reset").click()
    np.testing.assert_array_equal(samples_of(result_of(page)), before)


def test_number_and_seed_of_samples(page, address, model, scan):
    open_noise(page, address)
    click(page)
    page.locator("#number").fill("5")
    page.locator("#seed").fill("7")
    page.locator("#seed").press("Enter")
    result = result_of(page)
    expected = in_python(model, scan, result, num_samples=5, seed=7).labels[:, 0]
    np.testing.assert_array_equal(samples_of(result), expected)


def test_views_show_different_pictures(page, address):
    open_noise(page, address)
    click(page)
    pictures = []
    for key in "1234567":
        page.keyboard.press(key)
        pictures.append(picture_of(page))
    assert len(set(pictures)) == 7
    page.keyboard.press("1")
    page.keyboard.press("ArrowRight")
    assert state_of(page)["view"] == "sample"
    page.keyboard.press("ArrowRight")
    assert state_of(page)["sample"] == 1


def test_slices_are_requested_once(browser, tmp_path):
    """More of them than a page keeps by itself; one that it drops would come again and again."""
    number = 150
    values = np.random.default_rng(0).normal(-500, 200, (16, 16, number)).astype(np.float32)
    write_nifti(tmp_path / "long.nii.gz", Volume(values, np.diag([-1.0, -1, 1, 1])))
    model = make_model(PHiSegConfig(channels=(4, 5, 6), num_levels=2, blocks_per_level=1, head_init=1.0))
    model.preprocessing = {**model.preprocessing, "centred_on": None}
    with serving(model, tmp_path / "long.nii.gz") as address:
        page = browser.new_page()
        asked = []
        page.on("request", lambda request: asked.append(request.url) if "/slices/" in request.url else None)
        open_page(page, address)
        page.locator("#scans").select_option(label="long")
        wait_until(page, "window.phiseg.scan.name === 'long' && !window.phiseg.busy")
        click(page)
        page.locator("#views button", has_text="Slices").click()
        assert state_of(page)["view"] == "slices"
        page.wait_for_timeout(3000)
        long = [url for url in asked if url.split("/slices/")[0] == asked[-1].split("/slices/")[0]]
        assert len(set(long)) == number
        assert len(long) < number + 10  # some came twice: the scan was opened before and after the click
        page.close()


def test_saved_sample_is_the_shown_one(page, address, model, scan, tmp_path):
    open_noise(page, address)
    result = click(page)
    page.keyboard.press("2")
    page.keyboard.press("ArrowRight")

    def save(button):
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        return path

    saved = nibabel.load(save("NIfTI"))
    prediction = in_python(model, scan, result, reach_mm=None)
    np.testing.assert_array_equal(np.asarray(saved.dataobj), prediction.on_grid(prediction.labels[1]).values)
    np.testing.assert_allclose(saved.affine, scan.affine, atol=1e-5)
    png = save("PNG")
    assert (png.name, png.read_bytes()[:4]) == ("noise_seed-0_sample.png", b"\x89PNG")
    shown = result["numbers"]["classes"]["lesion"]["size"]
    numbers = json.loads(save("JSON").read_text())
    assert numbers["classes"]["lesion"]["volume_ml"] == shown
    page.locator("#what").select_option(label="All samples")
    every = save("NIfTI")
    assert every.name == "noise_seed-0_samples.nii.gz"
    assert nibabel.load(every).shape == (*scan.grid, 16)
    assert page.get_by_role("button", name="DICOM SEG").is_disabled()  # there is no series to refer to


def test_first_readable_scan_is_opened_and_saved_with_its_name(browser, tmp_path, scan):
    (tmp_path / "a.nii.gz").write_bytes(b"not NIfTI")
    write_nifti(tmp_path / "Müller 患者.nii.gz", scan)
    with serving(KnownModel(noisy, centred_on="lesion"), tmp_path) as address:
        page = browser.new_page()
        open_page(page, address)
        click(page)
        for button, suffix in (("NIfTI", "sample-1.nii.gz"), ("PNG", "outlines.png")):
            with page.expect_download() as download:
                page.get_by_role("button", name=button).click()
            assert download.value.suggested_filename == f"Müller_患者_seed-0_{suffix}"
        assert page.locator(".message").count() == 0
        page.close()


def test_link_restores_the_view(page, browser, address):
    open_noise(page, address)
    click(page)
    page.locator('input[data-level="0"]').fill("0.5")
    result_of(page)
    page.locator("#picture").focus()
    for key in ("2", "ArrowRight", "ArrowRight", "w", "+", "ArrowDown", "r"):
        page.keyboard.press(key)
    before, state = result_of(page), state_of(page)
    page.wait_for_timeout(300)
    assert state["seed"] == 1
    other = browser.new_page()
    other.goto(page.url)
    after = result_of(other)
    restored = state_of(other)
    other.close()
    assert after["samples"] == before["samples"]
    assert after["numbers"] == before["numbers"]
    approximately = ("zoom", "centre")
    for key in state.keys() - set(approximately):
        assert restored[key] == state[key], key
    for key in approximately:
        assert restored[key] == pytest.approx(state[key], abs=0.06), key


def test_dataset_case_shows_scores(page, address, dataset):
    open_page(page, address)
    name = dataset.cases[4]["case"]
    page.locator("#scans").select_option(label=name)
    wait_until(page, f"window.phiseg.scan.name === {json.dumps(name)} && window.phiseg.result?.id")
    result = result_of(page)
    box = result["box"]
    samples = np.zeros((16, *dataset.images.shape[2:]), bool)
    inner = samples[:, box["row"] : box["row"] + box["height"], box["column"] : box["column"] + box["width"]]
    inner[:] = samples_of(result) == 1
    annotations = dataset.annotations(4) == 1

    def distance(first, second):
        union = (first | second).sum()
        return 1 - (first & second).sum() / union if union else 0.0

    def mean_distance(some, others):
        return np.mean([distance(first, second) for first, second in product(some, others)])

    ged = 2 * mean_distance(samples, annotations) - mean_distance(samples, samples)
    ged -= mean_distance(annotations, annotations)
    assert result["scores"]["ged"] == pytest.approx(ged, abs=1e-4)
    assert f"{ged:.3f}" in page.locator("#scores").inner_text()
    with_them = picture_of(page)
    page.locator("#picture").focus()
    page.keyboard.press("a")
    assert picture_of(page) != with_them


def test_files_are_opened_or_rejected(page, address, scan, tmp_path):
    open_noise(page, address)
    (tmp_path / "broken.nii").write_bytes(b"no scan at all")
    page.locator("#choose-file").set_input_files(tmp_path / "broken.nii")
    page.locator(".message").wait_for()
    assert str(tmp_path) not in page.locator(".message").inner_text()
    page.get_by_role("button", name="Dismiss").click()
    page.complaints.clear()  # the browser notes the refusal
    write_nifti(tmp_path / "brighter.nii.gz", Volume(scan.values + 100, scan.affine))
    page.locator("#choose-file").set_input_files(tmp_path / "brighter.nii.gz")
    wait_until(page, "window.phiseg.scan.name.startsWith('brighter') && !window.phiseg.busy")
    assert state_of(page)["scan"].startswith("drop-")


def test_buttons_without_effect_are_disabled(page, address, dataset):
    def disabled():
        return set(page.locator("button:disabled:visible").all_inner_texts())

    open_noise(page, address)
    results = {"NIfTI", "DICOM SEG", "JSON", "Sample", "Mean", "Uncertainty", "Grid", "Slices", "Levels"}
    assert disabled() == results | {"Redraw all", "Fit", "Lesion", "Reset"}
    page.keyboard.press("5")
    assert state_of(page)["view"] == "outlines"
    click(page)
    assert disabled() == {"DICOM SEG", "Reset"} | ({"Fit"} if state_of(page)["zoom"] == 1 else set())
    page.keyboard.press("5")
    page.wait_for_timeout(60)
    assert disabled() == {"DICOM SEG", "Reset", "\N{MINUS SIGN}", "+", "Fit", "Lesion", "3 planes"}
    page.locator("#scans").select_option(label=dataset.cases[4]["case"])
    result_of(page)
    assert {"Slices", "3 planes"} <= disabled()  # a case has one slice


def test_dataset_opens_on_a_test_case(browser, model, dataset):
    with serving(model, dataset.path) as address:
        page = browser.new_page()
        open_page(page, address)
        first = dataset.cases[dataset.rows("test")[0]]["case"]
        assert page.evaluate("() => window.phiseg.scan.name") == first
        assert f"{first}  ·  test split" in page.locator("#status").text_content()
        groups = page.locator("#scans optgroup").evaluate_all("(groups) => groups.map((group) => group.label)")
        assert groups == ["test split", "val split", "train split"]
        page.close()


def test_click_shows_the_surroundings_of_a_lesion(browser, tmp_path):
    values = np.full((200, 200, 3), -150, np.float32)
    values[95:105, 95:105] = 150  # 10 of 200 mm
    write_nifti(tmp_path / "small.nii.gz", Volume(values, np.diag([-1.0, -1, 1, 1])))
    with serving(KnownModel(noisy, centred_on="lesion"), tmp_path / "small.nii.gz") as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        open_page(page, address)
        click(page, 0, 0)
        page.wait_for_timeout(100)
        box = page.locator("#picture").bounding_box()
        side = min(box["width"], box["height"])
        visible = 200 / state_of(page)["zoom"]  # mm along the shorter side
        assert 25 < visible < 60, side
        page.close()


@pytest.mark.parametrize("width", [800, 1280])
def test_scale_bar_has_its_length(browser, address, scan, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.add_init_script(RECORD_BAR)
    open_noise(page, address)
    page.wait_for_timeout(60)
    length = float(page.evaluate("() => window.barText").removesuffix(" mm"))
    pixels = page.evaluate("() => window.barWidth")
    box = page.locator("#picture").bounding_box()
    columns, rows, _ = scan.grid
    scale = min(box["width"] / (columns * SPACING[0]), box["height"] / (rows * SPACING[1]))
    assert pixels == pytest.approx(length * scale, abs=2)
    page.close()


@pytest.mark.parametrize("size", [(800, 600), (1400, 900), (390, 800)])
def test_page_is_usable_in_windows_of_any_size(browser, address, size):
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height})
    open_noise(page, address)
    click(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    parts = "[...document.querySelectorAll('header, aside, aside section, .toolbar, .frame')]"
    assert page.evaluate(f"() => {parts}.filter((part) => part.scrollWidth > part.clientWidth).length") == 0
    picture = page.locator("#picture").bounding_box()
    assert min(picture["width"], picture["height"]) > 0.45 * min(width, height)
    for button in page.locator("button:visible").all():
        button.scroll_into_view_if_needed()
        box = button.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    page.close()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_page_fits_and_follows_the_colour_scheme(browser, address, scheme):
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    open_noise(page, address)
    click(page)
    assert page.evaluate("() => document.documentElement.dataset.theme") == scheme
    assert page.evaluate("() => document.documentElement.scrollHeight") <= 800
    parts = "[...document.querySelectorAll('aside, aside section, .toolbar, .frame')]"
    assert page.evaluate(f"() => {parts}.filter((part) => part.scrollWidth > part.clientWidth).length") == 0
    page.keyboard.press("?")
    assert page.get_by_role("dialog").get_by_text("draw new samples").is_visible()
    page.keyboard.press("Escape")
    page.locator("#theme").click()
    assert page.evaluate("() => document.documentElement.dataset.theme") != scheme
    page.close()
