"""Read DICOM results with pydicom alone, and validate them with the programs that are installed."""

import shutil
import subprocess

import numpy as np
import pydicom


def read_on_grid(path, series):
    """Place the stored frames by their positions, using only pydicom and the affine: (I, J, K, S)."""
    data = pydicom.dcmread(path)
    frames = data.pixel_array.reshape(-1, data.Rows, data.Columns)
    shared = data.SharedFunctionalGroupsSequence[0]
    to_voxel = np.linalg.inv(series.volume.affine)
    values = np.zeros((*series.volume.grid, len(data.SegmentSequence)), dtype=np.uint8)
    for frame, groups in zip(frames, data.PerFrameFunctionalGroupsSequence, strict=True):
        x, y, z = groups.PlanePositionSequence[0].ImagePositionPatient
        i, j, k = (to_voxel @ (-x, -y, z, 1))[:3]
        np.testing.assert_allclose((i, j, k), (0, 0, round(k)), atol=1e-4)
        number = (groups if "SegmentIdentificationSequence" in groups else shared).SegmentIdentificationSequence[0]
        values[:, :, round(k), number.ReferencedSegmentNumber - 1] = frame.T
    return values


def read_map(path, series):
    """Place the frames of a Parametric Map by their positions: values (I, J, K), NaN where no slice is stored."""
    data = pydicom.dcmread(path)
    frames = np.frombuffer(data.FloatPixelData, dtype="<f4").reshape(-1, data.Rows, data.Columns)
    to_voxel = np.linalg.inv(series.volume.affine)
    values = np.full(series.volume.grid, np.nan, dtype=np.float32)
    for frame, groups in zip(frames, data.PerFrameFunctionalGroupsSequence, strict=True):
        x, y, z = groups.PlanePositionSequence[0].ImagePositionPatient
        i, j, k = (to_voxel @ (-x, -y, z, 1))[:3]
        np.testing.assert_allclose((i, j, k), (0, 0, round(k)), atol=1e-4)
        values[:, :, round(k)] = frame.T
    return values


def validate(path):
    """Check a file with dciodvfy (dicom3tools) and dcmftest (DCMTK), each if it is installed."""
    if shutil.which("dciodvfy"):
        done = subprocess.run(["dciodvfy", "-new", path], capture_output=True, text=True, check=False)
        errors = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("Error")]
        assert errors == []
    if shutil.which("dcmftest"):
        subprocess.run(["dcmftest", path], capture_output=True, check=True)
