"""Write the slices of a dataset of volumes as a dataset of images, with the same patients in every split.

slices.py VOLUMES OUT
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset


def slices_of(volumes: Dataset) -> Iterator[Case]:
    """Yield every slice; its columns say to which volume it belongs and where it is."""
    for row, case in enumerate(volumes.cases):
        image, labels = volumes.stored_image(row), volumes.case_labels(row)  # (C, D, H, W), (A, D, H, W)
        for number in range(volumes.depth(row)):
            yield Case(
                f"{case['case']}-{number:03d}",
                case["patient"],
                image[:, number],
                labels[:, number],
                volumes.valid[row],
                {"scan": case["case"], "slice": number},
            )


def main(source: Path, out: Path) -> None:
    """Write the dataset."""
    volumes = Dataset.open(source)
    write_dataset(
        out,
        name=f"{volumes.info.name}-slices",
        classes=volumes.info.classes,
        num_annotators=volumes.info.num_annotators,
        image_shape=(volumes.info.image_channels, *volumes.info.size),
        image_dtype=volumes.images.dtype,
        intensity=volumes.info.intensity,
        cases=slices_of(volumes),
        splits=volumes.splits,
        spacing_mm=volumes.info.spacing_mm,
        plane=volumes.info.plane,
        centred_on=volumes.info.centred_on,
        modality=volumes.info.modality,
        source={"slices of": volumes.fingerprint},
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
