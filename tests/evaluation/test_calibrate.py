"""Temperatures: fitted if the spread is wrong, unchanged if it is right, stored and used."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import tqdm

import phiseg
from phiseg.core.errors import ConfigError, ModelError
from phiseg.data.intensity import Intensity
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.evaluation.calibrate import (
    MARGIN,
    Fit,
    _Cases,
    _choose_cases,
    calibrate,
    fit_calibration,
    gamma_loss,
)
from phiseg.evaluation.temperature_search import LOGITS, logit_temperature
from phiseg.models import load_model
from phiseg.models.segmenter import Encoding, Segmenter, SegmenterConfig
from phiseg.models.temperatures import Calibration

SIZE = 16


class Bars(Segmenter):
    """Draws bars of height 8 + spread * noise, in which levels have shares; by default the second has all."""

    Config = SegmenterConfig

    def __init__(self, spread, sureness=4.0, shares=(0.0, 1.0)):
        super().__init__(SegmenterConfig(name="bars", channels=(1,)))
        self.spread, self.sureness, self.shares = spread, sureness, shares
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, image, labels, *, generator):
        raise NotImplementedError

    def encode(self, image):
        return Encoding((image,), (image.shape[-2], image.shape[-1]))

    def noise_shapes(self, size):
        return [(1,)] * len(self.shares)

    def decode_samples(self, encoding, noise, num_samples):
        height = 8 + self.spread * sum(share * part for share, part in zip(self.shares, noise, strict=True))
        inside = torch.arange(SIZE)[None, None] < height  # (B, S, 1) gives (B, S, H)
        logits = self.sureness * (inside[..., None].expand(-1, -1, -1, SIZE).float() - 0.5)
        return torch.stack([-logits, logits], dim=2)


def write_bars(folder, *, num_patients, spread=2.0, slices=1, seed=0, fractions=(1, 0, 0)):
    """Write patients with four annotators whose bars end at 8 +- spread, the same in all slices of a patient."""
    noise = np.random.default_rng(seed).standard_normal((num_patients, 4))
    heights = 8 + np.broadcast_to(spread, num_patients)[:, None] * noise

    def case(number):
        ends = heights[number // slices]
        labels = np.broadcast_to(np.arange(SIZE)[None, :, None] < ends[:, None, None], (4, SIZE, SIZE))
        image = np.zeros((1, SIZE, SIZE), np.float32)
        patient = f"p{number // slices}"
        return Case(f"case-{number}", patient, image, labels.astype(np.uint8), np.ones(4, dtype=bool))

    return write_dataset(
        folder,
        name="bars",
        classes=("background", "bar"),
        num_annotators=4,
        image_shape=(1, SIZE, SIZE),
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=map(case, range(num_patients * slices)),
        fractions=fractions,
    )


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    """60 patients of one slice, 54 of them to fit on."""
    return write_bars(tmp_path_factory.mktemp("data") / "bars", num_patients=60, fractions=(0.1, 0.9, 0))


def fit(model, dataset, *, split="val", num_samples=16):
    return fit_calibration(model, dataset, split=split, num_samples=num_samples, seed=0)


@pytest.mark.parametrize(("spread", "low", "high"), [(1.0, 1.5, 2.6), (4.0, 0.35, 0.7)])
def test_wrong_spread_is_corrected(bars, spread, low, high):
    found = fit(Bars(spread), bars)
    assert low < found.calibration.noise[1] < high
    assert found.after["ged_unbiased"] < found.before["ged_unbiased"]
    nominal = 0.9
    assert abs(found.after["area_coverage"] - nominal) < abs(found.before["area_coverage"] - nominal)


def test_correct_spread_is_kept(bars):
    assert fit(Bars(2.0), bars).calibration.noise == ()


def test_chance_rarely_changes_temperatures(tmp_path):
    """Four levels share the right spread. Where one standard error is enough, most of these fits move."""
    moved = 0
    for seed in range(12):
        dataset = write_bars(tmp_path / str(seed), num_patients=12, seed=seed)
        found = fit(Bars(2.0, shares=(0.5,) * 4), dataset, split="train", num_samples=8)
        moved += found.calibration.noise != ()
    assert moved <= 1


def test_slices_of_a_patient_count_once(tmp_path):
    """Of six patients, one contradicts the others: nothing to go by, though it be seen in twelve slices of each."""
    dataset = write_bars(tmp_path / "data", num_patients=6, spread=(5, 5, 5, 5, 5, 0.5), slices=12)
    assert fit(Bars(2.0), dataset, split="train").calibration.noise == ()


def test_with_few_patients_nothing_moves(tmp_path):
    found = {}
    for number in (4, 5):
        dataset = write_bars(tmp_path / str(number), num_patients=number, slices=6)
        found[number] = fit(Bars(2.0, 0.1), dataset, split="train")
    assert (found[4].num_patients, found[4].calibration) == (4, Calibration())
    assert found[4].after == found[4].before
    assert found[5].num_patients == 5
    assert found[5].calibration.logits < 0.7


def test_level_without_effect_keeps_temperature(bars):
    assert fit(Bars(1.0), bars).calibration.noise[0] == 1.0


def test_member_noise_has_no_temperature(bars):
    class Pick(Bars):
        """Bars whose second noise is a lone number: an index in disguise, whatever its spread would gain."""

        def noise_shapes(self, size):
            return [(1,), ()]

        def decode_samples(self, encoding, noise, num_samples):
            return super().decode_samples(encoding, (noise[0], noise[1][..., None]), num_samples)

    assert fit(Pick(4.0), bars).calibration.noise == ()


@pytest.mark.parametrize(
    ("model", "right"), [(Bars(2.0, 0.5), lambda t: t < 0.7), (Bars(2.0, 4.0, shares=(0, 0)), lambda t: t > 1.3)]
)
def test_wrong_confidence_is_corrected(bars, model, right):
    """A model whose samples are all alike, with 98 % probabilities, is too sure of a border that varies."""
    found = fit(model, bars)
    assert right(found.calibration.logits)
    assert found.held_out["brier"] > 0
    assert found.after["ged"] == found.before["ged"]  # labels of samples do not depend on it


@pytest.mark.parametrize("num_samples", [4, 32])
def test_sharp_samples_with_correct_spread_keep_temperature(bars, num_samples):
    """Their mean is right. Softer samples would only hide that there are few of them."""
    assert fit(Bars(2.0, 30.0), bars, num_samples=num_samples).calibration.logits == 1.0


@pytest.mark.parametrize("model", [Bars(2.0, 0.7), Bars(2.0, 4.0, shares=(0, 0))])
def test_logit_temperature_is_independent_of_number_of_samples(bars, model):
    few, many = (fit(model, bars, num_samples=number).calibration.logits for number in (4, 32))
    assert few == pytest.approx(many, rel=0.16)  # one step of the search


def test_logit_temperature_of_bundled_model_ignores_number_of_samples(tmp_path):
    """The Brier curve over temperatures stays where it is; the cross entropy of few samples asks for T > 2."""
    dataset = prepare_phantom("lesion", tmp_path / "data", num_cases=24, size=64, seed=3, progress=False)
    model, rows = load_model(Path("lesion-phantom"), calibrated=False), dataset.rows("train").tolist()
    neutral, curves = LOGITS.index(1.0), {}
    with tqdm(disable=True) as bar:
        for number in (4, 32):
            cases = _Cases(model, dataset, rows, num_samples=number, seed=0, bar=bar)
            losses = cases.measure(Calibration())[1]
            assert logit_temperature(losses, seed=0)[0] == 1.0
            curves[number] = losses.mean(0) - losses.mean(0)[neutral]
    few, many = (
        np.mean([cross_entropies(model, dataset, row, number) for row in rows], axis=0) for number in (4, 32)
    )
    assert LOGITS[few.argmin()] > 2
    moved = np.abs((few - few[neutral]) - (many - many[neutral])).max() / many[neutral]
    assert np.abs(curves[4] - curves[32]).max() / losses.mean(0)[neutral] < moved / 10


class UnevenConfidence(Bars):
    """Samples with the right labels that are far more confident in the left half of the image."""

    def decode_samples(self, encoding, noise, num_samples):
        logits = super().decode_samples(encoding, noise, num_samples)
        factor = torch.where(torch.arange(SIZE) < SIZE // 2, 4.0, 1.0)
        return logits * factor


def test_margin_is_chosen_if_gamma_improves(bars):
    """Labels do not change, so neither does the GED. Gamma then correlates better with the errors of the labels."""
    found = fit(UnevenConfidence(2.0, 5.0), bars)
    assert found.calibration == Calibration(margin=MARGIN)
    assert found.held_out["gamma_loss"] > 0
    assert found.after["ged"] == found.before["ged"]


def test_margin_is_not_chosen_if_confidence_carries_information(bars):
    """All samples are alike: only their probabilities show where the border may be."""
    assert fit(Bars(2.0, 1.2, shares=(0, 0)), bars).calibration.margin is None


def test_gamma_loss_equals_naive_correlation():
    rng = np.random.default_rng(0)
    logits, annotations = rng.normal(size=(5, 3, 4, 4)), rng.integers(3, size=(2, 4, 4))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gamma = -(probs.mean(0) * np.log(probs + 1e-8)).sum(1).mean(0)
    shares = [(probs.argmax(1) != one).mean(0) for one in annotations]
    expected = 1 - np.mean([np.corrcoef(gamma.ravel(), share.ravel())[0, 1] for share in shares])
    found = gamma_loss(torch.from_numpy(logits).float(), torch.from_numpy(annotations))
    assert found == pytest.approx(expected, abs=1e-5)


def test_cases_to_fit_on_come_from_as_many_patients_as_possible(tmp_path):
    dataset = write_bars(tmp_path / "data", num_patients=6, slices=4)
    rows = list(range(2, dataset.num_cases))
    chosen = _choose_cases(dataset, rows, 9, seed=0)
    patients = [dataset.cases[row]["patient"] for row in chosen]
    assert sorted(map(patients.count, set(patients))) == [1, 1, 1, 2, 2, 2]
    assert set(chosen) <= set(rows)
    assert _choose_cases(dataset, rows, 9, seed=1) != chosen
    assert _choose_cases(dataset, rows, 100, seed=0) == rows
    found = fit_calibration(Bars(2.0), dataset, split="train", num_samples=4, seed=0, num_cases=9)
    assert (found.num_cases, found.num_patients) == (9, 6)


def cross_entropies(model, dataset, row, num_samples):
    image, annotations = torch.from_numpy(dataset.image(row))[None], torch.tensor(dataset.annotations(row)).long()
    with torch.inference_mode():
        logits = model.sample(image, num_samples, generator=[torch.Generator().manual_seed(row)])[0]
    probs = [(logits / temperature).softmax(1).mean(0) for temperature in LOGITS]
    return [float(-(mean.gather(0, annotations) + 1e-8).log().mean()) for mean in probs]


def test_fit_does_not_change_the_model(bars):
    model = Bars(1.0)
    fit(model, bars)
    assert model.calibration == Calibration()


def test_one_annotator_is_rejected(bars, copy, replace_arrays):
    folder = copy(bars.path)
    valid = np.zeros((60, 4), dtype=bool)
    valid[:, 0] = True
    replace_arrays(folder, valid=valid)
    with pytest.raises(ConfigError, match=r"2 annotators.*0 such cases in split 'val'"):
        fit(Bars(1.0), Dataset.open(folder))


@pytest.mark.parametrize(
    ("calibration", "says"),
    [
        (Calibration(), "does not change the samples: no other factor improves held-out patients"),
        (Calibration(logits=1.15), "stored in lesion-phantom; use --uncalibrated"),
    ],
)
def test_command_reports_whether_the_samples_change(calibration, says, cli, monkeypatch, lesions):
    fitted = Fit(calibration, num_cases=9, num_patients=9, before={}, after={}, held_out={})
    monkeypatch.setattr("phiseg.evaluation.calibrate.calibrate", lambda *_, **__: fitted)
    done = cli("calibrate", "lesion-phantom", "--data", lesions)
    assert says in done.out
    assert ("stored in" in done.out) == (calibration != Calibration())


def test_stored_temperatures_are_used_unless_uncalibrated(cli, trained, lesions, copy, tmp_path):
    run = copy(trained("phiseg"), "run")
    done = cli("calibrate", run, "--data", lesions, "--num-samples", 4)
    assert done.code == 0
    assert "area_coverage" in done.out
    assert "scores on the 3 fitted cases of 3 patients (split 'val', 4 samples per case):" in done.out
    assert "does not change the samples: only 3 patients of split 'val' have two annotators" in done.out
    stored = json.loads((run / "model" / "calibration.json").read_text())
    assert stored["fit"]["split"] == "val"
    assert (stored["fit"]["num_cases"], stored["fit"]["num_patients"]) == (3, 3)
    assert (stored["noise"], stored["logits"]) == ([], 1.0)
    stored |= {"noise": [3.0, 2.0], "logits": 1.5}
    (run / "model" / "calibration.json").write_text(json.dumps(stored))
    assert load_model(run).calibration == Calibration(noise=(3.0, 2.0), logits=1.5)
    assert load_model(run, calibrated=False).calibration == Calibration()
    plain, tempered = (
        json.loads((evaluated(cli, run, lesions, tmp_path / name, *words) / "summary.json").read_text())
        for name, *words in (("plain", "--uncalibrated"), ("tempered",))
    )
    assert plain["model"]["calibration"] == {"noise": [], "logits": 1.0, "margin": None}
    assert tempered["model"]["calibration"] == {"noise": [3.0, 2.0], "logits": 1.5, "margin": None}
    assert plain["diversity"] != tempered["diversity"]
    assert "calibration:\n  noise: [3.0, 2.0]" in cli("info", run).out


def test_model_in_the_hub_cache_is_rejected(trained, lesions, copy, tmp_path):
    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("1" * 40)
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(trained() / "model", snapshot)
    for model in (snapshot, phiseg.load(snapshot)):
        with pytest.raises(ModelError, match="is in the cache of the Hub; calibrate a copy"):
            calibrate(model, lesions, num_samples=4, progress=False)


def evaluated(cli, run, data, out, *words):
    assert cli("evaluate", run, "--data", data, "--out", out, "--num-samples", 4, *words).code == 0
    return out


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"noise": [1.0]}, "1 noise temperatures, but the model has 2 levels"),
        ({"logits": 0}, "logits"),
        ({"noise": [1.0, -2.0]}, "noise"),
        ({"margin": -1}, "margin"),
        ({"version": 3}, "not a valid calibration file"),
    ],
)
def test_invalid_calibration_is_rejected(cli, trained, lesions, copy, tmp_path, values, says):
    run = copy(trained("phiseg"), "run")
    stored = {"format": "phiseg-calibration", "version": 1, "noise": [], "logits": 1.0} | values
    (run / "model" / "calibration.json").write_text(json.dumps(stored))
    done = cli("evaluate", run, "--data", lesions, "--out", tmp_path / "eval")
    assert done.code == 2
    assert says in done.err
    assert "phiseg calibrate" in done.err
