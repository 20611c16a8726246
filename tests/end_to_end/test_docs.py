"""The documentation keeps its word: links lead somewhere, and the README's Python runs."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from phiseg.imaging.nifti import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.models import build_model, save_model
from phiseg.models.phiseg import PHiSegConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:\s]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    model = build_model(PHiSegConfig(channels=(2, 2, 2, 2, 2), num_levels=5, blocks_per_level=1)).eval()
    save_model(tmp_path / "runs" / "phiseg", model, preprocessing={}, provenance={}, card="")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(block, names)  # one after the other, as a reader would
    assert names["logits"].shape == (1, 16, 2, 64, 64)
    assert [level.shape for level in names["levels"]] == [(1, 8, 2, 64, 64)] * 5
    assert torch.equal(names["finer"][4], names["latents"][4])
    assert not torch.equal(names["finer"][0], names["latents"][0])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_worked_example_of_prediction_runs(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    model = build_model(PHiSegConfig(channels=(2, 2, 2), num_levels=3, blocks_per_level=1)).eval()
    preprocessing = {
        "classes": ["background", "nodule"],
        "image_channels": 1,
        "size": [16, 16],
        "intensity": {"kind": "window", "low": -1000, "high": 400},
        "plane": "axial",
        "centred_on": "nodule",
    }
    save_model(tmp_path / "runs" / "nodules", model, preprocessing=preprocessing, provenance={}, card="")
    values = np.random.default_rng(0).integers(-1000, 400, (40, 48, 6)).astype(np.int16)
    write_nifti(tmp_path / "scan.nii.gz", Volume(values, np.diag([-0.7, -0.7, 2.5, 1.0])))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/predict.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(block, names)
    assert names["prediction"].labels.shape[::2] == (8, 16)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert " ml, 90 % from " in printed[0]
