"""The option --dicomweb of `phiseg predict` and `phiseg serve` with a real PACS: Orthanc, on loopback."""

import json
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import numpy as np
import pydicom
import pytest
import requests

from helpers.dicom_checks import read_map, read_on_grid
from helpers.dicom_slices import write_scan
from helpers.label_server import client_of, infer, make_server
from helpers.small_viewer import make_model
from phiseg.core.errors import DataError, OutputError
from phiseg.imaging import dicomweb
from phiseg.imaging.dicomweb import PASSWORD, USER, Credentials, DicomWeb
from phiseg.imaging.nifti_files import read_nifti
from phiseg.imaging.series import read_series
from phiseg.label_server.pacs_images import PacsImages

pytest.importorskip("dicomweb_client", reason="a PACS needs dicomweb-client")

ORTHANC = shutil.which("Orthanc", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
pytestmark = pytest.mark.skipif(
    ORTHANC is None or not PLUGIN.exists(),
    reason="no Orthanc; install it with: apt-get install orthanc orthanc-dicomweb",
)
QUICK = ("--num-samples", "3", "--level-draws", "0", "--device", "cpu")
USERS = {"alice": "correct horse"}


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory):
    """Start a server with an empty store, and return its address."""
    folder = tmp_path_factory.mktemp("orthanc")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "StorageDirectory": str(folder / "store"),
        "IndexDirectory": str(folder / "store"),
        "Plugins": [str(PLUGIN)],
        "HttpPort": port,
        "RemoteAccessAllowed": False,
        "DicomServerEnabled": False,
        "AuthenticationEnabled": True,
        "RegisteredUsers": USERS,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen([ORTHANC, str(folder / "settings.json")], stdout=log, stderr=log)
    try:
        wait_until_open(process, port, folder / "log.txt")
        yield f"http://127.0.0.1:{port}/dicom-web"
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_until_open(process, port, log):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"Orthanc does not start: {log.read_text()}")


@pytest.fixture
def server(orthanc, monkeypatch):
    """Return a client with valid credentials, which are also in the environment."""
    ((user, password),) = USERS.items()
    monkeypatch.setenv(USER, user)
    monkeypatch.setenv(PASSWORD, password)
    return DicomWeb(orthanc)


@pytest.fixture
def model(trained, tmp_path):
    """A copy of the tiny PHiSeg for CT scans of any spacing."""
    folder = Path(shutil.copytree(trained() / "model", tmp_path / "model"))
    values = json.loads((folder / "preprocessing.json").read_text())
    values |= {"spacing_mm": None, "spacing_range_mm": None}
    values |= {"intensity": {"kind": "window", "low": -1000.0, "high": 3000.0}}
    (folder / "preprocessing.json").write_text(json.dumps(values))
    return folder


def query(server, study):
    """Return the modality of each series of a study, from the PACS."""
    found = server._client.search_for_series(study_instance_uid=study)
    return {one["0020000E"]["Value"][0]: one["00080060"]["Value"][0] for one in found}


def test_predict_fetches_series_and_stores_results(server, orthanc, model, cli, tmp_path):
    write_scan(tmp_path / "scan", uid="1.2.31", StudyInstanceUID="1.2.41", PatientID="A/B 1")
    server.store(sorted((tmp_path / "scan").iterdir()))
    words = ("predict", model, "--dicomweb", orthanc, "--series", "1.2.31", "--store")
    result = cli(*words, "--out", tmp_path / "pred", *QUICK)
    assert result.code == 0, result
    assert "and stored on 127.0.0.1; look at" in result.out
    assert USERS["alice"] not in result.out + result.err

    (case,) = [path.parent for path in (tmp_path / "pred").glob("*/summary.json")]
    series = query(server, "1.2.41")
    assert sorted(series.values()) == ["CT", "OT", "OT", "SEG", "SR"]
    for uid, modality in series.items():
        if modality != "CT":
            server.fetch_series(uid, tmp_path / "back" / modality)
    back = {pydicom.dcmread(path).SOPInstanceUID: path for path in (tmp_path / "back").rglob("*.dcm")}
    scan = read_series(tmp_path / "scan")
    labels, mean = (read_nifti(case / f"{name}.nii.gz").values for name in ("labels", "mean"))
    for name in ("regions.seg", "mean.pm", "gamma.pm", "report.sr"):
        sent = pydicom.dcmread(case / f"{name}.dcm")
        returned = back.pop(sent.SOPInstanceUID)
        assert pydicom.dcmread(returned).PatientID == "A/B 1"
        if name == "regions.seg":
            np.testing.assert_array_equal(read_on_grid(returned, scan)[..., 3], labels)
        if name == "mean.pm":
            np.testing.assert_allclose(np.nan_to_num(read_map(returned, scan)), mean, atol=0.5 / 255)
        if name == "report.sr":
            assert pydicom.dcmread(returned).to_json() == sent.to_json()
    assert not back

    again = cli(*words, "--out", tmp_path / "pred", *QUICK)  # finished cases are sent again, without duplicates
    assert again.code == 0, again
    assert "1 of 1 cases are already finished" in again.err
    assert query(server, "1.2.41") == series


def test_fetched_series_equals_stored_series(server, shared_data, tmp_path):
    """Five slices of a real scan."""
    folder = next((shared_data("lidc_dicom") / "LIDC-IDRI-0013").rglob("*.dcm")).parent
    depths = {}
    for file in folder.glob("*.dcm"):
        header = pydicom.dcmread(file, specific_tags=["ImagePositionPatient"], stop_before_pixels=True)
        depths[float(header.ImagePositionPatient[2])] = file
    (tmp_path / "in").mkdir()
    for depth in sorted(depths)[60:65]:
        shutil.copy(depths[depth], tmp_path / "in")
    before = read_series(tmp_path / "in")
    server.store(before.files)
    server.fetch_series(before.uid, tmp_path / "fetched")
    after = read_series(tmp_path / "fetched")
    np.testing.assert_array_equal(after.volume.values, before.volume.values)
    np.testing.assert_array_equal(after.volume.affine, before.volume.affine)


def test_wrong_password_is_reported_without_it(orthanc, tmp_path):
    client = DicomWeb(orthanc, credentials=Credentials("alice", "wrong secret"))
    with pytest.raises(DataError, match=r"127\.0\.0\.1: HTTP status 401 \(Unauthorized\); check PHISEG") as error:
        client.fetch_series("1.2.31", tmp_path / "none")
    assert "wrong" not in str(error.value)


def test_unknown_series_is_reported(server, tmp_path):
    with pytest.raises(DataError, match=r"127\.0\.0\.1 has no series 1\.2\.99; check the UID"):
        server.fetch_series("1.2.99", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@contextmanager
def cut_after(number, address):
    """Yield the address of a proxy that passes on the first bytes of a request and closes the connections."""
    host, port = urlsplit(address).netloc.split(":")
    passed = []

    def pass_on(listener):
        with listener.accept()[0] as client, socket.create_connection((host, int(port))) as target:
            while part := client.recv(min(number - sum(passed), 2**16)):
                target.sendall(part)
                passed.append(len(part))
            target.shutdown(socket.SHUT_WR)
            target.settimeout(10)
            with suppress(OSError):  # until the server has given up, too
                while target.recv(2**16):
                    pass

    with socket.create_server((host, 0)) as listener:
        thread = Thread(target=pass_on, args=(listener,), daemon=True)
        thread.start()
        yield address.replace(f":{port}", f":{listener.getsockname()[1]}")
        thread.join(timeout=60)
        assert (sum(passed), thread.is_alive()) == (number, False)


def test_store_request_that_is_cut_off_leaves_no_instance(server, orthanc, tmp_path, monkeypatch):
    monkeypatch.setattr(dicomweb, "WAITS_S", ())

    def count():
        statistics = orthanc.replace("/dicom-web", "/statistics")
        return requests.get(statistics, auth=next(iter(USERS.items())), timeout=10).json()["CountInstances"]

    write_scan(tmp_path / "scan", uid="1.2.35", StudyInstanceUID="1.2.45")
    files = sorted((tmp_path / "scan").iterdir())
    size = sum(file.stat().st_size for file in files)
    before = count()
    for share in (0.5, 0.95):
        with (
            cut_after(int(share * size), orthanc) as address,
            pytest.raises(OutputError, match=r"cannot store the results: 127\.0\.0\.1: the connection failed"),
        ):
            DicomWeb(address).store(files)
        assert count() == before
    server.store(files)
    assert count() == before + len(files)


def test_serve_segments_series_of_the_pacs(server, tmp_path):
    write_scan(tmp_path / "scan", uid="1.2.33", StudyInstanceUID="1.2.43")
    server.store(sorted((tmp_path / "scan").iterdir()))
    models = {"ct": make_model(low=-1000, high=3000)}
    label_server = make_server(models=models, images=PacsImages(server))
    client = client_of(label_server)
    try:
        assert "1.2.33" in client.get("/datastore/?output=all").json()["objects"]
        params = {"foreground": [[3, 2, 2]], "num_samples": 2}
        answer = infer(client, "ct", image="1.2.33", output="dicom_seg", params=params)
        assert answer.status_code == 200, answer.text
        (tmp_path / "result.dcm").write_bytes(answer.content)
        assert pydicom.dcmread(tmp_path / "result.dcm").ReferencedSeriesSequence[0].SeriesInstanceUID == "1.2.33"
        server.store([tmp_path / "result.dcm"])
        assert sorted(query(server, "1.2.43").values()) == ["CT", "SEG"]
        assert infer(client, "ct", image="1.2.34", params=params).status_code == 400
    finally:
        label_server.close()
