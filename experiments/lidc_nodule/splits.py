"""Give the dataset with margins the patients of the scored dataset, and make a copy that trains on nearly everyone.

    python experiments/lidc_nodule/splits.py SLICES MARGINS EVERYONE

MARGINS gets the splits of SLICES. Patients with margins are never in val. EVERYONE shares the arrays of
MARGINS. Its val split has five patients, because every training needs one; all others are its train split.
"""

import csv
import json
import sys
from pathlib import Path

NUM_VAL = 5


def main(slices: Path, margins: Path, everyone: Path) -> None:
    """Write splits.json of all three datasets."""
    splits = json.loads((slices / "splits.json").read_text())
    known = {patient for name in ("train", "val", "test") for patient in splits[name]}
    with (margins / "cases.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    patients = {row["patient"] for row in rows}
    with_margins = {row["patient"] for row in rows if "copy" in row["nodule"]}
    moved = with_margins & set(splits["val"])
    splits["val"] = [patient for patient in splits["val"] if patient not in moved]
    splits["train"] = sorted({*splits["train"], *moved})
    (slices / "splits.json").write_text(json.dumps(splits))
    splits["train"] = sorted({*splits["train"], *(patients - known)})
    (margins / "splits.json").write_text(json.dumps(splits))
    everyone.mkdir(exist_ok=True)
    for name in ("images.npy", "labels.npy", "valid.npy", "cases.csv", "dataset.json"):
        (everyone / name).unlink(missing_ok=True)
        (everyone / name).symlink_to((margins / name).resolve())
    val = [patient for patient in sorted(splits["val"]) if patient not in with_margins][:NUM_VAL]
    train = sorted(patients - set(val))
    (everyone / "splits.json").write_text(json.dumps({"seed": 0, "train": train, "val": val, "test": []}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
