"""Prepare the original files of LIDC-IDRI: folders of DICOM slices, and the outlines of the readers as XML.

    phiseg prepare lidc SRC DATA

`lidc_files` finds the files, and `lidc_series` converts one series to crops. This module processes each folder as a
job in one of several processes, and stores its result in a work folder next to DATA. Memory is bounded by one
series, and an interrupted preparation can be resumed. At the end the series are combined in the order of patients,
so the result does not depend on the processes.
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
from phiseg.core.files import AnyPath, atomic_file, check_replaceable, write_json
from phiseg.core.processes import in_order
from phiseg.data.intensity import Intensity
from phiseg.data.prepare.lidc_files import LidcFiles, find_lidc_files
from phiseg.data.prepare.lidc_series import LidcOptions, crop_series
from phiseg.data.prepare.lidc_volumes import volumes_of
from phiseg.data.prepare.option_checks import MIN_SIZE, check_size, check_spacing, check_window
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.splits import split_patients
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.dicom import Series, read_folder
from phiseg.imaging.lidc_xml import read_lidc_xml
from phiseg.imaging.outlines import MAX_READERS


class _Series(NamedTuple):
    """A finished series."""

    patient: str
    uid: str
    num_crops: int
    num_nodules: int
    folder: str
    """Folder of the slices."""
    crops: str
    """Name of the file with the crops."""


@dataclass
class _Outcome:
    """Result of a job: the finished series, and counts and problems."""

    series: list[_Series] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """UIDs of all series, finished or not."""
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """One line for each skipped item."""

    def add(self, other: "_Outcome") -> None:
        """Add the result of another job."""
        self.series += other.series
        self.seen += other.seen
        self.counts.update(other.counts)
        self.problems += other.problems


class _Job(NamedTuple):
    """The DICOM files of one folder, with the options to process them."""

    files: list[Path]
    readings: Mapping[str, Path]
    options: LidcOptions
    result: Path
    """File for the result; the crops of its series are stored next to it."""


def prepare_lidc(
    src: AnyPath,
    out: AnyPath,
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
    """Prepare a dataset of lung nodules with four readers.

    Problems of a series are printed to stderr and counted in the entry `source` of the manifest.

    Args:
        src: folder with DICOM and XML files in any arrangement, with the slices of each series in one folder.
        out: folder of the dataset to write.
        options: cropping options.
        window: Hounsfield units that are mapped to -0.5 and 0.5; the stored values are HU.
        seed: seed of the split.
        fractions: shares of train, val and test, by patient.
        workers: number of processes; with several, a script needs an `if __name__ == "__main__":` guard.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        ConfigError: an option is out of range.
        DataError: `src` has no usable series.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    src, out = Path(src), Path(out)
    options = options or LidcOptions()
    check_size(options.size, smallest=MIN_SIZE)
    check_spacing(options.spacing_mm)
    check_window(window)
    split_patients([], seed=seed, fractions=fractions)  # validate before reading
    place = Path(os.path.realpath(out))
    work = place.with_name(f".{place.name}.work")
    if not overwrite and (place / "dataset.json").is_file():
        shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed at the very end
    check_replaceable(out, overwrite=overwrite, marker="dataset.json")
    skipped = SkippedCases()
    found = find_lidc_files(src, skipped)
    outcomes = _run(list(_jobs(found, options, work)), workers, skipped, progress=progress)
    series, counts = _gather(found, list(outcomes))
    if not series:
        shutil.rmtree(work, ignore_errors=True)  # nothing to resume
        counted = ", ".join(f"{number} {what}" for what, number in counts.items()) or "no DICOM file"
        raise DataError(f"{src} has no usable nodule ({counted}); give the folder with the patients of LIDC-IDRI")
    dataset = write_dataset(
        out,
        name="lidc",
        classes=("background", "nodule"),
        num_annotators=MAX_READERS,
        image_shape=(1, options.size, options.size),
        image_dtype=np.int16,
        intensity=Intensity(kind="window", low=window[0], high=window[1]),
        cases=_cases(series, work, skipped if options.volumes else None, progress=progress),
        dims=3 if options.volumes else 2,
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


def _jobs(found: LidcFiles, options: LidcOptions, work: Path) -> Iterator[_Job]:
    """Yield one job per folder. The name of the result is a hash of everything that the result depends on."""
    readings = {uid: _stamp(path) for uid, path in found.readings.items()}
    known = hashlib.sha256(json.dumps([asdict(options), readings], sort_keys=True).encode())
    for files in found.folders:
        key = known.copy()
        key.update(json.dumps([_stamp(path) for path in files]).encode())
        yield _Job(files, found.readings, options, work / f"{key.hexdigest()[:32]}.json")


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:  # reported when the file is read
        return str(path), -1, -1
    return str(path), status.st_size, status.st_mtime_ns


def _run(jobs: list[_Job], workers: int, skipped: SkippedCases, *, progress: bool) -> Iterator[_Outcome]:
    """Run the jobs, and report skipped items as they occur."""
    with tqdm(total=len(jobs), desc="reading", unit="folder", disable=not progress) as bar:
        try:
            for _, result in in_order(_do, jobs, workers):
                outcome = result()
                for reason in outcome.problems:
                    skipped.note(reason)
                bar.update()
                yield outcome
        except KeyboardInterrupt:
            bar.write("phiseg: stopping; run the same command again to resume", file=sys.stderr)
            raise


def _do(job: _Job) -> _Outcome:
    """Crop every series in a folder, or return the stored result."""
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
    if not outcome.problems:  # otherwise the next run tries again
        write_json(job.result, vars(outcome))
    return outcome


def _read_outcome(path: Path) -> _Outcome:
    values = json.loads(path.read_text(encoding="utf-8"))
    series = [_Series(*entry) for entry in values["series"]]
    return _Outcome(series, values["seen"], Counter(values["counts"]), values["problems"])


def _do_series(series: Series, job: _Job, crops_file: Path) -> _Outcome:
    """Crop one series and store the crops in a file."""
    outcome = _Outcome(seen=[series.uid])
    folder = job.files[0].parent
    if series.modality != "CT":
        outcome.counts["series that are not CT"] += 1
        return outcome
    if series.uid not in job.readings:
        outcome.counts["CT series without XML"] += 1
        outcome.problems.append(f"{folder}: CT series {series.uid} has no XML file; put it next to the slices")
        return outcome
    if not series.slices:
        raise DataError(f"{folder}: CT series {series.uid} has no slice with a position; download it again")
    if not series.patient:
        raise DataError(f"{folder}: CT series {series.uid} has no PatientID, needed for splits; download it again")
    reading = read_lidc_xml(job.readings[series.uid])
    if not reading.annotations:
        outcome.counts["CT series without an outlined nodule"] += 1
        return outcome
    if job.options.readers == "sessions" and reading.num_sessions > MAX_READERS:
        raise DataError(
            f"{folder}: CT series {series.uid} has {reading.num_sessions} reading sessions, but there are only "
            f"{MAX_READERS} slots for readers; use --readers pylidc"
        )
    crops, repeated, outcome.problems = crop_series(series, reading, job.options)
    outcome.counts["series with fewer than 4 reading sessions"] += reading.num_sessions < MAX_READERS
    outcome.counts["nodules that a reader annotated more than once"] += repeated
    unreadable = "slices" if job.options.margin else "outlined slices"
    outcome.counts[f"{unreadable} without a readable image"] += len(outcome.problems)
    if not crops:
        raise DataError(f"{folder}: CT series {series.uid} has no readable image of its nodules; download it again")
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


def _gather(found: LidcFiles, outcomes: list[_Outcome]) -> tuple[list[_Series], Counter[str]]:
    """Return the series in the order of patients, and all counts.

    If a series is in two folders, the one with more crops is used, or the first by name if they are equal.
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


def _cases(
    all_series: list[_Series], work: Path, skipped: SkippedCases | None, *, progress: bool
) -> Iterator[Case]:
    """Yield the crops of all series, reading one series at a time; with `skipped`, join them to volumes."""
    names = _short_names(all_series)
    for series in tqdm(all_series, desc="writing", unit="series", disable=not progress):
        crops = _crops(series, names[series.uid], work)
        yield from crops if skipped is None else volumes_of(crops, names[series.uid], skipped)


def _crops(series: _Series, name: str, work: Path) -> Iterator[Case]:
    with np.load(work / series.crops, allow_pickle=False) as arrays:
        images, labels, rows = arrays["images"], arrays["labels"], json.loads(str(arrays["columns"]))
        valid = arrays["valid"]
    for image, masks, present, columns in zip(images, labels, valid, rows, strict=True):
        case = f"{name}-n{columns['nodule']}-s{columns['slice']}"
        yield Case(case, series.patient, image[None], masks, present, {"series_uid": series.uid, **columns})


def _short_names(all_series: list[_Series]) -> dict[str, str]:
    """Name each series by its patient and the last digits of its UID, five as in the archive or more if needed."""
    for length in (5, 10, 20, 64):
        names = {series.uid: f"{series.patient}-{series.uid[-length:]}" for series in all_series}
        if len(set(names.values())) == len(names):
            break
    return names
