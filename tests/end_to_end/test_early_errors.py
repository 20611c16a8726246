"""Typing errors are reported before slow imports."""

import json
import subprocess
import sys

import pytest

from phiseg.cli.main import COMMANDS

SLOW = ("torch", "lightning_fabric", "pydicom", "nibabel", "matplotlib")
SCRIPT = """
import contextlib, io, json, sys
from phiseg.cli.main import main

slow, commands = json.loads(sys.argv[1])
found = []
for command in commands:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main(command.split())
    except SystemExit as ended:
        found.append((ended.code, said.getvalue(), [name for name in slow if name in sys.modules]))
print(json.dumps(found))
"""
ERRORS = {
    "train phiseg-smal --data none --out out": "did you mean 'phiseg-small'?",
    "train none.yaml --data none --out out": "cannot read none.yaml: No such file",
    "train unet --data none --out out": "none is not a folder",
    "combine none none --out out": "no model folder none",
    "calibrate none --data none": "no model folder none",
    "evaluate none --data none --out out": "no model folder none",
    "evaluate lidc-nodule --data none --out out": "none is not a folder",
    "sample lidc-nodule --data none --out out": "none is not a folder",
    "score none.npz --data none --out out": "none.npz does not exist",
    "compare none --out out": "none does not exist; give folders written by `phiseg evaluate`",
    "experiment table1 --data none --out out": "none is not a folder",
    "predict none scan.nii.gz --out out": "no model folder none",
    "predict lidc-nodule none.nii.gz --out out": "none.nii.gz does not exist; give a NIfTI, .mha",
    "predict lidc-nodule scan.nii.gz --out out": "give its position in scan.nii.gz: --at x,y,z",
    "predict lidc-nodule . --out out": "give its position in scans: --at x,y,z, or --points CSV for several scans",
    "predict lidc-nodule --series 1.2 --out out": "or a PACS; give its address with --dicomweb",
    "predict lidc-nodule scan.nii.gz --points none.csv --out out": "none.csv does not exist",
    "predict lidc-nodule scan.nii.gz --points scan.nii.gz --out out": "scan.nii.gz has no column case, x, y, z",
    "predict lidc-nodule scan.nii.gz --at 1,2 --out out": "'1,2' is not a point; write x,y,z in voxels",
    "predict lidc-nodule scan.nii.gz --at 1,2,3 --num-samples 0 --out out": "num_samples is 0; it must be",
    "predict lidc-nodule scan.nii.gz --at 1,2,3 --noise-shared 2 --out out": "noise_shared is 2.0; it must",
    "predict lidc-nodule . --at 1,2,3 --out scan.nii.gz": "scan.nii.gz is not a writable directory; choose another",
    "predict lidc-nodule . --at 1,2,3 --out scan.nii.gz/out": "scan.nii.gz is not a writable directory; choose",
    f"predict lidc-nodule . --at 1,2,3 --out {'n' * 300}": "File name too long; choose another folder",
    "batch none out --model lidc-nodule": "none does not exist; give a folder that contains images/SOCKET/*.mha",
    "batch . out --model lidc-nodule": "has no scans; put them into images/SOCKET",
    "example scan.nii.gz": "scan.nii.gz already exists",
    "example new.nii.gz --model none": "no model folder none",
    "view none": "no model folder none",
    "view lidc-nodule none.nii.gz": "none.nii.gz does not exist",
    "serve none": "no model folder none",
    "serve --studies none": "none does not exist",
    "export none --onnx out.onnx": "no model folder none",
    "export lidc-nodule": "give --onnx FILE",
    "push none owner/name": "no model folder none",
    "info hf:owner": "'hf:owner' is not a model on the Hub; write hf:owner/name@revision",
    "info none": "is not a folder, bundled model or recipe",
    "data check none": "none is not a folder",
    "data show none --out out.png": "none is not a folder",
    "data split none": "none is not a folder",
    "prepare arrays none.npz out": "none.npz does not exist",
    "prepare images none out": "none does not exist",
    "prepare legacy none out": "none does not exist",
    "prepare lidc none out": "none does not exist",
    "prepare nifti none out": "none does not exist",
    "prepare table none.csv out": "none.csv does not exist",
}


def test_every_command_with_a_path_is_tested():
    tested = {name for name in COMMANDS if any(command.startswith(f"{name} ") for command in ERRORS)}
    assert set(COMMANDS) - tested == {"prepare phantom", "demo"}  # they read no file


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All commands run in one process, so that an import by one of them would show in the next ones."""
    folder = tmp_path_factory.mktemp("early") / "scans"
    folder.mkdir()
    (folder / "scan.nii.gz").touch()
    words = [sys.executable, "-c", SCRIPT, json.dumps([SLOW, list(ERRORS)])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["scan.nii.gz"]
    return dict(zip(ERRORS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("command", ERRORS)
def test_error_is_reported_before_slow_imports(command, results):
    code, said, imported = results[command]
    assert (code, imported) == (2, [])
    assert ERRORS[command] in said
    assert said.count("\n") == 1
