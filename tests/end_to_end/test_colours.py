"""Pictures with colours: from the prepared dataset to figures, prediction and viewer."""

import io

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from matplotlib.figure import Figure
from PIL import Image

from phiseg.core.errors import DataError
from phiseg.data.prepare.images import prepare_images
from phiseg.evaluation.case_scoring import DrawnCase, example_arrays, stack_examples
from phiseg.inference.measures import measure
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_prepared
from phiseg.inference.scans import find_scans, read_scan
from phiseg.inference.tiling import tiles
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import build_model
from phiseg.plotting.contact_sheet import contact_sheet
from phiseg.plotting.prediction_report import case_picture
from phiseg.plotting.primitives import show_image
from phiseg.viewer.server import Viewer, create_app

SIZES = ((60, 90), (90, 60), (47, 71), (120, 120))
"""Height and width of the pictures."""


def fundus(height, width, number):
    """A red disc with a yellow spot, which is annotated."""
    rows, columns = np.mgrid[:height, :width]
    distance = np.hypot(rows - height / 2, columns - width / 2) / min(height, width)
    picture = np.zeros((height, width, 3), np.uint8)
    picture[distance < 0.45] = 180, 60, 20
    spot = np.hypot(rows - height / 2, columns - width / 2 - number) / min(height, width) < 0.2
    picture[spot] = 240, 200, 60
    return picture, (255 * spot).astype(np.uint8)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fundus")
    for name in ("images", "anna", "ben"):
        (folder / name).mkdir()
    for number in range(8):
        picture, mask = fundus(*SIZES[number % len(SIZES)], number)
        Image.fromarray(picture).save(folder / "images" / f"eye-{number}.png")
        for annotator in ("anna", "ben"):
            Image.fromarray(mask).save(folder / annotator / f"eye-{number}.png")
    return folder


@pytest.fixture(scope="module")
def dataset(source, tmp_path_factory):
    return prepare_images(source, tmp_path_factory.mktemp("data") / "rgb", size=(32, 32), progress=False)


@pytest.fixture(scope="module")
def model(dataset):
    torch.manual_seed(0)
    model = build_model(PHiSegConfig(channels=(4, 4, 8), num_levels=2, blocks_per_level=1, image_channels=3)).eval()
    model.preprocessing = Preprocessing.of_dataset(dataset).to_json()
    return model


def scan_of(source, number, channels=3):
    (found,), _ = find_scans([source / "images" / f"eye-{number}.png"])
    return read_scan(found, channels=channels, plane=None)


def test_pictures_are_resized_as_in_training(source, dataset, model):
    for number in range(4):
        stack = PreparedStack.of(scan_of(source, number).volume, Preprocessing.of(model), name="eye")
        (frame,) = tiles(stack, stride=4)
        row = [case["case"] for case in dataset.cases].index(f"eye-{number}")
        np.testing.assert_allclose(stack.images(np.array([0]), frame)[0], dataset.image(row), atol=1e-6)


def test_prediction_is_on_the_grid_of_the_picture(source, model):
    stack = PreparedStack.of(scan_of(source, 2).volume, Preprocessing.of(model), name="eye")
    prediction = predict_prepared(model, stack, sampling=Sampling(num_samples=2))
    assert prediction.labels.shape == (2, 1, *SIZES[2])
    picture = np.asarray(
        Image.open(io.BytesIO(case_picture(prediction, measure(prediction), "eye"))).convert("RGB")
    )
    yellow = (picture[..., 0] > 200) & (picture[..., 1] > 150) & (picture[..., 2] < 100)
    assert yellow.sum() > 100  # the report shows the spot in its colour


def test_grey_model_rejects_colours(source):
    with pytest.raises(DataError, match="has colours, but the model takes grey images"):
        scan_of(source, 0, channels=1)


def colours_in(figure):
    return [image for axes in figure.axes for image in axes.images if np.ndim(image.get_array()) == 3]


def test_figures_show_colours(dataset):
    assert len(colours_in(contact_sheet(dataset, [0, 1]))) == 2
    drawn = DrawnCase(torch.zeros(2, 32, 32, dtype=torch.uint8), None, None)
    arrays = example_arrays(dataset, 0, drawn, torch.from_numpy(dataset.image(0))[0])
    examples = stack_examples(dataset, [0], [arrays])
    np.testing.assert_array_equal(examples.shown_image(0), np.moveaxis(dataset.image(0), 0, 2))
    figure = Figure()
    show_image(figure.add_subplot(), examples.shown_image(0), title="")
    assert len(colours_in(figure)) == 1


def test_viewer_shows_colours(source, dataset, model):
    viewer = Viewer.of(model, "eye")
    viewer.add([dataset.path, source / "images" / "eye-2.png"])
    client = TestClient(create_app(viewer), base_url="http://localhost")
    listed = {
        scan["name"]: scan["id"] for scan in client.get("/api/session").json()["listed"] if scan["split"] is None
    }
    info = client.get(f"/api/scans/{listed['eye-2']}").json()
    assert info["has_colours"]
    shown = np.frombuffer(client.get(f"/api/scans/{info['id']}/slices/0").content, "<f4")
    np.testing.assert_array_equal(shown.reshape(*SIZES[2], 3), fundus(*SIZES[2], 2)[0])
    case = client.get("/api/scans/case-0").json()
    shown = np.frombuffer(client.get("/api/scans/case-0/slices/0").content, "<f4")
    stored = np.moveaxis(dataset.stored_image(0), 0, 2)
    np.testing.assert_array_equal(shown.reshape(32, 32, 3), stored)
    assert case["has_colours"]
