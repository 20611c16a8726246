"""Shards of an evaluation: independent jobs that each score a part of the cases, and are merged afterwards.

```
SHARD/  shard.json  number of the shard, provenance, and the scores of its cases
        arrays.npz  tables of the scores over all pixels; samples of the example cases
```
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from phiseg.compute.ranks import share_batches
from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import atomic_file, atomic_folder, write_json
from phiseg.core.formats import EVALUATION_SHARD
from phiseg.core.shard import Shard
from phiseg.data.npy import NPZ_ERRORS
from phiseg.data.store import Dataset
from phiseg.evaluation.case_scoring import DrawnCase, ScoredCase
from phiseg.evaluation.summary import Provenance
from phiseg.metrics.score_registry import pixel_scores

MARKER = "shard.json"
"""The file that identifies the folder of a shard."""


def rows_of_shard(shard: Shard, rows: Sequence[int], batch_size: int) -> list[int]:
    """Return the rows of a shard: whole batches, so that results do not depend on the number of shards.

    Raises:
        ConfigError: there are fewer batches than shards, and none is left for this one.
    """
    own = share_batches(rows, batch_size, shard.number - 1, shard.count)
    if not own:
        most = -(-len(rows) // batch_size)
        raise ConfigError(
            f"shard {shard} has no cases: the split has {len(rows)} cases in {most} batches of {batch_size}; "
            f"use at most {most} shards, or a smaller --batch-size"
        )
    return own


class _Record(StrictConfig):
    """The content of shard.json."""

    format: str = EVALUATION_SHARD.name
    version: int = EVALUATION_SHARD.version
    number: int = Field(ge=1)
    count: int = Field(ge=1)
    provenance: Provenance
    scores: dict[str, dict[str, int | FiniteFloat | None]]
    """Scores of each case."""

    @property
    def shard(self) -> Shard:
        return Shard(self.number, self.count)


def write_shard(
    out: Path,
    shard: Shard,
    scored: Sequence[ScoredCase],
    provenance: Provenance,
    dataset: Dataset,
    *,
    overwrite: bool = False,
) -> None:
    """Write the folder of a shard atomically.

    Raises:
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    scores = {dataset.cases[case.row]["case"]: case.scores for case in scored}
    record = _Record(number=shard.number, count=shard.count, provenance=provenance, scores=scores)
    arrays: dict[str, Any] = {
        f"{name}/{place}": array for place, case in enumerate(scored) for name, array in _arrays(case).items()
    }
    with atomic_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        write_json(folder / MARKER, record.model_dump(mode="json"))
        with atomic_file(folder / "arrays.npz") as file:
            np.savez_compressed(file, **arrays)


def _arrays(case: ScoredCase) -> dict[str, NDArray[Any]]:
    shown = {} if case.shown is None else case.shown._asdict()
    return {name: value.numpy() for name, value in {**case.tables, **shown}.items() if value is not None}


def read_shards(
    folders: Sequence[Path], provenance: Provenance, dataset: Dataset, rows: Sequence[int], shown: Sequence[int]
) -> list[ScoredCase]:
    """Read all shards of an evaluation and return the scores of `rows`.

    Args:
        folders: folders of the shards, in any order.
        provenance: model, data and settings that all shards must have.
        dataset: dataset of the cases.
        rows: rows of the split.
        shown: rows of the examples.

    Raises:
        DataError: a folder is not a shard or is damaged; a shard is missing or given twice; or shards have other
            settings, cases or examples.
    """
    found: dict[int, tuple[Path, _Record]] = {}
    for folder in folders:
        record = _read_record(folder)
        for other, before in found.values():
            if before.count != record.count:
                raise DataError(
                    f"{other} is shard {before.shard}, but {folder} is shard {record.shard}; merge shards of one "
                    "division only"
                )
        if record.number in found:
            raise DataError(f"{found[record.number][0]} and {folder} are both shard {record.shard}; give one")
        _check_same(folder, record.provenance, provenance)
        found[record.number] = folder, record
    count = next(iter(found.values()))[1].count
    if missing := [str(Shard(number, count)) for number in range(1, count + 1) if number not in found]:
        raise DataError(f"no folder of shard {', '.join(missing)} was given; run it with --shard, then merge again")
    row_of = {dataset.cases[row]["case"]: row for row in rows}
    scored: dict[int, ScoredCase] = {}
    for folder, record in found.values():
        arrays = _read_arrays(folder / "arrays.npz")
        for place, (case, scores) in enumerate(record.scores.items()):
            if case not in row_of or row_of[case] in scored:
                raise _other_cases(folder, case)
            own = {name: arrays.get(f"{name}/{place}") for name in (*_tables(), *DrawnCase._fields)}
            scored[row_of[case]] = _scored_case(row_of[case], scores, own)
    for row in (*rows, *shown):
        case = dataset.cases[row]["case"]
        if row not in scored:
            raise _other_cases(dataset.path, case)
        if row in shown and scored[row].shown is None:
            raise DataError(f"no shard has the samples of example '{case}'; use the --num-examples of the shards")
    return [scored[row] for row in rows]


def _scored_case(
    row: int, scores: Mapping[str, float | None], arrays: Mapping[str, NDArray[Any] | None]
) -> ScoredCase:
    tensors = {name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()}
    labels, *means = (tensors[name] for name in DrawnCase._fields)
    shown = None if labels is None else DrawnCase(labels, *means)
    return ScoredCase(row, dict(scores), {name: tensors[name] for name in _tables()}, shown)


def _tables() -> list[str]:
    return [score.name for score in pixel_scores()]


def _read_record(folder: Path) -> _Record:
    path = folder / MARKER
    if not path.is_file():
        raise DataError(f"{folder} is not a shard of an evaluation (no {MARKER}); run phiseg evaluate with --shard")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise _damaged(path, "it is not valid JSON") from None
    if not EVALUATION_SHARD.is_current(values):
        raise _damaged(path, f"it is not a shard of version {EVALUATION_SHARD.version}")
    try:
        return _Record.parse(values, where=str(path))
    except ConfigError as error:
        raise _damaged(path, str(error)) from None


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except NPZ_ERRORS as error:
        raise _damaged(path, " ".join(str(error).split()) or type(error).__name__) from None


def _check_same(folder: Path, theirs: Provenance, ours: Provenance) -> None:
    """Check that a shard has the same model, data and settings."""
    found, expected = (dict(_flat(provenance.model_dump(mode="json"))) for provenance in (theirs, ours))
    for key in expected:
        if found.get(key) != expected[key]:
            raise DataError(
                f"{folder} was computed with {key} = {found.get(key)}, but this command has {expected[key]}; merge "
                "shards of the same model, data and settings, and pass the same options"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the entries of nested dicts with dotted keys."""
    entries: list[tuple[str, Any]] = []
    for key, value in values.items():
        entries += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return entries


def _other_cases(where: Path, case: str) -> DataError:
    return DataError(
        f"{where} has case '{case}', which is missing or repeated in the other shards or in the split; run all "
        "shards again with the current splits and one --batch-size"
    )


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"cannot read {path}: {reason}; run this shard again with --overwrite")
