"""Small valid inputs of every kind, which the fault tests damage. All of them are generated."""

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume

from .processes import run

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # for the helpers that write small DICOM scans

from helpers.dicom_slices import write_scan  # type: ignore[import-not-found]
from helpers.lidc_source import LidcSource, disc  # type: ignore[import-not-found]

RECIPE = """\
name: tiny
model: {name: phiseg, channels: [4, 4, 8], num_levels: 2, blocks_per_level: 1}
train: {steps: 6, batch_size: 4, log_every: 1, validate_every: 3, checkpoint_every: 2, validation_samples: 4,
        recalibration_batches: 2, accelerator: cpu}
"""
SIZE = 16


@dataclass(frozen=True)
class Specimens:
    """Paths of the valid inputs."""

    root: Path

    @property
    def recipe(self) -> Path:
        """A recipe that trains in a second."""
        return self.root / "tiny.yaml"

    @property
    def data(self) -> Path:
        """A prepared dataset."""
        return self.root / "data"

    @property
    def run(self) -> Path:
        """A finished training on the dataset."""
        return self.root / "run"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.run / "model"

    @property
    def evaluation(self) -> Path:
        """An evaluation of the model."""
        return self.root / "evaluation"

    @property
    def scan(self) -> Path:
        """A NIfTI volume for the model."""
        return self.root / "scans" / "scan.nii"

    @property
    def nifti(self) -> Path:
        """NIfTI volumes with several annotators."""
        return self.root / "nifti"

    @property
    def lidc(self) -> Path:
        """DICOM series with the XML files of the readers, as in the archive."""
        return self.root / "lidc"

    @property
    def dicom(self) -> Path:
        """A DICOM series."""
        return self.root / "dicom"

    @property
    def npz(self) -> Path:
        """Images and masks as arrays."""
        return self.root / "crops.npz"

    @property
    def hdf5(self) -> Path:
        """Crops in the HDF5 format of PHiSeg."""
        return self.root / "data_lidc.hdf5"

    @property
    def pickle(self) -> Path:
        """Crops in the pickle format of Knegt."""
        return self.root / "data_lidc.pickle"

    @property
    def png(self) -> Path:
        """Crops in the PNG layout of Kohl."""
        return self.root / "png"


def make_specimens(root: Path) -> Specimens:
    """Create one input of each kind in an empty folder."""
    made = Specimens(root)
    made.recipe.write_text(RECIPE)
    run(["prepare", "phantom", "lesion", made.data, "--size", SIZE, "--num-cases", 15], root)
    run(["train", made.recipe, "--data", made.data, "--out", made.run], root)
    run(["evaluate", made.run, "--data", made.data, "--out", made.evaluation, "--num-samples", 2], root)
    rng = np.random.default_rng(0)
    _write_nifti(made, rng)
    _write_lidc(made.lidc)
    write_scan(made.dicom)
    _write_crops(made, rng)
    return made


def _write_nifti(made: Specimens, rng: np.random.Generator) -> None:
    affine = np.diag([0.8, 0.9, 2.0, 1.0])
    made.scan.parent.mkdir()
    write_nifti(made.scan, Volume(rng.random((20, 18, 3), dtype=np.float32), affine))
    for case in ("anna", "bert", "carl", "dora", "emil"):
        folder = made.nifti / case
        folder.mkdir(parents=True)
        image = rng.normal(100, 20, (SIZE, SIZE, 3)).astype(np.float32)
        write_nifti(folder / "image.nii.gz", Volume(image, affine))
        for rater in ("one", "two"):
            labels = (rng.random((SIZE, SIZE, 3)) > 0.7).astype(np.uint8)
            write_nifti(folder / f"rater-{rater}.nii.gz", Volume(labels, affine))


def _write_lidc(root: Path) -> None:
    source = LidcSource(root)
    for number, patient in enumerate(("LIDC-1", "LIDC-2", "LIDC-3", "LIDC-4", "LIDC-5")):
        nodule = {5: disc(20 + number, 22, 4), 10: disc(20 + number, 23, 3)}
        source.patient(patient, [[nodule], [nodule], [], [{5: disc(21 + number, 22, 3)}]], depths=range(0, 15, 5))


def _write_crops(made: Specimens, rng: np.random.Generator) -> None:
    images = rng.random((8, SIZE, SIZE)).astype(np.float32)
    masks = (rng.random((8, 4, SIZE, SIZE)) > 0.7).astype(np.uint8)
    names = np.array([f"P{number}" for number in range(8)])
    splits = np.array(["train"] * 4 + ["val"] * 2 + ["test"] * 2)
    np.savez(made.npz, images=images, masks=masks, case_ids=names, split=splits)
    with h5py.File(made.hdf5, "w") as file:
        for split in ("train", "val", "test"):
            rows = splits == split
            group = file.create_group(split)
            group.create_dataset("images", data=images[rows], compression="gzip")
            group.create_dataset("labels", data=np.moveaxis(masks[rows], 1, -1))
            group.create_dataset("uids", data=np.flatnonzero(rows))
    crops = {
        name: {"image": image, "masks": mask, "series_uid": name}
        for name, image, mask in zip(names.tolist(), images, masks, strict=True)
    }
    made.pickle.write_bytes(pickle.dumps(crops))
    for row, (name, split) in enumerate(zip(names, splits, strict=True)):
        for folder, content in (("images", [("crop.png", images[row] * 255)]), ("gt", _readers(masks[row]))):
            place = made.png / split / folder / name
            place.mkdir(parents=True)
            for file_name, pixels in content:
                Image.fromarray(pixels.astype(np.uint8)).save(place / file_name)


def _readers(masks: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return [(f"crop_l{reader}.png", mask * 255) for reader, mask in enumerate(masks)]
