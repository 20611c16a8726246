"""Write small DICOM scans of any orientation with pydicom."""

from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

AXIAL = ((1, 0, 0), (0, 1, 0))
CORONAL = ((1, 0, 0), (0, 0, -1))
SAGITTAL = ((0, 1, 0), (0, 0, -1))
OBLIQUE = ((0.8, 0.6, 0), (-0.36, 0.48, 0.8))
"""Directions of increasing column and row index, in LPS."""

ROWS, COLUMNS = 6, 7
SPACING = (0.8, 0.5)
"""Distance between rows and between columns."""
ORIGIN = (-20.5, 11.25, 40.0)


def write_scan(folder, *, directions=AXIAL, distance=2.0, depths=None, skew=(0, 0, 0), uid="1.2.3", **changes):
    """Write slices at multiples `depths` of a distance; file names are not in slice order.

    Each slice is shifted by `skew` millimetres. A change is a value for all slices, or a function of the depth's
    index; None omits the field. The patient ID is the name of the folder. Returns the raw pixels (K, J, I).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    depths = range(5) if depths is None else depths
    pixels = np.random.default_rng(len(depths)).integers(0, 2000, (len(depths), ROWS, COLUMNS), dtype=np.uint16)
    normal = np.cross(*directions)
    for number, depth in enumerate(depths):
        data = pydicom.Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, f"{uid}.{number + 1}"
        data.SeriesInstanceUID, data.StudyInstanceUID, data.FrameOfReferenceUID = uid, "1.2.4", "1.2.5"
        data.PatientID, data.PatientName = folder.name, "Doe^Jane"
        data.PatientBirthDate, data.PatientSex = "19500101", "F"
        data.StudyDate, data.StudyTime, data.StudyID, data.AccessionNumber = "20200101", "120000", "7", "8"
        data.Modality, data.InstanceNumber, data.SliceThickness = "CT", number + 1, 3.0
        position = ORIGIN + depth * (distance * normal + np.array(skew))
        data.ImagePositionPatient = [round(float(value), 9) for value in position]
        data.ImageOrientationPatient = [float(value) for direction in directions for value in direction]
        data.PixelSpacing = list(SPACING)
        data.Rows, data.Columns, data.SamplesPerPixel = ROWS, COLUMNS, 1
        data.PhotometricInterpretation, data.PixelRepresentation = "MONOCHROME2", 0
        data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
        data.RescaleSlope, data.RescaleIntercept = 2, -1000
        data.PixelData = pixels[number].tobytes()
        for name, value in changes.items():
            value = value(number) if callable(value) else value
            if value is None:
                delattr(data, name)
            else:
                setattr(data, name, value)
        data.save_as(folder / file_name(number, uid), enforce_file_format=True)
    return pixels


def file_name(number, uid="1.2.3"):
    return f"{uid}-{number * 7 % 11:02d}.dcm"
