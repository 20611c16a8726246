"""DICOMweb: addresses, credentials, and servers that fail."""

import json
import logging
import shutil
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import pydicom
import pytest

from helpers.dicom_slices import write_scan
from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.imaging import dicomweb
from phiseg.imaging.dicomweb import PASSWORD, TOKEN, USER, Credentials, DicomWeb

pytest.importorskip("dicomweb_client", reason="a PACS needs dicomweb-client")

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Do not wait before a request is repeated, and know no credentials."""
    monkeypatch.setattr(dicomweb, "WAITS_S", (0.0, 0.0))
    for name in (USER, PASSWORD, TOKEN):
        monkeypatch.delenv(name, raising=False)


class FakePacs(ThreadingHTTPServer):
    """Gives the listed answers in order, the last one repeatedly."""

    def __init__(self, *answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests = list(answers), []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/dicom-web"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """Print no traceback when a client hangs up."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization")))
        answers = self.server.answers
        status, kind, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == "silent":
            body.wait(20)
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        missing = 10 if status == 206 else 0  # the connection ends too early
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.do_GET()


def failing(status):
    return status, "text/plain", b"no"


def listing(number=2):
    series = {"0020000D": {"vr": "UI", "Value": ["1.2.4"]}, "00201209": {"vr": "IS", "Value": [number]}}
    return 200, "application/dicom+json", json.dumps([series]).encode()


def images(folder, status=200):
    """Return the slices in a folder as a multipart message."""
    parts = b"".join(
        b"\r\n--x\r\nContent-Type: application/dicom\r\n\r\n" + file.read_bytes() for file in folder.iterdir()
    )
    return status, 'multipart/related; type="application/dicom"; boundary=x', parts + b"\r\n--x--"


@pytest.fixture
def scan(tmp_path):
    write_scan(tmp_path / "scan", depths=range(2))
    return tmp_path / "scan"


def test_fetch_writes_all_images_under_stable_names(scan, tmp_path):
    for name in ("a", "b"):
        with FakePacs(listing(), images(scan)) as pacs:
            DicomWeb(pacs.url + "/").fetch_series("1.2.3", tmp_path / name)
    assert [path for _, path, _ in pacs.requests] == [
        "/dicom-web/series?SeriesInstanceUID=1.2.3&includefield=NumberOfSeriesRelatedInstances",
        "/dicom-web/studies/1.2.4/series/1.2.3",
    ]
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b"))
    assert first == second
    read = {str(pydicom.dcmread(BytesIO(content)).SOPInstanceUID) for content in first.values()}
    assert read == {"1.2.3.1", "1.2.3.2"}


@pytest.mark.parametrize("status", [500, 503, 429])
def test_transient_failures_are_repeated(scan, tmp_path, status):
    with FakePacs(failing(status), listing(), failing(status), images(scan)) as pacs:
        DicomWeb(pacs.url).fetch_series("1.2.3", tmp_path / "in")
    assert len(list((tmp_path / "in").iterdir())) == 2
    assert len(pacs.requests) == 4


def test_broken_transfer_is_repeated(scan, tmp_path):
    with FakePacs(listing(), images(scan, status=206), images(scan)) as pacs:
        DicomWeb(pacs.url).fetch_series("1.2.3", tmp_path / "in")
    assert len(list((tmp_path / "in").iterdir())) == 2
    assert len(pacs.requests) == 3


@pytest.mark.parametrize(
    ("status", "number", "message"),
    [
        (401, 1, r"127\.0\.0\.1: HTTP status 401 \(Unauthorized\); check PHISEG_DICOMWEB_USER"),
        (403, 1, r"HTTP status 403 \(Forbidden\); check the permissions"),
        (404, 1, r"HTTP status 404 \(Not Found\); check the address"),
        (500, 3, r"cannot fetch series 1\.2\.3: 127\.0\.0\.1: HTTP status 500 \(Internal Server Error\)"),
    ],
)
def test_final_failures_are_reported(tmp_path, monkeypatch, caplog, status, number, message):
    monkeypatch.setenv(USER, "alice")
    monkeypatch.setenv(PASSWORD, SECRET)
    caplog.set_level(logging.DEBUG)
    with FakePacs(failing(status)) as pacs, pytest.raises(DataError, match=message) as error:
        DicomWeb(pacs.url).fetch_series("1.2.3", tmp_path / "in")
    assert len(pacs.requests) == number
    assert pacs.requests[0][2] == "Basic YWxpY2U6aHVudGVyMg=="
    assert error.value.__cause__ is None
    assert SECRET not in str(error.value) + caplog.text
    assert "YWxpY2U6aHVudGVyMg" not in caplog.text


def test_silent_server_times_out(tmp_path):
    done = threading.Event()
    with FakePacs(("silent", "", done)) as pacs:
        with pytest.raises(DataError, match=r"no answer within 0\.2 s"):
            DicomWeb(pacs.url, timeout_s=0.2).fetch_series("1.2.3", tmp_path / "in")
        done.set()
    assert len(pacs.requests) == 3


def test_closed_port_is_reported(tmp_path):
    with FakePacs(listing()) as pacs:
        url = pacs.url
    with pytest.raises(DataError, match=r"127\.0\.0\.1: the connection failed; check the address"):
        DicomWeb(url).fetch_series("1.2.3", tmp_path / "in")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([(200, "application/dicom+json", b"[]")], r"has no series 1\.2\.3"),
        ([(200, "application/dicom+json", b"[{}]")], r"invalid answer \(KeyError\)"),
        ([(200, "text/html", b"<html>")], r"JSONDecodeError"),
        ([listing(), (200, "text/html", b"<html>")], r"invalid answer \(ValueError\)"),
    ],
)
def test_unexpected_answers_are_reported(tmp_path, answers, message):
    with FakePacs(*answers) as pacs, pytest.raises(DataError, match=message):
        DicomWeb(pacs.url).fetch_series("1.2.3", tmp_path / "in")


@pytest.mark.parametrize("content", [b"<html>no DICOM</html>", b"", b"\0" * 128 + b"DICM\x02\x00\x10\x00UI\x14"])
def test_images_that_are_not_dicom_are_reported(tmp_path, content):
    (tmp_path / "scan").mkdir()
    (tmp_path / "scan" / "0.dcm").write_bytes(content)
    message = r"cannot fetch series 1\.2\.3: 127\.0\.0\.1: invalid answer \(\w+\)"
    with FakePacs(listing(1), images(tmp_path / "scan")) as pacs, pytest.raises(DataError, match=message):
        DicomWeb(pacs.url).fetch_series("1.2.3", tmp_path / "in")


@pytest.mark.parametrize("error", [EOFError, NotImplementedError, RecursionError])
def test_any_error_of_an_answer_is_reported(tmp_path, monkeypatch, error):
    pacs = DicomWeb("http://127.0.0.1:1")

    def find(*_):
        raise error

    monkeypatch.setattr(pacs, "_find", find)
    with pytest.raises(DataError, match=rf"invalid answer \({error.__name__}\)"):
        pacs.fetch_series("1.2.3", tmp_path / "in")


def test_incomplete_series_is_rejected(scan, tmp_path):
    with FakePacs(listing(3), images(scan)) as pacs, pytest.raises(DataError, match="sent 2 of 3 images"):
        DicomWeb(pacs.url).fetch_series("1.2.3", tmp_path / "in")


def test_invalid_series_uid_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="is not a series UID"):
        DicomWeb("http://127.0.0.1/dicom-web").fetch_series("../1", tmp_path / "in")


def stow_answer(failed):
    items = [
        {"00081155": {"vr": "UI", "Value": [uid]}, "00081197": {"vr": "US", "Value": [reason]}}
        for uid, reason in failed.items()
    ]
    content = {"00081198": {"vr": "SQ", "Value": items}}
    return 202 if failed else 200, "application/dicom+json", json.dumps(content).encode()


def test_store_sends_one_request_and_repeats_it_whole(scan):
    with FakePacs(failing(503), stow_answer({})) as pacs:
        DicomWeb(pacs.url).store(sorted(scan.iterdir()))
    assert [(method, path) for method, path, _ in pacs.requests] == [("POST", "/dicom-web/studies")] * 2


def test_partial_store_names_the_rejected_files(scan):
    files = sorted(scan.iterdir())
    uid = str(pydicom.dcmread(files[1]).SOPInstanceUID)
    message = rf"127\.0\.0\.1 rejected 1 of 2 files: {files[1].name} \(reason 0x0110\); the others may be stored"
    with FakePacs(stow_answer({uid: 0x0110})) as pacs, pytest.raises(OutputError, match=message):
        DicomWeb(pacs.url).store(files)
    assert len(pacs.requests) == 1


def test_token_is_sent_as_bearer(scan, monkeypatch):
    monkeypatch.setenv(TOKEN, SECRET)
    with FakePacs(stow_answer({})) as pacs:
        DicomWeb(pacs.url).store(sorted(scan.iterdir()))
    assert pacs.requests[0][2] == f"Bearer {SECRET}"


def test_credentials_come_from_file_or_environment(tmp_path, monkeypatch):
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"user": "bob", "password": SECRET}))
    monkeypatch.setenv(TOKEN, "other")
    assert Credentials.find(file) == Credentials("bob", SECRET)
    assert Credentials.find() == Credentials(token="other")
    assert SECRET not in repr(Credentials.find(file))


@pytest.mark.parametrize(
    "content", [SECRET, '{"user": "bob"}', f'{{"pass": "{SECRET}"}}', "[]", '{"token": 1}', "{}"]
)
def test_invalid_credential_files_are_not_quoted(tmp_path, content):
    file = tmp_path / "credentials.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="credentials") as error:
        Credentials.find(file)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"https://bob:{SECRET}@pacs/dicom-web", "address of the PACS contains credentials"),
        ("pacs.example.org", "address of the PACS is not valid"),
        ("ftp://pacs/dicom-web", "address of the PACS is not valid"),
        (f"https://pacs/dicom-web?key={SECRET}", "address of the PACS is not valid"),
        ("https://pacs:x/", "address of the PACS is not valid"),
    ],
)
def test_invalid_addresses_are_rejected(url, message):
    with pytest.raises(ConfigError, match=message) as error:
        DicomWeb(url)
    assert SECRET not in str(error.value)


def test_credentials_are_not_sent_unencrypted():
    with pytest.raises(ConfigError, match=r"unencrypted to pacs\.example\.org; use an https address"):
        DicomWeb("http://pacs.example.org/dicom-web", credentials=Credentials("bob", SECRET))
    DicomWeb("http://pacs.example.org/dicom-web")


def test_missing_package_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "dicomweb_client.web", None)
    with pytest.raises(ConfigError, match=r"pip install 'phiseg\[dicomweb\]'"):
        DicomWeb("https://pacs.example.org/dicom-web")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl; install it with: apt-get install openssl")
def test_certificate_is_verified_with_the_given_file(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    pacs = FakePacs((200, "application/dicom+json", b"[]"))
    pacs.socket = context.wrap_socket(pacs.socket, server_side=True)
    url = pacs.url.replace("http:", "https:")
    with pacs:
        with pytest.raises(DataError, match=r"its certificate cannot be verified; .*--ca-file"):
            DicomWeb(url).fetch_series("1.2.3", tmp_path / "in")
        assert not pacs.requests
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
        with pytest.raises(DataError, match="has no series"):
            DicomWeb(url, ca_file=certificate).fetch_series("1.2.3", tmp_path / "in")
