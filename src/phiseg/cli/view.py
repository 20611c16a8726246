"""The command `phiseg view`."""

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError
from phiseg.inference.input_checks import check_inputs

FIRST_PORT = 8760
TRIED_PORTS = 100


@dataclass
class View:
    """Open the viewer: click a lesion in the browser and see plausible segmentations.

    The command serves the page on this machine only, and the page loads nothing from the internet. Drop further
    scans onto the page to open them. Press Ctrl-C to stop the viewer.

    Examples:
        phiseg view
        phiseg view lidc-nodule scan.nii.gz
        phiseg view runs/phiseg data
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL]")] = "lidc-nodule"
    """Model folder, run folder that contains one, name of a bundled model, or hf:owner/name@revision."""
    scans: Annotated[tuple[Path, ...], tyro.conf.Positional, optional("[SCAN...]", "a synthetic example")] = field(
        default=()
    )
    """NIfTI, .mha, .nrrd and PNG files, folders with a DICOM series, folders of these, or a prepared dataset."""
    port: Annotated[int | None, optional("N", "the first free port from 8760")] = None
    """Port of the server."""
    host: Annotated[str, tyro.conf.arg(metavar="H")] = "127.0.0.1"
    """Address to listen on. An address other than the default admits other machines that use the token in the
    printed link."""
    no_browser: Flag = False
    """Print the link without opening a browser."""
    device: str = "auto"
    """Device such as cpu or cuda:1; auto uses a GPU if available."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(View, arguments, prog=prog)
    find_model(Path(command.model))
    if command.scans:
        check_inputs(command.scans)
    import secrets

    import uvicorn

    from phiseg.compute.devices import usable_device
    from phiseg.models import load_model
    from phiseg.viewer.access import is_loopback
    from phiseg.viewer.server import Viewer, create_app

    name = command.model
    listener = listen(command.host, command.port)
    with listener:
        viewer = Viewer.of(load_model(Path(name), device=usable_device(command.device)), Path(name).resolve().name)
        for note in viewer.add(command.scans):
            print(f"phiseg: {note}", file=sys.stderr)
        viewer.session()  # report problems here instead of on the page
        address, port = listener.getsockname()[:2]
        token = None if is_loopback(address) else secrets.token_urlsafe(16)
        link = link_to(command.host, port, token)
        print(f"viewer: {link}\npress Ctrl-C to stop", flush=True)
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
        except KeyboardInterrupt:  # uvicorn shuts down and then raises it again
            print()


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


def link_to(host: str, port: int, token: str | None) -> str:
    """Return the address of the page. An unspecified host is replaced by the name of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _open_browser(link: str) -> None:
    """Open the link without waiting for the browser. The socket is already listening."""
    import webbrowser
    from threading import Thread

    Thread(target=webbrowser.open, args=(link,), daemon=True).start()
