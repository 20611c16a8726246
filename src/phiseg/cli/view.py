"""The command `phiseg view`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.listening import listen, named_host, run_server
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.bundled import find_model
from phiseg.core.precision import SamplingPrecision
from phiseg.inference.input_checks import check_inputs


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
    """NIfTI, .mha, .nrrd and picture files, folders with a DICOM series or of these, or a prepared dataset."""
    port: Annotated[int | None, optional("N", "the first free port from 8760")] = None
    """Port of the server."""
    host: Annotated[str, tyro.conf.arg(metavar="H")] = "127.0.0.1"
    """Address to listen on. An address other than the default admits other machines that use the token in the
    printed link."""
    no_browser: Flag = False
    """Print the link without opening a browser."""
    strict_spacing: Flag = False
    """Reject scans whose pixel spacing, slice distance or slice thickness is outside the range of the training
    images. Without this option, the page shows a warning, and pixels are resampled for the network."""
    strict_intensity: Flag = False
    """Reject scans whose values do not match the window of the model. Without this option, the page shows a
    warning."""
    device: str = "auto"
    """Device such as cpu or cuda:1; auto uses a GPU if available."""
    precision: SamplingPrecision = "float32"
    """Number format of the network. bfloat16 is faster on CPUs with AVX512_BF16 or AMX, and on recent GPUs;
    a few pixels differ."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(View, arguments, prog=prog)
    find_model(Path(command.model))
    if command.scans:
        check_inputs(command.scans)
    import secrets

    from phiseg.compute.devices import keep_freed_memory, usable_device
    from phiseg.models import load_model
    from phiseg.viewer.access import is_loopback
    from phiseg.viewer.server import Viewer, create_app

    keep_freed_memory()
    name = command.model
    listener = listen(command.host, command.port)
    with listener:
        device = usable_device(command.device, command.precision)
        network = load_model(Path(name), device=device, precision=command.precision)
        viewer = Viewer.of(
            network,
            Path(name).resolve().name,
            strict_spacing=command.strict_spacing,
            strict_intensity=command.strict_intensity,
        )
        for note in viewer.add(command.scans):
            print(f"phiseg: {note}", file=sys.stderr)
        _, errors = viewer.open_first()  # report problems here instead of on the page
        for error in errors:
            print(f"phiseg: {error}", file=sys.stderr)
        viewer.warm_up()
        address, port = listener.getsockname()[:2]
        token = None if is_loopback(address) else secrets.token_urlsafe(16)
        link = link_to(command.host, port, token)
        print(f"viewer: {link}\npress Ctrl-C to stop", flush=True)
        if not command.no_browser:
            _open_browser(link)
        run_server(create_app(viewer, token=token), listener)


def link_to(host: str, port: int, token: str | None) -> str:
    """Return the address of the page."""
    return f"http://{named_host(host)}:{port}/" + (f"?token={token}" if token else "")


def _open_browser(link: str) -> None:
    """Open the link without waiting for the browser. The socket is already listening."""
    import webbrowser
    from threading import Thread

    Thread(target=webbrowser.open, args=(link,), daemon=True).start()
