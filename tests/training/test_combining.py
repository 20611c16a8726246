"""`phiseg combine`: an ensemble of several runs."""

import json

import pytest
import torch

from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import load_model, save_model
from phiseg.models.model_folder import weights_hash
from phiseg.models.noise import draw_noise, seeded_generator

SIZE = (16, 16)


@pytest.fixture
def runs(trained, tmp_path):
    """Return two model folders of the same recipe and dataset with different weights."""
    first = load_model(trained("phiseg"))
    folders = [tmp_path / "first", tmp_path / "second"]
    for position, folder in enumerate(folders):
        with torch.no_grad():
            for parameter in first.parameters():
                parameter.add_(0.05 * position)
        save_model(folder, first, preprocessing=first.preprocessing, provenance=first.provenance, card="")
    return folders


def edit(folder, name, change):
    values = json.loads((folder / name).read_text())
    change(values)
    (folder / name).write_text(json.dumps(values))


def members_alone(folders, image):
    """Return the samples of each model for the noise of the ensemble, and the selected members."""
    members = [load_model(folder) for folder in folders]
    shapes = [*members[0].noise_shapes(SIZE), ()]
    *noise, choice = draw_noise(shapes, 1, 12, seeded_generator(3))
    picked = (choice[0] > 0).long().tolist()
    return [member.decode_samples(member.encode(image), noise, 12)[0] for member in members], picked


@torch.no_grad()
def test_combine_samples_from_all_members(runs, cli, tmp_path):
    done = cli("combine", *runs, "--out", tmp_path / "both")
    assert (done.code, done.err) == (0, "")
    assert "2 members" in done.out
    model = load_model(tmp_path / "both")
    image = torch.randn(1, 1, *SIZE, generator=torch.Generator().manual_seed(0))
    drawn, picked = members_alone(runs, image)
    assert set(picked) == {0, 1}
    samples = model.sample(image, 12, generator=seeded_generator(3))[0]
    for number, member in enumerate(picked):
        torch.testing.assert_close(samples[number], drawn[member][number], rtol=1e-4, atol=1e-4)
    assert [member["sha256"] for member in model.provenance["members"]] == [weights_hash(run) for run in runs]
    for kind in ("patient_salt", "train_patients", "val_patients"):
        assert model.provenance[kind] == load_model(runs[0]).provenance[kind] != []


@torch.no_grad()
def test_combine_half_reduces_size_and_keeps_samples(runs, cli, tmp_path):
    for folder, options in (("whole", ()), ("half", ("--half",))):
        assert cli("combine", *runs, "--out", tmp_path / folder, *options).code == 0
    sizes = [(tmp_path / folder / "model.safetensors").stat().st_size for folder in ("whole", "half")]
    assert sizes[1] < 0.75 * sizes[0]
    image = torch.randn(1, 1, *SIZE, generator=torch.Generator().manual_seed(0))
    whole, half = (load_model(tmp_path / folder) for folder in ("whole", "half"))
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}
    expected = whole.sample(image, 6, generator=seeded_generator(0)).softmax(2)
    found = half.sample(image, 6, generator=seeded_generator(0)).softmax(2)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


def test_combine_rejects_incompatible_models(runs, cli, trained, copy, tmp_path):
    out = tmp_path / "out"

    def error_message(*folders):
        done = cli("combine", *folders, "--out", out)
        assert (done.code, done.out, out.exists()) == (2, "", False)
        return done.err

    assert "at least two members" in error_message(runs[0])
    assert f"{runs[0]} has the same weights as {runs[0]}; pass it once" in error_message(runs[0], runs[0])
    unet = trained("unet")
    assert f"{unet} is a model 'unet'" in error_message(runs[0], unet)
    other = copy(runs[1], "other")
    edit(other, "preprocessing.json", lambda values: values.update(plane="coronal"))
    assert f"{other} and {runs[0]} were trained on different data" in error_message(runs[0], other)
    weighted = copy(runs[1], "weighted")
    edit(weighted, "config.json", lambda values: values["model"].update(kl_weights="unit"))
    assert "kl_weights = unit" in error_message(runs[0], weighted)


def test_combine_accepts_preprocessing_without_default_settings(runs, cli, tmp_path):
    edit(runs[1], "preprocessing.json", lambda values: values.pop("patch_size"))
    assert cli("combine", *runs, "--out", tmp_path / "both").code == 0


def test_combine_discards_the_coverage_measured_for_a_member(runs, cli, tmp_path):
    """The report of `phiseg predict` states the coverage, and the ensemble has other samples than its members."""
    for run, coverage in zip(runs, (0.9, 0.7), strict=True):
        check = {"dataset": "d", "num_lesions": 9, "num_annotators": 4, "coverage": coverage}
        edit(run, "preprocessing.json", lambda values, check=check: values.update(volume_check=check))
    assert cli("combine", *runs, "--out", tmp_path / "both").code == 0
    assert Preprocessing.of(load_model(tmp_path / "both")).volume_check is None
    assert Preprocessing.of(load_model(runs[0])).volume_check.coverage == 0.9


def test_combine_needs_overwrite_to_replace(runs, cli, tmp_path):
    out = tmp_path / "both"
    assert cli("combine", *runs, "--out", out).code == 0
    before = (out / "model.safetensors").read_bytes()
    done = cli("combine", *reversed(runs), "--out", out)
    assert done.code == 2
    assert "--overwrite" in done.err
    assert (out / "model.safetensors").read_bytes() == before
    assert cli("combine", *reversed(runs), "--out", out, "--overwrite").code == 0
    assert (out / "model.safetensors").read_bytes() != before
