"""LIDC-IDRI as the archive ships it: folders of DICOM slices, and the readers' outlines as XML.

    phiseg prepare lidc SRC DATA

`lidc_series` turns one series into crops. Here the files of one folder are one job, done by one of several
processes and kept in a work folder beside DATA, so that memory is bounded by one series and an interrupted
preparation goes on where it was. At the end the series are put together in the order of patients: the result does
not depend on which process did what, or when.
"""

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from phiseg.core.errors import DataError
from phiseg.core.files import atomic_file, check_replaceable, write_json
from phiseg.core.processes import in_order
from phiseg.data.intensity import Intensity
from phiseg.data.prepare.lidc_series import LidcOptions, crop_series
from phiseg.data.prepare.option_checks import check_size, check_spacing, check_window
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.splits import split_patients
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.dicom import Series, read_folder
from phiseg.imaging.lidc_xml import read_lidc_xml, read_series_uid
from phiseg.imaging.outlines import MAX_READERS


class _Series(NamedTuple):
    """A series whose crops are made."""

    patient: str
    uid: str
    num_crops: int
    num_nodules: int
    folder: str
    """Where its slices lie."""
    crops: str
    """Name of the file with its crops."""


@dataclass
class _Outcome:
    """What became of files: which crops were made, and a record of everything else."""

    series: list[_Series] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """All series, whatever became of them."""
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """One line for everything that was left out."""

    def add(self, other: "_Outcome") -> None:
        """Add what became of other files."""
        self.series += other.series
        self.seen += other.seen
        self.counts.update(other.counts)
        self.problems += other.problems


class _Found(NamedTuple):
    """What lies in the source."""

    folders: list[list[Path]]
    """Files that may be DICOM, by folder."""
    readings: dict[str, Path]
    """The readers' XML of every CT series that has one."""
    counts: Counter[str]


class _Job(NamedTuple):
    """The DICOM files of one folder, and what to do with them."""

    files: list[Path]
    readings: Mapping[str, Path]
    options: LidcOptions
    result: Path
    """Where the outcome is kept; the crops of its series go beside it."""


def prepare_lidc(
    src: Path,
    out: Path,
    *,
    options: LidcOptions | None = None,
    window: tuple[float, float] = (-1000, 400),
    seed: int = 0,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    workers: int = 1,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Make a dataset of lung nodules with four readers.

    What is wrong with a series is printed to stderr and counted in the manifest's `source`; the others go on.

    Args:
        src: folder of DICOM and XML files in any arrangement, with the slices of a series in one folder.
        out: folder to make.
        options: how the crops are cut.
        window: Hounsfield units that become -0.5 and 0.5 for the network; the stored values are HU.
        seed: seed of the split.
        fractions: shares of train, val and test, by patient.
        workers: processes; a script that asks for several needs an `if __name__ == "__main__":`.
        overwrite: replace an existing dataset.
        command: the command line, for the record.
        progress: show progress bars.

    Raises:
        ConfigError: an option is out of range.
        DataError: `src` has no series that could be used.
        OutputError: `out` exists, or cannot be written.
    """
    options = options or LidcOptions()
    check_size(options.size)
    check_spacing(options.spacing_mm)
    check_window(window)
    split_patients([], seed=seed, fractions=fractions)  # complains now, not after the last series
    place = Path(os.path.realpath(out))
    work = place.with_name(f".{place.name}.work")
    if not overwrite and (place / "dataset.json").is_file():
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed when only this was left to do
    check_replaceable(out, overwrite=overwrite, marker="dataset.json")
    skipped = SkippedCases()
    found = _find(src, skipped)
    outcomes = _run(list(_jobs(found, options, work)), workers, skipped, progress=progress)
    series, counts = _gather(found, list(outcomes))
    if not series:
        shutil.rmtree(work, ignore_errors=True)  # there is nothing to go on with
        counted = ", ".join(f"{number} {what}" for what, number in counts.items()) or "no DICOM file"
        raise DataError(f"{src} has no usable nodule ({counted}); give the folder with LIDC-IDRI's patients")
    dataset = write_dataset(
        out,
        name="lidc",
        classes=("background", "nodule"),
        num_annotators=MAX_READERS,
        image_shape=(1, options.size, options.size),
        image_dtype=np.int16,
        intensity=Intensity(kind="window", low=window[0], high=window[1]),
        cases=_cases(series, work, progress=progress),
        seed=seed,
        fractions=fractions,
        spacing_mm=(options.spacing_mm, options.spacing_mm) if options.spacing_mm else None,
        plane="axial",
        centred_on="nodule",
        modality="CT",
        source={
            "kind": "lidc",
            **asdict(options),
            "counts": {**counts},
            "left_out": skipped.reasons,
        },
        command=command,
        overwrite=overwrite,
    )
    shutil.rmtree(work, ignore_errors=True)
    return dataset


def _find(src: Path, skipped: SkippedCases) -> _Found:
    """Walk through the source; of XML files only the beginning is read, of others nothing."""
    if not src.is_dir():
        raise DataError(f"{src} is not a folder; give the folder that holds LIDC-IDRI's patients")
    found = _Found([], {}, Counter())
    walked = set()
    for folder, subfolders, names in os.walk(src, followlinks=True):
        if (place := os.path.realpath(folder)) in walked:  # a link into a folder that it lies in
            subfolders.clear()
            continue
        walked.add(place)
        subfolders.sort()
        paths = [Path(folder, name) for name in sorted(names) if not name.startswith(".") and name != "DICOMDIR"]
        images = [path for path in paths if path.suffix.lower() != ".xml"]
        if images:
            found.folders.append(images)
        for path in (path for path in paths if path.suffix.lower() == ".xml"):
            _find_reading(path, found, skipped)
    return found


def _find_reading(path: Path, found: _Found, skipped: SkippedCases) -> None:
    try:
        uid = read_series_uid(path)
    except DataError as error:
        found.counts["broken XML files"] += 1
        skipped.note(str(error))
        return
    if uid is None:
        found.counts["chest radiograph XML files"] += 1
    elif uid in found.readings:
        found.counts["further XML files about a series"] += 1
        skipped.note(f"{path}, for {found.readings[uid]} is about the same series {uid}; remove one of them")
    else:
        found.readings[uid] = path


def _jobs(found: _Found, options: LidcOptions, work: Path) -> Iterator[_Job]:
    """Yield one job per folder; the result's name stands for everything that the result depends on."""
    readings = {uid: _stamp(path) for uid, path in found.readings.items()}
    known = hashlib.sha256(json.dumps([asdict(options), readings], sort_keys=True).encode())
    for files in found.folders:
        key = known.copy()
        key.update(json.dumps([_stamp(path) for path in files]).encode())
        yield _Job(files, found.readings, options, work / f"{key.hexdigest()[:32]}.json")


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:  # who reads the file will say so
        return str(path), -1, -1
    return str(path), status.st_size, status.st_mtime_ns


def _run(jobs: list[_Job], workers: int, skipped: SkippedCases, *, progress: bool) -> Iterator[_Outcome]:
    """Do the jobs; tell what is left out as it comes."""
    with tqdm(total=len(jobs), desc="reading", unit="folder", disable=not progress) as bar:
        try:
            for _, result in in_order(_do, jobs, workers):
                outcome = result()
                for reason in outcome.problems:
                    skipped.note(reason)
                bar.update()
                yield outcome
        except KeyboardInterrupt:
            bar.write("phiseg: stopping; run the same command again to go on from here", file=sys.stderr)
            raise


def _do(job: _Job) -> _Outcome:
    """Make the crops of every series in a folder, or find them made."""
    if job.result.exists():
        return _read_outcome(job.result)
    folder = read_folder(job.files)
    outcome = _Outcome(problems=[*folder.problems])
    outcome.counts["unreadable DICOM files"] += len(folder.problems)
    for number, series in enumerate(folder.series):
        try:
            outcome.add(_do_series(series, job, job.result.with_name(f"{job.result.stem}-{number}.npz")))
        except DataError as error:
            outcome.add(_Outcome(seen=[series.uid], counts=Counter({"broken series": 1}), problems=[str(error)]))
    if not outcome.problems:  # else the next run tries again
        write_json(job.result, vars(outcome))
    return outcome


def _read_outcome(path: Path) -> _Outcome:
    values = json.loads(path.read_text(encoding="utf-8"))
    series = [_Series(*entry) for entry in values["series"]]
    return _Outcome(series, values["seen"], Counter(values["counts"]), values["problems"])


def _do_series(series: Series, job: _Job, crops_file: Path) -> _Outcome:
    """Make the crops of one series and keep them in a file."""
    outcome = _Outcome(seen=[series.uid])
    folder = job.files[0].parent
    if series.modality != "CT":
        outcome.counts["series that are not CT"] += 1
        return outcome
    if series.uid not in job.readings:
        outcome.counts["CT series without XML"] += 1
        outcome.problems.append(f"{folder}: no XML file is about CT series {series.uid}; put it beside the slices")
        return outcome
    if not series.slices:
        raise DataError(f"{folder}: CT series {series.uid} has no slice that says where it lies; fetch it again")
    if not series.patient:
        raise DataError(f"{folder}: CT series {series.uid} has no PatientID, which splits go by; fetch it again")
    reading = read_lidc_xml(job.readings[series.uid])
    if not reading.annotations:
        outcome.counts["CT series without an outlined nodule"] += 1
        return outcome
    crops, repeated, outcome.problems = crop_series(series, reading, job.options)
    outcome.counts["series with fewer than 4 reading sessions"] += reading.num_sessions < MAX_READERS
    outcome.counts["nodules that a reader annotated more than once"] += repeated
    unreadable = "slices" if job.options.margin else "outlined slices"
    outcome.counts[f"{unreadable} without a readable image"] += len(outcome.problems)
    if not crops:
        raise DataError(f"{folder}: CT series {series.uid} has no readable image of its nodules; fetch it again")
    with atomic_file(crops_file) as file:
        np.savez(
            file,
            images=np.stack([crop.image for crop in crops]),
            labels=np.stack([crop.labels for crop in crops]),
            valid=np.stack([crop.valid for crop in crops]),
            columns=json.dumps([crop.columns for crop in crops]),
        )
    num_nodules = len({crop.columns["nodule"] for crop in crops})
    outcome.series.append(
        _Series(series.patient, series.uid, len(crops), num_nodules, str(folder), crops_file.name)
    )
    return outcome


def _gather(found: _Found, outcomes: list[_Outcome]) -> tuple[list[_Series], Counter[str]]:
    """Return the series in the order of patients, and all counts.

    Of a series that lies in two folders, the one with more crops is taken; of equals, the first by name.
    """
    total = _Outcome(counts=found.counts)
    for outcome in outcomes:
        total.add(outcome)
    best_last = sorted(total.series, key=lambda series: series.folder, reverse=True)
    best_last.sort(key=lambda series: series.num_crops)
    once = {series.uid: series for series in best_last}
    counts = total.counts
    counts["copies of a series"] += len(total.series) - len(once)
    counts["XML files without their CT series"] += len(found.readings.keys() - set(total.seen))
    counts["series"] += len(once)
    counts["nodules"] += sum(series.num_nodules for series in once.values())
    return sorted(once.values()), +counts


def _cases(all_series: list[_Series], work: Path, *, progress: bool) -> Iterator[Case]:
    """Read the crops of all series, one series at a time."""
    names = _short_names(all_series)
    for series in tqdm(all_series, desc="writing", unit="series", disable=not progress):
        with np.load(work / series.crops, allow_pickle=False) as arrays:
            images, labels, rows = arrays["images"], arrays["labels"], json.loads(str(arrays["columns"]))
            valid = arrays["valid"]
        for image, masks, present, columns in zip(images, labels, valid, rows, strict=True):
            case = f"{names[series.uid]}-n{columns['nodule']}-s{columns['slice']}"
            yield Case(case, series.patient, image[None], masks, present, {"series_uid": series.uid, **columns})


def _short_names(all_series: list[_Series]) -> dict[str, str]:
    """Name every series by its patient and the end of its UID: five digits as in the archive's folders, or more."""
    for length in (5, 10, 20, 64):
        names = {series.uid: f"{series.patient}-{series.uid[-length:]}" for series in all_series}
        if len(set(names.values())) == len(names):
            break
    return names
