"""The server of the viewer: a few routes for one model, for a single user on one machine.

Requests never determine paths: scans have ids, and uploaded files get new names. Predictions are computed one at a
time, and waiting clients see their position in the queue.
"""

import secrets
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from phiseg import __version__
from phiseg.core.errors import DataError, PhisegError
from phiseg.inference.class_map import names_note, renamed_classes
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling import check_fits
from phiseg.models import Segmenter
from phiseg.viewer.access import AccessControl
from phiseg.viewer.click_prediction import FIRST, Drawn, draw, noise_names
from phiseg.viewer.exports import Kind, What, export_file
from phiseg.viewer.open_scans import EXAMPLE, OpenScan, ScanCollection
from phiseg.viewer.request_queue import RequestQueue
from phiseg.viewer.schema import (
    Done,
    Message,
    ModelInfo,
    PackedAnnotations,
    PredictionRequest,
    ScanInfo,
    SessionInfo,
    StreamedMessage,
    packed,
)
from phiseg.viewer.uploads import save_uploads

MAX_UPLOAD = 1 << 30
"""Maximum size of an upload in bytes."""
MAX_FILES = 3000
"""Maximum number of files of an upload, enough for the slices of a long CT."""
MAX_UPLOADS = 2
"""Maximum number of simultaneous uploads."""
MAX_SCANS = 8
"""Maximum number of scans in memory."""
MAX_MEMORY = 2 << 30
"""Maximum size of voxels in memory in bytes."""
MAX_WAITING = 40
"""Maximum number of clients that wait for a prediction."""
MAX_PREDICTIONS = 16
"""Maximum number of predictions kept for export and for repeated requests."""
STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class FinishedPrediction:
    """A finished prediction and its messages to the page."""

    drawn: Drawn
    messages: tuple[Message, ...]


@dataclass
class Viewer:
    """State shared by all requests."""

    model: Segmenter
    name: str
    scans: ScanCollection
    queue: RequestQueue = field(default_factory=lambda: RequestQueue(MAX_WAITING))
    exporting: Lock = field(default_factory=Lock)
    num_uploads: int = 0
    _finished: "OrderedDict[str, FinishedPrediction]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        for layer in self.model.modules():  # stop at the next layer if the client has disconnected
            layer.register_forward_pre_hook(lambda *_: self.queue.check_wanted())

    @classmethod
    def of(
        cls, model: Segmenter, name: str, *, strict_spacing: bool = False, strict_intensity: bool = False
    ) -> "Viewer":
        """Return a viewer for a model, with the example as its only scan; for the options, see `ScanCollection`.

        Raises:
            ModelError: the model does not describe its preprocessing.
        """
        scans = ScanCollection(
            Preprocessing.of(model),
            max_scans=MAX_SCANS,
            max_bytes=MAX_MEMORY,
            strict_spacing=strict_spacing,
            strict_intensity=strict_intensity,
        )
        return cls(model, name, scans)

    def add(self, paths: Sequence[Path]) -> list[str]:
        """Add scans, folders of scans and a dataset. Return a note for each skipped folder.

        Raises:
            DataError, ModelError: a path is not a scan, or the dataset does not match the model.
        """
        notes = [note for path in paths for note in self.scans.add(path)]
        if self.scans.dataset is not None:
            check_fits(self.model, self.scans.dataset)
            if renamed := renamed_classes(self.model, self.scans.dataset):
                notes.append(names_note(self.scans.dataset, renamed))
        return notes

    def info(self) -> ModelInfo:
        """Describe the model."""
        preprocessing = self.scans.preprocessing
        rule = preprocessing.intensity
        return ModelInfo(
            name=self.name,
            dims=self.model.config.dims,
            classes=list(preprocessing.classes),
            num_levels=self.model.num_levels,
            noise_names=list(noise_names(self.model)),
            centred_on=preprocessing.centred_on,
            size=preprocessing.size,
            window=(rule.low, rule.high) if rule.low is not None and rule.high is not None else None,
        )

    def open_first(self) -> tuple[OpenScan, list[str]]:
        """Return the first scan that can be read, and the errors of the scans before it.

        Raises:
            DataError: all given scans are unreadable.
        """
        errors: list[str] = []
        for scan in self.scans.listed():
            if scan.id == EXAMPLE and errors:
                break
            try:
                return self.scans.get(scan.id), errors
            except DataError as error:
                errors.append(str(error))
        several = f"cannot read any of the {len(errors)} scans; the first: " if len(errors) > 1 else ""
        raise DataError(several + errors[0])

    def session(self) -> SessionInfo:
        """Describe the model and the scans, with details of the first one that can be read."""
        return SessionInfo(
            version=__version__,
            model=self.info(),
            scans=[self.open_first()[0].info],
            listed=self.scans.listed(),
            max_upload_bytes=MAX_UPLOAD,
            max_scans=MAX_SCANS,
        )

    def warm_up(self) -> None:
        """Draw the first samples of the example, so that the first click is not slower than others."""
        if self.model.config.dims == 2:  # a 3-D model would predict the whole lesion
            scan = self.scans.get(EXAMPLE)
            next(draw(self.model, scan, PredictionRequest(scan=EXAMPLE, point=scan.info.start, num_samples=FIRST)))

    def answer(self, request: PredictionRequest) -> Iterator[Message]:
        """Yield the messages of a prediction, and finally its id. A repeated request is not computed again."""
        scan = self.scans.get(request.scan)
        if found := self._find(scan, request):
            name, finished = found
            yield from finished.messages
        else:
            messages: list[Message] = []
            drawn = yield from _recorded(draw(self.model, scan, request), messages)
            name = self._keep(FinishedPrediction(drawn, tuple(messages)))
        yield Done(id=name)

    def _find(self, scan: OpenScan, request: PredictionRequest) -> tuple[str, FinishedPrediction] | None:
        """Return an earlier prediction with the same settings and its id, if it is still stored."""
        with self._lock:
            for name, finished in self._finished.items():
                if finished.drawn.scan is scan and finished.drawn.request == request:
                    self._finished.move_to_end(name)
                    return name, finished
        return None

    def _keep(self, finished: FinishedPrediction) -> str:
        """Store a prediction under a new id. The least recently used one is dropped if there are too many."""
        name = secrets.token_urlsafe(9)
        with self._lock:
            for old, other in list(self._finished.items()):
                if len(self._finished) >= MAX_PREDICTIONS or not self.scans.holds(other.drawn.scan):
                    del self._finished[old]
            self._finished[name] = finished
        return name

    def prediction(self, name: str) -> Drawn | None:
        """Return a prediction, or None if it is no longer stored."""
        with self._lock:
            finished = self._finished.get(name)
        return finished.drawn if finished else None

    async def stream(
        self, request: PredictionRequest, has_left: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[str]:
        """Yield lines of JSON: the position in the queue, the prediction, and finally Done or Failed."""
        async for message in self.queue.serve(self.answer(request), has_left):
            yield message.model_dump_json() + "\n"


def create_app(viewer: Viewer, *, token: str | None = None) -> FastAPI:
    """Return the server.

    Args:
        viewer: viewer to serve.
        token: token required from every request, if other machines can reach the server.
    """
    app = FastAPI(title="PHiSeg viewer", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(AccessControl, token=token, is_upload=_is_upload, max_upload=MAX_UPLOAD)
    explain_errors(app)
    pages = {str(file.relative_to(STATIC)): file for file in STATIC.rglob("*") if file.is_file()}

    @app.get("/api/session")
    def session() -> SessionInfo:
        """Describe the model and the scans."""
        return viewer.session()

    @app.get("/api/scans/{scan_id}")
    def scan(scan_id: str) -> ScanInfo:
        """Describe one scan."""
        return viewer.scans.get(scan_id).info

    @app.get("/api/scans/{scan_id}/slices/{number}")
    def slice_values(scan_id: str, number: int, plane: Annotated[int, Query(ge=0, le=2)] = 0) -> Response:
        """Return a slice in one of `ScanInfo.planes`, as shown: float32, little-endian.

        It has the shape (height, width, 3) if the scan has colours, otherwise (height, width) of the first channel.
        """
        values = viewer.scans.get(scan_id).slice_values(number, plane)
        if values is None:
            raise HTTPException(404, f"slice {number} does not exist")
        content = np.ascontiguousarray(values, dtype="<f4").tobytes()
        return Response(content, media_type="application/octet-stream")

    @app.get("/api/scans/{scan_id}/annotations")
    def annotations(scan_id: str) -> PackedAnnotations:
        """Return the annotators' masks of a case."""
        opened = viewer.scans.get(scan_id)
        drawn = opened.annotations
        labels = None if drawn is None else packed(drawn)
        return PackedAnnotations(annotators=list(opened.annotators), labels=labels)

    @app.post("/api/scans")
    async def drop(request: Request) -> ScanInfo:
        """Take in the files of one scan, as multipart form data."""
        if viewer.num_uploads >= MAX_UPLOADS:
            raise HTTPException(503, "other uploads are in progress; try again in a moment")
        viewer.num_uploads += 1
        try:
            return (await _take_in(viewer.scans, request)).info
        finally:
            viewer.num_uploads -= 1

    @app.post("/api/predictions", response_class=StreamingResponse, responses={200: {"model": StreamedMessage}})
    async def predict(request: Request, wanted: PredictionRequest) -> StreamingResponse:
        """Draw samples: lines of JSON, as they come."""
        if viewer.queue.is_full:
            raise HTTPException(503, "too many requests are waiting; try again in a moment")
        return StreamingResponse(viewer.stream(wanted, request.is_disconnected), media_type="application/x-ndjson")

    @app.get("/api/predictions/{name}/export")
    def export(name: str, what: What, kind: Kind, index: Annotated[int, Query(ge=0)] = 0) -> Response:
        """Return what is seen as a file."""
        drawn = viewer.prediction(name)
        if drawn is None:
            raise HTTPException(404, "this prediction is no longer available; click again")
        with viewer.exporting:  # one at a time: a whole volume is in memory
            content, filename = export_file(drawn, model=viewer.name, what=what, kind=kind, index=index)
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(filename)}"}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @app.get("/{path:path}", include_in_schema=False)
    def page(path: str) -> FileResponse:
        """Return one of the known files of the page."""
        file = pages.get(path or "index.html")
        if file is None:
            raise HTTPException(404, "page not found")
        return FileResponse(file)

    return app


async def _take_in(scans: ScanCollection, request: Request) -> OpenScan:
    """Read the scan uploaded by a request. Its files stay on disk as long as the scan is in use."""
    folder = Path(tempfile.mkdtemp(prefix="phiseg-dropped-"))
    try:
        content_type = request.headers.get("content-type", "")
        uploads = await save_uploads(request.stream(), content_type, folder, max_files=MAX_FILES)
        scan = await run_in_threadpool(scans.drop, uploads)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(scan, shutil.rmtree, folder, ignore_errors=True)
    return scan


def _recorded(answer: Generator[Message, None, Drawn], messages: list[Message]) -> Generator[Message, None, Drawn]:
    """Yield the messages of an answer, and append them to a list."""
    while True:
        try:
            message = next(answer)
        except StopIteration as end:
            drawn: Drawn = end.value
            return drawn
        messages.append(message)
        yield message


def _is_upload(method: str, path: str) -> bool:
    return (method, path) == ("POST", "/api/scans")


def explain_errors(app: FastAPI) -> None:
    """Answer all errors caused by a request with one line of text, as {"message": ...}."""

    @app.exception_handler(PhisegError)
    async def user_error(_: Request, error: PhisegError) -> JSONResponse:
        return JSONResponse({"message": str(error)}, 400)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"message": str(error.detail)}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def wrong_request(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"message": f"invalid request: {where}: {first['msg']}"}, 422)
