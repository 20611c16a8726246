"""The prediction of a click equals `predict_volume` with the same seed."""

import numpy as np
import pytest
import torch

from helpers.known_models import KnownModel, noisy
from helpers.small_viewer import (
    AFFINE,
    box_shape,
    box_slices,
    make_model,
    nifti_bytes,
    of_type,
    random_volume,
    samples_of,
    unpacked,
)
from phiseg.data.intensity import Intensity
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.volume import Volume, to_slices
from phiseg.inference.measures import measure
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import level_outputs, predict_prepared, predict_volume
from phiseg.inference.slice_noise import Level
from phiseg.inference.usual_values import UsualValues
from phiseg.metrics import EPSILON
from phiseg.metrics.case import score_case
from phiseg.models import load_model
from phiseg.models.registry import build_model
from phiseg.models.unet import UNetConfig
from phiseg.viewer.click_prediction import draw
from phiseg.viewer.schema import PredictionRequest

POINT = [2, 11, 8]
"""Slice, row and column."""


@pytest.fixture
def scan(serve):
    """Return a function that serves a model on a random volume: what is served, its volume and the scan's id."""

    def scan(model=None):
        served = serve(model)
        volume = random_volume()
        info = served.drop(("scan.nii", nifti_bytes(volume))).json()
        return served, volume, info["id"]

    return scan


def voxel(volume, point):
    """The voxel at a slice, row and column of the axial slices, by search."""
    numbers = np.arange(volume.values.size).reshape(volume.grid)
    stack = to_slices(type(volume)(numbers, volume.affine), "axial").values
    return tuple(int(index) for index in np.unravel_index(stack[tuple(point)], volume.grid))


@pytest.mark.parametrize(("members", "num_parts"), [(None, 2), (3, 3)])
def test_samples_equal_predict_volume(scan, members, num_parts):
    served, volume, name = scan(make_model(members=members))
    messages = served.click(name, POINT, num_samples=20, seed=7)
    assert [message["number"] for message in of_type(messages, "samples")] == [4, 12, 4]
    assert messages[-1]["type"] == "done"

    at = voxel(volume, POINT)
    assert at != tuple(POINT), "the test must tell voxels from slice, row and column"
    slice_alone = Sampling(num_samples=20, seed=7, reach_mm=0)
    expected = predict_volume(served.viewer.model, volume, point=at, sampling=slice_alone)
    labels = samples_of(messages)
    np.testing.assert_array_equal(labels, expected.labels[:, 0])
    assert 0 < labels.mean() < 1
    assert not (labels == labels[:1]).all()
    assert box_slices(messages[0]) == expected.box[1:]

    (summary,) = of_type(messages, "slice")
    mean = unpacked(summary["mean_probs"], 1, *box_shape(summary)) / 255
    np.testing.assert_allclose(mean, expected.mean_probs[1:, 0], atol=0.5 / 255 + 1e-6)
    gamma = unpacked(summary["gamma"], *box_shape(summary)) / 255 * summary["gamma_max"]
    np.testing.assert_allclose(gamma, expected.gamma[0], atol=0.51 / 255 * summary["gamma_max"])
    (levels,) = of_type(messages, "levels")
    shares = unpacked(levels["shares"], num_parts, *box_shape(summary)) / 255
    variance = expected.level_variance[:, 0]
    np.testing.assert_allclose(shares, variance / np.maximum(variance.sum(0), 1e-12), atol=0.51 / 255)
    outputs = unpacked(levels["outputs"], 2, *box_shape(summary)) / 255
    wanted = level_outputs(served.viewer.model, expected.stack, point=at, sampling=slice_alone)
    np.testing.assert_allclose(outputs, wanted, atol=0.51 / 255)


def test_lesion_and_numbers_equal_predict_volume(scan):
    served, volume, name = scan()
    messages = served.click(name, POINT, num_samples=6, seed=1)
    sampling = Sampling(num_samples=6, seed=1)
    whole = predict_volume(served.viewer.model, volume, point=voxel(volume, POINT), sampling=sampling)
    (lesion,) = of_type(messages, "volume")
    labels = unpacked(lesion["labels"], 6, lesion["num_slices"], *box_shape(lesion))
    np.testing.assert_array_equal(labels, whole.labels)
    assert lesion["num_slices"] > 1
    assert lesion["first_slice"] == whole.box[0].start
    (numbers,) = of_type(messages, "numbers")
    measured = measure(whole)
    assert numbers["classes"]["lesion"]["size"]["samples"] == list(measured.classes["lesion"].volume_ml.samples)
    assert numbers["truncated"] == measured.truncated
    clicked = predict_volume(
        served.viewer.model,
        volume,
        point=voxel(volume, POINT),
        sampling=Sampling(num_samples=6, seed=1, reach_mm=0),
    )
    (levels,) = of_type(messages, "levels")
    assert levels["totals"] == pytest.approx(measure(clicked).level_shares)
    assert messages.index(numbers) < messages.index(levels), "measurements do not wait for the levels"


@pytest.mark.parametrize(
    ("members", "levels"),
    [
        (None, [Level(), Level(seed=5)]),
        (None, [Level(hold=True), Level()]),
        (None, [Level(temperature=2.5), Level(temperature=0)]),
        (3, [Level(temperature=0), Level(seed=5), Level()]),
        (3, [Level(), Level(), Level(seed=5)]),
        (3, [Level(), Level(), Level(hold=True)]),
    ],
    ids=["redraw", "hold", "temperature", "ensemble", "redraw member", "hold member"],
)
def test_levels_and_members_are_controlled(scan, members, levels):
    served, volume, name = scan(make_model(members=members))
    controls = [{"seed": level.seed, "hold": level.hold, "temperature": level.temperature} for level in levels]
    plain = samples_of(served.click(name, POINT, num_samples=5))
    changed = samples_of(served.click(name, POINT, num_samples=5, levels=controls))
    sampling = Sampling(num_samples=5, levels=tuple(levels), reach_mm=0)
    expected = predict_volume(served.viewer.model, volume, point=voxel(volume, POINT), sampling=sampling)
    np.testing.assert_array_equal(changed, expected.labels[:, 0])
    assert (changed != plain).any()


def test_held_member_draws_all_samples(scan):
    model = make_model(members=3)
    served, volume, name = scan(model)
    alone = []
    for member in model.members:
        member.preprocessing = model.preprocessing
        sampling = Sampling(num_samples=1, levels=(Level(temperature=0),) * 2, reach_mm=0)
        alone.append(predict_volume(member, volume, point=voxel(volume, POINT), sampling=sampling).labels[0, 0])

    def members_of(**choice):
        cold = [{"temperature": 0}] * 2
        labels = samples_of(served.click(name, POINT, num_samples=8, levels=[*cold, choice]))
        return [[(one == sample).all() for one in alone].index(True) for sample in labels]

    free = members_of()
    assert set(free) == {0, 1, 2}
    assert members_of(hold=True) == [free[0]] * 8
    assert members_of(seed=1) != free


@pytest.mark.parametrize(
    ("settings", "name"), [({"members": 3}, "the member of an ensemble"), ({"presence": True}, "the presence")]
)
def test_only_levels_have_a_temperature(serve, settings, name):
    (failed,) = serve(make_model(**settings)).click(levels=[{}, {"temperature": 2}, {"temperature": 0.5}])
    assert failed["message"] == f"{name} has no temperature; hold or redraw it"


def test_samples_without_noise_are_equal(scan):
    served, _, name = scan()
    cold = [{"temperature": 0}, {"temperature": 0}]
    labels = samples_of(served.click(name, POINT, num_samples=5, levels=cold))
    assert (labels == labels[:1]).all()


def test_whole_slices_of_small_scan_are_all_predicted(scan):
    served, volume, name = scan(make_model(centred_on=None))
    messages = served.click(name, POINT, num_samples=3)
    expected = predict_volume(served.viewer.model, volume, sampling=Sampling(num_samples=3))
    np.testing.assert_array_equal(samples_of(messages), expected.labels[:, POINT[0]])
    (lesion,) = of_type(messages, "volume")
    assert lesion["first_slice"] == 0
    labels = unpacked(lesion["labels"], 3, 5, *box_shape(lesion))
    np.testing.assert_array_equal(labels, expected.labels)


def test_large_scan_predicts_clicked_slice_only(scan, monkeypatch):
    monkeypatch.setattr("phiseg.viewer.click_prediction.MAX_LABELS", 1000)
    served, _, name = scan(make_model(centred_on=None))
    (lesion,) = of_type(served.click(name, POINT, num_samples=3), "volume")
    assert (lesion["first_slice"], lesion["num_slices"]) == (POINT[0], 1)


def test_dataset_case_is_scored(serve, gaps, trained):
    model = load_model(trained())
    dataset = Dataset.open(gaps)
    served = serve(model, gaps)
    row = 5  # two annotators did not look at it
    info = served.client.get(f"/api/scans/case-{row}").json()
    assert info["annotators"] == ["annotator 0", "annotator 3"]
    drawn = served.client.get(f"/api/scans/case-{row}/annotations").json()
    np.testing.assert_array_equal(unpacked(drawn["labels"], 2, 16, 16), dataset.labels[row][[0, 3]])
    shown = served.client.get(f"/api/scans/case-{row}/slices/0").content
    np.testing.assert_array_equal(np.frombuffer(shown, "<f4").reshape(16, 16), dataset.images[row, 0])

    (scores,) = of_type(served.click(f"case-{row}", [0, 8, 8], num_samples=6, seed=2), "scores")
    volume = served.viewer.scans.get(f"case-{row}").volume
    prediction = predict_volume(model, volume, sampling=Sampling(num_samples=6, seed=2))
    expected = score_case(
        torch.from_numpy(prediction.labels[:, 0]),
        torch.from_numpy(prediction.mean_probs[:, 0]),
        torch.from_numpy(prediction.mean_log_probs[:, 0]),
        torch.from_numpy(dataset.annotations(row)),
    )
    assert {key: scores[key] for key in ("ged", "ged_floor", "s_ncc", "dice")} == pytest.approx(
        {key: expected[key] for key in ("ged", "ged_floor", "s_ncc", "dice")}
    )


def test_test_cases_are_listed_first_with_their_split(serve, gaps, trained):
    dataset = Dataset.open(gaps)
    session = serve(load_model(trained()), gaps).client.get("/api/session").json()
    cases = [scan for scan in session["listed"] if scan["split"]]
    assert [scan["split"] for scan in cases] == [
        split for split in ("test", "val", "train") for _ in dataset.rows(split)
    ]
    rows = [int(scan["id"].removeprefix("case-")) for scan in cases]
    assert sorted(rows) == list(range(dataset.num_cases))
    assert rows[0] == dataset.rows("test")[0]
    (first,) = session["scans"]
    assert (first["id"], first["split"]) == (cases[0]["id"], "test")


def test_numbers_of_samples_with_the_class(serve):
    values = np.full((20, 22, 5), -100, np.float32)
    values[8:11, 9:12, 1:3] = 0  # 18 voxels, which a sample has or has not
    served = serve(KnownModel(noisy, centred_on="lesion"))
    name = served.drop(("scan.nii", nifti_bytes(Volume(values, AFFINE)))).json()["id"]
    ((row, column),) = np.argwhere(served.viewer.scans.get(name).stack.stack.values[2, ..., 0] == 0)[4:5]
    (numbers,) = of_type(served.click(name, [2, int(row), int(column)], num_samples=12), "numbers")
    found = numbers["classes"]["lesion"]
    assert 0.1 < found["present"] < 0.9
    num_present = round(12 * found["present"])
    volume = 18 * 0.8 * 0.9 * 2.0 / 1000
    assert found["size_if_present"]["samples"] == pytest.approx([volume] * num_present, rel=1e-5)
    assert sorted(found["size"]["samples"]) == pytest.approx([0] * (12 - num_present) + [volume] * num_present)
    diameter = np.hypot(2 * 0.8, 2 * 0.9) + 0.85  # between corner pixels, plus one pixel
    assert found["diameter_if_present"]["median"] == pytest.approx(diameter)


def test_unusual_image_causes_warning(scan):
    images = np.random.default_rng(1).random((60, 1, 16, 16)).astype(np.float32) - 0.5
    usual = UsualValues.of(list(images)).model_dump(mode="json")
    (numbers,) = of_type(clicked_with(scan, usual), "numbers")
    assert numbers["unusual"] is None
    unlike = UsualValues.of(list(images * 0.1 - 0.4)).model_dump(mode="json")
    (numbers,) = of_type(clicked_with(scan, unlike), "numbers")
    assert "does not look like the model's training images" in numbers["unusual"]
    (numbers,) = of_type(clicked_with(scan, None), "numbers")
    assert numbers["unusual"] is None


def clicked_with(scan, usual):
    """Return the answer to a click on a random volume, of a model that knows usual values."""
    served, _, name = scan(make_model(usual_values=usual))
    return served.click(name, POINT, num_samples=2)


@pytest.fixture(scope="module")
def zscored(lesions, tmp_path_factory):
    """The lesions as z-scores of brighter regions: images with a mean of 1.5 or more, one of them constant."""
    source = Dataset.open(lesions)
    images = 1.5 + 0.3 * source.images.astype(np.float32)
    images[1] = 1.5
    folder = tmp_path_factory.mktemp("data") / "zscored"
    write_dataset(
        folder,
        name="zscored",
        classes=source.info.classes,
        num_annotators=4,
        image_shape=images.shape[1:],
        image_dtype=images.dtype,
        intensity=Intensity(kind="zscore"),
        cases=(
            Case(case["case"], case["patient"], image, labels, np.ones(4, bool))
            for case, image, labels in zip(source.cases, images, source.labels, strict=True)
        ),
        splits=source.splits,
    )
    return folder


@pytest.mark.parametrize("centred_on", [None, "lesion"])
@pytest.mark.parametrize("row", [0, 1])
def test_stored_zscore_is_not_normalised_again(serve, zscored, row, centred_on):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(UNetConfig(channels=(4, 4, 8), blocks_per_level=1)).eval()
    model.preprocessing = make_model().preprocessing | {
        "intensity": Intensity(kind="zscore").model_dump(mode="json"),
        "centred_on": centred_on,
    }
    stored = torch.from_numpy(Dataset.open(zscored).image(row))
    expected = model.sample(stored[None], 1, generator=torch.Generator())[0, 0].softmax(0)

    served = serve(model, zscored)
    seen = []
    encode = model.encode
    model.encode = lambda image: (seen.append(image), encode(image))[1]
    messages = served.click(f"case-{row}", [0, 8, 8], num_samples=1)
    assert seen, messages
    for image in seen:
        torch.testing.assert_close(image[0], stored)  # also of a crop: the one around (8, 8) is the whole image
    if centred_on is None:
        (summary,) = of_type(messages, "slice")
        shown = unpacked(summary["mean_probs"], 1, *box_shape(summary)) / 255
        np.testing.assert_allclose(shown[0], expected[1], atol=0.51 / 255)


def test_samples_outside_crop_are_background(serve, lesions, trained):
    model = load_model(trained())
    model.preprocessing |= {"centred_on": "lesion", "size": [8, 8]}
    served = serve(model, lesions)
    messages = served.click("case-0", [0, 6, 9], num_samples=4)
    (scores,) = of_type(messages, "scores")
    box = box_slices(messages[0])
    scan = served.viewer.scans.get("case-0")
    prediction = predict_volume(
        model,
        scan.volume,
        point=(9, 6, 0),
        sampling=Sampling(num_samples=4, reach_mm=0),
    )
    labels = np.zeros((4, 16, 16), np.uint8)
    labels[:, *box] = prediction.labels[:, 0]
    mean = np.stack([np.ones((16, 16)), np.zeros((16, 16))]).astype(np.float32)
    logs = np.log(mean + EPSILON)
    mean[:, *box], logs[:, *box] = prediction.mean_probs[:, 0], prediction.mean_log_probs[:, 0]
    expected = score_case(*map(torch.from_numpy, (labels, mean, logs, np.array(scan.annotations[:, 0]))))
    assert scores["ged"] == pytest.approx(expected["ged"])
    assert scores["s_ncc"] == pytest.approx(expected["s_ncc"])


def test_scans_have_no_scores(scan):
    served, _, name = scan()
    assert "scores" not in {message["type"] for message in served.click(name, POINT, num_samples=2)}


@pytest.mark.parametrize("point", [[5, 0, 0], [-1, 0, 0], [0, 22, 0], [0, 0, 20]])
def test_point_outside_scan_is_reported(scan, point):
    served, _, name = scan()
    (failed,) = served.click(name, point)
    assert failed == {"type": "error", "message": "the point is outside the scan; click inside the scan"}


@pytest.mark.parametrize(("members", "names"), [(None, "level 1, level 2"), (3, "level 1, level 2, member")])
def test_invalid_levels_and_scan_are_reported(serve, members, names):
    served = serve(make_model(members=members))
    (failed,) = served.click(levels=[{}])
    assert failed["message"] == f"the model has settings for {names}, not 1; reload the page"
    (failed,) = served.click("drop-1234", [0, 0, 0])
    assert "this scan is no longer open" in failed["message"]


def test_flat_model_has_no_levels(serve, lesions, trained):
    served = serve(load_model(trained("probunet")), lesions)
    info = served.client.get("/api/session").json()["model"]
    assert (info["num_levels"], info["noise_names"]) == (0, [])
    messages = served.click("case-0", num_samples=3)
    assert of_type(messages, "numbers")
    assert [message for message in messages if message["type"] == "levels"] == []


def test_prediction_is_limited_by_memory(scan, monkeypatch):
    served, volume, name = scan()
    per_slice = 16 * 16 * 2 * 4  # pixels, classes, samples: a crop has two pixels to spare on each axis
    monkeypatch.setattr("phiseg.viewer.click_prediction.MAX_VALUES", per_slice - 1)
    (failed,) = served.click(name, POINT, num_samples=4)
    assert "are too large for 4 samples; draw fewer" in failed["message"]
    monkeypatch.setattr("phiseg.viewer.click_prediction.MAX_VALUES", 3 * 18 * 18 * 2 * 4)
    messages = served.click(name, POINT, num_samples=4)
    (lesion,) = of_type(messages, "volume")
    assert lesion["num_slices"] <= 3
    sampling = Sampling(num_samples=4, reach_mm=AFFINE[2, 2])
    expected = predict_volume(served.viewer.model, volume, point=voxel(volume, POINT), sampling=sampling)
    np.testing.assert_array_equal(unpacked(lesion["labels"], *expected.labels.shape), expected.labels)


def test_giant_image_is_rejected(serve):
    served = serve(make_model(centred_on=None, spacing_mm=[1, 1]))
    volume = random_volume(affine=np.diag([9000.0, 9000, 9000, 1]))
    name = served.drop(("scan.nii", nifti_bytes(volume))).json()["id"]
    (failed,) = served.click(name, POINT, num_samples=4)
    assert "pixels of 9e+03 x 9e+03 mm are too large" in failed["message"]


def test_first_samples_are_sent_first(serve, monkeypatch):
    served = serve()
    asked = []

    def counted(*arguments, sampling, **options):
        asked.append(sampling.num_samples)
        return predict_prepared(*arguments, sampling=sampling, **options)

    monkeypatch.setattr("phiseg.viewer.click_prediction.predict_prepared", counted)
    scan = served.viewer.scans.get("example")
    request = PredictionRequest(scan="example", point=list(scan.info.start), num_samples=100)
    first = next(draw(served.viewer.model, scan, request))
    assert (first.number, asked) == (4, [4])
