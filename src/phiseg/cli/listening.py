"""Listening on a port, shared by the commands that start a server."""

import signal
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING

from phiseg.core.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

FIRST_PORT = 8760
TRIED_PORTS = 100


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens at a host and port, or at the first free port if none is given.

    Raises:
        ConfigError: this machine does not have the address, or the port is in use.
    """
    if port is not None and not 0 <= port < 1 << 16:
        raise ConfigError(f"--port {port} is out of range; use a number from 1 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ConfigError(f"--host '{host}' is unknown; omit --host or use an address of this machine") from None
    reason = ""
    for number in range(FIRST_PORT, FIRST_PORT + TRIED_PORTS) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], number, *address[2:]))
            listener.listen(100)
            return listener
        except OSError as error:
            listener.close()
            reason = error.strerror or str(error)
    if port is None:
        raise ConfigError(f"cannot listen at {host} ({reason}); omit --host, or choose a free --port")
    raise ConfigError(f"cannot use port {port} of {host} ({reason}); omit --port to use a free one")


def named_host(host: str) -> str:
    """Return a host as part of an address. An unspecified host is replaced by the name of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104
    return f"[{name}]" if ":" in name else name


def run_server(app: "FastAPI", listener: socket.socket) -> None:
    """Serve an application until Ctrl-C, SIGTERM or SIGHUP. The last two raise `SystemExit` for cleaning up.

    An ignored SIGHUP stays ignored, as under `nohup`.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=200,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)

    def stop(number: int, frame: FrameType | None) -> None:
        if server.should_exit:  # uvicorn has shut down and raises the signal again
            sys.exit(128 + number)
        server.handle_exit(number, frame)

    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:  # Windows has no SIGHUP
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn shuts down and then raises it again
        print()
