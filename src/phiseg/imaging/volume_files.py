"""Writing of volumes in any of the supported formats."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from phiseg.imaging import itk_files, nifti_files
from phiseg.imaging.volume import Volume

VolumeFormat = Literal["nii.gz", "mha", "nrrd"]
"""Suffixes of new files."""


def write_volume(path: Path, volume: Volume) -> None:
    """Write a volume in the format of the suffix, atomically; see `write_nifti` and `write_itk`."""
    write = itk_files.write_itk if path.name.endswith(itk_files.WRITABLE) else nifti_files.write_nifti
    write(path, volume)


def write_volume_sequence(path: Path, volumes: Iterable[Volume], *, number: int) -> None:
    """Write volumes of equal grid and dtype as one 4-D file in the format of the suffix, atomically."""
    is_itk = path.name.endswith(itk_files.WRITABLE)
    write = itk_files.write_itk_sequence if is_itk else nifti_files.write_nifti_sequence
    write(path, volumes, number=number)
