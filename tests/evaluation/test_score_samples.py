"""Scoring samples from another program: every form gives the scores of an evaluation; wrong input is refused."""

import csv
import hashlib
import json

import nibabel
import numpy as np
import pytest
from PIL import Image

from helpers import naive_metrics as naive
from helpers.small_volumes import write_volumes
from phiseg.comparison.compare import compare
from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.evaluation.model_evaluation import evaluate
from phiseg.evaluation.score_samples import score
from phiseg.metrics.conventions import CONVENTIONS
from phiseg.metrics.score_registry import case_scores
from phiseg.training.loop import train


def names_of(data, split="test"):
    dataset = Dataset.open(data)
    return [dataset.cases[row]["case"] for row in dataset.rows(split)]


def drawn(data, split="test", *, num_samples=6, seed=0):
    """Return labels of a sampler that copies annotators and flips a few pixels, (cases, S, H, W)."""
    dataset, rng = Dataset.open(data), np.random.default_rng(seed)
    labels = []
    for row in dataset.rows(split):
        known = dataset.annotations(row)
        masks = known[rng.integers(len(known), size=num_samples)].copy()
        flipped = rng.random(masks.shape) < 0.03
        masks[flipped] = rng.integers(len(dataset.info.classes), size=flipped.sum())
        labels.append(masks)
    return np.stack(labels)


@pytest.fixture
def scored(lesions, tmp_path):
    """Return a function that scores samples and reads the evaluation."""

    def run(samples, *, data=lesions, name="eval", **options):
        (written,) = score(samples, data, tmp_path / name, progress=False, **options)
        evaluation = read_evaluation(written.path)
        assert evaluation.summary == written.summary
        return evaluation

    return run


# Agreement with an evaluation of the model


def test_samples_of_phiseg_sample_score_as_in_an_evaluation(trained, lesions, cli, tmp_path):
    model = trained("phiseg")
    settings = ["--data", lesions, "--num-samples", 5, "--seed", 3]
    assert cli("sample", model, *settings, "--out", tmp_path / "samples").code == 0
    result = cli("score", tmp_path / "samples", "--data", lesions, "--out", tmp_path / "scored")
    assert result.code == 0, result.err
    evaluate(model, lesions, tmp_path / "evaluated", num_samples=5, seed=3, progress=False)
    ours, theirs = (read_evaluation(tmp_path / name) for name in ("scored", "evaluated"))
    assert ours.cases == theirs.cases
    assert ours.summary.scores == theirs.summary.scores
    assert ours.summary.intervals == theirs.summary.intervals
    np.testing.assert_array_equal(ours.reliability, theirs.reliability)
    for name in ("cases", "image", "annotations", "samples", "mean_probs", "error", "gamma"):
        np.testing.assert_array_equal(getattr(ours.examples, name), getattr(theirs.examples, name), err_msg=name)
    assert ours.summary.samples.probabilities == "all"
    assert (ours.summary.seed, ours.summary.method) == (None, "samples")
    assert f"{ours.summary.ged:9.4f}" in result.out


def test_probabilities_alone_give_all_scores(trained, lesions, cli, scored, tmp_path):
    settings = ["--data", lesions, "--num-samples", 5, "--probs"]
    assert cli("sample", trained("phiseg"), *settings, "--out", tmp_path / "samples").code == 0
    evaluate(trained("phiseg"), lesions, tmp_path / "evaluated", num_samples=5, progress=False)
    found = scored(tmp_path / "samples" / "probs.npy")
    expected = read_evaluation(tmp_path / "evaluated")
    for score_ in case_scores(2):
        assert found.cases[score_.name] == pytest.approx(expected.cases[score_.name], abs=1e-5), score_.name
    assert found.summary.ece == pytest.approx(expected.summary.ece, abs=1e-5)


def test_name_of_the_split_file_is_recorded_and_shown(lesions, copy, cli, tmp_path):
    data, split = copy(lesions), tmp_path / "split.json"
    assert cli("data", "split", data, "--write", split, "--name", "lesions-a", "--source", "Doe 2026").code == 0
    assert "split file" not in cli("info", data).out
    assert cli("data", "split", data, "--read", split).code == 0
    assert "  split file: lesions-a (Doe 2026)\n" in cli("info", data).out
    np.save(tmp_path / "labels.npy", drawn(data))
    done = cli("score", tmp_path / "labels.npy", "--data", data, "--out", tmp_path / "eval")
    assert "on 3 test (lesions-a) cases" in done.out
    assert read_evaluation(tmp_path / "eval").summary.dataset.split_name == "lesions-a"
    compare([tmp_path / "eval"], tmp_path / "report")
    assert "test (lesions-a) split" in (tmp_path / "report" / "report.html").read_text()


def test_older_evaluation_without_the_name_of_a_split_file_is_read(scored, tmp_path, lesions):
    np.save(tmp_path / "labels.npy", drawn(lesions))
    path = scored(tmp_path / "labels.npy").path
    values = json.loads((path / "summary.json").read_text())
    del values["dataset"]["split_name"]
    (path / "summary.json").write_text(json.dumps(values))
    assert read_evaluation(path).summary.dataset.split_name is None


# Forms of samples


def write_nifti(path, mask):
    """Write a mask (H, W) as SimpleITK does: x is the first axis, directions are LPS."""
    nibabel.save(nibabel.Nifti1Image(mask.T[:, :, None], np.diag([-0.5, -0.5, 1, 1])), path)


def write_png(path, mask):
    Image.fromarray(mask * np.uint8(255)).save(path)


def case_folders(folder, labels, names, suffix, write):
    for name, masks in zip(names, labels, strict=True):
        (folder / name).mkdir(parents=True)
        for number, mask in enumerate(masks, start=1):
            write(folder / name / f"sample-{number}{suffix}", mask)
    return folder


def as_form(form, folder, labels, names):
    """Write samples in one of the forms, with cases in reverse order where the form has names."""
    folder.mkdir()
    turned, reversed_names = labels[::-1], names[::-1]
    if form == "npy in the order of the split":
        np.save(folder / "x.npy", labels)
        return folder / "x.npy"
    if form in ("npy with cases.csv", "folder with cases.csv"):
        np.save(folder / "labels.npy", turned)
        rows = "\n".join(f"p,{name}" for name in reversed_names)
        (folder / "cases.csv").write_text(f"patient,case\n{rows}\n")
        return folder / "labels.npy" if form.startswith("npy") else folder
    if form == "npz":
        np.savez(folder / "x.npz", labels=turned.astype(np.float32), cases=np.array(reversed_names))
        return folder / "x.npz"
    if form == "npz by case":
        np.savez(folder / "x.npz", **dict(zip(reversed_names, turned, strict=True)))
        return folder / "x.npz"
    suffix, write = {
        "NIfTI": (".nii.gz", write_nifti),
        "PNG": (".png", write_png),
        "npy by case": (".npy", np.save),
    }[form]
    return case_folders(folder, turned, reversed_names, suffix, write)


FORMS = [
    "npy in the order of the split",
    "npy with cases.csv",
    "folder with cases.csv",
    "npz",
    "npz by case",
    "NIfTI",
    "PNG",
    "npy by case",
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_scores(form, lesions, scored, tmp_path):
    labels, names = drawn(lesions, num_samples=11), names_of(lesions)  # sample-10 follows sample-9
    expected = scored(labels, name="expected")
    found = scored(as_form(form, tmp_path / "given", labels, names))
    assert found.cases == expected.cases
    assert found.summary.samples == expected.summary.samples
    assert expected.summary.samples.sha256 == hashlib.sha256(labels.tobytes()).hexdigest()


def test_names_can_be_given_as_a_file(lesions, scored, tmp_path):
    labels, names = drawn(lesions), names_of(lesions)
    np.save(tmp_path / "x.npy", labels[::-1])
    (tmp_path / "names.txt").write_text("\n".join(names[::-1]))
    assert scored(tmp_path / "x.npy", cases=tmp_path / "names.txt").cases == scored(labels, name="b").cases


def test_further_cases_are_ignored(lesions, scored):
    labels, names = drawn(lesions), names_of(lesions)
    more = np.concatenate([drawn(lesions, "val"), labels])
    assert scored(more, cases=[*names_of(lesions, "val"), *names]).cases == scored(labels, name="b").cases


# Scores without probabilities


def test_labels_alone_have_no_probabilistic_scores(lesions, scored):
    labels = drawn(lesions)
    found = scored(labels)
    dataset = Dataset.open(lesions)
    rows = dataset.rows("test")
    for index, row in enumerate(rows):
        samples, known = labels[index].tolist(), dataset.annotations(row).tolist()
        majority = naive.majority(samples, 2)
        assert found.cases["ged"][index] == pytest.approx(naive.ged(samples, known, 2))
        expected = np.mean([naive.dice(majority, one, 2) for one in known])
        assert found.cases["dice"][index] == pytest.approx(expected)
    assert found.cases["s_ncc"] == [None] * len(rows)
    assert (found.summary.s_ncc, found.summary.ece, found.summary.residual_correlation) == (None, None, None)
    assert (found.reliability, found.examples.gamma, found.examples.error) == (None, None, None)
    assert found.summary.samples.probabilities == "none"


def test_comparison_accepts_given_samples(trained, lesions, scored, tmp_path):
    evaluate(trained("phiseg"), lesions, tmp_path / "ours", num_samples=6, progress=False)
    scored(drawn(lesions), name="theirs", method="copies")
    table = compare([tmp_path / "theirs", tmp_path / "ours"], tmp_path / "report")
    assert [row.method for row in table.rows] == ["copies", "tiny-phiseg"]
    assert table.rows[0].s_ncc is None
    assert table.rows[1].s_ncc is not None
    assert any(note.startswith("copies: only labels are known") for note in table.notes)
    assert "<td>None</td>" not in (tmp_path / "report" / "report.html").read_text()
    assert {"samples.png", "reliability.png", "report.html"} <= {
        path.name for path in (tmp_path / "report").iterdir()
    }


# Numbers of samples, conventions


def test_several_numbers_of_samples_use_the_first_ones(lesions, scored, tmp_path):
    labels = drawn(lesions, num_samples=8)
    written = score(labels, lesions, tmp_path / "all", num_samples=[2, 8], progress=False)
    assert [one.path.name for one in written] == ["samples-2", "samples-8"]
    for number in (2, 8):
        part = read_evaluation(tmp_path / "all" / f"samples-{number}")
        assert part.cases == scored(labels[:, :number], name=f"alone-{number}").cases
        delta = np.array(part.cases["diversity_annotators"])
        np.testing.assert_allclose(part.cases["ged_floor"], delta * (1 / 4 + 1 / number))


def test_conventions_are_written_and_printed(lesions, cli, tmp_path):
    labels = drawn(lesions, num_samples=4)
    np.save(tmp_path / "labels.npy", labels)
    settings = ["--data", lesions, "--num-samples", "2,4", "--conventions", "all", "--out", tmp_path / "eval"]
    result = cli("score", tmp_path / "labels.npy", *settings)
    assert result.code == 0, result.err
    with (tmp_path / "eval" / "samples-4" / "conventions.csv").open(newline="") as file:
        rows = {row["convention"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(CONVENTIONS)
    dataset = Dataset.open(lesions)
    known = [dataset.annotations(row).tolist() for row in dataset.rows("test")]
    expected = np.mean([naive.ged(s.tolist(), y, 2) ** 0.5 for s, y in zip(labels, known, strict=True)])
    assert float(rows["ged-root"]["mean"]) == pytest.approx(expected)
    assert f"{expected:9.4f}" in result.out
    with (tmp_path / "eval" / "samples-4" / "convention_cases.csv").open(newline="") as file:
        cases = list(csv.DictReader(file))
    assert np.mean([float(case["ged-root"]) for case in cases]) == pytest.approx(expected)
    assert [case["case"] for case in cases] == names_of(lesions)
    summary = json.loads((tmp_path / "eval" / "samples-4" / "summary.json").read_text())
    assert float(rows["ged-all-pairs"]["mean"]) == pytest.approx(summary["ged"])


# Wrong input


def broken(change):
    def make(labels):
        labels = labels.astype(float) if change == "soft" else labels.copy()
        if change == "soft":
            labels[1, 0, 3, 4] = 0.4
        elif change == "class":
            labels[1, 0, 0, 0] = 2
        return labels

    return make


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:-1], "has 2 cases, but split 'test' of .* has 3; pass the names"),
        (lambda x: x[:, :, :8], r"shape \(6, 8, 16\), but the dataset needs \(samples, 16, 16\)"),
        (lambda x: x[:, 0], r"shape \(16, 16\), but the dataset needs"),
        (broken("soft"), "contain 0.4, which is not a class index; take the argmax"),
        (broken("class"), "label 2 is not one of the classes"),
        (lambda x: np.eye(2, dtype=np.float32)[x].transpose(0, 1, 4, 2, 3) * 3, "values from 0 to 3"),
        (lambda x: np.eye(2, dtype=np.float32)[x].transpose(0, 1, 4, 2, 3) * 0.5, "does not sum to 1"),
        (lambda x: np.eye(3, dtype=np.float32)[x].transpose(0, 1, 4, 2, 3), r"needs \(samples, 2, 16, 16\)"),
    ],
)
def test_unsuitable_arrays_are_refused(change, message, lesions, scored):
    with pytest.raises(DataError, match=message):
        scored(change(drawn(lesions)))


def test_missing_cases_are_named(lesions, scored):
    labels, names = drawn(lesions), names_of(lesions)
    with pytest.raises(DataError, match=f"no samples for 1 of the 3 cases .*, such as '{names[2]}'"):
        scored(labels[:2], cases=names[:2])
    with pytest.raises(
        DataError, match=r"no samples for 3 of the 3 cases .* names such as 'x', so check the split"
    ):
        scored(labels, cases=["x", "y", "z"])
    with pytest.raises(DataError, match="different numbers of cases"):
        scored(labels, cases=names[:2])


def test_cases_with_different_numbers_of_samples(lesions, scored, tmp_path):
    labels, names = drawn(lesions), names_of(lesions)
    folder = case_folders(tmp_path / "given", labels, names, ".npy", np.save)
    (folder / names[1] / "sample-6.npy").unlink()
    with pytest.raises(DataError, match=f"case '{names[1]}' has 5 samples, not 6; .* --num-samples 5"):
        scored(folder)
    assert scored(folder, num_samples=[5]).summary.num_samples == 5
    (folder / names[0] / "sample-5.npy").unlink()
    (folder / names[0] / "sample-6.npy").unlink()
    with pytest.raises(DataError, match=f"case '{names[1]}' has 5 samples, not 4; .* --num-samples 4"):
        scored(folder, name="other")


def test_maps_beside_the_samples_are_ignored(lesions, scored, tmp_path):
    labels, names = drawn(lesions), names_of(lesions)
    folder = case_folders(tmp_path / "given", labels, names, ".npy", np.save)
    np.save(folder / names[0] / "samples_mean.npy", np.zeros(labels.shape[2:], np.uint8))
    assert scored(folder).cases == scored(labels, name="expected").cases


def test_given_names_replace_those_of_a_file(lesions, scored, tmp_path):
    labels, names = drawn(lesions), names_of(lesions)
    np.savez(tmp_path / "given.npz", labels=labels, cases=names[::-1])
    expected = scored(labels, name="expected").cases
    assert scored(tmp_path / "given.npz", cases=names, name="given").cases == expected
    assert scored(tmp_path / "given.npz").cases != expected


@pytest.mark.parametrize("text", ["case\na\na\n", "", "x,y\n1,2\n"])
def test_unreadable_names_are_refused(text, lesions, scored, tmp_path):
    (tmp_path / "names").write_text(text)
    with pytest.raises(DataError, match="names"):
        scored(drawn(lesions), cases=tmp_path / "names")


def test_unknown_form_is_refused(scored, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY")
    for name, message in [
        ("empty", "has no samples"),
        ("x.txt", "not a known form"),
        ("absent.npy", "does not exist"),
        ("damaged.npy", "cannot read"),
    ]:
        with pytest.raises(DataError, match=message):
            scored(tmp_path / name)


def test_options_are_checked_before_scoring(lesions, scored):
    labels = drawn(lesions)
    with pytest.raises(ConfigError, match="no convention"):
        scored(labels, conventions=["x"])
    with pytest.raises(ConfigError, match="annotator 9 does not exist"):
        scored(labels, dice_annotator=9)
    with pytest.raises(ConfigError, match="at least 1"):
        scored(labels, num_samples=[0])
    scored(labels)
    with pytest.raises(OutputError, match="already exists"):
        scored(labels)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """36 lesions in one split."""
    folder = tmp_path_factory.mktemp("data") / "many"
    prepare_phantom("lesion", folder, size=24, num_cases=60, progress=False)
    return folder


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (lambda x: x, ""),
        (lambda x: np.roll(x, 1, axis=0), "check the order of the cases"),
        (lambda x: x[..., ::-1].copy(), "flipped horizontally"),
        (lambda x: x.swapaxes(-1, -2).copy(), "transposed"),
    ],
)
def test_wrong_order_or_orientation_causes_a_warning(change, warning, many, scored, capsys):
    scored(change(drawn(many, "train", num_samples=2)), data=many, split="train")
    err = capsys.readouterr().err
    assert warning in err if warning else "warning" not in err


def test_wrong_order_is_noticed_among_few_cases(many, scored, capsys):
    """Twelve lesions of similar size, some without an outline, with samples that are moved by up to a pixel."""
    dataset, rng = Dataset.open(many), np.random.default_rng(0)
    known = [dataset.annotations(row) for row in dataset.rows("test")]
    labels = np.stack(
        [
            [np.roll(masks[rng.integers(len(masks))], rng.integers(-1, 2, 2), (0, 1)) for _ in range(16)]
            for masks in known
        ]
    )
    scored(labels, data=many)
    assert "warning" not in capsys.readouterr().err
    for turn in (1, 5, 7):
        scored(np.roll(labels, turn, axis=0), data=many, overwrite=True)
        assert "check the order of the cases" in capsys.readouterr().err


# Volumes


def test_volumes_of_different_depth_are_scored(scored, tmp_path):
    data = tmp_path / "volumes"
    write_volumes(data)
    dataset, rng = Dataset.open(data), np.random.default_rng(0)
    rows = dataset.rows("train").tolist()
    samples = {dataset.cases[row]["case"]: rng.integers(0, 2, (4, *dataset.size(row)), np.uint8) for row in rows}
    np.savez(tmp_path / "x.npz", **samples)
    found = scored(tmp_path / "x.npz", data=data, split="train", num_examples=1)
    for index, row in enumerate(rows):
        drawn = [mask.reshape(-1, mask.shape[-1]).tolist() for mask in samples[found.cases["case"][index]]]
        known = [mask.reshape(-1, mask.shape[-1]).tolist() for mask in dataset.annotations(row)]
        assert found.cases["ged"][index] == pytest.approx(naive.ged(drawn, known, 2))
        majority = naive.majority(drawn, 2)
        expected = np.mean([naive.dice(majority, one, 2) for one in known])
        assert found.cases["dice"][index] == pytest.approx(expected)


def test_volumes_of_phiseg_sample_score_as_in_an_evaluation(make_recipe, scored, cli, tmp_path):
    data, model = tmp_path / "volumes", tmp_path / "run"
    write_volumes(data)
    train(make_recipe("unet", settings={"dims": 3, "image_channels": 2}), data, model, progress=False)
    settings = ["--data", data, "--num-samples", 3, "--split", "train"]
    assert cli("sample", model, *settings, "--out", tmp_path / "samples").code == 0
    evaluate(model, data, tmp_path / "evaluated", num_samples=3, split="train", progress=False)
    found = scored(tmp_path / "samples", data=data, split="train")
    expected = read_evaluation(tmp_path / "evaluated")
    assert found.cases == expected.cases
    assert found.summary.scores == expected.summary.scores
