"""The images of the server, by id. Requests never determine paths: an id is only looked up."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

from phiseg.core.errors import DataError
from phiseg.imaging.dicom import read_folder
from phiseg.imaging.itk_files import WRITABLE
from phiseg.imaging.volume import Volume
from phiseg.imaging.volume_files import write_volume
from phiseg.inference.prediction import Prediction
from phiseg.inference.prepared_stack import PreparedStack, open_scan
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.scans import Scan, ScanFile, find_scans, read_scan

MAX_CACHED = 1 << 28
"""Maximum size in bytes of the predictions of a scan that are kept."""


class ImageSource(Protocol):
    """Where images come from."""

    def ids(self) -> Sequence[str]:
        """Return the ids of all images."""
        ...

    def file_name(self, image_id: str) -> str:
        """Return the name under which an image is sent; the image exists."""
        ...

    def find(self, image_id: str) -> ScanFile | None:
        """Return an image on disk, or None if the id is unknown."""
        ...

    def close(self) -> None:
        """Delete temporary files."""
        ...


class FolderImages:
    """The scans in a folder. The id of a DICOM series is its UID, and that of a file its name without suffix.

    Args:
        scans: scans of the folder, from `find_scans`.
    """

    def __init__(self, scans: Sequence[ScanFile] = ()) -> None:
        self._by_id = {_image_id(scan): scan for scan in scans}
        self._by_name = {scan.name: scan for scan in scans}

    @classmethod
    def of(cls, folder: Path) -> tuple["FolderImages", list[str]]:
        """Return the images of a folder, and a note for each skipped folder.

        Raises:
            DataError: there are no scans.
        """
        scans, notes = find_scans([folder])
        return cls(scans), notes

    def ids(self) -> Sequence[str]:
        """Return the ids of all images, in the order of their names."""
        return list(self._by_id)

    def file_name(self, image_id: str) -> str:
        """Return the name under which an image is sent."""
        return download_name(self._by_id[image_id])

    def find(self, image_id: str) -> ScanFile | None:
        """Return an image by its id or name."""
        return self._by_id.get(image_id) or self._by_name.get(image_id)

    def close(self) -> None:
        """Do nothing: there are no temporary files."""


def _image_id(scan: ScanFile) -> str:
    if scan.kind != "dicom":
        return scan.name
    if scan.series_uid is not None:
        return scan.series_uid
    files = sorted(path for path in scan.path.iterdir() if path.is_file() and not path.name.startswith("."))
    for path in files:
        for series in read_folder([path]).series:
            if series.slices:
                return series.uid
    return scan.name


def download_name(scan: ScanFile) -> str:
    """Return the name under which an image is sent."""
    return scan.path.name if _is_sent_unchanged(scan) else f"{scan.name}.nii.gz"


def write_download(scan: ScanFile, folder: Path) -> Path:
    """Return a single file with an image: the image itself, or a NIfTI file written to a folder.

    Raises:
        DataError: the image cannot be read.
    """
    if _is_sent_unchanged(scan):
        return scan.path
    volume = read_scan(scan, channels=None, plane=None).volume
    file = folder / "image.nii.gz"
    write_volume(file, Volume(volume.values[..., 0], volume.affine))
    return file


def _is_sent_unchanged(scan: ScanFile) -> bool:
    return scan.kind == "nifti" or (scan.kind == "itk" and scan.path.suffix.lower() in WRITABLE)


@dataclass(eq=False)
class OpenImage:
    """An image in memory, prepared for one model, with its latest predictions."""

    scan: Scan
    stack: PreparedStack
    predictions: OrderedDict[object, Prediction] = field(default_factory=OrderedDict)

    def keep(self, key: object, prediction: Prediction) -> None:
        """Keep a prediction, and drop the oldest ones if they need too much memory."""
        self.predictions[key] = prediction
        while len(self.predictions) > 1 and sum(map(_bytes, self.predictions.values())) > MAX_CACHED:
            self.predictions.popitem(last=False)


def _bytes(prediction: Prediction) -> int:
    return prediction.labels.nbytes + prediction.mean_probs.nbytes + prediction.mean_log_probs.nbytes


class OpenImages:
    """Images in memory. The least recently used image is dropped if there are too many.

    Args:
        max_images: maximum number of images.
        max_bytes: maximum size of their voxels in bytes.
    """

    def __init__(self, *, max_images: int, max_bytes: int) -> None:
        self.max_images, self.max_bytes = max_images, max_bytes
        self._open: OrderedDict[tuple[Path, str], OpenImage] = OrderedDict()
        self._lock = Lock()

    def get(self, file: ScanFile, model: str, preprocessing: Preprocessing) -> OpenImage:
        """Return an image that is prepared for a model, reading it if necessary.

        Raises:
            DataError: the image cannot be read, or does not match the model.
        """
        key = (file.path, model)
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return self._open[key]
        try:
            image = OpenImage(*open_scan(file, preprocessing))
        except DataError as error:
            raise DataError(str(error).replace(str(file.path), file.name)) from None
        with self._lock:
            self._open[key] = image
            while len(self._open) > 1 and (len(self._open) > self.max_images or self._bytes() > self.max_bytes):
                self._open.popitem(last=False)
        return image

    def forget(self, path: Path) -> None:
        """Drop an image that was deleted."""
        with self._lock:
            for key in [key for key in self._open if key[0] == path]:
                del self._open[key]

    def _bytes(self) -> int:
        return sum(image.stack.volume.values.nbytes for image in self._open.values())
