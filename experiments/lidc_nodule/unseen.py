"""Write the rows of an .npz file whose patients a model was not trained on, as a file with the split `val` only.

    python experiments/lidc_nodule/unseen.py MODEL FILE.npz OUT.npz

The model records tokens of its training patients. `case_ids` of the file holds the patient of every row.
"""

import sys
from pathlib import Path

import numpy as np

from phiseg.models import load_model
from phiseg.training.card import patient_token


def main(model: Path, file: Path, out: Path) -> None:
    """Write OUT and print its patients."""
    origin = load_model(model).provenance
    with np.load(file, allow_pickle=False) as arrays:
        patients = arrays["case_ids"]
        tokens = {patient: patient_token(patient, origin["patient_salt"]) for patient in set(patients.tolist())}
        kept = np.array([tokens[patient] not in origin["train_patients"] for patient in patients.tolist()])
        columns = {name: arrays[name][kept] for name in arrays.files if len(arrays[name]) == len(patients)}
    np.savez_compressed(out, **{**columns, "split": np.full(kept.sum(), "val")})
    found = sorted(set(patients[kept].tolist()))
    print(f"{out}: {kept.sum()} rows of {len(found)} patients: {', '.join(found)}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
