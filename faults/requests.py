"""Untrusted requests to the viewer: invalid requests, damaged files, and random bytes."""

import io
import json
import socket
import time
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from fastapi.testclient import TestClient

from phiseg.cli.listening import listen
from phiseg.models import load_model
from phiseg.viewer.server import Viewer, create_app

from .mutations import TOKENS, Rng, damage_bytes, damage_text, damage_tree, pick
from .specimens import Specimens

PATHS = (
    "/",
    "/api/session",
    "/api/scans",
    "/api/scans/example",
    "/api/scans/example/slices/0",
    "/api/scans/example/slices/-1",
    "/api/scans/example/annotations",
    "/api/predictions",
    "/api/predictions/x/export?what=sample&kind=png",
    "/../../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/api/scans/..%2f..%2fetc%2fpasswd",
    "/assets/..%5c..%5cevil",
)
CLICK: dict[str, Any] = {
    "scan": "example",
    "point": [1, 8, 8],
    "num_samples": 1,
    "seed": 0,
    "levels": [{"seed": 1, "hold": False, "temperature": 1.0}] * 2,
}
WAIT = 20.0
"""Time limit of an answer in seconds."""


class ViewerUnderFire:
    """A viewer that is reached by a client in this process and at a port."""

    def __init__(self, good: Specimens) -> None:
        self.good = good
        app = create_app(Viewer.of(load_model(good.model), "tiny"))
        self.client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", ws="none")
        Thread(target=uvicorn.Server(config).run, kwargs={"sockets": [listener]}, daemon=True).start()

    def request(self, rng: Rng, canary: Path) -> str | None:
        """Send a request with damaged path, method, headers or body; return the problem of the answer, if any."""
        path, method = pick(rng, PATHS), pick(rng, ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"))
        headers, body = {"content-type": "application/json"}, b""
        draw = rng.random()
        if draw < 0.6:
            path, method = "/api/predictions", "POST"
            tree = damage_tree(CLICK, rng, str(canary))
            body = json.dumps(tree).encode()
            body = body if rng.random() < 0.8 else pick(rng, (damage_bytes, damage_text))(body, rng)
        elif draw < 0.75:
            headers[pick(rng, ("host", "origin", "content-length", "content-type", "cookie"))] = (
                pick(rng, TOKENS).encode("ascii", "ignore").decode().replace("\0", "")[:8000]
            )
        elif draw < 0.9:
            path += pick(rng, TOKENS)[:2000].replace("\0", "%00")
        answer = self.client.request(method, path, content=body, headers=headers)
        return _judge(answer.status_code, answer.content)

    def upload(self, rng: Rng, canary: Path) -> str | None:
        """Upload damaged files under names with other paths."""
        kind = pick(rng, ("nifti", "dicom", "png"))
        files = {
            "nifti": [self.good.scan],
            "dicom": sorted(self.good.dicom.iterdir()),
            "png": sorted(self.good.png.rglob("crop.png"))[:1],
        }[kind]
        broken = int(rng.integers(len(files)))
        parts = []
        for number, path in enumerate(files):
            content = path.read_bytes()
            name = pick(
                rng, (path.name, f"../../../{path.name}", f"{canary}{path.suffix}", "", "a\0" + path.suffix)
            )
            content = damage_bytes(content, rng) if number == broken else content
            parts.append(("files", (name, io.BytesIO(content))))
        answer = self.client.post("/api/scans", files=parts)
        return _judge(answer.status_code, answer.content)

    def noise(self, rng: Rng, canary: Path) -> str | None:
        """Send bytes that are hardly HTTP, and check that the next client is served."""
        good = (
            b"POST /api/scans HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 120\r\n\r\n--b\r\nContent-Disposition: form-data; name=f; filename="
            + str(canary).encode()
            + b".png\r\n\r\nno picture\r\n--b--\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), WAIT) as connection:
            connection.sendall(pick(rng, (damage_bytes, damage_text))(good, rng))
            if rng.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port), WAIT) as connection:
            connection.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = connection.recv(100)
        if not answer.startswith(b"HTTP/1.1 404"):
            return f"after it, the next client got {answer[:40]!r} in {time.monotonic() - begun:.0f} s"
        return None


def _judge(status: int, content: bytes) -> str | None:
    """Return the problem of an answer, if any. A bug has status 500 or is reported as an unexpected error."""
    if status >= 500:
        return f"status {status}: {content[:200]!r}"
    if b"unexpected error" in content:
        return f"a prediction failed: {content[-200:]!r}"
    if status >= 400 and content and b"message" not in content:
        return f"status {status} without a message: {content[:200]!r}"
    return None


REQUESTS = {"viewer: requests": 9, "viewer: dropped files": 6, "viewer: noise on the socket": 5}
"""Share of the inputs of each kind of request."""
