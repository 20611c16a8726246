"""A table of images and labels, for files in any place.

    phiseg prepare table FILE.csv DATA

| column | content |
|---|---|
| `image` | file of the image |
| `rater` | name of the annotator |
| `label` | file with the label of this annotator for this image |
| `patient` | optional; by default each image is a separate patient |
| `split` | optional: train, val or test; the same for all images of a patient |
| `case` | optional name of the image; by default from the file name |

Paths are relative to the folder of the table. Columns may be separated by commas, semicolons or tabs.
"""

from pathlib import Path

from phiseg.core.errors import DataError
from phiseg.data.prepare.found_files import (
    AnnotatedImage,
    FoundFiles,
    annotators_of,
    read_rows,
    split_name,
    unique_names,
)

REQUIRED = ("image", "rater", "label")
OPTIONAL = ("patient", "split", "case")


def find_in_table(path: Path) -> FoundFiles:
    """Read the images and labels that a table lists.

    Raises:
        DataError: the table lacks a column or a value, or contradicts itself.
    """
    rows = read_rows(path)
    if not rows:
        raise DataError(f"{path} has no rows; the first line must be {','.join(REQUIRED)}[,{','.join(OPTIONAL)}]")
    columns = rows[0][1].keys()
    if missing := [column for column in REQUIRED if column not in columns]:
        raise DataError(
            f"{path} has the columns {', '.join(columns)}, but not {', '.join(missing)}; the first line must be "
            f"{','.join(REQUIRED)}[,{','.join(OPTIONAL)}]"
        )
    labels: dict[str, dict[str, Path]] = {}
    about: dict[str, tuple[str, ...]] = {}
    for line, row in rows:
        image, rater, label = (row[column] for column in REQUIRED)
        if not (image and rater and label):
            raise DataError(f"{path}, line {line}: image, rater or label is empty; fill it in or remove the line")
        if rater in labels.setdefault(image, {}):
            raise DataError(f"{path}, line {line}: a second label of annotator '{rater}' for {image}; remove one")
        labels[image][rater] = path.parent / label
        details = tuple(row.get(column, "") for column in OPTIONAL)
        if about.setdefault(image, details) != details:
            raise DataError(f"{path}, line {line}: another patient, split or case for {image} than above; fix it")
    names = unique_names([Path(image) for image in labels])
    cases = []
    homes: dict[str, str] = {}
    for (image, drawn), name in zip(labels.items(), names, strict=True):
        patient, split, case = about[image]
        patient, case = patient or case or name, case or name
        if homes.setdefault(patient, split) != split:
            raise DataError(
                f"{path}: patient '{patient}' is in split '{homes[patient]}' and in '{split}', so the model would "
                "be tested on training patients; use one split for all images of a patient"
            )
        cases.append(AnnotatedImage(case, patient, (path.parent / image,), drawn, split_name(split)))
    return FoundFiles("table", cases, len(cases), annotators_of(cases))


def lists_nifti(path: Path) -> bool:
    """Return whether the images of a table are NIfTI files rather than pictures.

    Raises:
        DataError: the table is invalid, or lists both.
    """
    kinds = {case.images[0].name.lower().endswith((".nii", ".nii.gz")) for case in find_in_table(path).cases}
    if len(kinds) > 1:
        raise DataError(f"{path} lists NIfTI files and pictures; make one table of each")
    return kinds.pop()
