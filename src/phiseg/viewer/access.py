"""Access control of the servers: allowed clients, size limits, and what the browser may load.

Pages of other sites must not access a server through the user's browser. The host is checked against DNS
rebinding, and the origin against cross-site requests.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phiseg.viewer.request_queue import unexpected

MAX_BODY = 1 << 16
"""Maximum size in bytes of a request that is not an upload."""
MAX_PAUSE = 60.0
"""Maximum time in seconds without data while a client sends a request."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_log = logging.getLogger(__name__)


class AccessControl:
    """Middleware that checks every request before the server.

    Args:
        app: server.
        token: token required from every request, if other machines can reach the server; None accepts localhost
            only.
        is_upload: returns whether a request may upload files, from its method and path.
        max_upload: maximum size of an upload in bytes.
        origins: other sites whose pages may send requests, such as http://localhost:3000.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        is_upload: Callable[[str, str], bool],
        max_upload: int,
        origins: Collection[str] = (),
    ) -> None:
        self.app, self.token, self.origins = app, token, origins
        self.is_upload, self.max_upload = is_upload, max_upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        limit = self.max_upload if self.is_upload(scope["method"], scope["path"]) else MAX_BODY
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if self.token and request.query_params.get("token") == self.token:
                    cookie = f"{_cookie(scope)}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("Set-Cookie", cookie)
            await send(message)

        refusal = self._refusal(request, limit)
        if refusal is not None:
            status, reason = refusal
            await JSONResponse({"message": reason}, status)(scope, receive, send_guarded)
            return
        try:
            await self.app(scope, limited(receive, limit), send_guarded)
        except ClientDisconnect:
            pass  # the client has disconnected
        except Exception as error:  # a bug: one line for the client, the traceback for the terminal
            _log.exception("a request failed")
            if not started:
                await JSONResponse({"message": unexpected(error)}, 500)(scope, receive, send_guarded)

    def _refusal(self, request: HTTPConnection, limit: int) -> tuple[int, str] | None:
        """Return the status and the reason if a request is rejected, otherwise None."""
        host = request.headers.get("host", "")
        if self.token is None and not is_loopback(_name(host)):
            return 421, "this server only accepts requests for localhost"
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host and origin not in self.origins:
            return 403, "requests from other pages are rejected"
        if self.token and not secrets.compare_digest(_given_token(request).encode(), self.token.encode()):
            return 401, "an access token is required; use the address that the command printed"
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > len(str(limit)) or int(length) > limit:
            return 413, _too_large(limit)
        return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _given_token(request: HTTPConnection) -> str:
    kind, _, bearer = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(_cookie(request.scope))
    return request.query_params.get("token") or cookie or (bearer if kind.lower() == "bearer" else "")


def limited(receive: Receive, limit: int) -> Receive:
    """Return a `receive` that fails if the client stops sending, or sends more than the limit."""
    received, complete = 0, False

    async def receive_limited() -> Message:
        nonlocal received, complete
        try:
            async with asyncio.timeout(None if complete else MAX_PAUSE):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"no data arrived for {MAX_PAUSE:g} s; send the request again") from None
        complete = not message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return receive_limited


def _too_large(limit: int) -> str:
    size = f"{limit >> 20} MB" if limit >> 20 else f"{limit >> 10} KB"
    return f"uploads are limited to {size}; pass the file to the command instead of uploading it"


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _cookie(scope: Scope) -> str:
    """Return the name of the cookie with the token, which contains the port because all ports share cookies."""
    _, port = scope.get("server") or ("", None)
    return f"phiseg-{port}"
