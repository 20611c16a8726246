"""A server with a NIfTI file and a DICOM series."""

from types import SimpleNamespace

import pytest

from helpers.dicom_slices import write_scan
from helpers.label_server import UID, client_of, make_server
from helpers.small_viewer import make_model, random_volume
from phiseg.imaging.nifti_files import write_nifti


@pytest.fixture(scope="session")
def studies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    write_nifti(folder / "scan.nii.gz", random_volume())
    write_scan(folder / "series", uid=UID)
    return folder


@pytest.fixture(scope="session")
def served(studies):
    """A server with a lesion-crop model and a whole-slice model, for tests that do not change it."""
    models = {
        "tiny": make_model(),
        "whole": make_model(centred_on=None, classes=("background", "inner", "outer")),
        "ct": make_model(low=-1000, high=3000),
    }
    server = make_server(studies, models=models)
    return SimpleNamespace(server=server, client=client_of(server), models=models)
