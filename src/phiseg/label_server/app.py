"""The routes of MONAI Label's protocol that the plug-ins of 3D Slicer and OHIF use."""

import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from fastapi import BackgroundTasks, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from phiseg import __version__
from phiseg.inference.scans import ScanFile
from phiseg.label_server.inference_service import STRATEGY, Answer, LabelServer, Output, RequestFailedError
from phiseg.label_server.parameters import parse_parameters
from phiseg.label_server.served_images import download_name, write_download
from phiseg.label_server.sessions import uploaded_scan
from phiseg.viewer.access import MAX_BODY, AccessControl
from phiseg.viewer.server import MAX_FILES, MAX_UPLOAD, MAX_UPLOADS, explain_errors
from phiseg.viewer.uploads import SavedForm, save_form

READ_ONLY = "this server does not store images or labels; save the segmentation in your viewer instead"
WELCOME = "phiseg serve: enter this address as the MONAI Label server in 3D Slicer or OHIF\n"
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


class TokenInPath:
    """Middleware that accepts the token as the first part of the path, because OHIF sends no other credentials.

    Args:
        app: application.
        token: token of the server.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            _, first, rest = f"{scope['path']}/".split("/", 2)
            if secrets.compare_digest(first.encode(), self.token.encode()):
                path = "/" + rest[:-1]
                headers = [*scope["headers"], (b"authorization", f"Bearer {self.token}".encode())]
                scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self.app(scope, receive, send)


def create_app(server: LabelServer, *, token: str | None, origins: Collection[str] = ()) -> FastAPI:
    """Return the application of a server.

    Args:
        server: models and images.
        token: token required from every request, as a bearer token or as the first part of the path; None accepts
            localhost only.
        origins: sites whose pages may send requests, such as that of OHIF.
    """
    app = FastAPI(title="phiseg serve", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(
        AccessControl, token=token, is_upload=_is_upload, max_upload=MAX_UPLOAD, origins=frozenset(origins)
    )
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    if token:
        app.add_middleware(TokenInPath, token=token)
    explain_errors(app)

    @app.exception_handler(RequestFailedError)
    async def failed(_: Request, error: RequestFailedError) -> JSONResponse:
        return JSONResponse({"message": str(error)}, error.status)

    @app.get("/")
    def welcome() -> PlainTextResponse:
        """Show a text that explains the address."""
        return PlainTextResponse(WELCOME)

    @app.get("/info/")
    def info() -> dict[str, Any]:
        """Describe the models."""
        return server.info()

    _add_datastore(app, server)
    _add_sessions(app, server)
    _add_inference(app, server)
    return app


def _add_datastore(app: FastAPI, server: LabelServer) -> None:
    @app.get("/datastore/")
    def datastore(output: Literal["stats", "all", "train"] = "stats") -> Any:
        """Return the number of images, or all of them."""
        if output == "stats":
            return server.status()
        if output == "train":
            return []
        names = {image_id: server.images.file_name(image_id) for image_id in server.images.ids()}
        objects = {image_id: {"image": _image_info(name), "labels": {}} for image_id, name in names.items()}
        return {"name": "PHiSeg", "description": "", "objects": objects}

    @app.api_route("/datastore/image", methods=["GET", "HEAD"])
    def image(image: str, background: BackgroundTasks) -> FileResponse:
        """Return an image as one file."""
        return _download(server, server.image(image), background)

    @app.get("/datastore/image/info")
    def image_info(image: str) -> dict[str, Any]:
        """Describe an image."""
        info: dict[str, Any] = _image_info(download_name(server.image(image)))["info"]
        return info

    @app.api_route("/datastore/{rest:path}", methods=["PUT", "DELETE"])
    def change(rest: str) -> None:  # noqa: ARG001
        """Reject changes."""
        raise HTTPException(405, READ_ONLY)

    @app.post("/activelearning/{strategy}")
    def next_image(strategy: str) -> dict[str, Any]:
        """Return the next image; empty if there are none."""
        if strategy != STRATEGY:
            raise HTTPException(404, f"there is no strategy '{strategy}'; use '{STRATEGY}'")
        image_id = server.next_image()
        return {} if image_id is None else {"id": image_id, "name": server.images.file_name(image_id)}


def _add_sessions(app: FastAPI, server: LabelServer) -> None:
    @app.put("/session/")
    async def create(request: Request, expiry: int = 0) -> dict[str, Any]:
        """Take in an image as a session."""
        folder = server.sessions.new_folder()
        try:
            with _upload_slot(server, request):
                form = await _read_form(request, folder)
            session = await run_in_threadpool(server.sessions.add, form.uploads, folder, expiry=expiry)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {"session_id": session.id, "session_info": session.info()}

    @app.get("/session/{session_id}")
    def get(session_id: str, background: BackgroundTasks, update_ts: bool = False, image: bool = False) -> Any:
        """Describe a session, or return its image."""
        session = server.sessions.get(session_id, use=update_ts)
        if session is None:
            raise HTTPException(404, "there is no such session, or it has expired; upload the image again")
        return _download(server, session.scan, background) if image else session.info()

    @app.delete("/session/{session_id}")
    def remove(session_id: str) -> dict[str, Any]:
        """Delete a session."""
        session = server.sessions.remove(session_id)
        if session is None:
            raise HTTPException(404, "there is no such session, or it has expired")
        return session.info()


def _add_inference(app: FastAPI, server: LabelServer) -> None:
    @app.post("/infer/")
    def infer_nothing(image: str = "", session_id: str = "") -> Response:
        """Answer a request without a model with an empty segmentation.

        Slicer sends it for each new image if all models need points.
        """
        scan = server.session_image(session_id) if session_id else server.image(image)
        return _response(server.empty_answer(scan))

    @app.post("/infer/{model}")
    async def infer(
        request: Request,
        model: str,
        image: Annotated[str, Query(max_length=1000)] = "",
        session_id: str = "",
        output: Output = "all",
    ) -> Response:
        """Segment an image of the studies, of a session, or of the form field `file`."""
        served = server.model(model)
        folder = server.sessions.new_folder()
        try:
            with _upload_slot(server, request):
                form = await _read_form(request, folder)
            parameters = parse_parameters(form.fields.get("params", "{}"), served.preprocessing.classes)
            uploads = [upload for upload in form.uploads if upload.field == "file"]
            for upload in form.uploads:
                if upload not in uploads:  # a label of another method
                    upload.path.unlink()
            if session_id:
                scan = server.session_image(session_id)
            elif uploads:
                scan = await run_in_threadpool(uploaded_scan, uploads, max_bytes=server.sessions.max_bytes)
            elif image:
                scan = await run_in_threadpool(server.image, image)
            else:
                raise HTTPException(400, "there is no image; give ?image=ID, ?session_id=ID or a form field 'file'")
            try:
                answer = await server.compute(
                    lambda: server.answer(served, scan, parameters, output), request.is_disconnected
                )
            finally:
                if uploads:
                    server.opened.forget(scan.path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return _response(answer)


def _response(answer: Answer) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{answer.filename}"'} if answer.filename else None
    return Response(answer.content, media_type=answer.media_type, headers=headers)


def _image_info(name: str) -> dict[str, Any]:
    suffix = ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix
    return {"ext": suffix, "info": {"name": name}}


def _download(server: LabelServer, scan: ScanFile, background: BackgroundTasks) -> FileResponse:
    folder = server.sessions.new_folder()
    background.add_task(shutil.rmtree, folder, ignore_errors=True)
    try:
        file = write_download(scan, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FileResponse(
        file, media_type="application/octet-stream", filename=download_name(scan), background=background
    )


def _is_upload(method: str, path: str) -> bool:
    return (method, path) == ("PUT", "/session/") or (method == "POST" and path.startswith("/infer/"))


@contextmanager
def _upload_slot(server: LabelServer, request: Request) -> Iterator[None]:
    """Limit the number of simultaneous uploads. A small request, such as one without files, needs no slot."""
    chunked = "transfer-encoding" in request.headers
    if not chunked and int(request.headers.get("content-length", "0")) <= MAX_BODY:
        yield
        return
    if server.num_uploads >= MAX_UPLOADS:
        raise HTTPException(503, "other uploads are in progress; try again in a moment")
    server.num_uploads += 1
    try:
        yield
    finally:
        server.num_uploads -= 1


async def _read_form(request: Request, folder: Path) -> SavedForm:
    """Read the form of a request; a request without a form is an empty one."""
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORMS[1]:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > 1 << 16:
                raise HTTPException(413, "the form is limited to 64 KB; send files as multipart/form-data")
        return SavedForm(dict(parse_qsl(body.decode(errors="replace"))), [])
    if kind != FORMS[0] and request.headers.get("content-length", "0") == "0":
        return SavedForm({}, [])
    return await save_form(request.stream(), content_type, folder, max_files=MAX_FILES)
