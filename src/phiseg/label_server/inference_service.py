"""The state of the server: models, images, sessions, and the computation of a request."""

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from threading import Lock
from typing import Any, Literal, TypeVar

import numpy as np

from phiseg import __version__
from phiseg.core.errors import ConfigError, DataError, PhisegError, nearest
from phiseg.imaging.volume import Volume
from phiseg.inference.input_checks import check_point
from phiseg.inference.prediction import Prediction
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_prepared
from phiseg.inference.scans import ScanFile, read_scan
from phiseg.label_server.parameters import InferParameters, Point, option_defaults
from phiseg.label_server.responses import (
    Outcome,
    class_numbers,
    describe,
    file_name,
    image_file,
    multipart,
    outcome_of,
    seg_file,
)
from phiseg.label_server.served_images import FolderImages, ImageSource, OpenImage, OpenImages
from phiseg.label_server.sessions import Sessions
from phiseg.models import Segmenter
from phiseg.viewer.click_prediction import affordable
from phiseg.viewer.request_queue import RequestQueue
from phiseg.viewer.schema import Failed, Message

MAX_MEMORY = 2 << 30
"""Maximum size in bytes of the voxels in memory, and of an uploaded image."""
MAX_IMAGES = 4
"""Maximum number of images in memory."""
MAX_LABELS = 1 << 30
"""Maximum number of labels over all samples for the prediction of a whole image."""
MAX_WAITING = 20
"""Maximum number of clients that wait for a prediction."""
STRATEGY = "next"
"""Name of the order in which clients get the images."""

Output = Literal["image", "json", "all", "dicom_seg"]
T = TypeVar("T")


class RequestFailedError(Exception):
    """A request that failed.

    Args:
        status: HTTP status.
        message: what is wrong, and what to do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """Content of an answer."""

    content: bytes
    media_type: str
    filename: str | None = None


@dataclass(frozen=True)
class ServedModel:
    """A model of the server."""

    name: str
    network: Segmenter
    preprocessing: Preprocessing

    def info(self) -> dict[str, Any]:
        """Describe the model. A lesion-crop model is of type deepedit, whose prompts are points."""
        centred_on = self.preprocessing.centred_on
        what = f"crops around a {centred_on}: place a point inside it" if centred_on else "whole images"
        return {
            "type": "deepedit" if centred_on else "segmentation",
            "labels": class_numbers(self.preprocessing.classes),
            "dimension": 3,
            "description": f"PHiSeg model for {what}",
            "config": option_defaults(),
        }


@dataclass
class LabelServer:
    """State shared by all requests.

    Args:
        models: models by name.
        images: images that clients can choose.
        time_limit: maximum duration of a request in seconds, including the time in the queue.
    """

    models: dict[str, ServedModel]
    images: ImageSource = field(default_factory=FolderImages)
    time_limit: float = 600.0
    opened: OpenImages = field(default_factory=lambda: OpenImages(max_images=MAX_IMAGES, max_bytes=MAX_MEMORY))
    queue: RequestQueue = field(default_factory=lambda: RequestQueue(MAX_WAITING))
    num_uploads: int = 0
    _next: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.sessions = Sessions(max_bytes=MAX_MEMORY, on_delete=lambda scan: self.opened.forget(scan.path))
        for model in self.models.values():
            for layer in model.network.modules():  # stop at the next layer if the client has disconnected
                layer.register_forward_pre_hook(lambda *_: self.queue.check_wanted())

    @classmethod
    def of(cls, networks: Sequence[tuple[str, Segmenter]], **options: Any) -> "LabelServer":
        """Return a server of models with names.

        Raises:
            ConfigError: two models have the same name.
            ModelError: a model does not describe its preprocessing.
        """
        models = {name: ServedModel(name, network, Preprocessing.of(network)) for name, network in networks}
        if len(models) < len(networks):
            raise ConfigError("two models have the same name; rename the folder of one of them")
        return cls(models, **options)

    def close(self) -> None:
        """Delete temporary files."""
        self.sessions.close()
        self.images.close()

    def info(self) -> dict[str, Any]:
        """Describe the server, its models and images."""
        classes = [name for model in self.models.values() for name in model.preprocessing.classes[1:]]
        return {
            "name": "PHiSeg",
            "description": "Samples of plausible segmentations, from PHiSeg",
            "version": __version__,
            "labels": ["background", *dict.fromkeys(classes)],  # OHIF skips the first one
            "models": {name: model.info() for name, model in self.models.items()},
            "trainers": {},
            "strategies": {STRATEGY: {"description": "All images in the order of their names", "config": {}}},
            "scoring": {},
            "train_stats": {},
            "datastore": self.status(),
        }

    def status(self) -> dict[str, Any]:
        """Return the number of images."""
        return {"total": len(self.images.ids()), "completed": 0, "label_tags": {}}

    def next_image(self) -> str | None:
        """Return the id of the next image, starting again after the last one; None if there are none."""
        ids = self.images.ids()
        with self._lock:
            number, self._next = self._next, self._next + 1
        return ids[number % len(ids)] if ids else None

    def model(self, name: str) -> ServedModel:
        """Return a model.

        Raises:
            RequestFailedError: there is no such model.
        """
        if name not in self.models:
            raise RequestFailedError(404, f"there is no model '{name}' ({nearest(name, self.models)})")
        return self.models[name]

    def image(self, image_id: str) -> ScanFile:
        """Return an image.

        Raises:
            RequestFailedError: there is no such image.
        """
        scan = self.images.find(image_id)
        if scan is None:
            raise RequestFailedError(
                404, f"there is no image '{image_id[:100]}'; GET /datastore/?output=all lists the images"
            )
        return scan

    def session_image(self, session_id: str) -> ScanFile:
        """Return the image of a session.

        Raises:
            RequestFailedError: there is no such session.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise RequestFailedError(404, "there is no such session, or it has expired; upload the image again")
        return session.scan

    def answer(self, model: ServedModel, scan: ScanFile, parameters: InferParameters, output: Output) -> Answer:
        """Compute the answer to a request. Only the thread of the queue calls this.

        Raises:
            DataError, ConfigError: the image, the points or the parameters are invalid.
        """
        started = time.monotonic()
        option = 'place a point with the label of a class, or send params={"foreground": [[i, j, k]]}'
        centred_on = model.preprocessing.centred_on
        points = parameters.points if centred_on else ()  # plug-ins may send points to any model
        check_point(centred_on, has_point=bool(points), name=scan.name, option=option)
        image = self.opened.get(scan, model.name, model.preprocessing)
        outcome = outcome_of(list(_predictions(model, image, points, parameters)), parameters)
        if output == "dicom_seg":
            return Answer(seg_file(outcome, image.scan.series), "application/dicom", file_name(outcome, ".dcm"))
        return _answer(outcome, image, output, started)

    def empty_answer(self, scan: ScanFile) -> Answer:
        """Return an empty segmentation of an image.

        Raises:
            DataError: the image cannot be read.
        """
        volume = read_scan(scan, channels=None, plane=None).volume
        empty = Volume(np.zeros(volume.grid, np.uint8), volume.affine)
        outcome = Outcome(empty, class_numbers(self.info()["labels"]), (), InferParameters())
        description = describe(outcome, seconds=0, warnings=())
        return Answer(*multipart(description, image_file(outcome), "empty.nii.gz"))

    async def compute(self, work: Callable[[], T], has_left: Callable[[], Awaitable[bool]]) -> T:
        """Run a computation in the queue and return its result.

        Args:
            work: computation.
            has_left: returns whether the client has disconnected.

        Raises:
            PhisegError: an error of the computation that the user can correct.
            RequestFailedError: the computation failed or took too long, or too many clients are waiting.
        """
        if self.queue.is_full:
            raise RequestFailedError(503, "too many requests are waiting; try again in a moment")
        results: list[T] = []
        errors: list[PhisegError] = []
        deadline = time.monotonic() + self.time_limit

        def run() -> Iterator[Message]:
            try:
                results.append(work())
            except PhisegError as error:
                errors.append(error)
            yield from ()

        async def is_over() -> bool:
            return time.monotonic() > deadline or await has_left()

        async for message in self.queue.serve(run(), is_over):
            if isinstance(message, Failed):
                raise RequestFailedError(500, message.message)
        if errors:
            raise errors.pop()  # in the list, it would keep the image in use
        if not results:
            raise RequestFailedError(
                504, f"the request took more than {self.time_limit:g} s; draw fewer samples, or raise --time-limit"
            )
        return results[0]


def _predictions(
    model: ServedModel, image: OpenImage, points: Sequence[Point], parameters: InferParameters
) -> Iterator[Prediction]:
    """Yield one prediction per lesion. A point inside a lesion that is already segmented is skipped."""
    sampling = Sampling(num_samples=parameters.num_samples, seed=parameters.seed, level_draws=0)
    sampling = affordable(sampling, image.stack)
    if not points and parameters.num_samples * prod(image.stack.stack.grid) > MAX_LABELS:
        raise DataError(f"{image.stack.name} is too large for {parameters.num_samples} samples; draw fewer samples")
    segmented = np.zeros(image.stack.volume.grid, dtype=bool)
    for point in points or (None,):
        if point is not None and _is_marked(segmented, point):
            continue
        key = (point, sampling)
        if key not in image.predictions:
            image.keep(key, predict_prepared(model.network, image.stack, point=point, sampling=sampling))
        prediction = image.predictions[key]
        if len(points) > 1:
            segmented |= prediction.on_grid(prediction.consensus > 0).values
        yield prediction


def _is_marked(mask: np.ndarray[Any, np.dtype[np.bool_]], point: Point) -> bool:
    voxel = tuple(round(place) for place in point)
    inside = all(0 <= place < length for place, length in zip(voxel, mask.shape, strict=True))
    return inside and bool(mask[voxel])


def _answer(outcome: Outcome, image: OpenImage, output: Output, started: float) -> Answer:
    suffix = outcome.parameters.result_extension
    if output == "image":
        return Answer(image_file(outcome), "application/octet-stream", file_name(outcome, suffix))
    warnings = [*image.scan.warnings, *image.stack.warnings]
    description = describe(outcome, seconds=time.monotonic() - started, warnings=warnings)
    if output == "json":
        return Answer(json.dumps(description).encode(), "application/json")
    return Answer(*multipart(description, image_file(outcome), file_name(outcome, suffix)))
