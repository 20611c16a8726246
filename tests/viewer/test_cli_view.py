"""`phiseg view`: where it listens, what it says, how it ends."""

import json
import re
import signal
import socket
import subprocess
import urllib.request

import httpx
import pytest
import uvicorn

from helpers.ending_servers import end_after_upload
from helpers.small_viewer import nifti_bytes, random_volume
from phiseg.cli.listening import FIRST_PORT, listen, run_server
from phiseg.cli.view import link_to
from phiseg.core.errors import ConfigError
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_listen_uses_the_next_free_port():
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        ports = [listener.getsockname()[1] for listener in (first, second)]
        assert FIRST_PORT <= ports[0] < ports[1]


def test_listen_rejects_port_in_use(taken):
    with pytest.raises(ConfigError, match=rf"cannot use port {taken} of 127.0.0.1 .*; omit --port"):
        listen("127.0.0.1", taken)


@pytest.mark.parametrize(
    ("host", "port", "cause"),
    [
        ("127.0.0.1", 70000, "--port 70000 is out of range"),
        ("no such host.invalid", None, "is unknown"),
        ("192.0.2.1", None, "cannot listen at 192.0.2.1"),
    ],
)
def test_listen_rejects_invalid_address(host, port, cause):
    with pytest.raises(ConfigError, match=cause):
        listen(host, port)


def test_link_contains_token():
    assert link_to("127.0.0.1", 8760, None) == "http://127.0.0.1:8760/"
    assert link_to("::1", 8760, None) == "http://[::1]:8760/"
    assert link_to("0.0.0.0", 1, "abc") == f"http://{socket.gethostname()}:1/?token=abc"


@pytest.mark.parametrize(
    ("words", "cause"),
    [(["nowhere"], "there is no model folder nowhere"), (["MODEL", "nothing.nii"], "nothing.nii does not exist")],
)
def test_invalid_model_or_scan_gives_one_line_error(cli, trained, words, cause):
    result = cli("view", *(trained() if word == "MODEL" else word for word in words), "--no-browser")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert cause in result.err


@pytest.mark.parametrize(
    ("option", "cause"),
    [
        ("--strict-spacing", "scan has pixels of 0.9 x 0.8 mm, but the model was trained on 5.6 x 5.6 mm"),
        ("--strict-intensity", "scan is rejected by --strict-intensity: only 0.0% of voxels"),
    ],
)
def test_strict_options_reject_the_first_scan(cli, trained, tmp_path, option, cause):
    volume = random_volume()
    write_nifti(tmp_path / "scan.nii.gz", Volume(volume.values + 1000, volume.affine))
    result = cli("view", trained(), tmp_path / "scan.nii.gz", "--no-browser", option)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert cause in result.err


def test_unreadable_scans_are_reported_and_skipped(phiseg, trained, tmp_path):
    (tmp_path / "a.nii.gz").write_bytes(b"not NIfTI")
    write_nifti(tmp_path / "b.nii.gz", random_volume())
    words = phiseg.command("view", trained(), tmp_path, "--no-browser")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            link = process.stdout.readline().split()[1]
            content = httpx.get(f"{link}api/session", timeout=60).json()
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert [scan["name"] for scan in content["scans"]] == ["b"]
    assert [scan["name"] for scan in content["listed"]] == ["a", "b", "synthetic example"]
    assert re.match(r"phiseg: .*a\.nii\.gz cannot be read as NIfTI", errors)


def test_folder_without_readable_scan_gives_one_line_error(cli, trained, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.nii.gz").write_bytes(b"not NIfTI")
    result = cli("view", trained(), tmp_path, "--no-browser")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert re.search(r"cannot read any of the 2 scans; the first: .*a\.nii\.gz cannot be read", result.err)


def test_dataset_of_another_model_gives_one_line_error(cli, trained, zones):
    result = cli("view", trained(), zones, "--no-browser")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "the model has 2 classes" in result.err


def test_view_without_arguments_opens_bundled_model_and_example(phiseg):
    words = phiseg.command("view", "--no-browser")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            link = re.fullmatch(r"viewer: (http://127.0.0.1:\d+/)\n", process.stdout.readline())[1]
            with urllib.request.urlopen(f"{link}api/session", timeout=60) as answer:
                content = json.load(answer)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert content["model"]["name"] == "lidc-nodule"
    assert [scan["id"] for scan in content["listed"]] == ["example"]


def test_view_serves_until_interrupted_and_requires_token(phiseg, trained, lesions):
    words = phiseg.command("view", trained(), lesions, "--no-browser", "--host", "0.0.0.0")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            link = re.fullmatch(r"viewer: (http://\S+\?token=\S{20,})\n", process.stdout.readline())[1]
            session = re.sub(r"//[^:]+(:\d+)/", r"//127.0.0.1\1/api/session", link)
            with urllib.request.urlopen(session, timeout=60) as answer:
                content = json.load(answer)
            first, *_, last = content["listed"]
            assert (first["split"], last["id"]) == ("test", "example")
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.usefixtures("default_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_view_deletes_uploads_on_signal(phiseg, trained, tmp_path, number):
    def upload(output):
        link = output.readline().decode().split()[1]
        files = {"files": ("scan.nii", nifti_bytes(random_volume()))}
        return httpx.post(f"{link}api/scans", files=files, timeout=60)

    end_after_upload(phiseg.command("view", trained(), "--no-browser"), upload, number, tmp_path)


def test_ignored_hangup_stays_ignored(monkeypatch):
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with listen("127.0.0.1", 0) as listener:
            run_server(None, listener)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
