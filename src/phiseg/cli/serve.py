"""The command `phiseg serve`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import tyro

from phiseg.cli.listening import listen, named_host, run_server
from phiseg.cli.parsing import optional, parse
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError
from phiseg.core.precision import SamplingPrecision
from phiseg.imaging.dicomweb import Credentials, DicomWeb
from phiseg.inference.input_checks import check_inputs


@dataclass
class Serve:
    """Serve models to 3D Slicer and OHIF through their MONAI Label plug-ins.

    Enter the printed address as the server in the plug-in. A lesion-crop model such as lidc-nodule needs a point in
    each lesion (SmartEdit or point prompts); a whole-slice model segments the image without points. The plug-in's
    options select the result: the most probable classes, one sample, the sample at a quantile of the volume, or
    regions at probabilities of 10, 50 and 90 %.

    Only this machine can connect. Uploaded images are kept in a temporary folder for up to an hour. Press Ctrl-C to
    stop the server.

    Examples:
        phiseg serve --studies scans
        phiseg serve lidc-nodule runs/prostate --studies scans --port 8001
        phiseg serve --studies dicom --allow-origin http://localhost:3000
        phiseg serve --dicomweb https://pacs/dicom-web --allow-origin http://localhost:3000
        phiseg serve --studies scans --host 0.0.0.0
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, optional("[MODEL...]", "lidc-nodule")] = (
        "lidc-nodule",
    )
    """Model folders, run folders that contain one, names of bundled models, or hf:owner/name@revision."""
    studies: Annotated[Path | None, optional("FOLDER", "only images that clients upload")] = None
    """Folder with scans that clients can open: NIfTI, .mha, .nrrd and picture files, and DICOM series. OHIF finds a
    series by its UID."""
    dicomweb: Annotated[str | None, optional("URL", "no PACS")] = None
    """Address of a DICOMweb service with the images, instead of --studies. Credentials come from the environment
    variables PHISEG_DICOMWEB_USER and PHISEG_DICOMWEB_PASSWORD, or PHISEG_DICOMWEB_TOKEN."""
    credentials: Annotated[Path | None, optional("FILE", "the environment variables")] = None
    """JSON file with `user` and `password`, or with `token`, for the DICOMweb service."""
    ca_file: Annotated[Path | None, optional("PEM", "the certificates of the system")] = None
    """Certificates to verify the DICOMweb service with."""
    port: int = 8000
    """Port of the server. The default is that of the plug-ins."""
    host: Annotated[str, tyro.conf.arg(metavar="H")] = "127.0.0.1"
    """Address to listen on. An address other than the default admits other machines that use the printed address,
    which contains a token."""
    allow_origin: Annotated[tuple[str, ...], optional("URL...", "none")] = ()
    """Web pages that may use the server, such as the address of OHIF."""
    time_limit: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 600.0
    """Maximum duration of a request in seconds."""
    device: str = "auto"
    """Device such as cpu or cuda:1; auto uses a GPU if available."""
    precision: SamplingPrecision = "float32"
    """Number format of the network. bfloat16 is faster on CPUs with AVX512_BF16 or AMX, and on recent GPUs;
    a few pixels differ."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Serve, arguments, prog=prog)
    for name in command.models:
        find_model(Path(name))
    if command.studies:
        check_inputs([command.studies])
        if command.dicomweb is not None:
            raise ConfigError("give either --studies or --dicomweb, not both")
    pacs = _open_pacs(command)
    origins = [checked_origin(origin) for origin in command.allow_origin]
    if not command.time_limit > 0:
        raise ConfigError(f"--time-limit is {command.time_limit:g}; it must be positive")
    import secrets

    from phiseg.compute.devices import usable_device
    from phiseg.label_server.app import create_app
    from phiseg.label_server.inference_service import LabelServer
    from phiseg.label_server.pacs_images import PacsImages
    from phiseg.label_server.served_images import FolderImages, ImageSource
    from phiseg.models import load_model
    from phiseg.viewer.access import is_loopback

    with listen(command.host, command.port) as listener:
        images: ImageSource = PacsImages(pacs) if pacs else FolderImages()
        if command.studies:
            images, notes = FolderImages.of(command.studies)
            for note in notes:
                print(f"phiseg: {note}", file=sys.stderr)
        device = usable_device(command.device, command.precision)
        networks = [
            (Path(name).resolve().name, load_model(Path(name), device=device, precision=command.precision))
            for name in command.models
        ]
        server = LabelServer.of(networks, images=images, time_limit=command.time_limit)
        address, port = listener.getsockname()[:2]
        token = None if is_loopback(address) else secrets.token_urlsafe(16)
        print(f"models: {', '.join(server.models)}; images: {len(images.ids())}")
        print(f"server: {server_address(command.host, port, token)}\npress Ctrl-C to stop", flush=True)
        try:
            run_server(create_app(server, token=token, origins=origins), listener)
        finally:
            server.close()


def _open_pacs(command: Serve) -> DicomWeb | None:
    if command.dicomweb is None:
        return None
    return DicomWeb(command.dicomweb, credentials=Credentials.find(command.credentials), ca_file=command.ca_file)


def server_address(host: str, port: int, token: str | None) -> str:
    """Return the address to enter in a plug-in."""
    return f"http://{named_host(host)}:{port}/" + (f"{token}/" if token else "")


def checked_origin(origin: str) -> str:
    """Return the origin of a page in the form that browsers send.

    Raises:
        ConfigError: it is not an origin.
    """
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/")
    except ValueError:
        is_origin = False
    if not is_origin or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"--allow-origin '{origin}' is not an address such as http://localhost:3000")
    return f"{parts.scheme}://{parts.netloc}".lower()
