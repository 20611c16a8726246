"""The cases of a prediction: a scan, or a point in a scan, each with the name of its folder."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, groupby
from typing import Any

from phiseg.core.errors import ConfigError
from phiseg.core.shard import Shard
from phiseg.inference.case_names import RESERVED, only_case_differs
from phiseg.inference.points import Point
from phiseg.inference.scans import ScanFile


@dataclass(frozen=True)
class PredictionJob:
    """One case: a scan, and optionally a point in it."""

    name: str
    scan: ScanFile
    point: Point | None = None


def list_prediction_jobs(
    scans: Sequence[ScanFile],
    points: Sequence[Point],
    points_by_case: Mapping[str, Sequence[Point]],
    finished: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PredictionJob]:
    """Return one job per scan, or one per point.

    A case has the name of its scan. Further points of the scan are numbered: a, a-2, a-3 and so on. Names are
    stable: a finished case keeps its name, and a point that is added later takes the next free number after the
    name that the scan had before.

    Args:
        scans: scans to predict.
        points: points to use in every scan.
        points_by_case: points by the name of the scan or, for a DICOM series, its folder, series UID or patient ID.
        finished: summaries of the cases that the output folder contains, by name.

    Raises:
        ConfigError: there are points of an unknown scan or of a name that several scans have, two cases have the
            same name, a name is reserved, or the user chose another name for a scan than before.
    """
    finished = finished or {}
    for name in sorted(points_by_case):
        called = [scan.name for scan in scans if name in scan.names]
        if not called:
            known = ", ".join(scan.name for scan in scans[:5])
            raise ConfigError(
                f"there are points of '{name}', which is not one of the scans ({known}); check the names"
            )
        if len(called) > 1:
            raise ConfigError(
                f"there are points of '{name}', which may be any of {len(called)} scans ({', '.join(called[:5])}); "
                "use one of these names"
            )
    jobs = []
    for scan in scans:
        here: list[Point | None] = [*points]
        here += [point for name in sorted(scan.names) for point in points_by_case.get(name, ())]
        if not (points or points_by_case):
            here = [None]
        names = _name_cases(scan, here, finished, others={other.name for other in scans} - {scan.name})
        jobs += [PredictionJob(name, scan, point) for name, point in zip(names, here, strict=True)]
    _check_names([job.name for job in jobs])
    return jobs


def _check_names(names: Sequence[str]) -> None:
    """Raise a ConfigError if cases would share a folder, as on disks that ignore case, or replace a file."""
    taken: dict[str, str] = {}
    for name in names:
        other = taken.get(name.casefold())
        if name.casefold() in RESERVED:
            raise ConfigError(f"a case cannot be named {name}, like a file in the results; rename the scan")
        if other == name:
            raise ConfigError(f"a scan and a point of another scan would both be named {name}; rename the scan")
        if other is not None:
            raise ConfigError(f"{only_case_differs(other, name)}; rename a scan or use --names")
        taken[name.casefold()] = name


def jobs_of_shard(jobs: Sequence[PredictionJob], shard: Shard) -> list[PredictionJob]:
    """Return the jobs of a shard: whole scans. They depend on the list of jobs only, not on what is finished.

    Raises:
        ConfigError: there are fewer scans than shards, and none is left for this one.
    """
    own = share_jobs(jobs, shard.number - 1, shard.count)
    if not own:
        most = len({job.scan for job in jobs})
        raise ConfigError(f"shard {shard} has no scans: there are {most}; use at most {most} shards")
    return own


def share_jobs(jobs: Sequence[PredictionJob], rank: int, num_processes: int) -> list[PredictionJob]:
    """Return the jobs of one of several processes: whole scans, so that each is read once."""
    by_scan = [list(group) for _, group in groupby(jobs, key=lambda job: job.scan)]
    return [job for group in by_scan[rank::num_processes] for job in group]


def point_to_json(point: Point | None) -> dict[str, Any] | None:
    """Return a point as in summary.json."""
    return asdict(point) if point else None


def _name_cases(
    scan: ScanFile,
    points: Sequence[Point | None],
    finished: Mapping[str, Mapping[str, Any]],
    others: Container[str],
) -> list[str]:
    """Return the names of the cases of a scan at some points: those of finished cases, or new ones.

    Cases of the scans named in `others` are not used, even if their files are equal.
    """
    ours = {
        name: case
        for name, case in finished.items()
        if case.get("scan") not in others and scan.is_input_of(case["made_with"])
    }
    base = next((case["scan"] for case in ours.values() if "scan" in case), scan.name)
    if scan.is_named and base != scan.name:
        raise ConfigError(
            f"{scan.path} was predicted with the name {base}, now {scan.name}; use the same name or another --out"
        )
    is_other = base in finished and base not in ours
    if is_other and scan.kind == "dicom" and not scan.is_named:  # another series of the same patient
        base = f"{scan.name}-{scan.path.name}"
    free = (name for name in _numbered(base) if name not in finished or (name == base and name not in ours))
    names: list[str] = []
    for point in points:
        place = point_to_json(point)
        same = [name for name, case in ours.items() if case["made_with"]["point"] == place and name not in names]
        names.append(same[0] if same else next(free))
    return names


def _numbered(name: str) -> Iterator[str]:
    """Yield a, a-2, a-3 and so on."""
    yield name
    yield from (f"{name}-{number}" for number in count(2))
