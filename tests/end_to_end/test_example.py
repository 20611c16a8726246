"""`phiseg example` writes a scan that the printed call of `phiseg predict` segments."""

import json
import shlex

import pytest

from phiseg.imaging.nifti_files import read_nifti


@pytest.mark.parametrize("model", ["lesion-phantom", "lidc-nodule"])
def test_printed_command_finds_the_lesion(model, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = cli("example", "scan.nii.gz", "--model", model)
    assert written.code == 0, written.err
    *_, line = written.out.splitlines()
    program, *words = shlex.split(line.removeprefix("next: "))
    assert (program, words[:3]) == ("phiseg", ["predict", model, "scan.nii.gz"])
    predicted = cli(*words, "--num-samples", 4, "--level-draws", 0)
    assert predicted.code == 0, predicted.err
    summary = json.loads((tmp_path / "pred" / "scan" / "summary.json").read_text())
    assert not summary["unusual"]
    (found,) = summary["classes"].values()
    assert found["present"] > 0
    labels = read_nifti(tmp_path / "pred" / "scan" / "labels.nii.gz")
    assert labels.grid == read_nifti(tmp_path / "scan.nii.gz").grid


def test_example_does_not_replace_a_file(cli, tmp_path):
    (tmp_path / "scan.nii.gz").write_bytes(b"mine")
    refused = cli("example", tmp_path / "scan.nii.gz")
    assert (refused.code, "already exists" in refused.err) == (2, True)
    assert (tmp_path / "scan.nii.gz").read_bytes() == b"mine"


def test_example_needs_a_nifti_name(cli, tmp_path):
    refused = cli("example", tmp_path / "scan.png")
    assert (refused.code, "ends in .nii.gz" in refused.err) == (2, True)
