"""Input from and output to a PACS, for `phiseg predict --dicomweb`."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from phiseg.core.errors import ConfigError, OutputError
from phiseg.imaging.dicomweb import DicomWeb

if TYPE_CHECKING:
    from phiseg.inference.prediction_folder import PredictionFolder


def predict_from_pacs(
    server: DicomWeb, series: str, predict: "Callable[[Path], PredictionFolder | None]", *, store: bool
) -> "PredictionFolder":
    """Fetch a series into a temporary folder, predict it, and optionally store the results in one request.

    Nothing is stored if a case failed.

    Args:
        server: the PACS.
        series: UID of the series.
        predict: predicts the series in a folder.
        store: whether to store the results.
    """
    with TemporaryDirectory(prefix="phiseg-") as folder:
        place = Path(folder) / series
        server.fetch_series(series, place)
        written = predict(place)
    assert written is not None  # there is one process
    if store and not written.failed:
        server.store(_results(written))
    return written


def check_pacs_options(
    *, dicomweb: str | None, series: str | None, store: bool, has_inputs: bool, processes: int, shard: str | None
) -> None:
    """Check the combination of the options of `phiseg predict` for a PACS.

    Raises:
        ConfigError: an option is missing or has no effect.
    """
    if dicomweb is None:
        if store:
            raise ConfigError("--store needs the PACS; give its address with --dicomweb")
        if series is not None and not has_inputs:
            raise ConfigError(
                "--series needs the folder of the series (INPUT), or a PACS; give its address with --dicomweb"
            )
        return
    if series is None:
        raise ConfigError("--dicomweb needs the series to fetch; give its UID with --series")
    if has_inputs:
        raise ConfigError("give either INPUT or --dicomweb, not both")
    if processes > 1 or shard is not None:
        raise ConfigError("--dicomweb predicts one series in one process; omit --devices, --num-nodes and --shard")


def _results(written: "PredictionFolder") -> list[Path]:
    """Return the files of all cases to store."""
    from phiseg.inference.dicom_results import stored_files

    files = []
    for case in written.cases:
        found = stored_files(written.path / case)
        if not found:
            raise OutputError(f"{written.path / case} has no DICOM results; nothing was stored (see its warnings)")
        files += found
    return files
