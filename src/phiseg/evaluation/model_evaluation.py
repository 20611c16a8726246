"""Evaluate a model on a split of a dataset, with one row of scores per case."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from phiseg.compute.devices import usable_device
from phiseg.compute.ranks import gather, process_rank, share_batches
from phiseg.compute.threads import in_threads
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError, DataError, ModelError, PhisegError
from phiseg.core.files import check_replaceable
from phiseg.core.precision import SamplingPrecision
from phiseg.core.shard import Shard
from phiseg.data.store import Dataset
from phiseg.evaluation.case_scoring import (
    NUM_SHOWN,
    DiceAnnotator,
    DrawnCase,
    ScoredCase,
    check_dice_annotator,
    choose_examples,
    example_arrays,
    sampled_case,
    score_sampled_case,
    stack_examples,
    summarise_scores,
)
from phiseg.evaluation.evaluation_folder import MARKER, read_evaluation, write_evaluation
from phiseg.evaluation.example_cases import Examples
from phiseg.evaluation.shards import MARKER as SHARD_MARKER
from phiseg.evaluation.shards import read_shards, rows_of_shard, write_shard
from phiseg.evaluation.summary import DatasetRef, ModelRef, Provenance, Summary
from phiseg.inference.class_map import match_classes
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling import CaseSamples, case_image, sample_cases
from phiseg.metrics.score_registry import summary_scores
from phiseg.models import Segmenter, load_model
from phiseg.models.model_folder import calibration_fit, weights_hash
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.temperatures import Calibration
from phiseg.training.card import patient_tokens
from phiseg.training.tracking import read_metrics


def evaluate(
    model_folder: Path,
    data: Path,
    out: Path,
    *,
    split: str = "test",
    num_samples: int = 100,
    seed: int = 0,
    method: str | None = None,
    dice_annotator: DiceAnnotator | None = None,
    num_examples: int = 4,
    batch_size: int = 4,
    chunk_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    precision: SamplingPrecision = "float32",
    calibrated: bool = True,
    hide_neighbours: bool = False,
    class_map: Mapping[str, str] | None = None,
    shard: Shard | None = None,
    merge: Sequence[Path] = (),
    overwrite: bool = False,
    reuse: bool = False,
    progress: bool = True,
) -> Summary:
    """Evaluate the samples of a model on every case of a split and write the results to a folder.

    With several distributed processes of torch, each process calls this function. The cases are divided among them,
    and the first process writes the same files as a single process would.

    Args:
        model_folder: model folder, or run folder that contains one.
        data: prepared dataset.
        out: folder to write: cases.csv, summary.json, reliability.csv, examples.npz.
        split: split to evaluate.
        num_samples: number of samples per case.
        seed: seed of the samples.
        method: name in tables; by default the name of the recipe.
        dice_annotator: reference for Dice: an annotator, `all` (mean over all annotators), or the consensus
            `majority` or `staple`. By default the annotator that the model was trained on, or all.
        num_examples: number of cases stored for the figures.
        batch_size: number of images encoded at once.
        chunk_size: number of samples per image decoded at once; by default 8 on a CPU and 16 on a GPU.
        workers: number of threads that each sample and score a different batch. By default, the processes share
            the cores of a CPU, one thread per core; 1 for volumes and on a GPU. Memory use grows with it; results
            do not change.
        device: device such as `cpu` or `cuda:1`; `auto` uses a GPU if available.
        precision: number format of the network.
        calibrated: use the temperatures fitted by `phiseg calibrate`, if any.
        hide_neighbours: hide the neighbouring slices from a model with context.
        class_map: class of the model for classes of the dataset, by name; by default they are matched by number.
        shard: score only this part of the cases and write a shard to `out` instead of an evaluation.
        merge: folders of all shards, which contain the scores; nothing is sampled.
        overwrite: replace an existing evaluation.
        reuse: keep an existing evaluation of the same weights, data and settings.
        progress: show a progress bar.

    Raises:
        ConfigError, DataError, ModelError, OutputError: an input is invalid, or the results cannot be written.
            Except for damaged pixels and a full disk, these are raised before sampling.
    """
    if shard and merge:
        raise ConfigError("--shard computes a part and --merge collects all parts; use one of them")
    check_replaceable(out, overwrite=overwrite or reuse, marker=SHARD_MARKER if shard else MARKER)
    place = usable_device(device, precision)
    model = load_model(model_folder, device=place, calibrated=calibrated, precision=precision)
    stored = Dataset.open(data)
    rows = stored.rows(split)
    stored.check_labels(rows)
    rank, num_processes = process_rank()
    dataset = match_classes(model, stored, class_map, warn=rank == 0)
    known = stored if dataset.labels is stored.labels else dataset  # other names alone do not make other data
    if rank == 0:
        tuned_on = {"used to select the model": model.provenance.get("val_patients") or ()}
        if model.calibration != Calibration():
            tuned_on["used to calibrate the model"] = calibration_fit(model_folder).get("patients") or ()
        warn_of_leak(model, dataset, split, tuned_on=tuned_on)
    source = _model_ref(find_model(model_folder), model)
    if dice_annotator is None:
        dice_annotator = source.annotator if isinstance(source.annotator, int) else "all"
    check_dice_annotator(dataset, dice_annotator)
    if workers is None:
        cores = torch.get_num_threads() if place.type == "cpu" and dataset.dims == 2 else 1
        workers = max(1, cores // num_processes)
    draw = partial(
        sample_cases,
        model,
        dataset,
        num_samples=num_samples,
        seed=seed,
        batch_size=batch_size,
        chunk_size=chunk_size,
        hide_neighbours=hide_neighbours,
    )
    draw([])  # check the arguments
    if workers < 1:
        raise ConfigError(f"workers is {workers}; it must be at least 1")
    step = batch_size if dataset.dims == 2 else 1  # volumes are encoded one by one
    own_rows = rows_of_shard(shard, rows.tolist(), step) if shard else rows.tolist()
    values = {
        "method": method or source.recipe or model.config.name,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_samples": num_samples,
        "seed": seed,
        "split": split,
        "hide_neighbours": hide_neighbours,
        "precision": precision,
        "dice_annotator": dice_annotator,
        "dataset": DatasetRef.of(known),
        "model": source,
    }
    provenance = Provenance.parse(values, where="the evaluation")
    if reuse and (before := _same_evaluation(out, provenance, [dataset.cases[row]["case"] for row in rows])):
        return before
    shown = choose_examples(dataset, rows.tolist(), num_examples)
    if merge:
        scored = read_shards(merge, provenance, dataset, rows.tolist(), shown)
    else:
        own_rows = share_batches(own_rows, step, *process_rank())
        batches = [own_rows[start : start + step] for start in range(0, len(own_rows), step)]

        def score_batch(batch: list[int]) -> list[ScoredCase]:
            return [_score(case, dataset, dice_annotator, keep=case.row in shown) for case in draw(batch)]

        parts = in_threads(score_batch, batches, min(workers, len(batches) or 1))
        scored = _gather_scored(
            tqdm(
                (case for part in parts for case in part),
                f"scoring {provenance.method}",
                len(own_rows),
                unit="case",
                disable=rank > 0 or not progress,
                dynamic_ncols=True,
            )
        )
    context = 0 if hide_neighbours else model.config.context
    more = {"has_neighbours": dataset.has_neighbours(context).astype(int).tolist()} if context else {}
    cases, summary, table = summarise_scores(dataset, scored, provenance, more=more)
    if rank > 0:
        return summary
    if shard:
        write_shard(out, shard, scored, provenance, dataset, overwrite=overwrite)
        return summary
    kept = {case.row: case.shown for case in scored}
    examples = [(row, drawn) for row in shown if (drawn := kept[row]) is not None]
    run = find_model(model_folder).parent / "metrics.jsonl"
    write_evaluation(
        out,
        summary=summary,
        cases=cases,
        examples=_examples(model, dataset, examples, seed=seed, hide_neighbours=hide_neighbours, workers=workers),
        reliability=table,
        classes=dataset.info.classes[1:],
        training=read_metrics(run) if run.is_file() else None,
        overwrite=overwrite or reuse,
    )
    return summary


def _score(case: CaseSamples, dataset: Dataset, dice_annotator: DiceAnnotator, *, keep: bool) -> ScoredCase:
    drawn = DrawnCase(*case.summary)
    scored = score_sampled_case(case.row, sampled_case(dataset, case.row, drawn, dice_annotator))
    if not keep:
        return scored
    return scored._replace(shown=drawn._replace(labels=drawn.labels[:NUM_SHOWN].clone()))  # frees the others


def _gather_scored(scored: Iterable[ScoredCase]) -> list[ScoredCase]:
    """Return the cases of all processes by row. An error in one process is raised in all."""
    found: list[ScoredCase] | PhisegError
    try:
        found = list(scored)
    except PhisegError as error:
        found = error
    parts = gather(found)
    for part in parts:
        if isinstance(part, PhisegError):
            raise part
    cases = (case for part in parts if isinstance(part, list) for case in part)
    return sorted(cases, key=lambda case: case.row)


def draw_examples(
    model_folder: Path, dataset: Dataset, rows: Sequence[int], *, num_samples: int, seed: int
) -> Examples:
    """Draw the data of the figures for the given cases, as `evaluate` does for its examples."""
    model = load_model(model_folder, device=usable_device("auto"))
    drawn = sample_cases(model, dataset, list(rows), num_samples=num_samples, seed=seed, batch_size=1)
    return _examples(model, dataset, [(case.row, DrawnCase(*case.summary)) for case in drawn], seed=seed)


def _model_ref(folder: Path, model: Segmenter) -> ModelRef:
    """Return the provenance of the model in `folder`; a recipe without a name counts as none."""
    provenance = model.provenance
    values = {
        "recipe": provenance.get("recipe") or None,
        "step": provenance.get("step"),
        "annotator": provenance.get("annotator"),
        "sha256": weights_hash(folder),
        "calibration": model.calibration.model_dump(mode="json"),
    }
    try:
        return ModelRef.parse(values, where=f"{folder / 'config.json'}, provenance")
    except ConfigError as error:
        raise ModelError(f"{error}; copy the model folder again") from None


def warn_of_leak(
    model: Segmenter, dataset: Dataset, split: str, *, tuned_on: Mapping[str, Sequence[object]] | None = None
) -> None:
    """Warn on stderr if the model was trained on patients of the split, as after `phiseg data split`.

    Args:
        model: model with the tokens of its patients in its provenance.
        dataset: dataset.
        split: split to evaluate on.
        tuned_on: further tokens to look for, by what these patients were used for.
    """
    tokens = set(patient_tokens(dataset, split, salt=model.provenance.get("patient_salt")))
    known = {"trained on": model.provenance.get("train_patients") or (), **(tuned_on or {})}
    preprocessing = Preprocessing.find(model)
    same = preprocessing is not None and preprocessing.dataset.fingerprint == dataset.fingerprint
    for what, recorded in known.items():
        if seen := tokens.intersection(map(str, recorded)):
            patients = f"{len(seen)} of the {len(tokens)} patients in split '{split}'"
            found = f"{patients} were {what}" if same else f"{patients} have the ids of patients that were {what}"
            unless = "" if same else ", unless these are other people with the same ids"
            print(f"phiseg: warning: leak: {found}, so these are not test scores{unless}", file=sys.stderr)


def _same_evaluation(out: Path, provenance: Provenance, cases: list[str]) -> Summary | None:
    """Return the summary of the evaluation in `out` if it has the same provenance and cases, otherwise None."""
    try:
        before = read_evaluation(out)
    except DataError:
        return None
    same = before.cases["case"] == cases and all(getattr(before.summary, k) == v for k, v in provenance)
    scored = all(score.name in before.summary.scores for score in summary_scores(provenance.dataset.dims))
    complete = scored and before.reliability is not None and "patient" in before.cases  # false for older versions
    return before.summary if same and complete else None


def _examples(
    model: Segmenter,
    dataset: Dataset,
    cases: Sequence[tuple[int, DrawnCase]],
    *,
    seed: int,
    hide_neighbours: bool = False,
    workers: int = 1,
) -> Examples:
    """Collect the data of the figures. The levels are those of the first sample of each case.

    Unlike samples, levels have the confidence of the network: the margin of the calibration would hide it.
    """

    def example(case: tuple[int, DrawnCase]) -> dict[str, Tensor]:
        return _example(model, dataset, *case, seed=seed, hide_neighbours=hide_neighbours)

    arrays = in_threads(example, cases, min(workers, len(cases)))
    return stack_examples(dataset, [row for row, _ in cases], list(arrays))


@torch.inference_mode()
def _example(
    model: Segmenter, dataset: Dataset, row: int, drawn: DrawnCase, *, seed: int, hide_neighbours: bool
) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    seen = case_image(model, dataset, row, hide_neighbours=hide_neighbours)
    generators = [seeded_generator(seed, "sample", dataset.cases[row]["case"])]
    encoding = model.encode(seen.image[None].to(device))
    noise = [level.to(device) for level in draw_noise(model.noise_shapes(encoding.size), 1, 1, generators)]
    arrays = example_arrays(dataset, row, drawn, seen.crop(seen.image[0]))
    levels = [
        seen.crop(logits[0, 0]).float() / model.calibration.logits
        for logits in model.sample_levels(encoding, model.temper(noise), 1)
    ]
    if len(levels) > 1:
        below = [*levels[1:], torch.zeros_like(levels[0])]
        residuals = [level - lower for level, lower in zip(levels, below, strict=True)]
        arrays["level_probs"] = torch.stack([level.softmax(0) for level in levels]).half()
        arrays["level_residuals"] = torch.stack(residuals).clamp(-6e4, 6e4).half()
    return arrays
