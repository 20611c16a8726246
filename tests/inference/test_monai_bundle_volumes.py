"""MONAI bundles of 3-D models."""

import json
from functools import partial

import numpy as np
import pytest

from helpers.bundle_runs import WINDOW, mean_of_samples, prepared, random_volume, run, save_tiny_model
from phiseg.data.intensity import Intensity, normalise
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import to_slices
from phiseg.inference.monai_bundle import MeanPrediction, write_monai_bundle
from phiseg.models.model_folder import load_model

VOLUMES = {"dims": 3, "strides": ((1, 2, 2),), "kernels": ((1, 3, 3), (3, 3, 3))}


@pytest.fixture
def save(tmp_path):
    """Return a function that writes the folder of a tiny model with three classes."""
    return partial(save_tiny_model, tmp_path / "model")


@pytest.fixture
def images(tmp_path):
    """Return a folder for images."""
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


@pytest.mark.parametrize("depth", [3, 4])
def test_bundle_of_volumes_matches_phiseg(depth, save, images, tmp_path):
    """A volume of one patch, with its last slice repeated if there are too few, is sampled as a whole."""
    folder = save(plane="axial", axes=VOLUMES, patch_size=[4, 12, 14])
    affine = np.diag([-1.0, -1, 2, 1])
    volume = random_volume((14, 12, depth), affine)
    write_nifti(images / "scan.nii.gz", volume)
    write_monai_bundle(folder, tmp_path / "bundle")
    image = normalise(to_slices(volume, "axial").values, Intensity(**WINDOW))[None]  # (1, D, 12, 14)
    np.testing.assert_allclose(prepared(tmp_path / "bundle", images).numpy(), image, atol=1e-6)
    written = run(tmp_path / "bundle", images, tmp_path / "out", num_samples=3)
    seen = np.pad(image, [(0, 0), (0, 4 - depth), (0, 0), (0, 0)], mode="edge")
    (expected,) = mean_of_samples(
        load_model(folder), seen[None], 3, case=prepared(tmp_path / "bundle", images)
    )  # (K, 4, 12, 14)
    mean, labels = written["scan_mean.nii.gz"], written["scan_labels.nii.gz"]
    np.testing.assert_allclose(mean.affine, affine, atol=1e-5)
    np.testing.assert_allclose(mean.get_fdata(), expected[:, :depth].transpose(3, 2, 1, 0), atol=1e-5)
    np.testing.assert_array_equal(labels.get_fdata(), mean.get_fdata().argmax(3))
    text = (tmp_path / "bundle" / "docs" / "README.md").read_text()
    assert "in overlapping patches of 4 x 12 x 14 voxels" in text
    assert "All patches of an image start from the same noise" in text


def test_bundle_of_volumes_covers_a_volume_with_patches(save, images, tmp_path, monkeypatch):
    folder = save(axes=VOLUMES, channels=2, patch_size=[4, 6, 8], centred_on="nodule")
    array = np.random.default_rng(0).normal(100, 200, (2, 9, 11, 13))
    np.save(images / "case.npy", array)
    write_monai_bundle(folder, tmp_path / "bundle")
    shapes = []
    forward = MeanPrediction.forward
    monkeypatch.setattr(
        MeanPrediction, "forward", lambda self, image: shapes.append(image.shape) or forward(self, image)
    )
    written = run(tmp_path / "bundle", images, tmp_path / "out", num_samples=2)
    assert set(shapes) == {(1, 2, 4, 6, 8)}  # memory is bounded by the patch
    mean = written["case_mean.nii.gz"].get_fdata()
    assert mean.shape == (9, 11, 13, 3)
    covered = mean.sum(3).round(3) == 1  # the central 10 x 8 pixels of all slices, and no other
    assert [covered.any(axes).sum() for axes in ((1, 2), (0, 2), (0, 1))] == [9, 10, 8]
    assert covered.sum() == (mean.sum(3) > 0).sum() == 9 * 10 * 8


def test_metadata_of_volumes_describes_patches(save, tmp_path, monkeypatch):
    from monai.bundle import verify_net_in_out

    write_monai_bundle(save(axes=VOLUMES, patch_size=[4, 6, 8]), tmp_path / "bundle")
    monkeypatch.chdir(tmp_path / "bundle")
    verify_net_in_out(
        "network_def", config_file="configs/inference.json", meta_file="configs/metadata.json", device="cpu"
    )
    values = json.loads((tmp_path / "bundle" / "configs" / "metadata.json").read_text())
    assert values["network_data_format"]["inputs"]["image"]["spatial_shape"] == [4, 6, 8]
    assert values["network_data_format"]["inputs"]["image"]["is_patch_data"]
