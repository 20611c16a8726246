"""The commands as Python functions."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import phiseg
from helpers.small_volumes import write_volumes
from phiseg.api.deployment import _points
from phiseg.core.errors import ConfigError, DataError, ModelError, OutputError
from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.volume import Volume
from phiseg.inference import export
from phiseg.inference.points import Point
from phiseg.inference.sampling_options import Sampling
from phiseg.models import load_model
from phiseg.models.model_folder import save_calibration
from phiseg.models.temperatures import Calibration
from phiseg.training.loop import train


@pytest.fixture
def workplace(tmp_path, monkeypatch, lesions):
    """A folder with the dataset `data`, which code runs in."""
    (tmp_path / "data").symlink_to(lesions)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def scores(trained, lesions, tmp_path_factory):
    """Return a function that evaluates a tiny model with four samples."""
    folder = tmp_path_factory.mktemp("evaluations")

    def evaluate(model="phiseg"):
        out = folder / model
        if out.exists():
            return phiseg.read_scores(out)
        return phiseg.evaluate(trained(model), lesions, out, num_samples=4, progress=False)

    return evaluate


# train


def test_train_takes_text_and_settings_by_keyword(workplace, recipe_file, capfd):
    run = phiseg.train(str(recipe_file()), "data", "runs/py", steps=3, validate_every=3, log_every=1)
    assert "runs" not in capfd.readouterr().out
    assert (run.recipe.train.steps, run.recipe.name) == (3, "tiny-phiseg")
    assert repr(run) == "Run('runs/py': tiny-phiseg, 3 steps)"
    assert run.model.sample(run.model.prepare(np.eye(16) / 2), 2).shape == (1, 2, 2, 16, 16)
    history = run.history
    assert [row["step"] for row in history if row["kind"] == "train"] == [1, 2, 3]
    assert history["loss"][0] > 0
    assert phiseg.Run("runs/py").model.path == run.model.path
    assert all(len(line) < 1000 for line in repr(Dataset.open("data")).splitlines())


def test_train_takes_a_recipe_and_objects_that_stand_for_folders(workplace, make_recipe):
    recipe = make_recipe(steps=4)
    run = phiseg.train(recipe, Dataset.open("data"), workplace / "a", settings={"train.steps": 2}, progress=False)
    assert run.recipe.train.steps == 2
    again = phiseg.train(recipe, "data", "a", settings={"train": {"steps": 3}}, resume=True, progress=False)
    assert [row["step"] for row in again.history if row["kind"] == "val"][-1] == 3


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        (("phiseg-smal", "data"), {}, ConfigError, "no recipe 'phiseg-smal' .did you mean 'phiseg-small'"),
        (("mine.yaml", "data"), {}, ConfigError, "cannot read mine.yaml: No such file"),
        (("phiseg-small", "dta"), {}, DataError, "dta is not a"),
        (("phiseg-small", "data"), {"stpes": 3}, ConfigError, "no setting 'stpes' .did you mean 'steps'"),
        (("phiseg-small", "data"), {"steps": "many"}, ConfigError, "'train.steps' = 'many'"),
        (
            ("phiseg-small", "data"),
            {"model": {"chanels": [2]}},
            ConfigError,
            "'model.chanels' .did you mean 'channels'",
        ),
    ],
)
def test_train_names_the_mistake_before_it_starts(workplace, arguments, settings, error, message):
    with pytest.raises(error, match=message):
        phiseg.train(*arguments, "runs/py", **settings)
    assert not (workplace / "runs").exists()


def test_train_refuses_a_folder_with_a_run(workplace, trained, make_recipe):
    with pytest.raises(OutputError, match="run"):
        phiseg.train(make_recipe(), "data", trained())


def test_run_needs_a_run_folder(tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        phiseg.Run(tmp_path)


# evaluate and compare


def test_evaluate_returns_means_and_cases(scores):
    found = scores()
    assert found["ged"] == found.summary.ged == pytest.approx(np.mean(found.cases["ged"]))
    row = found.table[found.table["score"].index("dice")]
    assert row["mean"] == found["dice"]
    assert {"ged", "ged_floor", "s_ncc", "dice", "ece"} <= set(found.table["score"])
    assert len(found.cases) == found.summary.num_cases == 3
    assert repr(found).startswith("tiny-phiseg on 3 test cases, 4 samples each\nscore")
    assert "<td>ged</td>" in found._repr_html_()
    with pytest.raises(ConfigError, match=r"no score 'gde' .did you mean 'ged'"):
        found["gde"]


def test_compare_returns_a_table_that_pandas_accepts(scores, workplace):
    pandas = pytest.importorskip("pandas")
    both = [scores(), str(scores("probunet").path)]
    table = phiseg.compare(both, "report")
    assert table["method"] == ["tiny-phiseg", "tiny-probunet"]
    assert table["ged"][0] == pytest.approx(both[0]["ged"])
    frame = pandas.DataFrame(table)
    assert frame.loc[0, "ged"] == table[0]["ged"]
    assert frame["num_cases"].tolist() == [3, 3]
    assert str(table).splitlines()[0].startswith("method")
    assert "tiny-probunet" in table._repr_html_()
    assert "tiny-probunet" in table.report.read_text(encoding="utf-8")
    with pytest.raises(OutputError, match="already exists"):
        phiseg.compare(both, "report")
    assert len(phiseg.compare(scores(), "single")) == 1


def test_compare_sets_methods_aside(scores, workplace):
    both = [scores(), scores("probunet")]
    table = phiseg.compare(both, "report", set_aside="tiny-probunet")
    assert any("tiny-probunet" in note for note in table.notes)
    with pytest.raises(ConfigError, match="tiny-unet"):
        phiseg.compare(both, "other", set_aside=["tiny-unet"])


def test_evaluate_and_sample_take_a_class_map(workplace, trained, lesions, capfd):
    shutil.copytree(lesions, "renamed")
    info = Path("renamed/dataset.json")
    info.write_text(json.dumps(json.loads(info.read_text()) | {"classes": ["background", "class 1"]}))
    given = {"num_samples": 2, "progress": False}
    phiseg.sample(trained(), "renamed", **given)
    assert "compared by number: 'class 1' as 'lesion'" in capfd.readouterr().err
    named = phiseg.sample(trained(), "renamed", class_map={"class 1": "lesion"}, **given)
    np.testing.assert_array_equal(named.labels, phiseg.sample(trained(), "data", **given).labels)
    scored = phiseg.evaluate(trained(), "renamed", "eval", class_map={"class 1": "lesion"}, **given)
    assert scored.summary.num_cases == 3
    assert "class 1" not in capfd.readouterr().err
    with pytest.raises(ConfigError, match="no class 'class 2'"):
        phiseg.sample(trained(), "renamed", class_map={"class 2": "lesion"}, **given)


def test_evaluation_errors_name_the_folder(workplace, trained):
    with pytest.raises(ModelError, match="no model folder runs/nothing"):
        phiseg.evaluate("runs/nothing", "data", "eval")
    with pytest.raises(DataError, match=r"no split 'tets' .did you mean 'test'"):
        phiseg.evaluate(trained(), "data", "eval", split="tets")
    with pytest.raises(DataError, match="nowhere"):
        phiseg.compare(["nowhere"], "report")
    with pytest.raises(ConfigError, match="nothing to compare"):
        phiseg.compare([], "report")


# sample


def test_sample_in_memory_is_what_sample_writes(workplace, trained):
    kept = phiseg.sample(trained(), "data", num_samples=3, probs=True, progress=False)
    written = phiseg.sample(phiseg.load(trained()), "data", "samples", num_samples=3, probs=True, progress=False)
    assert kept.path is None
    assert str(written.path) == "samples"
    for name in ("labels", "mean_probs", "mean_log_probs", "gamma", "probs"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(written, name))
        np.testing.assert_array_equal(getattr(kept, name), np.load(f"samples/{name}.npy"))
    assert kept.labels.shape == (3, 3, 16, 16)
    np.testing.assert_allclose(kept.probs.mean(1), kept.mean_probs, atol=1e-6)
    data = Dataset.open("data")
    assert kept.cases["case"] == [data.cases[row]["case"] for row in data.rows("test")]
    assert (len(kept), repr(kept)) == (3, "Samples(3 cases, 3 samples each, 16 x 16 pixels)")
    with pytest.raises(OutputError, match="exists"):
        phiseg.sample(trained(), "data", "samples")


def test_samples_have_the_same_scores_in_memory_and_in_a_folder(workplace, trained):
    kept, written = (
        phiseg.sample(trained(), "data", out, num_samples=3, progress=False) for out in (None, "samples")
    )
    first = phiseg.score(kept, "data", "first", progress=False)
    second = phiseg.score(written, "data", "second", progress=False)
    assert first["s_ncc"] is not None
    assert first.cases.columns == second.cases.columns
    for name in ("ged", "s_ncc", "dice"):
        np.testing.assert_allclose(first.cases[name], second.cases[name], atol=1e-6)


def test_samples_of_volumes_of_different_depth(workplace, make_recipe):
    write_volumes(workplace / "volumes")
    recipe = make_recipe("unet", settings={"dims": 3, "image_channels": 2})
    model = train(recipe, workplace / "volumes", workplace / "run", progress=False)
    options = {"split": "train", "num_samples": 2, "progress": False}
    with pytest.raises(ConfigError, match="differ in depth, so one array cannot hold their samples; pass out"):
        phiseg.sample(model, "volumes", **options)
    samples = phiseg.sample(model, "volumes", "samples", **options)
    assert len(samples) == len(samples.cases) < len(samples.labels)
    scores = phiseg.score(samples, "volumes", "scores", split="train", progress=False)
    assert scores["ged"] == phiseg.score("samples", "volumes", "again", split="train", progress=False)["ged"]


def test_model_loaded_without_temperatures_is_used_without_them(workplace, trained, copy):
    folder = copy(trained())
    model = load_model(folder)
    levels = len(model.noise_shapes(model.strides))
    save_calibration(folder, Calibration(noise=(1e-9,) * levels), fit={})
    calibrated = phiseg.sample(folder, "data", num_samples=2, progress=False)
    assert (calibrated.labels[:, 0] == calibrated.labels[:, 1]).all()  # such temperatures make all samples alike
    plain = phiseg.sample(phiseg.load(folder, calibrated=False), "data", num_samples=2, progress=False)
    expected = phiseg.sample(trained(), "data", num_samples=2, progress=False)
    np.testing.assert_array_equal(plain.gamma, expected.gamma)


def test_exports_of_a_model_loaded_without_temperatures_omit_them(tmp_path, monkeypatch, trained, copy):
    folder = copy(trained())
    save_calibration(folder, Calibration(logits=3.0), fit={})
    plain = phiseg.load(folder, calibrated=False)
    for name, model in (("with", folder), ("without", plain)):
        phiseg.write_monai_bundle(model, tmp_path / name)
    assert load_model(tmp_path / "with" / "models" / "phiseg").calibration.logits == 3
    assert load_model(tmp_path / "without" / "models" / "phiseg").calibration.logits == 1
    used = []
    monkeypatch.setattr(export, "export_onnx", lambda *_, calibrated, **__: used.append(calibrated))
    for model in (folder, phiseg.load(folder), plain):
        phiseg.export_onnx(model, tmp_path / "model.onnx")
    assert used == [True, True, False]


# predict


@pytest.fixture
def scans(workplace):
    """Two scans that the tiny model takes, and one that is empty."""
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        values = random.uniform(size=(16, 14, 2)).astype(np.float32)
        write_nifti(workplace / "scans" / f"{name}.nii.gz", Volume(values, np.diag([-5.6, -5.6, 8, 1])))
    write_nifti(workplace / "scans" / "empty.nii.gz", Volume(np.zeros((4, 4, 2), np.float32), np.eye(4)))
    return workplace / "scans"


def test_predict_returns_a_row_per_case_and_the_failures(scans, trained):
    found = phiseg.predict(trained(), "scans", "pred", num_samples=3, level_draws=0, progress=False)
    assert sorted(found["case"]) == ["a", "b"]
    assert list(found.failed) == ["empty"]
    assert "every voxel is 0" in found.failed["empty"]
    assert found.report.is_file()
    assert found.files("a")["samples.nii.gz"].is_file()
    assert all(isinstance(value, float) for value in found["agreement"])
    expected = phiseg.load(trained()).predict("scans/a.nii.gz", sampling=Sampling(num_samples=3, level_draws=0))
    written = read_nifti(found.files("a")["gamma.nii.gz"])
    np.testing.assert_allclose(written.values, expected.on_grid(expected.gamma).values, atol=1e-6)
    with pytest.raises(ConfigError, match="no case 'c'"):
        found.files("c")


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        (("scan", "pred"), {}, DataError, "scan does not exist"),
        (("scans", "scans"), {}, DataError, "folder for the results"),
        (("scans", "pred"), {"num_sample": 3}, ConfigError, "'num_sample' .did you mean 'num_samples'"),
        (("scans/a.nii.gz", "pred"), {"at": (1, 2, 3)}, ConfigError, "takes no point"),
        ((["scans/a.nii.gz"], "pred"), {"at": ["1,2"]}, ConfigError, "'1,2' is not a point"),
    ],
)
def test_predict_names_the_mistake(scans, trained, arguments, settings, error, message):
    with pytest.raises(error, match=message):
        phiseg.predict(trained(), *arguments, **settings)
    assert not (scans.parent / "pred").exists()


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((), []),
        (np.empty((0, 3)), []),
        ("1,2,3", ["1,2,3"]),
        ((1, 2.5, 3), ["1,2.5,3"]),
        (np.array([1, 2, 3]), ["1,2,3"]),
        (tuple(np.array([1, 2, 3])), ["1,2,3"]),
        (np.array([[1.5, 2, 3], [4, 5, 6]], np.float32), ["1.5,2,3", "4,5,6"]),
        ([np.array([1, 2, 3]), "mm:4,5,6"], ["1,2,3", "mm:4,5,6"]),
    ],
)
def test_predict_accepts_points_of_numpy(at, expected):
    assert _points(at) == [Point.parse(text) for text in expected]


def test_predict_reads_names_as_text_and_warns_at_the_caller(scans, trained):
    (scans / "a.nii.gz").rename(scans / "7.nii.gz")
    (scans / "b.nii.gz").unlink()
    settings = {"num_samples": 2, "level_draws": 0, "progress": False}
    found = phiseg.predict(trained(), "scans", "pred", **settings)
    with pytest.warns(UserWarning, match="1 of 2 cases are already finished") as warned:
        again = phiseg.predict(trained(), "scans", "pred", **settings)
    assert (found["case"], again["case"]) == (["7"], ["7"])
    assert {warning.filename for warning in warned} == {__file__}
    failed = phiseg.predict(trained(), "scans/empty.nii.gz", "none", **settings)
    assert (list(failed.failed), failed["case"], failed["look"]) == (["empty"], [], [])


# run_experiment and dataset tools


def test_run_experiment_returns_the_table_and_resumes(lesions, tmp_path):
    recipe = phiseg.load_recipe("unet-small", channels=[4, 4], steps=2, validation_samples=2)
    (tmp_path / "tiny.yaml").write_text(recipe.with_settings(name="tiny").to_yaml())
    call = partial(
        phiseg.run_experiment, lesions, tmp_path / "out", methods=[tmp_path / "tiny.yaml"], regimes=["one"]
    )
    table = call(steps=2, num_samples=2, progress=False)
    assert table["method"] == ["tiny"]
    assert str(table).startswith("Trained with one expert")
    assert table.report.is_file()
    assert "Every row: 2 steps" in " ".join(table.notes)
    before = (tmp_path / "out/rows/one/tiny/seed-0/eval/summary.json").stat().st_mtime_ns
    assert call(steps=2, num_samples=2, progress=False)["dice"] == table["dice"]
    assert (tmp_path / "out/rows/one/tiny/seed-0/eval/summary.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="either steps or minutes"):
        call(progress=False)
    with pytest.raises(ConfigError, match="unknown regime 'All'"):
        call(regimes="All", steps=2)
    with pytest.raises(ConfigError, match="no method 'tinny' to set aside"):
        call(steps=2, set_aside="tinny")


def test_dataset_tools_are_public(lesions):
    data = phiseg.Dataset.open(lesions)
    assert phiseg.check_dataset(data, progress=False).cases == data.num_cases
    assert len(phiseg.contact_sheet(data, phiseg.choose_cases(data, 2)).axes) >= 2
