"""`phiseg view`."""

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse
from phiseg.core.errors import ConfigError

FIRST_PORT = 8760
TRIED_PORTS = 100


@dataclass
class View:
    """Look at scans in the browser: click, and see what experts would have drawn there.

    The page is served by this command, on this machine and for it alone; nothing is fetched from elsewhere. Further
    scans can be dropped onto it. Ctrl-C ends it.

    Examples: phiseg view; phiseg view lidc-nodule scan.nii.gz; phiseg view runs/phiseg data
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL]")] = "lidc-nodule"
    """A model folder, the run folder around it, or the name of a model that comes with phiseg; by default the one
    for lung nodules."""
    scans: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SCAN...]")] = field(default=())
    """NIfTI files, folders with a DICOM series, PNGs, folders of those, or a prepared dataset; by default a
    synthetic example."""
    port: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """By default the first free one from 8760 on."""
    host: Annotated[str, tyro.conf.arg(metavar="H")] = "127.0.0.1"
    """Another address lets other machines in, with the token in the link that is printed."""
    no_browser: bool = False
    """Only print the link."""
    device: str = "auto"
    """Where to run, e.g. cpu or cuda:1; by default a GPU where there is one."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(View, arguments, prog=prog)
    import secrets

    import uvicorn

    from phiseg.inference.sampling import usable_device
    from phiseg.models import load_model
    from phiseg.viewer.access import is_loopback
    from phiseg.viewer.server import Viewer, create_app

    name = command.model
    listener = listen(command.host, command.port)
    with listener:
        viewer = Viewer.of(load_model(Path(name), device=usable_device(command.device)), Path(name).resolve().name)
        for note in viewer.add(command.scans):
            print(f"phiseg: {note}", file=sys.stderr)
        viewer.session()  # what cannot be shown is said here, not on the page
        address, port = listener.getsockname()[:2]
        token = None if is_loopback(address) else secrets.token_urlsafe(16)
        link = link_to(command.host, port, token)
        print(f"the viewer is at {link}\nCtrl-C ends it", flush=True)
        if not command.no_browser:
            _open_browser(link)
        config = uvicorn.Config(
            create_app(viewer, token=token),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            limit_concurrency=200,
            timeout_graceful_shutdown=1,
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn has ended in order and passes it on
            print()


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens at a host, at the first free port if none is named.

    Raises:
        ConfigError: there is no such address here, or the port is taken.
    """
    if port is not None and not 0 <= port < 1 << 16:
        raise ConfigError(f"there is no port {port}; give a number from 1 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ConfigError(
            f"there is no host '{host}'; leave --host out, or give an address of this machine"
        ) from None
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
        raise ConfigError(f"cannot listen at {host} ({reason}); leave --host out, or name a free --port")
    raise ConfigError(f"port {port} of {host} cannot be used ({reason}); leave --port out to take a free one")


def link_to(host: str, port: int, token: str | None) -> str:
    """Return the address of the page; that of an unspecified host is this machine's name."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _open_browser(link: str) -> None:
    """Open the link without waiting for the browser; the socket listens already."""
    import webbrowser
    from threading import Thread

    Thread(target=webbrowser.open, args=(link,), daemon=True).start()
