"""What is dropped on the page: scans are shown, and a hostile file gives a message and leaves the server alive."""

import gc
import gzip
import io
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.filebase import DicomBytesIO
from pydicom.uid import DeflatedExplicitVRLittleEndian

from helpers.small_viewer import make_model, nifti_bytes, of_type, random_volume
from phiseg.data.store import Dataset
from phiseg.imaging.volume import to_slices


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def header(data, **fields):
    """Change fields of a NIfTI file's header."""
    places = {"dim": (40, "<8i2"), "pixdim": (76, "<8f4"), "srow_x": (280, "<4f4"), "sform": (254, "<i2")}
    changed = bytearray(data)
    for name, value in fields.items():
        offset, kind = places[name]
        raw = np.array(value, dtype=np.dtype(kind).base).tobytes()
        changed[offset : offset + len(raw)] = raw
    return bytes(changed)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz", "SCAN.NII.GZ"])
def test_nifti_upload_is_sliced(serve, name):
    served, volume = serve(), random_volume()
    data = nifti_bytes(volume)
    info = served.drop((name, gzip.compress(data) if name.lower().endswith(".gz") else data)).json()
    assert (info["name"], info["num_slices"], info["height"], info["width"]) == (name, 5, 22, 20)
    assert info["spacing_mm"] == pytest.approx([2, 0.9, 0.8])
    expected = to_slices(volume, "axial").values
    for number in range(5):
        content = served.client.get(f"/api/scans/{info['id']}/slices/{number}").content
        np.testing.assert_array_equal(np.frombuffer(content, "<f4").reshape(22, 20), expected[number])
    assert served.client.get(f"/api/scans/{info['id']}/slices/5").status_code == 404
    listed = served.client.get("/api/session").json()["listed"]
    assert {"id": info["id"], "name": name, "split": None} in listed


def test_scans_of_other_spacing_are_resampled_with_a_warning(serve):
    served = serve(make_model(spacing_range_mm=[0.4, 0.5]))
    info = served.drop(("scan.nii", nifti_bytes(random_volume()))).json()  # pixels of 0.9 x 0.8 mm
    (warning,) = info["warnings"]
    assert "it is resampled to 0.5 x 0.5 mm" in warning
    assert (info["height"], info["width"]) == (22, 20)
    info = served.drop(("a.png", png(np.arange(216, dtype=np.uint8).reshape(12, 18)))).json()
    assert not any("resampled" in line for line in info["warnings"])


@pytest.mark.parametrize(
    ("strict", "properties", "reason"),
    [
        ("spacing", {"spacing_range_mm": [0.5, 0.6]}, "has pixels of 0.8 x 0.5 mm"),
        ("spacing", {"thickness_range_mm": [1, 1.5]}, "has slices 2 mm apart"),
        ("spacing", {"thickness_range_mm": [1, 2.5]}, "has slices 3 mm thick"),
        ("intensity", {"low": 0, "high": 1}, "is rejected by --strict-intensity: only"),
    ],
)
def test_strict_viewer_rejects_unusual_scans(serve, dicom_files, tmp_path, strict, properties, reason):
    """Dropped or given at the start. Without the option, they are shown with a warning."""
    model = make_model(**{"low": -1000, "high": 3000} | properties)
    info = serve(model).drop(*dicom_files).json()
    assert len(info["warnings"]) == 1
    served = serve(model, tmp_path / "series", strict=strict)
    given, _ = (scan.id for scan in served.viewer.scans.listed())
    for name, response in (
        ("5 DICOM files", served.drop(*dicom_files)),
        ("series", served.client.get(f"/api/scans/{given}")),
    ):
        assert response.status_code == 400
        assert response.json()["message"].startswith(f"{name} {reason}")
    assert served.client.get("/api/scans/example").status_code == 200
    other = "intensity" if strict == "spacing" else "spacing"
    assert serve(model, strict=other).drop(*dicom_files).json()["warnings"] == info["warnings"]


@pytest.mark.parametrize(
    ("properties", "is_usual"),
    [
        ({"spacing_range_mm": [5, 6], "thickness_range_mm": [2, 3]}, True),
        ({"spacing_range_mm": [4, 5]}, False),
        ({"thickness_range_mm": [1, 2]}, False),
    ],
)
def test_strict_viewer_rejects_cases_of_another_spacing(serve, lesions, monkeypatch, properties, is_usual):
    """Pixels of 5.6 mm, as if the slices were 3 mm thick."""
    monkeypatch.setattr(Dataset, "thickness_mm", lambda *_: 3.0)
    model = make_model(**properties)
    for strict in (None, "intensity"):
        info = serve(model, lesions, strict=strict).client.get("/api/scans/case-0").json()
        assert bool(info["warnings"]) != is_usual
    status = serve(model, lesions, strict="spacing").client.get("/api/scans/case-0").status_code
    assert status == (200 if is_usual else 400)


def test_png_and_dicom_series_can_be_uploaded(serve, dicom_files):
    served = serve(make_model(low=-1000, high=3000))
    pixels = np.random.default_rng(0).integers(0, 255, (12, 18), dtype=np.uint8)
    info = served.drop(("a.png", png(pixels))).json()
    assert (info["num_slices"], info["height"], info["width"], info["has_spacing"]) == (1, 12, 18, False)
    size, unit = info["warnings"]
    assert (
        size == "a.png does not state its pixel size; measurements are in pixels, and output images assume 1 x 1 mm"
    )
    assert "but the window of the model starts at -1000" in unit
    (numbers,) = of_type(served.click(info["id"], [0, 6, 9], num_samples=3), "numbers")
    assert (numbers["size_unit"], numbers["length_unit"]) == ("px", "px")
    sizes = numbers["classes"]["lesion"]["size"]["samples"]
    assert all(size == round(size) for size in sizes)
    info = served.drop(*((f"../../folder/{name}", data) for name, data in dicom_files)).json()
    assert (info["name"], info["num_slices"]) == ("5 DICOM files", 5)
    assert of_type(served.click(info["id"], num_samples=2), "done")


def test_same_file_has_same_id(serve):
    data = nifti_bytes(random_volume())
    first, second = (serve().drop((name, data)).json()["id"] for name in ("a.nii", "b.nii"))
    assert first == second


def test_temporary_files_are_removed_with_their_scan(serve, temporary, monkeypatch):
    monkeypatch.setattr("phiseg.viewer.server.MAX_SCANS", 1)
    served = serve()
    for seed in range(3):
        assert served.drop(("a.nii", nifti_bytes(random_volume(seed=seed)))).status_code == 200
        gc.collect()
        assert len(list(temporary.iterdir())) == 1
    assert served.drop(("a.nii", b"nothing")).status_code == 400
    gc.collect()
    assert len(list(temporary.iterdir())) == 1


def deflated(file):
    """A DICOM file whose content is compressed as a whole."""
    data = pydicom.dcmread(io.BytesIO(file))
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    out = DicomBytesIO()
    data.save_as(out, enforce_file_format=True)
    return out.getvalue()


def huge_slice(file):
    data = pydicom.dcmread(io.BytesIO(file))
    data.Rows = data.Columns = 60000
    out = io.BytesIO()
    data.save_as(out, enforce_file_format=True)
    return out.getvalue()


def png_of(side):
    """A PNG that claims to have that many rows and columns, and has none."""

    def chunk(kind, data):
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    start = side.to_bytes(4) * 2 + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


SCAN = nifti_bytes(random_volume())
HOSTILE = {
    "empty": ("scan.nii", b"", "scan.nii cannot be read as NIfTI"),
    "text": ("scan.nii", b"<script>alert(1)</script>" * 50, "scan.nii cannot be read as NIfTI"),
    "claims much": ("scan.nii", header(SCAN, dim=[3, 30000, 30000, 30000, 1, 1, 1, 1]), "are too few for the"),
    "claims much, packed": (
        "scan.nii.gz",
        gzip.compress(header(SCAN, dim=[3, 30000, 30000, 30000, 1, 1, 1, 1])),
        "are too few for the",
    ),
    "bomb": (
        "scan.nii.gz",
        gzip.compress(header(SCAN, dim=[3, 500, 500, 120, 1, 1, 1, 1]) + bytes(1 << 27), 9),
        "its voxels need more than the available 64 MB; pass the file to the command instead",
    ),
    "goes on for long": ("scan.nii.gz", gzip.compress(SCAN + bytes(1 << 27), 9), "unpacks to more than 64 MB"),
    "cut off": ("scan.nii.gz", gzip.compress(SCAN)[:-40], "scan.nii.gz is damaged"),
    "no gzip": ("scan.nii.gz", SCAN, "scan.nii.gz"),
    "no dimensions": ("scan.nii", header(SCAN, dim=[3, 0, -5, 2, 1, 1, 1, 1]), "scan.nii"),
    "no place": ("scan.nii", header(SCAN, srow_x=[np.nan] * 4), "no valid position and spacing"),
    "not finite": ("scan.nii", nifti_bytes(random_volume())[:-400] + b"\xff" * 400, "NaN or infinite voxels"),
    "all the same": ("scan.nii", SCAN[:352] + bytes(len(SCAN) - 352), "every voxel is 0"),
    "no png": ("a.png", b"\x89PNG\r\n\x1a\n nonsense", "a.png cannot be read as a picture"),
    "png bomb": ("a.png", png_of(60_000), "a.png cannot be read as a picture"),
    "large png": ("a.png", png_of(9_000), "a.png: its voxels need more than the available 64 MB"),
    "no dicom": ("notes.txt", b"some text", "notes.txt is not a DICOM file"),
    "no name": ("/", b"", "unnamed"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_gives_message_and_keeps_server_running(served, temporary, monkeypatch, case):
    monkeypatch.setattr(served.viewer.scans, "max_bytes", 64 << 20)
    name, data, cause = HOSTILE[case]
    answer = served.drop((name, data))
    assert answer.status_code == 400
    message = answer.json()["message"]
    assert cause in message
    assert "\n" not in message
    assert str(temporary) not in message
    assert "00000." not in message
    assert not list(temporary.iterdir())
    assert served.client.get("/api/session").status_code == 200


@pytest.mark.parametrize(
    ("change", "cause"),
    [(deflated, "is a deflated DICOM file"), (huge_slice, "its voxels need more than")],
)
def test_dicom_files_larger_than_memory_are_rejected(serve, dicom_files, change, cause):
    name, data = dicom_files[0]
    answer = serve().drop((name, change(data)))
    assert (answer.status_code, answer.json()["message"].startswith(name)) == (400, True)
    assert cause in answer.json()["message"]


def test_values_beyond_32_bits_are_rejected(serve):
    volume = random_volume()
    data = nifti_bytes(type(volume)(volume.values.astype(np.float64) * 1e300, volume.affine))
    assert "beyond the range of 32 bits" in serve().drop(("a.nii", data)).json()["message"]


def test_several_scans_and_none_are_rejected(serve):
    served = serve()
    answer = served.drop(("a.nii", SCAN), ("b.nii", SCAN))
    assert answer.json()["message"] == "the files contain 2 scans; drop one scan only"
    answer = served.client.post("/api/scans", data={"a": "b"}, files={})
    assert answer.status_code == 400
    answer = served.client.post("/api/scans", files={"field": (None, "value")})
    assert "no files were dropped" in answer.json()["message"]


def test_series_of_another_modality_is_rejected(serve, dicom_files):
    answer = serve(make_model(modality="MR")).drop(*dicom_files)
    assert "has modality CT, but the model was trained on MR" in answer.json()["message"]


def test_too_many_files_and_bytes_are_rejected(serve, temporary, monkeypatch):
    monkeypatch.setattr("phiseg.viewer.server.MAX_FILES", 3)
    monkeypatch.setattr("phiseg.viewer.server.MAX_UPLOAD", 50_000)
    served = serve()
    answer = served.drop(*((f"{number}.dcm", b"x") for number in range(4)))
    assert (answer.status_code, "more than 3 files" in answer.json()["message"]) == (400, True)
    assert served.drop(("a.nii", bytes(60_000))).status_code == 413
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("headers", [{}, {"content-length": "10"}], ids=["no length", "a false length"])
def test_size_limit_holds_for_any_content_length(serve, temporary, monkeypatch, headers):
    monkeypatch.setattr("phiseg.viewer.server.MAX_UPLOAD", 50_000)
    served = serve()
    sent = 0

    def body():
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.nii"\r\n\r\n'
        for _ in range(100):
            sent += 10_000
            yield bytes(10_000)
        yield b"\r\n--x--\r\n"

    kind = {"content-type": "multipart/form-data; boundary=x"}
    answer = served.client.post("/api/scans", content=body(), headers=kind | headers)
    assert answer.status_code == 413
    assert "uploads are limited to" in answer.json()["message"]
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("kind", "body", "cause"),
    [
        ("application/json", b"{}", "not a form with files"),
        ("multipart/form-data", b"{}", "not a form with files"),
        ("multipart/form-data; boundary=x", b"nonsense", "cannot be read"),
        ("multipart/form-data; boundary=" + "x" * 500, b"", "cannot be read"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.nii"\r\n\r\nabc',
            "the upload is incomplete",
        ),
        ("multipart/form-data; boundary=x", b"--x\r\nA: " + b"b" * 20_000, "cannot be read"),
    ],
)
def test_damaged_form_gives_message(served, temporary, kind, body, cause):
    answer = served.client.post("/api/scans", content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert cause in answer.json()["message"]
    assert not list(temporary.iterdir())


def fields(*named):
    parts = (f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in named)
    return "".join(parts).encode() + b"--x--\r\n"


@pytest.mark.parametrize(
    ("named", "cause"),
    [
        ([(str(number), "") for number in range(101)], "more than 100 form fields"),
        ([("a", "")] * 101, "more than 100 form fields"),
        ([("a", "b" * (1 << 15))] * 3, "limited to 64 KB"),
        ([("a" * 3000 + str(number), "") for number in range(30)], "limited to 64 KB"),
    ],
    ids=["many", "repeated", "long", "long names"],
)
def test_number_and_size_of_fields_are_limited(served, temporary, named, cause):
    kind = {"content-type": "multipart/form-data; boundary=x"}
    answer = served.client.post("/api/scans", content=fields(*named), headers=kind)
    assert answer.status_code == 400
    assert cause in answer.json()["message"]
    answer = served.client.post("/api/scans", content=fields(*[("a", "b")] * 100), headers=kind)
    assert "no files were dropped" in answer.json()["message"]


def test_untrusted_names_never_become_paths(serve, tmp_path, temporary):
    victim = tmp_path / "victim.nii"
    victim.write_bytes(b"mine")
    served = serve()
    for name in (str(victim), f"../{victim.name}", "..\\victim.nii", "a/../../victim.nii"):
        info = served.drop((name, SCAN)).json()
        assert info["name"] == "victim.nii"
    assert victim.read_bytes() == b"mine"
    assert {path.parent.parent for path in temporary.rglob("*.nii")} == {Path(temporary)}
