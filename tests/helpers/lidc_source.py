"""A miniature of LIDC-IDRI as the archive ships it, written by pydicom and by hand."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pydicom
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

AXIAL = (1, 0, 0, 0, 1, 0)


def disc(row, column, radius):
    """The pixels of a square outline: everything within `radius` is inside."""
    reach = radius + 1
    steps = range(-reach, reach + 1)
    return [
        *((row - reach, column + s) for s in steps),
        *((row + s, column + reach) for s in steps[1:]),
        *((row + reach, column - s) for s in steps[1:]),
        *((row - s, column - reach) for s in steps[1:-1]),
    ]


@dataclass
class LidcSource:
    """Writes patients into a folder; a reader's session is a list of nodules, each {z: points}."""

    root: Path
    patients: list[str] = field(default_factory=list)

    def series_uid(self, patient):
        return f"1.2.3.{sum(patient.encode())}.{len(patient)}"

    def folder(self, patient):
        return self.root / patient / "study" / "series"

    def dicom(
        self, path, *, patient, z, instance=1, uid=None, sop=None, modality="CT", orientation=AXIAL, **changes
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        data = pydicom.Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.SOPClassUID = CTImageStorage
        data.SOPInstanceUID = sop or self.sop_uid(patient, z)
        data.SeriesInstanceUID = uid or self.series_uid(patient)
        data.PatientID, data.Modality = patient, modality
        data.ImagePositionPatient, data.ImageOrientationPatient = [0, 0, z], list(orientation)
        data.PixelSpacing, data.SliceThickness, data.InstanceNumber = [0.7, 0.7], 2.5, instance
        data.Rows = data.Columns = 64
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.BitsAllocated = data.BitsStored = 16
        data.HighBit, data.PixelRepresentation = 15, 0
        data.RescaleSlope, data.RescaleIntercept = 2, -1000
        data.PixelData = self.pixels(z).tobytes()
        for name, value in changes.items():
            if value is None:
                delattr(data, name)
            else:
                setattr(data, name, value)
        data.save_as(path, enforce_file_format=True)

    def sop_uid(self, patient, z):
        return f"{self.series_uid(patient)}.{round((z + 1000) * 10)}"

    def pixels(self, z):
        rows, columns = np.mgrid[:64, :64]
        return (rows + 10 * columns + int(abs(z))).astype(np.uint16)

    def xml(self, path, sessions, *, patient, uid=None, root="LidcReadMessage", z_offset=0.0, sop="image"):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = [f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="http://www.nih.gov"><ResponseHeader>']
        text.append(
            f"<SeriesInstanceUid>{escape(uid or self.series_uid(patient))}</SeriesInstanceUid></ResponseHeader>"
        )
        for nodules in sessions:
            text.append("<readingSession>")
            for number, nodule in enumerate(nodules):
                text.append(f"<unblindedReadNodule><noduleID>{number}</noduleID>")
                for z, points in nodule.items():
                    name = self.sop_uid(patient, z) if sop == "image" else sop
                    edges = "".join(
                        f"<edgeMap><xCoord>{c}</xCoord><yCoord>{r}</yCoord></edgeMap>" for r, c in points
                    )
                    text.append(
                        f"<roi><imageZposition>{z + z_offset}</imageZposition><imageSOP_UID>{name}</imageSOP_UID>"
                        f"<inclusion>TRUE</inclusion>{edges}</roi>"
                    )
                text.append("</unblindedReadNodule>")
            text.append("</readingSession>")
        path.write_text("".join(text) + f"</{root}>")

    def patient(self, name, sessions, *, depths=range(0, 25, 5)):
        """Write a whole patient: slices at `depths` mm, and the XML beside them."""
        for number, z in enumerate(depths):
            self.dicom(self.folder(name) / f"{number:06d}.dcm", patient=name, z=z, instance=number)
        self.xml(self.folder(name) / "000.xml", sessions, patient=name)
        self.patients.append(name)
        return self.folder(name)
