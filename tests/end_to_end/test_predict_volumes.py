"""`phiseg predict` with 3-D models, from files to files."""

import json

import nibabel
import numpy as np
import pytest
import torch

import phiseg as package
from helpers.dicom_slices import OBLIQUE, write_scan
from phiseg.imaging.volume import Volume
from phiseg.inference.sampling_options import Sampling
from phiseg.models.model_folder import save_model
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import build_model

MAPS = {"samples": (3,), "mean": (), "labels": (), "gamma": (), "levels": (3,)}
QUICK = ("--num-samples", "3", "--level-draws", "2", "--device", "cpu")
SHAPE = (14, 12, 7)


@pytest.fixture
def model(tmp_path):
    """Return a function that writes an untrained PHiSeg of volumes, whose samples differ."""

    def write(**changes):
        config = PHiSegConfig(
            dims=3,
            strides=((1, 2, 2), (2, 2, 2)),
            channels=(4, 4, 4),
            num_levels=2,
            blocks_per_level=1,
            head_init=1.0,
            presence=True,
        )
        with torch.random.fork_rng():
            torch.manual_seed(3)
            network = build_model(config).eval()
        preprocessing = {
            "classes": ["background", "lesion"],
            "image_channels": 1,
            "size": [8, 8],
            "patch_size": [4, 8, 8],
            "intensity": {"kind": "window", "low": 0, "high": 1},
            "plane": "axial",
        }
        save_model(tmp_path / "model", network, preprocessing=preprocessing | changes, provenance={}, card="")
        return tmp_path / "model"

    return write


@pytest.fixture
def scan(tmp_path):
    values = np.random.default_rng(0).uniform(size=SHAPE).astype(np.float32)
    path = tmp_path / "n.nii.gz"
    nibabel.save(nibabel.Nifti1Image(values, np.diag([-1.0, 1.5, 4, 1])), path)
    return path


def maps(folder):
    return {name: nibabel.load(folder / f"{name}.nii.gz") for name in MAPS}


@pytest.mark.parametrize("at", [None, (6, 5, 3)])
def test_predict_writes_all_outputs(cli, model, scan, tmp_path, at):
    folder, out = model(centred_on="lesion" if at else None), tmp_path / "pred"
    words = ("--at", ",".join(map(str, at))) if at else ()
    result = cli("predict", folder, scan, *words, "--out", out, *QUICK)
    assert result.code == 0, result
    found = maps(out / "n")
    for name, image in found.items():
        assert image.shape == (*SHAPE, *MAPS[name])
    summary = json.loads((out / "n" / "summary.json").read_text())
    assert list(summary["level_shares"]) == ["level 1", "level 2", "presence"]
    ml = 0.006 * (found["samples"].get_fdata() > 0).sum((0, 1, 2))
    assert summary["classes"]["lesion"]["volume_ml"]["samples"] == pytest.approx(ml, rel=1e-4)
    assert (out / "n" / "picture.png").stat().st_size > 1000
    assert (out / "report.html").is_file()

    values = np.asarray(nibabel.load(scan).dataobj)
    again = package.load(folder).predict(
        Volume(values, found["mean"].affine), point=at, sampling=Sampling(num_samples=3, level_draws=2)
    )
    for sample in range(3):
        expected = again.on_grid(again.labels[sample]).values
        np.testing.assert_array_equal(found["samples"].get_fdata()[..., sample], expected)

    repeated = cli("predict", folder, scan, *words, "--out", out, *QUICK, "--batch-size", "1")
    assert (repeated.code, "already finished" in repeated.err) == (0, True)


def test_predict_writes_dicom_seg(cli, model, tmp_path):
    write_scan(tmp_path / "scan", directions=OBLIQUE)
    folder = model(intensity={"kind": "window", "low": -1000.0, "high": 3000.0})
    assert cli("predict", folder, tmp_path / "scan", "--out", tmp_path / "pred", *QUICK).code == 0
    written = {path.name for path in (tmp_path / "pred" / "scan").iterdir()}
    assert {"labels.seg.dcm", "mean.seg.dcm"} <= written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--noise-length", "5"), "whose slices have no separate noise; omit --noise-length and --noise-shared"),
        (("--at", "1,2,3"), "takes no point"),
    ],
)
def test_unsuitable_options_are_refused(cli, model, scan, tmp_path, words, message):
    result = cli("predict", model(), scan, *words, "--out", tmp_path / "pred", *QUICK)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "pred").exists()
