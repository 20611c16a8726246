"""Fetch a series from a PACS and store results there by DICOMweb. Needs the optional package dicomweb-client.

QIDO-RS finds the study of a series, WADO-RS fetches its images, and STOW-RS stores results. Errors name the host
and the HTTP status, and never contain credentials. Importing this module is fast.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from phiseg.core.errors import ConfigError, DataError, OutputError, PhisegError

USER, PASSWORD, TOKEN = "PHISEG_DICOMWEB_USER", "PHISEG_DICOMWEB_PASSWORD", "PHISEG_DICOMWEB_TOKEN"
WAITS_S = (1.0, 2.0, 4.0)
"""Waiting times before a request is repeated after a transient failure."""
TRANSIENT = {429, 500, 502, 503, 504}
"""HTTP statuses after which the same request may succeed."""
_CONNECT_S = 10.0
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_CHUNK = 10**6
"""Bytes that are read at once."""
_ONE_MESSAGE = 2**40
"""Chunk size that is never reached: a message in chunks could not be sent again."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Credentials:
    """User and password, or a bearer token. The representation omits the secrets."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raise a ConfigError unless the combination is valid."""
        if (self.user is None) != (self.password is None) or (self.user is not None and self.token is not None):
            raise ConfigError(
                f"the credentials of the PACS are incomplete or ambiguous; give a user and a password ({USER} and "
                f"{PASSWORD}), or a token ({TOKEN})"
            )

    @classmethod
    def find(cls, file: Path | None = None, *, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the credentials of a JSON file or, without one, of environment variables; they may be empty.

        Args:
            file: JSON file with `user` and `password`, or with `token`.
            environment: environment variables.

        Raises:
            ConfigError: the file cannot be read, or the credentials are incomplete.
        """
        if file is None:
            return cls(*(environment.get(name) or None for name in (USER, PASSWORD, TOKEN)))
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            if not stored or not all(isinstance(value, str) for value in stored.values()):
                raise ValueError
            return cls(**stored)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}; check the name") from None
        except (ValueError, TypeError, AttributeError, RecursionError):  # no part of the file may be shown
            raise ConfigError(
                f'{file} has no credentials; write {{"user": "...", "password": "..."}} or {{"token": "..."}}'
            ) from None


class DicomWeb:
    """A PACS that speaks DICOMweb."""

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Check the arguments; nothing is sent yet.

        Args:
            url: address of the DICOMweb service, such as https://pacs.example.org/dicom-web.
            credentials: credentials; by default those of the environment variables.
            ca_file: PEM file with the certificates to verify the server with; by default those of the system.
            timeout_s: longest time without an answer, in seconds.

        Raises:
            ConfigError: an argument is invalid, or dicomweb-client is not installed.
        """
        self.host = _check_url(url)
        credentials = credentials if credentials is not None else Credentials.find()
        if not url.startswith("https:") and self.host not in _LOOPBACK and credentials != Credentials():
            raise ConfigError(f"credentials would be sent unencrypted to {self.host}; use an https address")
        if ca_file is not None and not ca_file.is_file():
            raise ConfigError(f"{ca_file} does not exist; give a PEM file with certificates")
        if not timeout_s > 0:
            raise ConfigError(f"the time-out is {timeout_s} s; it must be positive")
        self._timeout_s = timeout_s
        self._client = _make_client(url.rstrip("/"), credentials, ca_file, (_CONNECT_S, timeout_s))

    def list_series(self, *, limit: int) -> dict[str, str]:
        """Return the modality of each series by its UID.

        Args:
            limit: maximum number of series.

        Raises:
            DataError: the PACS cannot be reached.
        """

        def search() -> dict[str, str]:
            found = self._client.search_for_series(limit=limit)
            return {str(one["0020000E"]["Value"][0]): _text(one, "00080060") for one in found}

        return self._try("cannot list the series", DataError, search)

    def fetch_series(self, series_uid: str, folder: Path) -> None:
        """Fetch all images of a series into a new folder.

        File names depend only on the images, so that fetching a series twice gives the same folder.

        Raises:
            ConfigError: the UID is invalid.
            DataError: the PACS has no such series, cannot be reached or sends an incomplete series.
        """
        if not re.fullmatch(r"[0-9.]{1,64}", series_uid):
            raise ConfigError(f"'{series_uid}' is not a series UID: it consists of digits and dots")
        doing = f"cannot fetch series {series_uid}"
        found = self._try(doing, DataError, lambda: self._find(series_uid))
        if found is None:
            raise DataError(f"{self.host} has no series {series_uid}; check the UID")
        study, number = found
        fetched = self._try(doing, DataError, lambda: self._fetch(study, series_uid, folder))
        if fetched < number:
            raise DataError(f"{self.host} sent {fetched} of {number} images of series {series_uid}; try again")

    def store(self, files: Sequence[Path]) -> None:
        """Store DICOM files in one request. Storing the same files again changes nothing.

        Raises:
            OutputError: the PACS cannot be reached, or rejects some of the files.
        """
        from pydicom import dcmread  # here, because importing it takes time

        instances = [dcmread(file) for file in files]
        names = {str(data.SOPInstanceUID): file.name for data, file in zip(instances, files, strict=True)}
        answer = self._try("cannot store the results", OutputError, lambda: self._store(instances))
        failed = [
            f"{names.get(str(item.get('ReferencedSOPInstanceUID')), 'an unknown file')} (reason {_reason(item)})"
            for item in answer.get("FailedSOPSequence", ())
        ]
        if failed:
            raise OutputError(
                f"{self.host} rejected {len(failed)} of {len(files)} files: {', '.join(failed)}; the others may be "
                "stored. Run the command again to send all of them, which does not duplicate any"
            )

    def _find(self, series_uid: str) -> tuple[str, int] | None:
        """Return the study of a series and the number of its images (1 if the PACS does not state it)."""
        found = self._client.search_for_series(
            search_filters={"SeriesInstanceUID": series_uid}, fields=["NumberOfSeriesRelatedInstances"]
        )
        if not found:
            return None
        numbers = found[0].get("00201209", {}).get("Value", [1])
        return str(found[0]["0020000D"]["Value"][0]), int(numbers[0])

    def _fetch(self, study: str, series_uid: str, folder: Path) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        names = set()
        for data in self._client.iter_series(study, series_uid):
            name = hashlib.sha256(str(data.SOPInstanceUID).encode()).hexdigest()[:32]  # safe in any file system
            data.save_as(folder / f"{name}.dcm", enforce_file_format=True)
            names.add(name)
        return len(names)

    def _store(self, instances: Sequence[Any]) -> Any:
        self._client.set_chunk_size(_ONE_MESSAGE)
        try:
            return self._client.store_instances(instances)
        finally:
            self._client.set_chunk_size(_CHUNK)

    def _try(self, doing: str, kind: type[PhisegError], request: Callable[[], Result]) -> Result:
        """Send a request, and repeat it after transient failures.

        Args:
            doing: what fails, for the error.
            kind: class of the error.
            request: sends the request and returns its result.
        """
        for wait in (*WAITS_S, None):
            try:
                return request()
            except OSError as error:  # requests raises subclasses of it
                reason, transient = _explain(error, self._timeout_s)
                if not transient or wait is None:
                    raise kind(f"{doing}: {self.host}: {reason}") from None  # the cause may contain credentials
                time.sleep(wait)
            except Exception as error:  # damaged answers raise all kinds of exceptions
                raise kind(
                    f"{doing}: {self.host}: invalid answer ({type(error).__name__}); check that this is the "
                    "address of a DICOMweb service"
                ) from None
        raise AssertionError("unreachable")


def _text(item: Mapping[str, Any], tag: str) -> str:
    """Return a value of an answer, or an empty text if it is absent."""
    return str((item.get(tag, {}).get("Value") or [""])[0])


def _check_url(url: str) -> str:
    """Return the host of an address, or raise a ConfigError that does not repeat a password in it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        valid = parts.scheme in ("http", "https") and host and not parts.query and not parts.fragment
        valid = valid and parts.port != 0
    except ValueError:
        valid, parts, host = False, urlsplit(""), None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"the address of the PACS contains credentials; set {USER} and {PASSWORD} instead")
    if not valid or not host:
        raise ConfigError(
            "the address of the PACS is not valid; write, for example, https://pacs.example.org/dicom-web"
        )
    return host


def _make_client(url: str, credentials: Credentials, ca_file: Path | None, timeout: tuple[float, float]) -> Any:
    try:
        import requests
        from dicomweb_client.web import DICOMwebClient
    except ImportError:
        raise ConfigError(
            "a PACS needs the package dicomweb-client; install it: pip install 'phiseg[dicomweb]'"
        ) from None

    class Verified(requests.adapters.HTTPAdapter):
        """Verifies servers with our certificates, also if environment variables name others."""

        def send(self, *args: Any, **options: Any) -> Any:
            return super().send(*args, **(options | {"verify": str(ca_file) if ca_file else True}))

    def authorise(request: Any) -> Any:
        if credentials.token is not None:
            request.headers["Authorization"] = f"Bearer {credentials.token}"
        return request

    session = requests.Session()
    if ca_file is not None:
        session.mount("https://", Verified())
    session.auth = authorise  # even without a token, so that ~/.netrc is not used
    if credentials.user is not None and credentials.password is not None:
        session.auth = (credentials.user, credentials.password)
    client = DICOMwebClient(url, session=session, timeout=timeout)
    client.set_http_retry_params(retry=False)
    return client


def _explain(error: OSError, timeout_s: float) -> tuple[str, bool]:
    """Return why a request failed and how to fix it, and whether this may be transient."""
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        status = error.response.status_code
        phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "unknown"
        advice = {
            401: f"; check {USER} and {PASSWORD}, {TOKEN} or --credentials",
            403: "; check the permissions of the user",
            404: "; check the address, which often ends in /dicom-web",
        }
        return f"HTTP status {status} ({phrase}){advice.get(status, '')}", status in TRANSIENT
    if isinstance(error, exceptions.SSLError):
        return "its certificate cannot be verified; give that of its authority with --ca-file", False
    if isinstance(error, exceptions.Timeout):
        return f"no answer within {timeout_s:g} s", True
    if isinstance(error, exceptions.ConnectionError | exceptions.ChunkedEncodingError):
        return "the connection failed; check the address and the network", True
    if isinstance(error, exceptions.RequestException):
        return f"the request failed ({type(error).__name__}); check the address", False
    return f"{error.strerror or type(error).__name__}; check the disk", False


def _reason(item: Any) -> str:
    """Return the failure reason of an instance as in the standard, such as 0x0110."""
    return f"0x{int(item.get('FailureReason') or 0):04X}"
