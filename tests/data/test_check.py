"""Check of a dataset: every problem is reported, and the statistics match their definitions."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from phiseg.data.check import check_dataset
from phiseg.data.intensity import Intensity
from phiseg.data.manifest import MISSING
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset

SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"


def check(folder):
    return check_dataset(Dataset.open(folder), progress=False)


def change(folder, replace_arrays, name, edit, *, rehash=True):
    """Let `edit` change an array of a dataset, with or without the manifest's knowledge."""
    array = np.load(folder / f"{name}.npy")
    edit(array)
    if rehash:
        replace_arrays(folder, **{name: array})
    else:
        np.save(folder / f"{name}.npy", array)


def naive_iou(first, second, num_classes):
    scores = []
    for k in range(1, num_classes):
        union = ((first == k) | (second == k)).sum()
        scores.append(((first == k) & (second == k)).sum() / union if union else 1.0)
    return np.mean(scores)


@pytest.mark.parametrize("name", ["lesions", "zones", "gaps"])
def test_check_of_valid_dataset_matches_definitions(name, request):
    dataset = Dataset.open(request.getfixturevalue(name))
    report = check_dataset(dataset, progress=False)
    num_classes, num_annotators = len(dataset.info.classes), dataset.info.num_annotators
    pairs, both_drew, floors, drew, empty, pixels = [], [], [], [], np.zeros(num_annotators, int), []
    for labels, valid in zip(dataset.labels, dataset.valid, strict=True):
        looked = [labels[annotator] for annotator in range(num_annotators) if valid[annotator]]
        ious = [(naive_iou(a, b, num_classes), a.any() and b.any()) for a, b in combinations(looked, 2)]
        pairs += [value for value, _ in ious]
        both_drew += [value for value, both in ious if both]
        floors.append((1 - np.mean([value for value, _ in ious])) * (1 / len(looked) + 1 / 16))
        drew.append(sum(mask.any() for mask in looked))
        empty += [valid[annotator] and not labels[annotator].any() for annotator in range(num_annotators)]
        pixels.append(np.stack(looked))
    assert report.problems == ()
    assert report.agreement.pairs == len(pairs)
    assert report.agreement.iou == pytest.approx(np.mean(pairs))
    assert report.agreement.pairs_who_both_drew == len(both_drew)
    assert report.agreement.iou_who_both_drew == pytest.approx(np.mean(both_drew))
    assert report.agreement.ged_floor[16] == pytest.approx(np.mean(floors))
    assert report.drew == {number: drew.count(number) for number in range(num_annotators + 1)}
    assert [annotator.empty for annotator in report.annotators] == empty.tolist()
    assert [annotator.missing for annotator in report.annotators] == (~dataset.valid).sum(axis=0).tolist()
    for k, share in enumerate(report.classes.values()):
        assert share.pixels == pytest.approx(np.mean(np.concatenate(pixels) == k))
        assert share.annotations == pytest.approx(np.mean([(mask == k).any() for mask in np.concatenate(pixels)]))


def test_check_reports_all_problems_at_once(copy, lesions, replace_arrays):
    folder = copy(lesions)
    dataset = Dataset.open(folder)
    train, test = dataset.rows("train")[0], dataset.rows("test")[0]

    def damage_images(images):
        images[test] = images[train]
        images[dataset.rows("val")[0], 0, 3, 3] = np.nan

    def damage_labels(labels):
        labels[dataset.rows("train")[1], 2, 0, 0] = 7

    change(folder, replace_arrays, "images", damage_images)
    change(folder, replace_arrays, "labels", damage_labels, rehash=False)
    problems = "\n".join(check(folder).problems)
    assert problems.count("\n") == 3
    assert f"{folder / 'labels.npy'} changed after preparation" in problems
    assert f"case '{dataset.cases[dataset.rows('val')[0]]['case']}' has NaN" in problems
    assert "annotator 2: label 7 is not one of the classes (0 background, 1 lesion)" in problems
    assert f"{dataset.cases[min(train, test)]['case']} = {dataset.cases[max(train, test)]['case']}" in problems
    assert "same image, in splits test and train" in problems


def test_check_names_all_modified_files(copy, lesions):
    folder = copy(lesions)
    for name in ("images", "labels"):
        change(folder, None, name, lambda array: np.copyto(array[0], 0), rehash=False)
    assert any(
        "images.npy and" in problem and "labels.npy changed" in problem for problem in check(folder).problems
    )


def test_check_finds_leak_despite_copy_without_split(copy, lesions, replace_arrays):
    folder = copy(lesions)
    splits = json.loads((folder / "splits.json").read_text())
    cases = [case["patient"] for case in Dataset.open(folder).cases]
    del splits["seed"]
    splits = {name: [patient for patient in part if patient != cases[0]] for name, part in splits.items()}
    (folder / "splits.json").write_text(json.dumps(splits))
    rows = [0, cases.index(splits["train"][0]), cases.index(splits["test"][0])]
    change(folder, replace_arrays, "images", lambda images: images.__setitem__(rows, images[0]))
    report = check(folder)
    assert [problem.count(" = ") for problem in report.problems] == [2]
    assert report.splits["no split"].patients == report.splits["no split"].cases == 1


def test_check_notes_copies_and_constant_images(copy, lesions, replace_arrays):
    folder = copy(lesions)
    dataset = Dataset.open(folder)
    one, two = dataset.rows("train")[:2]
    blank = [*dataset.rows("val")[:1], *dataset.rows("test")[:1]]  # alike, but no leak: there is nothing to learn

    def edit(images):
        images[two] = images[one]
        images[blank] = 0.5

    change(folder, replace_arrays, "images", edit)
    report = check(folder)
    assert report.problems == ()
    assert len(report.notes) == 2
    assert report.notes[0].startswith("constant images: 2 (")
    assert report.notes[1].startswith("images under more than one patient: 1 (")


def case(number, *, patient, image=0.0, spacing):
    pixels = np.full((1, 4, 4), image)
    pixels[0, 0, 0] = 1
    labels = np.zeros((1, 4, 4), dtype=np.uint8)
    return Case(f"case-{number}", patient, pixels, labels, np.ones(1, bool), {"spacing_mm": spacing})


def test_check_of_one_annotator_and_copies_of_one_patient(tmp_path):
    dataset = write_dataset(
        tmp_path / "data",
        name="slices",
        classes=("background", "lesion"),
        num_annotators=1,
        image_shape=(1, 4, 4),
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=[
            case(0, patient="a", spacing=0.5),
            case(1, patient="a", spacing=0.8),
            case(2, patient="b", image=2, spacing=""),
        ],
        splits={"train": ["a", "b"]},
    )
    report = check_dataset(dataset, progress=False)
    assert report.problems == ()
    assert report.notes == ("images more than once under one patient: 1 (case-0 = case-1)",)
    assert report.agreement.model_dump() == {
        "pairs": 0,
        "iou": None,
        "pairs_who_both_drew": 0,
        "iou_who_both_drew": None,
        "ged_floor": {16: None, 100: None},
    }
    assert report.spacing_mm == (0.5, 0.8)
    assert report.drew == {0: 3, 1: 0}


def test_check_ignores_labels_of_missing_annotators(copy, gaps, replace_arrays):
    before = check(gaps)
    folder = copy(gaps)

    def scribble(labels):
        assert (labels == MISSING).any()
        labels[labels == MISSING] = 1

    change(folder, replace_arrays, "labels", scribble)
    assert check(folder) == before


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the LIDC crops are not here")
@pytest.mark.parametrize(("empty", "noted"), [((0, 30), True), ((10, 20), False)])
def test_check_notes_annotations_sorted_by_who_drew(tmp_path, empty, noted):
    """Of 60 annotations each, annotators have the given numbers of empty ones."""

    def case(number):
        labels = np.stack([np.full((16, 16), number >= count, np.uint8) for count in empty])
        image = np.random.default_rng(number).normal(size=(1, 16, 16)).astype(np.float32)
        return Case(f"case-{number}", f"p{number}", image, labels, np.ones(2, dtype=bool))

    write_dataset(
        tmp_path / "data",
        name="sorted",
        classes=("background", "lesion"),
        num_annotators=2,
        image_shape=(1, 16, 16),
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=map(case, range(60)),
    )
    notes = [note for note in check(tmp_path / "data").notes if "sorted by who drew" in note]
    assert len(notes) == noted
    if noted:
        assert "0% (annotator 0) to 50% (annotator 1)" in notes[0]


def test_check_notes_slices_of_several_scans(tmp_path):
    write_dataset(
        tmp_path / "data",
        name="visits",
        classes=("background", "nodule"),
        num_annotators=1,
        image_shape=(1, 4, 4),
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=(
            Case(
                f"{visit}-{number}",
                "p",
                np.full((1, 4, 4), 3 * visit + number),
                np.zeros((1, 4, 4)),
                np.array([True]),
                {"slice": number},
            )
            for visit in range(2)
            for number in range(3)
        ),
        splits={"train": ["p"]},
    )
    (note,) = (note for note in check(tmp_path / "data").notes if "repeated slice number" in note)
    assert note.endswith("add a column scan: 1 (p)")


def test_check_of_lidc_crops_matches_known_values(tmp_path):
    with np.load(SHARED_DATA / "lidc_maxslice71.npz") as file:
        crops = {name: file[name] for name in ("images", "masks", "case_ids", "split", "pixel_spacing_mm")}
    cases = (
        Case(f"crop-{row}", str(patient), image[None], masks, np.ones(4, bool), {"spacing_mm": float(spacing)})
        for row, (image, masks, patient, spacing) in enumerate(
            zip(*(crops[name] for name in ("images", "masks", "case_ids", "pixel_spacing_mm")), strict=True)
        )
    )
    dataset = write_dataset(
        tmp_path / "lidc",
        name="lidc",
        classes=("background", "nodule"),
        num_annotators=4,
        image_shape=(1, 71, 71),
        image_dtype=np.int16,
        intensity=Intensity(kind="window", low=-1000, high=400),
        cases=cases,
        splits={name: sorted(set(crops["case_ids"][crops["split"] == name].tolist())) for name in ("train", "val")},
    )
    report = check_dataset(dataset, progress=False)
    assert report.problems == ()
    assert (report.cases, report.patients) == (2062, 688)
    assert (report.splits["train"].cases, report.splits["val"].cases) == (1556, 506)
    shares = [report.drew[number] / report.cases for number in (4, 3, 2, 1)]
    assert shares == pytest.approx([0.34, 0.19, 0.18, 0.29], abs=0.01)
    assert report.agreement.iou_who_both_drew == pytest.approx(0.70, abs=0.005)
    assert report.agreement.iou == pytest.approx(0.50, abs=0.005)
    assert np.median([float(case["spacing_mm"]) for case in dataset.cases]) == pytest.approx(0.70, abs=0.005)
    assert report.spacing_mm == pytest.approx((crops["pixel_spacing_mm"].min(), crops["pixel_spacing_mm"].max()))
