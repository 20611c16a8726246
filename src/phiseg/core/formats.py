"""Names and versions of the files that phiseg writes: the keys `format` and `version` in their headers."""

from dataclasses import dataclass
from typing import Any

_PREFIX = "phiseg-"


@dataclass(frozen=True)
class Format:
    """Format of a file.

    >>> MODEL.marker
    {'format': 'phiseg-model', 'version': 1}
    """

    name: str
    version: int = 1
    """Raised when files of the old version can no longer be read in the same way."""
    oldest: int | None = None
    """Oldest version that can still be read; None for the current version only."""

    @property
    def marker(self) -> dict[str, Any]:
        """Keys that a file of this format starts with."""
        return {"format": self.name, "version": self.version}

    def marks(self, values: Any) -> bool:
        """Return whether the content of a file is of this format, in any version."""
        return isinstance(values, dict) and values.get("format") == self.name

    def is_current(self, values: Any) -> bool:
        """Return whether the content of a file is of this format and version."""
        return self.marks(values) and values.get("version") == self.version

    def is_readable(self, values: Any) -> bool:
        """Return whether the content of a file is of this format, in the current version or an old one."""
        return self.marks(values) and values.get("version") in self.readable_versions

    @property
    def readable_versions(self) -> range:
        """Versions that can be read, in ascending order."""
        return range(self.version if self.oldest is None else self.oldest, self.version + 1)


DATASET = Format("phiseg-dataset", version=2, oldest=1)
MODEL = Format("phiseg-model")
CALIBRATION = Format("phiseg-calibration", version=2, oldest=1)
STATE = Format("phiseg-state")
EVALUATION = Format("phiseg-evaluation")
EVALUATION_SHARD = Format("phiseg-evaluation-shard")
PREDICTION = Format("phiseg-prediction", version=2, oldest=1)
BATCH = Format("phiseg-batch", version=2)
SPLIT = Format("phiseg-split")


def is_from_phiseg(values: Any) -> bool:
    """Return whether phiseg wrote a file with this content, in any format."""
    return isinstance(values, dict) and str(values.get("format")).startswith(_PREFIX)
