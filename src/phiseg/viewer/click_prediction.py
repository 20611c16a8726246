"""Prediction for a click: first the samples of the clicked slice, then the whole lesion, then the levels.

A 3-D model predicts all slices together, so the samples of the clicked slice are a part of the whole lesion.
Every step is a call of `predict_prepared` with the same seed, so that Python gives the same samples as the page.

Shapes: S samples, K classes, L latent levels, N parts of the noise (the levels; also the presence and an
ensemble's member, if the model has them), A annotators; n slices of h x w pixels in a box.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import ceil, prod

import numpy as np
import torch
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.inference.measures import Measurement, Measures, level_shares, measure
from phiseg.inference.prediction import Prediction
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import level_outputs, predict_prepared
from phiseg.inference.slice_noise import Level
from phiseg.metrics import EPSILON
from phiseg.metrics.case import score_case
from phiseg.models import Segmenter
from phiseg.viewer.open_scans import OpenScan
from phiseg.viewer.schema import (
    Box,
    CaseScores,
    ClassNumbers,
    LesionSlices,
    LevelSummary,
    Message,
    Numbers,
    PredictionRequest,
    Samples,
    SliceSummary,
    Spread,
    as_bytes,
    packed,
)

FIRST = 4
"""Number of samples shown first."""
GROWTH = 4
"""Factor of the number of samples between steps."""
MAX_VALUES = 1 << 28
"""Maximum number of probabilities in memory (1 GiB)."""
MAX_LABELS = 1 << 25
"""Maximum number of labels over all samples for the prediction of a whole scan."""
CHOICES = {"member": "the member of an ensemble", "presence": "the presence"}
"""Parts of the noise other than levels, as messages name them."""


@dataclass(frozen=True)
class Drawn:
    """The prediction of a click, for exports."""

    scan: OpenScan
    request: PredictionRequest
    prediction: Prediction
    measures: Measures
    scores: CaseScores | None


def noise_names(model: Segmenter) -> tuple[str, ...]:
    """Return the names of the N parts of the noise that can be controlled separately, levels first, fine to coarse.

    Empty for a model without a hierarchy.
    """
    return model.noise_names if model.num_levels else ()


def sampling_of(request: PredictionRequest, model: Segmenter) -> Sampling:
    """Return the sampling options for a request of the page.

    Raises:
        DataError: the settings do not match the noise of the model, or a part other than a level has a temperature.
    """
    names = noise_names(model)
    if len(request.levels) not in (0, len(names)):
        wanted = ", ".join(names) or "no levels"
        raise DataError(f"the model has settings for {wanted}, not {len(request.levels)}; reload the page")
    for name, choice in list(zip(names, request.levels, strict=False))[model.num_levels :]:
        if choice.temperature != 1:
            raise DataError(f"{CHOICES.get(name, name)} has no temperature; hold or redraw it")
    levels = tuple(Level(level.seed, level.hold, level.temperature) for level in request.levels)
    return Sampling(
        num_samples=request.num_samples,
        seed=request.seed,
        levels=levels,
        level_draws=Sampling.level_draws if model.num_levels else 0,
        batch_size=1 if model.config.dims == 2 else Sampling.batch_size,
    )


def draw(model: Segmenter, scan: OpenScan, request: PredictionRequest) -> Generator[Message, None, Drawn]:
    """Yield the results of a click as they are computed.

    Args:
        model: model in evaluation mode.
        scan: clicked scan.
        request: point and sampling settings.

    Raises:
        DataError, ConfigError: the point or the settings are invalid.
    """
    number, row, column = request.point
    depth, height, width = scan.stack.stack.grid
    if not (0 <= number < depth and 0 <= row < height and 0 <= column < width):
        raise DataError("the point is outside the scan; click inside the scan")
    centred = scan.stack.preprocessing.centred_on is not None
    sampling = affordable(sampling_of(request, model), scan.stack)
    here = replace(sampling, reach_mm=0.0) if centred else sampling
    voxel = np.linalg.inv(scan.volume.affine) @ scan.stack.stack.affine @ [number, row, column, 1]
    point = [float(place) for place in np.rint(voxel[:3])] if centred else None
    slices = None if centred else range(number, number + 1)

    has_whole = centred or request.num_samples * prod(scan.stack.stack.grid) <= MAX_LABELS
    joint = has_whole and model.config.dims == 3
    if joint:
        whole = predict_prepared(model, scan.stack, point=point, sampling=sampling)
        clicked = whole.at_slice(number)
        yield _samples(clicked, 0)
    sent = 0
    for some in () if joint else _steps(sampling.num_samples):
        clicked = predict_prepared(
            model,
            scan.stack,
            point=point,
            slices=slices,
            sampling=replace(here, num_samples=some, level_draws=0),
        )
        yield _samples(clicked, sent)
        sent = some
    yield _summary(clicked)

    if not has_whole:
        whole = clicked
    elif not joint:
        whole = predict_prepared(model, scan.stack, point=point, sampling=replace(sampling, level_draws=0))
    measures = measure(whole)
    yield _numbers(measures, whole.unusual)
    yield _lesion(whole)
    scores = None
    if scan.annotations is not None and (has_whole or depth == 1):
        scores = scores_of(whole if depth > 1 else clicked, scan.annotations)
        yield scores
    if model.num_levels:  # the slowest part per slice, and no measurement depends on it
        if not joint:
            clicked = predict_prepared(model, scan.stack, point=point, slices=slices, sampling=here)
        outputs = level_outputs(model, scan.stack, point=point, slice_number=number, sampling=here)
        yield _levels(clicked, outputs if len(outputs) == model.num_levels else None)
        measures = replace(measures, level_shares=level_shares(clicked))
    return Drawn(scan, request, whole, measures, scores)


def _steps(num_samples: int) -> list[int]:
    """Return the numbers of samples after which results are shown, growing by a constant factor.

    >>> _steps(100), _steps(3)
    ([4, 16, 64, 100], [3])
    """
    steps = []
    some = FIRST
    while some < num_samples:
        steps.append(some)
        some *= GROWTH
    return [*steps, num_samples]


def affordable(sampling: Sampling, prepared: PreparedStack) -> Sampling:
    """Return sampling options within the memory limit; a lesion is followed through fewer slices if necessary.

    Raises:
        DataError: a single slice exceeds the limit.
    """
    stack, preprocessing, step = prepared.stack, prepared.preprocessing, prepared.step
    grid, spacing, centred = stack.grid, stack.spacing_mm, preprocessing.centred_on is not None
    network = [ceil(length / by) for length, by in zip(grid[1:], step, strict=True)]
    pixels = grid[1] * grid[2]
    if centred:
        sizes = zip(grid[1:], preprocessing.size, step, strict=True)
        pixels = prod(min(length, ceil(size * by) + 2) for length, size, by in sizes)
        network = list(preprocessing.size)
    values = max(pixels, prod(network)) * sampling.num_samples * len(preprocessing.classes)
    if values > MAX_VALUES:
        raise DataError(
            f"{prepared.name}: slices of {grid[1]} x {grid[2]} pixels of {spacing[1]:.3g} x {spacing[2]:.3g} mm "
            f"are too large for {sampling.num_samples} samples; draw fewer samples or crop the scan"
        )
    far = (MAX_VALUES // values - 1) // 2  # slices to each side of the point
    crop_mm = max(n * by * mm for n, by, mm in zip(preprocessing.size, step, spacing[1:], strict=True)) / 2
    return replace(sampling, reach_mm=far * spacing[0]) if centred and crop_mm > far * spacing[0] else sampling


def box_of(prediction: Prediction) -> Box:
    """Return the position of a prediction in a slice."""
    rows, columns = prediction.box[1:]
    return Box(
        row=rows.start, column=columns.start, height=rows.stop - rows.start, width=columns.stop - columns.start
    )


def _samples(prediction: Prediction, first: int) -> Samples:
    labels = prediction.labels[first:, 0]
    return Samples(first=first, number=len(labels), box=box_of(prediction), labels=packed(labels))


def _summary(prediction: Prediction) -> SliceSummary:
    top = max(float(prediction.gamma.max()), 1e-3)
    return SliceSummary(
        box=box_of(prediction),
        mean_probs=packed(as_bytes(prediction.mean_probs[1:, 0])),
        gamma=packed(as_bytes(prediction.gamma[0], top)),
        gamma_max=top,
    )


def _levels(prediction: Prediction, outputs: NDArray[np.float32] | None) -> LevelSummary:
    shares = None
    if prediction.level_variance is not None:
        variance = prediction.level_variance[:, 0]
        shares = packed(as_bytes(variance / np.maximum(variance.sum(0), 1e-12)))
    return LevelSummary(
        shares=shares,
        totals=level_shares(prediction),
        outputs=None if outputs is None else packed(as_bytes(outputs)),
    )


def _numbers(measures: Measures, unusual: str | None) -> Numbers:
    def spread(found: Measurement) -> Spread:
        return Spread(median=found.median, low=found.low, high=found.high, samples=list(found.samples))

    return Numbers(
        classes={
            name: ClassNumbers(
                present=found.present,
                size=spread(found.size),
                diameter=spread(found.diameter),
                size_if_present=found.size_if_present and spread(found.size_if_present),
                diameter_if_present=found.diameter_if_present and spread(found.diameter_if_present),
            )
            for name, found in measures.classes.items()
        },
        size_unit=measures.units.size,
        length_unit=measures.units.length,
        mean_gamma=measures.mean_gamma,
        agreement=measures.agreement,
        truncated=measures.truncated,
        unusual=unusual,
    )


def _lesion(prediction: Prediction) -> LesionSlices:
    top = max(float(prediction.gamma.max()), 1e-3)
    return LesionSlices(
        first_slice=prediction.box[0].start,
        num_slices=prediction.labels.shape[1],
        box=box_of(prediction),
        labels=packed(prediction.labels),
        mean_probs=packed(as_bytes(prediction.mean_probs[1:])),
        gamma=packed(as_bytes(prediction.gamma, top)),
        gamma_max=top,
    )


def scores_of(prediction: Prediction, annotations: NDArray[np.uint8]) -> CaseScores:
    """Compare the samples of a case with its annotations (A, N, H, W); samples are background outside their box."""
    grid, box = annotations.shape[1:], prediction.box
    labels = np.zeros((len(prediction.labels), *grid), np.uint8)
    labels[:, *box] = prediction.labels
    mean = np.zeros((len(prediction.classes), *grid), np.float32)
    mean[0] = 1
    logs = np.log(mean + EPSILON)
    mean[:, *box] = prediction.mean_probs
    logs[:, *box] = prediction.mean_log_probs
    if grid[0] == 1:  # an image
        labels, mean, logs, annotations = (array[:, 0] for array in (labels, mean, logs, annotations))
    arrays = (labels, mean, logs, annotations)
    scores = score_case(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
    # The fields of the message, by which the page shows them.
    return CaseScores(ged=scores["ged"], ged_floor=scores["ged_floor"], s_ncc=scores["s_ncc"], dice=scores["dice"])
