"""A dataset whose classes have other names or numbers than those of the model."""

import csv
import json

import numpy as np
import pytest
import torch

from helpers.known_models import KnownModel, brightest
from phiseg.core.errors import ConfigError, DataError, ModelError
from phiseg.data.intensity import Intensity
from phiseg.data.manifest import MISSING
from phiseg.data.relabel import relabel
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.inference import sampling
from phiseg.inference.class_map import match_classes, parse_class_map
from phiseg.inference.sampling import check_fits, sample_cases, sample_split
from phiseg.models import load_model


@pytest.fixture
def renamed(copy, lesions):
    """Return a function that gives the lesions with other class names."""

    def rename(*classes):
        folder = copy(lesions, "renamed")
        info = json.loads((folder / "dataset.json").read_text())
        (folder / "dataset.json").write_text(json.dumps(info | {"classes": classes}))
        return folder

    return rename


@pytest.fixture
def organs(tmp_path):
    """Return a function that writes one case with a label in every column, and a missing annotator."""

    def write(*classes):
        labels = np.broadcast_to(np.arange(16, dtype=np.uint8) % len(classes), (2, 16, 16)).copy()
        image = np.zeros((len(classes) - 1, 16, 16), np.float32)
        return write_dataset(
            tmp_path / "organs",
            name="organs",
            classes=classes,
            num_annotators=2,
            image_shape=image.shape,
            image_dtype=image.dtype,
            intensity=Intensity(kind="window", low=-200, high=200),
            cases=[Case("one", "one", image, labels, np.array([True, False]))],
        )

    return write


def model(*classes, channels=None):
    return KnownModel(brightest, classes=classes, channels=channels or len(classes) - 1)


@pytest.mark.parametrize("command", ["evaluate", "sample", "calibrate"])
def test_commands_warn_about_other_class_names_and_take_a_mapping(
    command, cli, trained, copy, renamed, lesions, tmp_path
):
    data = renamed("background", "class 1")
    words = [command, copy(trained(), "run"), "--num-samples", "4", "--data"]

    def out(name):
        return [] if command == "calibrate" else ["--out", tmp_path / name]

    plain, warned = cli(*words, lesions, *out("plain")), cli(*words, data, *out("warned"))
    mapped = cli(*words, data, "--class-map", "class 1:lesion", *out("mapped"))
    assert (plain.code, warned.code, mapped.code) == (0, 0, 0), warned.err
    assert "compared by number: 'class 1' as 'lesion'" in warned.err
    assert "--class-map 'class 1:lesion' (in Python: class_map={'class 1': 'lesion'})" in warned.err
    assert "class 1" not in mapped.err
    if command == "evaluate":
        scores = [(tmp_path / name / "cases.csv").read_text() for name in ("plain", "warned", "mapped")]
        assert scores[0] == scores[1] == scores[2]
        assert cli("compare", tmp_path / "warned", tmp_path / "mapped", "--out", tmp_path / "report").code == 0


def test_numbers_that_belong_to_other_names_are_refused(organs):
    dataset, known = organs("background", "pz", "tz"), model("background", "tz", "pz")
    with pytest.raises(ModelError, match=r"'pz' has another number.*--class-map 'pz:pz' 'tz:tz'"):
        check_fits(known, dataset)
    with pytest.raises(ModelError, match="'pz' has another number"):
        match_classes(known, dataset)
    translated = match_classes(known, dataset, {"pz": "pz", "tz": "tz"})
    check_fits(known, translated)
    np.testing.assert_array_equal(translated.annotations(0)[0, 0, :6], [0, 2, 1, 0, 2, 1])
    assert translated.info.classes == ("background", "tz", "pz")
    assert translated.fingerprint != dataset.fingerprint
    assert (translated.labels[0, 1] == MISSING).all()
    assert next(sample_cases(known, translated, [0], num_samples=2, seed=0)).row == 0


def test_several_classes_may_become_one(organs):
    dataset, known = organs("empty", "solid", "ground glass"), model("background", "nodule", channels=2)
    with pytest.raises(ModelError, match=r"2 classes \(background, nodule\).*has 3.*--class-map"):
        match_classes(known, dataset)
    merged = match_classes(known, dataset, {"solid": "nodule", "ground glass": "nodule"})
    np.testing.assert_array_equal(merged.labels[0, 0, 0, :4], [0, 1, 1, 0])
    dropped = match_classes(known, dataset, {"solid": "nodule", "ground glass": "background"})
    np.testing.assert_array_equal(dropped.labels[0, 0, 0, :4], [0, 1, 0, 0])


def test_samples_have_the_classes_of_the_dataset(organs, monkeypatch):
    dataset, known = organs("background", "pz", "tz", "cz"), model("background", "tz", "cz", "pz")
    monkeypatch.setattr(sampling, "load_model", lambda *_, **__: known.eval())
    dataset.resplit(seed=0, fractions=(1, 0, 0))
    bright = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 16, 16)).astype(np.float32)
    monkeypatch.setattr(Dataset, "image", lambda *_, **__: bright)
    class_map = {name: name for name in ("pz", "tz", "cz")}
    found = sample_split(
        "model", dataset.path, split="train", num_samples=2, seed=0, keep_probs=True, class_map=class_map
    )
    assert found.dataset.info.classes == ("background", "pz", "tz", "cz")
    (case,) = found.samples
    (own,) = sample_cases(
        known, match_classes(known, dataset, class_map), [0], num_samples=2, seed=0, keep_probs=True
    )
    names = [np.array(classes) for classes in (dataset.info.classes, ("background", "tz", "cz", "pz"))]
    np.testing.assert_array_equal(names[0][case.summary.labels], names[1][own.summary.labels])
    assert len(case.summary.labels.unique()) == 4
    for number, name in enumerate(names[0]):
        place = names[1].tolist().index(name)
        assert torch.equal(case.probs[:, number], own.probs[:, place])
        assert torch.equal(case.summary.mean_probs[number], own.summary.mean_probs[place])
        assert torch.equal(case.summary.mean_log_probs[number], own.summary.mean_log_probs[place])


def test_samples_of_merged_classes_have_those_of_the_model(organs, monkeypatch, capsys):
    dataset, known = organs("background", "solid", "ground glass"), model("background", "nodule", channels=2)
    monkeypatch.setattr(sampling, "load_model", lambda *_, **__: known.eval())
    dataset.resplit(seed=0, fractions=(1, 0, 0))
    class_map = {"solid": "nodule", "ground glass": "nodule"}
    found = sample_split("model", dataset.path, split="train", num_samples=2, seed=0, class_map=class_map)
    assert found.dataset.info.classes == ("background", "nodule")
    assert "have the classes of the model (background, nodule)" in capsys.readouterr().err


def test_a_model_that_records_no_names_takes_any(organs, capsys):
    dataset, known = organs("background", "organ"), model("background", "lesion")
    known.preprocessing = {}
    assert match_classes(known, dataset) is dataset
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["organ"], "must be DATA:MODEL"),
        (["organ:lesion", "organ:background"], "to 'lesion' and to 'background'"),
        (["organs:lesion"], "no class 'organs' .did you mean 'organ'"),
        (["organ:lesions"], "the model has no class 'lesions' .did you mean 'lesion'"),
        (["background:background"], "'organ' of .* has no counterpart"),
    ],
)
def test_wrong_mappings_are_reported(words, says, organs):
    dataset = organs("background", "organ")
    with pytest.raises(ConfigError, match=says):
        match_classes(model("background", "lesion"), dataset, parse_class_map(words))


def test_relabelled_dataset_rejects_unknown_labels(copy, lesions, replace_arrays):
    folder = copy(lesions)
    labels = np.load(folder / "labels.npy")
    labels[3, 0, 0, 0] = 2
    replace_arrays(folder, labels=labels)
    dataset = relabel(Dataset.open(folder), ("background", "other", "lesion"), (0, 2))
    dataset.check_labels([2])
    with pytest.raises(DataError, match="case"):
        dataset.check_labels([3])


def test_the_viewer_notes_other_class_names(trained, renamed):
    from phiseg.viewer.server import Viewer

    viewer = Viewer.of(load_model(trained()), "tiny")
    assert any("'class 1' as 'lesion'" in note for note in viewer.add([renamed("background", "class 1")]))


def test_evaluations_of_merged_classes_are_not_compared_with_others(cli, trained, renamed, lesions, tmp_path):
    data = renamed("background", "class 1")
    words = ("--num-samples", "2", "--data", data, "--out")
    assert cli("evaluate", trained(), *words, tmp_path / "one").code == 0
    assert cli("evaluate", trained(), *words, tmp_path / "two", "--class-map", "class 1:background").code == 0
    done = cli("compare", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "report")
    assert (done.code, "different datasets" in done.err) == (2, True)
    with (tmp_path / "two" / "cases.csv").open(newline="") as file:
        assert {row["ged_within_annotations"] for row in csv.DictReader(file)} == {"0.0"}  # all masks are empty
