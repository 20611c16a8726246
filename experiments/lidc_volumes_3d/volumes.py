"""Join nodules of training patients with nodules that have true margins, as volumes for `phiseg prepare arrays`.

    python experiments/lidc_volumes_3d/volumes.py SLICES.npz VOLUMES.npz OUT.npz

SLICES holds annotated slices alone. The slices of a nodule become one volume, which ends where the outlines end.
Training extends it by repeating its ends, in image and masks alike. VOLUMES holds a few nodules with the slices
beyond. Those of training patients come several times, because only they show where nodules end. Those of the other
patients are the val split. Other patients of SLICES that are not in training are omitted.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

COPIES = 10
"""How often each training nodule of VOLUMES comes."""


def main(slices_file: str, volumes_file: str, out: str) -> None:
    """Write the joined file."""
    slices, volumes = np.load(slices_file), np.load(volumes_file)
    found = [*margins(slices, volumes), *stacks(slices, volumes)]
    arrays = {
        f"{kind}_{number:04d}": volume.pop(kind)
        for number, volume in enumerate(found)
        for kind in ("image", "masks")
    }
    columns = {name: np.array([volume[name] for volume in found]) for name in found[0]}
    np.savez(Path(out), **arrays, **columns)


def margins(slices: Any, volumes: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodules of VOLUMES; a patient who is not in SLICES is a training patient."""
    splits = dict(zip(slices["case_ids"].tolist(), slices["split"].tolist(), strict=True))
    for index, (patient, nodule) in enumerate(nodules(volumes)):
        split = splits.get(patient, "train")
        for copy in range(COPIES if split == "train" else 1):
            yield {
                "image": volumes[f"image_{index:03d}"],  # (D, H, W)
                "masks": volumes[f"masks_{index:03d}"],  # (4, D, H, W)
                "case_ids": patient,
                "nodule": f"{nodule}-copy-{copy}",
                "split": split,
                "pixel_spacing_mm": volumes["pixel_spacing_mm"][index],
                "slice_spacing_mm": volumes["slice_spacing_mm"][index],
            }


def stacks(slices: Any, volumes: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodules of training patients that are only in SLICES, whose rows follow each other."""
    images, masks, split, number = (slices[name] for name in ("images", "masks", "split", "slice"))
    pixel, thickness = slices["pixel_spacing_mm"], slices["slice_thickness_mm"]
    in_volumes = set(nodules(volumes))
    rows: dict[tuple[str, int], list[int]] = {}
    for row, nodule in enumerate(nodules(slices)):
        rows.setdefault(nodule, []).append(row)
    for (patient, nodule), own in rows.items():
        assert (np.diff(number[own]) == 1).all(), f"{patient}, nodule {nodule}: slices are missing"
        if split[own[0]] == "train" and (patient, nodule) not in in_volumes:
            yield {
                "image": images[own],
                "masks": np.moveaxis(masks[own], 1, 0),
                "case_ids": patient,
                "nodule": str(nodule),
                "split": "train",
                "pixel_spacing_mm": pixel[own[0]],
                "slice_spacing_mm": thickness[own[0]],
            }


def nodules(file: Any) -> list[tuple[str, int]]:
    """Return patient and number of the nodule of each row."""
    return list(zip(file["case_ids"].tolist(), file["nodule"].tolist(), strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
