"""All commands with a 3-D model: phantom, training, samples, evaluation, comparison."""

import csv
import json

import numpy as np
import pytest

from phiseg.cli.main import main
from phiseg.data.store import Dataset


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Ten small volumes: 6 to train on, 2 to validate, 2 to test."""
    folder = tmp_path_factory.mktemp("data") / "volumes"
    with pytest.raises(SystemExit):
        main(["prepare", "phantom", "lesion3d", str(folder), "--size", "16", "--num-cases", "10"])
    return folder


def test_volumes_from_phantom_to_comparison(volumes, recipe_file, cli, tmp_path):
    folders = []
    for name in ("phiseg", "unet"):
        recipe = recipe_file(name, settings={"dims": 3}, steps=2, batch_size=2, select_by="volume_crps")
        run, out = tmp_path / f"run-{name}", tmp_path / f"eval-{name}"
        assert cli("train", recipe, "--data", volumes, "--out", run).code == 0
        done = cli("evaluate", run, "--data", volumes, "--num-samples", "4", "--out", out)
        assert done.code == 0
        assert "volume_coverage" in done.out
        assert "area_coverage" not in done.out
        folders.append(out)
    assert cli("sample", run, "--data", volumes, "--num-samples", "3", "--out", tmp_path / "samples").code == 0
    dataset = Dataset.open(volumes)
    total = sum(dataset.depth(row) for row in dataset.rows("test"))
    assert np.load(tmp_path / "samples" / "labels.npy").shape == (total, 3, 16, 16)
    assert cli("compare", *folders, "--out", tmp_path / "report").code == 0
    with (tmp_path / "report" / "table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    for row, folder in zip(table, folders, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        assert float(row["volume_crps"]) == summary["volume_crps"]
    assert (tmp_path / "report" / "samples.png").is_file()


def test_models_of_other_dimensions_are_refused(volumes, lesions, trained, recipe_file, cli, tmp_path):
    flat = cli("evaluate", trained(), "--data", volumes, "--out", tmp_path / "a")
    assert flat.code == 2
    assert "images as input" in flat.err
    assert "volumes" in flat.err
    run = cli("train", recipe_file("unet", settings={"dims": 3}), "--data", lesions, "--out", tmp_path / "b")
    assert run.code == 2
    assert "volumes" in run.err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("data", "dims", "score", "instead"),
    [("volumes", 3, "area_crps", "volume_crps"), ("lesions", 2, "volume_crps", "area_crps")],
)
def test_scores_of_other_dimensions_select_no_model(
    data, dims, score, instead, request, recipe_file, cli, tmp_path
):
    recipe = recipe_file("unet", settings={"dims": dims}, select_by=score)
    done = cli("train", recipe, "--data", request.getfixturevalue(data), "--out", tmp_path / "run")
    assert done.code == 2
    assert f"select_by {score} is not a score of" in done.err
    assert instead in done.err
