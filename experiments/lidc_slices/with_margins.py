"""Join every annotated slice with nodules that have true margins, as one .npz file for `phiseg prepare arrays`.

    python experiments/lidc_slices/with_margins.py SLICES.npz VOLUMES.npz OUT.npz

SLICES holds annotated slices alone, so a nodule's stack ends where the outlines end. VOLUMES holds a few nodules
with the slices beyond. A nodule that both hold is taken from VOLUMES. Its slices come several times, as different
nodules of the same patient: they are the only ones that show a network where nodules end.
"""

import sys
from pathlib import Path

import numpy as np

COPIES = 3
"""How often each nodule of VOLUMES comes."""
MARGIN = 6
"""Slices beyond the last outline, on each side."""


def main(slices_file: str, volumes_file: str, out: str) -> None:
    """Write the joined file."""
    slices, volumes = np.load(slices_file), np.load(volumes_file)
    patient_split = dict(zip(slices["case_ids"].tolist(), slices["split"].tolist(), strict=True))
    in_volumes = set(zip(volumes["case_ids"].tolist(), volumes["nodule"].tolist(), strict=True))
    nodules = list(zip(slices["case_ids"].tolist(), slices["nodule"].tolist(), strict=True))
    alone = np.flatnonzero([nodule not in in_volumes for nodule in nodules])
    columns = {
        "images": [hounsfield(slices["images"][alone])],
        "masks": [slices["masks"][alone]],
        "case_ids": [slices["case_ids"][alone]],
        "nodule": [slices["nodule"][alone].astype(str)],
        "slice": [slices["slice"][alone]],
        "split": [slices["split"][alone]],
        "pixel_spacing_mm": [slices["pixel_spacing_mm"][alone]],
        "slice_thickness_mm": [slices["slice_thickness_mm"][alone]],
    }
    for index, (patient, nodule) in enumerate(
        zip(volumes["case_ids"].tolist(), volumes["nodule"].tolist(), strict=True)
    ):
        masks = volumes[f"masks_{index:03d}"]  # (4, D, H, W)
        outlined = np.flatnonzero(masks.any((0, 2, 3)))
        kept = np.arange(max(outlined[0] - MARGIN, 0), min(outlined[-1] + MARGIN + 1, masks.shape[1]))
        image = hounsfield(volumes[f"image_{index:03d}"][kept])
        for copy in range(COPIES):
            columns["images"].append(image)
            columns["masks"].append(np.moveaxis(masks[:, kept], 0, 1))
            columns["case_ids"].append(np.full(len(kept), patient))
            columns["nodule"].append(np.full(len(kept), f"{nodule} copy {copy}"))
            columns["slice"].append(kept)
            columns["split"].append(np.full(len(kept), patient_split.get(patient, "train")))
            columns["pixel_spacing_mm"].append(np.full(len(kept), volumes["pixel_spacing_mm"][index]))
            columns["slice_thickness_mm"].append(np.full(len(kept), volumes["slice_spacing_mm"][index]))
    np.savez(Path(out), **{name: np.concatenate(parts) for name, parts in columns.items()})


def hounsfield(values: np.ndarray) -> np.ndarray:
    """Return Hounsfield units of 8-bit values, where 0 is -1000 and 255 is 400."""
    return np.rint(values * (1400 / 255) - 1000).astype(np.int16)


if __name__ == "__main__":
    main(*sys.argv[1:])
