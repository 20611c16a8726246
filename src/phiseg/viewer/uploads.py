"""Uploaded files: written to disk as they arrive, and checked before they are read.

Only the suffix of an untrusted file name is used, and the memory needed by a file is known before it is read.
"""

import gzip
import math
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import pydicom
from PIL import Image
from pydicom.filereader import read_file_meta_info
from pydicom.uid import DeflatedExplicitVRLittleEndian
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from phiseg.core.errors import DataError
from phiseg.imaging import pictures
from phiseg.imaging.itk_files import WRITABLE, stated_bytes
from phiseg.imaging.nifti_files import read_nifti_header

_SUFFIXES = (".nii.gz", ".nii", *pictures.SUFFIXES, *WRITABLE)
_ADVICE = "pass the file to the command instead of uploading it"
_CHUNK = 1 << 20
_MAX_FIELDS = 1 << 16
"""Maximum size in bytes of all form fields that are not files, with their names."""
_MAX_NUMBER = 100
"""Maximum number of these fields."""


@dataclass(frozen=True)
class Upload:
    """An uploaded file."""

    name: str
    """File name given by the user, for display only."""
    path: Path
    field: str = "files"
    """Name of the form field."""


@dataclass(frozen=True)
class SavedForm:
    """A form whose files are on disk."""

    fields: dict[str, str]
    """Values of the fields that are not files."""
    uploads: list[Upload]


async def save_uploads(
    body: AsyncIterator[bytes], content_type: str, folder: Path, *, max_files: int
) -> list[Upload]:
    """Write the files of a form to a folder; see `save_form`."""
    return (await save_form(body, content_type, folder, max_files=max_files)).uploads


async def save_form(body: AsyncIterator[bytes], content_type: str, folder: Path, *, max_files: int) -> SavedForm:
    """Write the files of a form to a folder as they arrive, one open file at a time.

    Args:
        body: body of the request.
        content_type: content type of the request.
        folder: empty folder.
        max_files: maximum number of files.

    Raises:
        DataError: the body is not a form with files, or has too many files, or too many or too long fields.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise DataError("the upload is not a form with files (multipart/form-data); send a file in a form")
    form = _Form(folder, max_files)
    try:
        parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": form.begin,
                "on_header_field": form.header_name,
                "on_header_value": form.header_value,
                "on_header_end": form.header_end,
                "on_headers_finished": form.open,
                "on_part_data": form.write,
                "on_part_end": form.close,
                "on_end": form.end,
            },
        )
        async for chunk in body:
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise DataError(f"the upload cannot be read ({error}); send the files again") from None
    finally:
        form.close()
    if not form.complete:
        raise DataError("the upload is incomplete; send the files again")
    fields = {name: value.decode(errors="replace") for name, value in form.fields.items()}
    return SavedForm(fields, form.uploads)


class _Form:
    """Callbacks of the form parser that write files."""

    def __init__(self, folder: Path, max_files: int) -> None:
        self.folder, self.max_files = folder, max_files
        self.uploads: list[Upload] = []
        self.fields: dict[str, bytearray] = {}
        self.complete = False
        self._num_fields = self._size = 0
        self._field: str | None = None
        self._file: IO[bytes] | None = None
        self._name, self._value = b"", b""
        self._headers: dict[bytes, bytes] = {}

    def begin(self) -> None:
        self._headers = {}

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name, self._value = b"", b""

    def open(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        field = options.get(b"name", b"").decode(errors="replace")
        if b"filename" not in options:
            self._num_fields += 1
            if self._num_fields > _MAX_NUMBER:
                raise DataError(f"more than {_MAX_NUMBER} form fields; send fewer parameters")
            self._field = field
            self.fields[field] = bytearray()
            self._count(len(field))
            return
        if len(self.uploads) == self.max_files:
            raise DataError(f"more than {self.max_files} files; {_ADVICE}")
        name = _shown(options[b"filename"].decode(errors="replace"))
        suffix = next((suffix for suffix in _SUFFIXES if name.lower().endswith(suffix)), ".dcm")
        path = self.folder / f"{len(self.uploads):05d}{suffix}"
        self._file = path.open("xb")
        self.uploads.append(Upload(name, path, field))

    def write(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])
        elif self._field is not None:
            self.fields[self._field] += data[start:end]
            self._count(end - start)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > _MAX_FIELDS:
            raise DataError(f"the form fields are limited to {_MAX_FIELDS >> 10} KB; send fewer parameters")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._field = None

    def end(self) -> None:
        self.complete = True


def check_affordable(uploads: Sequence[Upload], *, max_bytes: int) -> None:
    """Check that the voxels of the files do not exceed the memory limit.

    Raises:
        DataError: they do, or the size of a file cannot be determined safely.
    """
    total = 0
    for upload in uploads:
        if upload.path.name.endswith(".nii.gz"):
            total += read_nifti_header(upload.path, channels=True).values.nbytes  # according to the header
            if total <= max_bytes:
                _check_unpacked(upload, max_bytes)
        elif upload.path.suffix == ".nii":
            total += read_nifti_header(upload.path, channels=True).values.nbytes
        elif upload.path.suffix in WRITABLE:
            total += stated_bytes(upload.path)
        elif upload.path.suffix in pictures.SUFFIXES:
            total += _picture_bytes(upload.path)
        else:
            total += _dicom_bytes(upload)
        if total > max_bytes:
            raise DataError(
                f"{upload.name}: its voxels need more than the available {max_bytes >> 20} MB; {_ADVICE}"
            )


def _check_unpacked(upload: Upload, max_bytes: int) -> None:
    """Reject a compressed file that is larger than the limit when decompressed, regardless of its header."""
    size = 0
    try:
        with gzip.open(upload.path) as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > max_bytes + _CHUNK:
                    raise DataError(f"{upload.name} unpacks to more than {max_bytes >> 20} MB; {_ADVICE}")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{upload.name} is damaged ({error}); copy it again") from None


def _picture_bytes(path: Path) -> int:
    try:
        with Image.open(path, formats=pictures.FORMATS) as image:
            return math.prod(image.size) * len(image.getbands()) * (4 if image.mode in "IF" else 1)
    except Exception:  # a damaged file raises almost anything: let the reader say what is wrong
        return 0


def _dicom_bytes(upload: Upload) -> int:
    """Return the memory needed by a slice as float32; 0 for a file that is not DICOM."""
    try:
        if read_file_meta_info(upload.path).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
            raise DataError(f"{upload.name} is a deflated DICOM file; {_ADVICE}")
        names = ["Rows", "Columns", "NumberOfFrames", "SamplesPerPixel"]
        data = pydicom.dcmread(upload.path, stop_before_pixels=True, specific_tags=list(names))
        counts = [int(data.get(name) or 1) for name in names]
    except DataError:
        raise
    except Exception:  # a damaged file raises almost anything: let the reader say what is wrong
        return 0
    return math.prod(counts) * np.dtype(np.float32).itemsize


def renamed(text: str, uploads: Sequence[Upload]) -> str:
    """Return a message with the file names of the user instead of temporary ones."""
    for upload in uploads:
        text = text.replace(str(upload.path), upload.name).replace(upload.path.name, upload.name)
    for upload in uploads[:1]:
        text = text.replace(str(upload.path.parent), "the upload")
    return text


def _shown(name: str) -> str:
    """Return an untrusted file name for display, without folders and on one line."""
    printable = "".join(character for character in name if character.isprintable())
    return PurePosixPath(printable.replace("\\", "/")).name[-80:] or "unnamed"
