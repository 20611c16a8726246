"""Samples of volumes: on the right voxels whatever the geometry, coherent, and a lesion followed as far as it goes.

The models' answers are known (`known_models`), so that they can be given for every voxel from its place alone.
"""

from collections import deque
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import phiseg
from helpers.known_models import KnownModel, ball, brightest, depth_in_ball, noisy, place, world
from phiseg.core.errors import ConfigError, DataError, ModelError
from phiseg.data.intensity import normalise
from phiseg.data.prepare.nifti import prepare_nifti
from phiseg.data.prepare.nifti_slices import Slicing
from phiseg.data.store import Dataset
from phiseg.imaging.frame import Frame
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import case_key, level_outputs, predict_volume
from phiseg.inference.slice_noise import Level, SliceNoise
from phiseg.inference.slice_sampler import SliceSampler
from phiseg.models import load_model
from phiseg.models.registry import build_model
from phiseg.models.ssn import SSNConfig
from phiseg.models.temperatures import Calibration

ONE = Sampling(num_samples=1)
SOME = Sampling(num_samples=5)

affines = st.builds(
    place,
    st.sampled_from(["LPS", "RAS", "ASL", "IRP", "SPR", "PIL"]),
    turn=st.tuples(*[st.floats(-40, 40)] * 3),
    spacing=st.tuples(*[st.sampled_from([0.7, 1.0, 1.6, 3.0])] * 3),
    origin=st.tuples(*[st.floats(-50, 50)] * 3),
)
shapes = st.tuples(*[st.integers(3, 14)] * 3)
planes = st.sampled_from([None, "auto", "axial", "coronal", "sagittal"])
sizes = st.sampled_from([(16, 16), (8, 6), (5, 20)])


def labels_of(prediction, sample=0):
    return prediction.on_grid(prediction.labels[sample]).values


def assert_same(first, second, *, tolerance=1e-5):
    """Compare labels, and maps of the order of 1 up to the rounding of a network in float32."""
    assert first.box == second.box
    np.testing.assert_array_equal(first.labels, second.labels)
    for name in ("mean_probs", "mean_log_probs", "level_variance"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


# Where voxels go


@settings(max_examples=30)
@given(affine=affines, shape=shapes, plane=planes, size=sizes)
def test_two_balls_keep_their_world_position(affine, shape, plane, size):
    """Two channels, three classes; slices smaller than the images are padded, larger ones tiled."""
    first = ball(shape, affine, radius=3.3, offset=(-1.5, 0.4, 0))
    second = ball(shape, affine, radius=2.4, offset=(2.2, -1, 1.1))
    volume = Volume(np.stack([first.values, second.values], axis=-1), affine)
    model = KnownModel(brightest, classes=("background", "a", "b"), channels=2, size=size, plane=plane)
    prediction = predict_volume(model, volume, sampling=ONE)
    nothing = np.zeros(shape, np.float32)
    scores = np.stack([nothing, first.values, second.values])
    expected = scores.argmax(0)
    clear = np.subtract(*np.sort(scores, axis=0)[:-3:-1]) > 1e-4  # a tie may be rounded either way
    found = prediction.on_grid(prediction.labels[0])
    np.testing.assert_array_equal(found.values[clear], expected[clear])
    np.testing.assert_array_equal(found.affine, affine)
    np.testing.assert_array_equal(prediction.on_grid(prediction.consensus).values[clear], expected[clear])
    if clear.all():
        assert measure(prediction).classes["a"].present == (expected == 1).any()


@settings(max_examples=8)
@given(affine=affines, shape=shapes, size=sizes, spacing=st.tuples(*[st.sampled_from([0.6, 1.0, 1.3])] * 2))
def test_two_balls_keep_their_position_after_resampling(affine, shape, size, spacing):
    """A ball's depth changes by 1 per mm: interpolation there and back moves its surface by little."""
    volume = ball(shape, affine, radius=3.7)
    model = KnownModel(brightest, size=size, spacing_mm=spacing)
    prediction = predict_volume(model, volume, sampling=ONE)
    clear = np.abs(volume.values) > max(prediction.stack.stack.spacing_mm[1:]) / 2 + max(spacing) / 2
    np.testing.assert_array_equal(labels_of(prediction)[clear], volume.values[clear] > 0)
    assert prediction.mean_probs.min() >= 0
    np.testing.assert_allclose(prediction.mean_probs.sum(0), 1, atol=1e-5)


@pytest.mark.parametrize(("own", "seen"), [(0.5, 0.8), (0.9, 0.9), (2.5, 1.0)])
def test_input_spacing_is_in_training_range(own, seen):
    """A ramp of 10 units per mm: neighbouring pixels of the network differ by what lies between them."""
    columns = np.arange(40) * own * 10 - 100
    volume = Volume(np.broadcast_to(columns[:, None, None], (40, 40, 3)), place(spacing=(own, own, 2)))
    model = KnownModel(
        brightest,
        size=(8, 8),
        plane="axial",
        centred_on="nodule",
        spacing_range_mm=[0.8, 1.0],
        intensity={"kind": "window", "low": -1000, "high": 1000},
    )
    predict_volume(model, volume, point=(20, 20, 1), sampling=ONE)
    (image,) = model.seen[0][1]
    np.testing.assert_allclose(np.diff(image, axis=1), seen * 10 / 2000, rtol=1e-3)


@settings(max_examples=8)
@given(affine=affines, shape=shapes, size=sizes)
def test_results_of_resampled_scan_are_on_its_grid(affine, shape, size):
    volume = ball(shape, affine, radius=3.7)
    prediction = predict_volume(KnownModel(brightest, size=size, spacing_range_mm=[0.6, 0.7]), volume, sampling=ONE)
    clear = np.abs(volume.values) > max(prediction.stack.stack.spacing_mm[1:]) / 2 + 0.35
    np.testing.assert_array_equal(labels_of(prediction)[clear], volume.values[clear] > 0)


@settings(max_examples=20)
@given(affine=affines, shape=shapes, plane=planes)
def test_volumes_on_the_grid_state_where_they_differ_from_zero(affine, shape, plane):
    model = KnownModel(brightest, size=(4, 4), plane=plane, centred_on="nodule")
    prediction = predict_volume(model, ball(shape, affine, radius=3.7), point=(1, 1, 1), sampling=ONE)
    volume = prediction.on_grid(np.ones_like(prediction.labels[0]))
    assert volume.values[volume.box].all()
    assert volume.values.sum() == volume.values[volume.box].size


@pytest.mark.parametrize("spacing", [0.3, 0.45, 0.7, 1.0, 1.3, 1.9])
@pytest.mark.parametrize(("radius", "cut_off"), [(4.0, False), (9.0, True)])
def test_resampled_lesions_are_cut_off_by_the_crop(spacing, radius, cut_off):
    """A crop of 12 mm around a ball of 8 or 18 mm, whatever pixels the network sees."""
    volume = ball((31, 31, 31), place(), radius=radius)
    size = round(12 / spacing)
    model = KnownModel(brightest, size=(size, size), centred_on="nodule", spacing_mm=[spacing, spacing])
    prediction = predict_volume(model, volume, point=(15, 15, 15), sampling=Sampling(num_samples=1, reach_mm=20))
    assert {limit: bool(touches[0]) for limit, touches in prediction.truncated_by.items()} == {
        "reach": False,
        "crop": cut_off,
        "scan": False,
    }


@settings(max_examples=10)
@given(affine=affines, shape=shapes, plane=planes, scale=st.floats(0.1, 50), shift=st.floats(-1000, 1000))
def test_z_scores_use_the_whole_volume(affine, shape, plane, scale, shift):
    depths = ball(shape, affine).values.astype(np.float64)
    model = KnownModel(brightest, plane=plane, intensity={"kind": "zscore"})
    prediction = predict_volume(model, Volume(shift + scale * depths, affine), sampling=ONE)
    clear = np.abs(depths - depths.mean()) > 1e-3
    np.testing.assert_array_equal(labels_of(prediction)[clear], (depths > depths.mean())[clear])


@pytest.mark.parametrize("codes", ["LPS", "RAS", "SAR", "ILA"])
@pytest.mark.parametrize(
    ("plane", "top", "left"),
    [("axial", (0, 1, 0), (1, 0, 0)), ("coronal", (0, 0, 1), (1, 0, 0)), ("sagittal", (0, 0, 1), (0, 1, 0))],
)
def test_slices_have_radiological_orientation(codes, plane, top, left):
    """A model that marks the upper left quarter of its image marks that quarter of the patient."""

    def quarter(image, noise):
        logits = torch.full((len(image), 1, 2, 8, 8), -1.0)
        logits[:, :, 0] = 0
        logits[:, :, 1, :4, :4] = 1
        return logits

    affine = place(codes)
    volume = Volume(np.random.default_rng(0).normal(size=(8, 8, 8)), affine)
    found = labels_of(predict_volume(KnownModel(quarter, size=(8, 8), plane=plane), volume, sampling=ONE))
    places = world(volume.grid, affine)
    places -= places.reshape(-1, 3).mean(0)
    np.testing.assert_array_equal(found == 1, (places @ top > 0) & (places @ left > 0))


@pytest.mark.parametrize("window", [(60, 130), None])
@pytest.mark.parametrize("spacing", [None, 1.3])
def test_input_matches_training_data(tmp_path, window, spacing):
    """The slices that `phiseg prepare nifti` makes of the same file, in the network's range."""
    affine = place("IRP", turn=(10, -5, 20), spacing=(1.1, 0.9, 2.5), origin=(3, 4, 5))
    pixels = np.random.default_rng(1).normal(100, 30, (24, 28, 5)).astype(np.float32)
    for case in ("p1", "p2", "p3"):
        write_nifti(tmp_path / "src" / case / "image.nii.gz", Volume(pixels, affine))
        write_nifti(tmp_path / "src" / case / "rater-a.nii.gz", Volume((pixels > 120).astype(np.uint8), affine))
    slicing = Slicing(plane="coronal", size=(32, 30), spacing=spacing, window=window)
    prepared = prepare_nifti(tmp_path / "src", tmp_path / "data", slicing=slicing, progress=False)
    dataset = Dataset.open(tmp_path / "data")
    model = KnownModel(
        brightest,
        size=(32, 30),
        plane="coronal",
        spacing_mm=prepared.info.spacing_mm,
        intensity=prepared.info.intensity.model_dump(),
    )
    predict_volume(model, read_nifti(tmp_path / "src" / "p1" / "image.nii.gz"), sampling=ONE)
    rows = [row for row, case in enumerate(dataset.cases) if case["scan"] == "p1"]
    stored = normalise(np.stack([dataset.images[row] for row in rows]), prepared.info.intensity)
    np.testing.assert_allclose(np.concatenate(model.seen)[: len(rows)], stored, atol=2e-5)
    assert window is None or ((stored == -0.5).any() and (stored == 0.5).any())


@pytest.mark.parametrize("spacing", [None, (1.4, 0.8)])
def test_tiles_leave_no_seam(spacing):
    """A model that looks at single pixels gives the same in tiles as in one piece."""
    pixels = np.random.default_rng(2).normal(0, 3, (23, 31, 2)).astype(np.float32)
    volume = Volume(pixels if spacing is None else ball((23, 31, 2), place(), radius=9).values, place())
    found = [
        predict_volume(KnownModel(noisy, size=size, spacing_mm=spacing, plane="axial"), volume, sampling=SOME)
        for size in ((8, 10), (63, 63))  # 23 x 29 of the network's pixels cover a slice: 63 lie on the same places
    ]
    assert found[0].labels.any()
    if spacing is None:
        assert_same(*found)
    else:  # weights change from pixel to pixel, the more the smaller a tile is
        np.testing.assert_allclose(found[0].mean_probs, found[1].mean_probs, atol=0.03)


def test_tiles_pass_into_each_other():
    """A model that is the surer the farther right in its image a pixel is: no tile ends with a jump."""

    def ramp(image, noise):
        right = torch.linspace(-2, 2, 16).expand(len(image), 1, 16, 16)
        return torch.stack([0 * right, right], dim=2)

    prediction = predict_volume(KnownModel(ramp, plane="axial"), ball((50, 16, 1), place()), sampling=ONE)
    mean = prediction.mean_probs[1, 0]  # rows, columns
    assert np.ptp(mean) > 0.4
    assert np.abs(np.diff(mean, axis=1)).max() < 0.1  # a mere average has jumps


def test_tiles_overlap_by_half_and_cover_the_slice():
    model = KnownModel(brightest, size=(8, 8), plane="axial")
    predict_volume(model, ball((30, 9, 1), place()), sampling=ONE)
    shown = np.concatenate(model.seen)[:, 0]
    assert shown.shape == (14, 8, 8)  # 7 along 30 columns, 2 along 9 rows


# Samples


@pytest.mark.parametrize(("length", "batch_size", "chunk_size"), [(0, 1, 1), (20, 3, 2), (inf, 50, 50)])
def test_batches_and_chunks_change_nothing(trained, length, batch_size, chunk_size):
    volume = Volume(np.random.default_rng(3).uniform(size=(18, 16, 4)), place(spacing=(5.6, 5.6, 8)))
    models = [(load_model(trained()), None), (KnownModel(noisy, centred_on="nodule"), (9, 9, 2))]
    for model, point in models:
        plain, other = (
            predict_volume(
                model,
                volume,
                point=point,
                sampling=Sampling(num_samples=4, noise_length_mm=length, level_draws=3, **sizes),
            )
            for sizes in ({}, {"batch_size": batch_size, "chunk_size": chunk_size})
        )
        assert_same(plain, other)


def test_sample_is_consistent_along_slices():
    """Its threshold is the same in all slices; without a noise length, every slice has its own."""
    slope = np.broadcast_to(np.arange(-20, 20.0)[:, None, None], (40, 4, 6))
    model = KnownModel(noisy, size=(4, 40), plane="axial")

    def thresholds(length):
        sampling = Sampling(num_samples=6, noise_length_mm=length)
        return (
            predict_volume(model, Volume(slope, place()), sampling=sampling).labels.sum((2, 3)).astype(int)
        )  # (S, n)

    constant, independent = thresholds(inf), thresholds(0)
    assert (constant == constant[:, :1]).all()
    assert len(set(constant[:, 0])) > 2
    assert (independent != independent[:, :1]).any(1).all()
    jumps = [np.abs(np.diff(thresholds(length), axis=1)).mean() for length in (100, 3, 0)]
    assert jumps[0] < jumps[1] < jumps[2]


def test_slices_of_a_sample_are_correlated(trained, lesions):
    """The mean IoU of neighbouring slices, for a stack of slices that differ little."""
    image = Dataset.open(lesions).images[0, 0].astype(np.float32)
    stack = image.T[:, :, None] + np.random.default_rng(0).normal(0, 0.01, (16, 16, 8))
    volume = Volume(stack, place(spacing=(5.6, 5.6, 8)))
    model = load_model(trained())

    def agreement(length):
        sampling = Sampling(num_samples=8, noise_length_mm=length, level_draws=0)
        labels = predict_volume(model, volume, sampling=sampling).labels > 0
        above, below = labels[:, 1:], labels[:, :-1]
        union = (above | below).sum((2, 3))
        return float(np.where(union, (above & below).sum((2, 3)) / np.maximum(union, 1), 1).mean())

    same, smooth, independent = agreement(inf), agreement(40.0), agreement(0)
    assert same > smooth > independent
    assert same > independent + 0.1


def test_tiles_are_parts_of_one_sample():
    """Noise that differs from place to place is the same in tiles as in one piece: nothing is damped or repeats."""

    class Local(KnownModel):
        def noise_shapes(self, size):
            return [(1, *size)]

        def decode_samples(self, encoding, noise, num_samples):
            return torch.cat([torch.zeros_like(noise[0]), noise[0]], dim=2)

    def found(size):
        model = Local(brightest, size=size, plane="axial")
        model.config = model.config.model_copy(update={"channels": (1, 1, 1)})  # a stride of 4
        return predict_volume(model, ball((64, 40, 1), place()), sampling=Sampling(num_samples=6)).labels

    np.testing.assert_array_equal(found((16, 16)), found((40, 64)))


def test_tiles_share_the_noise_of_their_common_pixels():
    """A patch of 40 pixels is padded to 48, but its noise per pixel is not."""
    model = build_model(SSNConfig(channels=(2, 2, 2, 2, 2))).eval()  # a stride of 16
    values = np.random.default_rng(0).uniform(size=(100, 100, 1)).astype(np.float32)
    known = KnownModel(noisy, size=(40, 40), plane="axial", intensity={"kind": "window", "low": 0, "high": 1})
    stack = PreparedStack.of(Volume(values, place()), Preprocessing.of(known), name="the scan")
    frames = [Frame((0.0, 0.0), (1.0, 1.0), (40, 40)), Frame((16.0, 16.0), (1.0, 1.0), (40, 40))]
    sampler = SliceSampler(model, stack, SOME, frames, key="case")
    first, second = (sampler._noise([0], frame, range(5))[1] for frame in frames)
    assert torch.equal(first[..., 16:, 16:], second[..., :24, :24])


def test_maps_follow_from_samples():
    """Mean and gamma in plain loops: gamma is the cross entropy of the mean with each sample, averaged."""
    volume = Volume(np.random.default_rng(4).normal(0, 6, (5, 4, 2)), place())
    model = KnownModel(noisy, size=(4, 5), plane="axial")
    prediction = predict_volume(model, volume, sampling=SOME)
    (noise,) = SliceNoise([(1,)], 5, seed=0, keys=(case_key(volume, None),)).at(0)
    for number, row, column in np.ndindex(2, 4, 5):
        probs = []
        for sigma in noise[0, :, 0].tolist():
            logit = 100 * (volume.values[column, row, number] / 400 - 0.02 * sigma)
            probs.append((1 / (1 + np.exp(logit)), 1 / (1 + np.exp(-logit))))
        mean = np.mean(probs, axis=0)
        gamma = -np.mean([mean @ np.log(np.array(sample) + 1e-8) for sample in probs])
        np.testing.assert_allclose(prediction.mean_probs[:, number, row, column], mean, atol=1e-5)
        np.testing.assert_allclose(prediction.gamma[number, row, column], gamma, atol=1e-4)
        assert prediction.labels[:, number, row, column].tolist() == [int(after > 0.5) for _, after in probs]


def test_calibrated_temperatures_are_used():
    slope = np.broadcast_to(np.arange(-50, 50.0)[:, None, None], (100, 4, 1))
    model = KnownModel(noisy, size=(4, 100), plane="axial")
    plain = predict_volume(model, Volume(slope, place()), sampling=SOME)
    model.calibration = Calibration(noise=(2.0,))
    wide = predict_volume(model, Volume(slope, place()), sampling=SOME)
    shifts = [(50 - found.labels[:, 0, 0].sum(1)).astype(int) for found in (plain, wide)]
    np.testing.assert_allclose(shifts[1], 2 * shifts[0], atol=2)
    assert np.abs(shifts[0]).max() > 4
    model.calibration = Calibration(logits=3.0)
    unsure = predict_volume(model, Volume(slope, place()), sampling=ONE)
    np.testing.assert_array_equal(unsure.labels, plain.labels[:1])
    model.calibration = Calibration()
    sure = predict_volume(model, Volume(slope, place()), sampling=ONE)
    logits = [np.log(found.mean_probs[1] / found.mean_probs[0]) for found in (unsure, sure)]
    np.testing.assert_allclose(3 * logits[0], logits[1], atol=1e-3)


def test_samples_depend_on_seed_only(trained):
    volume = Volume(np.random.default_rng(3).uniform(size=(16, 16, 2)), place(spacing=(5.6, 5.6, 8)))
    model = load_model(trained())
    first = predict_volume(model, volume, sampling=SOME)
    assert_same(first, predict_volume(model, volume, sampling=SOME, name="other"))
    other = predict_volume(model, volume, sampling=Sampling(num_samples=5, seed=1))
    assert (other.labels != first.labels).any()
    more = predict_volume(model, volume, sampling=Sampling(num_samples=9))
    np.testing.assert_array_equal(more.labels[:5], first.labels)


def test_loaded_model_predicts(trained):
    volume = Volume(np.random.default_rng(3).uniform(size=(16, 14, 2)), place(spacing=(5.6, 5.6, 8)))
    loaded = phiseg.load(trained()).predict(volume, sampling=SOME, name="it")
    assert_same(loaded, predict_volume(load_model(trained()), volume, sampling=SOME, name="it"))


# Which level causes the uncertainty


def test_level_variance_is_from_redrawing_one_level(trained):
    """One slice and one draw after another: keep the noise of the other level; finer latents follow coarse ones."""
    model = load_model(trained())
    model.calibration = Calibration(noise=(1.5, 0.5), logits=2.0)
    volume = Volume(np.random.default_rng(5).uniform(size=(16, 16, 1)), place(spacing=(5.6, 5.6, 8)))
    found = predict_volume(model, volume, sampling=Sampling(num_samples=6, level_draws=4), name="it").level_variance
    shapes = model.noise_shapes((16, 16))
    noise, other = (
        [factor * level for factor, level in zip((1.5, 0.5), drawn.at(0), strict=True)]
        for drawn in (
            SliceNoise(shapes, 6, seed=0, keys=(case_key(volume, None),)),
            SliceNoise(shapes, 4, seed=0, keys=(case_key(volume, None), "redrawn")),
        )
    )
    image = torch.from_numpy(np.ascontiguousarray(volume.values[:, :, 0].T) - 0.5).float()[None, None]

    def foreground(latents):
        return (model.decode(latents, (16, 16))[0] / 2).softmax(2)[0, 0, 1]

    with torch.no_grad():
        encoding = model.encode(image)
        for level in range(2):
            squares = []
            for draw in range(4):
                own = [part[:, draw : draw + 1] for part in noise]
                latents = model.sample_latents(encoding, own)
                changed = [part.clone() for part in own]
                changed[level] = other[level][:, draw : draw + 1]
                redrawn = model.sample_latents(encoding, changed)
                squares.append((foreground(redrawn) - foreground(latents)) ** 2)
            expected = torch.stack(squares).mean(0) / 2
            assert expected.max() > 1e-5
            np.testing.assert_allclose(found[level, 0], expected, rtol=1e-3, atol=2e-6)


def test_shares_of_levels_sum_to_one(trained):
    volume = Volume(np.random.default_rng(5).uniform(size=(16, 16, 3)), place(spacing=(5.6, 5.6, 8)))
    shares = measure(predict_volume(load_model(trained()), volume, sampling=SOME)).level_shares
    assert list(shares) == ["level 1", "level 2"]
    assert min(shares.values()) > 0
    assert abs(sum(shares.values()) - 1) < 1e-9


def test_ensemble_reports_share_of_members(trained):
    volume = Volume(np.random.default_rng(5).uniform(size=(16, 16, 3)), place(spacing=(5.6, 5.6, 8)))
    found = predict_volume(load_model(trained("phiseg-ensemble")), volume, sampling=SOME)
    assert found.level_names == ("level 1", "level 2", "member")
    assert found.level_variance.shape[0] == 3
    assert measure(found).level_shares["member"] > 0


def test_held_level_causes_no_uncertainty(trained):
    volume = Volume(np.random.default_rng(5).uniform(size=(16, 16, 2)), place(spacing=(5.6, 5.6, 8)))
    levels = (Level(), Level(hold=True))
    found = predict_volume(load_model(trained()), volume, sampling=Sampling(num_samples=4, levels=levels))
    assert found.level_variance[0].max() > 0
    assert found.level_variance[1].max() == 0
    still = (Level(hold=True), Level(hold=True))
    same = predict_volume(load_model(trained()), volume, sampling=Sampling(num_samples=4, levels=still))
    assert (same.labels == same.labels[:1]).all()


def test_level_outputs_end_in_first_sample(trained):
    volume = Volume(np.random.default_rng(5).uniform(size=(20, 16, 5)), place(spacing=(5.6, 5.6, 8)))
    model = load_model(trained())
    whole = predict_volume(model, volume, sampling=Sampling(num_samples=1), name="it")
    levels = level_outputs(model, whole.stack, slice_number=3, sampling=Sampling(num_samples=4))
    np.testing.assert_allclose(levels[0], whole.mean_probs[1, 3], atol=1e-5)
    assert np.abs(levels[1] - levels[0]).max() > 1e-3
    assert level_outputs(load_model(trained("unet")), whole.stack).shape == (1, 16, 20)


def test_subset_of_slices_matches_all_slices(trained):
    volume = Volume(np.random.default_rng(5).uniform(size=(16, 16, 5)), place(spacing=(5.6, 5.6, 8)))
    model = load_model(trained())
    whole = predict_volume(model, volume, sampling=SOME)
    some = predict_volume(model, volume, slices=range(2, 4), sampling=SOME)
    np.testing.assert_array_equal(some.labels, whole.labels[:, 2:4])
    np.testing.assert_array_equal(some.on_grid(some.gamma).values.any((0, 1)), [False, False, True, True, False])


def test_model_without_hierarchy_has_no_levels(trained):
    volume = Volume(np.random.default_rng(5).uniform(size=(16, 16, 1)), place(spacing=(5.6, 5.6, 8)))
    for model, sampling in (
        (KnownModel(brightest), SOME),
        (load_model(trained("unet")), SOME),
        (load_model(trained()), Sampling(num_samples=2, level_draws=0)),
    ):
        prediction = predict_volume(model, volume, sampling=sampling)
        assert prediction.level_variance is None
        assert measure(prediction).level_shares is None


# A lesion through its slices


def bodies_at(mask, point, spacing, tolerance=5.0):
    """The bodies of a mask (n, h, w) that come nearest to a point: one, or several where they are equally near.

    Voxels of a slice touch at sides and corners, those of neighbouring slices where they lie on each other. A body
    must come within the tolerance of the point, in its slice or one beside it; distance counts in the plane.
    """
    number, row, column = point
    voxels = {tuple(int(place) for place in voxel) for voxel in np.argwhere(mask)}
    distance = {
        voxel: round(np.hypot((voxel[1] - row) * spacing[1], (voxel[2] - column) * spacing[2]), 9)
        for voxel in voxels
        if abs(voxel[0] - number) <= 1
    }
    nearest = min(distance.values(), default=inf)
    if nearest > tolerance:
        return [np.zeros(mask.shape, bool)]
    found = []
    for start in (voxel for voxel, mm in distance.items() if mm == nearest):
        queue, body = deque([start]), set()
        while queue:
            voxel = queue.popleft()
            if voxel in voxels and voxel not in body:
                body.add(voxel)
                n, r, c = voxel
                queue.extend((n, r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1))
                queue.extend([(n - 1, r, c), (n + 1, r, c)])
        kept = np.zeros(mask.shape, bool)
        for voxel in body:
            kept[voxel] = True
        found.append(kept)
    return found


@settings(max_examples=40)
@given(
    seed=st.integers(0, 999), point=st.tuples(*[st.integers(0, 9)] * 3), reach=st.sampled_from([None, 0, 2.4, inf])
)
def test_lesion_is_the_component_at_the_point(seed, point, reach):
    """Random blobs, with a threshold of their own in each sample; against a flood fill."""
    rough = np.random.default_rng(seed).normal(0, 12, (4, 4, 4))
    values = np.kron(rough, np.ones((3, 3, 3)))[:10, :10, :10]
    volume = Volume(values, place(spacing=(1, 1, 1.2)))
    model = KnownModel(noisy, size=(8, 6), plane="axial", centred_on="nodule")
    sampling = Sampling(num_samples=3, reach_mm=reach, batch_size=2)
    prediction = predict_volume(model, volume, point=point, sampling=sampling)
    column, row, number = point
    (noise,) = SliceNoise([(1,)], 3, seed=0, keys=(case_key(volume, (number, row, column)),)).at(0)
    crop = np.zeros((10, 10), bool)
    crop[max(0, row - 4) : row + 4, max(0, column - 3) : column + 3] = True  # 8 x 6 around the point
    far = int((4 if reach is None else min(reach, 99)) / 1.2)
    stack = np.moveaxis(values, 2, 0).swapaxes(1, 2)  # slices, rows, columns
    reached = np.zeros(10, bool)
    reached[max(0, number - far) : number + far + 1] = True
    reached = reached[:, None, None] & crop
    expected_slices = set()
    for sample, sigma in enumerate(noise[0, :, 0].tolist()):
        expected = bodies_at((stack > 8 * sigma) & reached, (number, row, column), (1.2, 1, 1))
        found = np.moveaxis(labels_of(prediction, sample), 2, 0).swapaxes(1, 2) == 1
        assert any(np.array_equal(found, body) for body in expected)
        expected_slices |= set(np.flatnonzero(found.any((1, 2))).tolist())
        inner = (max(0, row - 4), min(9, row + 3)), (max(0, column - 3), min(9, column + 2))
        sides = [found[:, end] for end in inner[0] if 0 < end < 9] + [
            found[:, :, end] for end in inner[1] if 0 < end < 9
        ]
        ends = [found[n] for n in {number - far, number + far, 0, 9} if 0 <= n <= 9 and far]
        assert prediction.truncated[sample] == any(part.any() for part in sides + ends)
    low, high = (min(expected_slices), max(expected_slices)) if expected_slices else (number, number)
    assert prediction.box[0] == slice(max(low - 1, 0, number - far), min(high + 1, 9, number + far) + 1)
    assert prediction.point == (number, row, column)
    assert (prediction.mean_probs[0] + prediction.mean_probs[1]).min() > 0.999


@settings(max_examples=25)
@given(affine=affines, spacing=st.sampled_from([None, (0.9, 0.9)]), offset=st.tuples(*[st.floats(-1, 1)] * 3))
def test_lesion_is_followed_in_world_coordinates(affine, spacing, offset):
    """A ball of 2.5 mm, shown by a point in it, beside another one that is not touched; in any geometry."""
    shape = (15, 16, 17)
    middle = (affine @ [7, 8, 8, 1])[:3]
    lesion = depth_in_ball(shape, affine, middle + offset, 2.5)
    other = depth_in_ball(shape, affine, middle + offset + affine[:3, :3] @ [0, 0, 7], 1.5)
    volume = Volume(np.maximum(lesion, other).astype(np.float32), affine)
    if (depth_in_ball(shape, affine, middle + offset + affine[:3, :3] @ [0, 0, 3.5], 0) > -1).any() and (
        (lesion > -1) & (other > -1)
    ).any():
        return  # they touch
    model = KnownModel(brightest, size=(64, 64), centred_on="nodule", spacing_mm=spacing)
    voxel = np.unravel_index(lesion.argmax(), shape)
    found = labels_of(predict_volume(model, volume, point=voxel, sampling=ONE))
    slack = 1e-6 if spacing is None else max(np.linalg.norm(affine[:3, :3], axis=0)) / 2 + 0.45
    clear = (np.abs(lesion) > slack) & (other < 0)
    np.testing.assert_array_equal(found[clear] == 1, lesion[clear] > 0)


def test_lesion_is_not_followed_beyond_its_end():
    values = np.full((9, 9, 20), -50.0)
    values[3:6, 3:6, 7:12] = 50  # slices 7 to 11
    values[3:6, 3:6, 14:17] = 50  # another one, behind two slices without
    model = KnownModel(brightest, size=(8, 8), plane="axial", centred_on="nodule")
    sampling = Sampling(num_samples=2, batch_size=1, reach_mm=100)
    prediction = predict_volume(model, Volume(values, place()), point=(4, 4, 9), sampling=sampling)
    assert prediction.box[0] == slice(6, 13)
    assert sum(map(len, model.seen)) == 7
    assert not prediction.truncated.any()
    expected = np.zeros(values.shape)
    expected[3:6, 3:6, 7:12] = 1
    np.testing.assert_array_equal(labels_of(prediction), expected)


@pytest.mark.parametrize(("reach", "slices"), [(None, slice(8, 11)), (0, slice(9, 10))])
def test_default_reach_is_at_least_one_slice(reach, slices):
    """Slices of 10 mm are farther apart than half a crop of 8 mm."""
    model = KnownModel(brightest, size=(8, 8), plane="axial", centred_on="nodule")
    values = np.full((9, 9, 20), -50.0)
    values[3:6, 3:6, 7:12] = 50
    sampling = Sampling(num_samples=1, reach_mm=reach)
    prediction = predict_volume(
        model, Volume(values, place(spacing=(1, 1, 10))), point=(4, 4, 9), sampling=sampling
    )
    assert prediction.box[0] == slices
    assert prediction.truncated_by["reach"].all() == (reach is None)


def test_removed_components_do_not_affect_results():
    """Nor a rim of the probabilities around it."""
    shape, affine = (24, 12, 12), place()
    lesion, other = (depth_in_ball(shape, affine, affine[:3, :3] @ at, 3.2) for at in ([5, 6, 5], [17, 6, 9.5]))
    volume = Volume(np.maximum(lesion, other), affine)
    model = KnownModel(brightest, size=(12, 24), plane="axial", centred_on="nodule")
    sampling = Sampling(num_samples=2, reach_mm=20)
    prediction = predict_volume(model, volume, point=(5, 6, 5), sampling=sampling)
    mean = prediction.on_grid(prediction.mean_probs[1]).values
    assert labels_of(prediction)[lesion > 0].all()
    looked_at = prediction.on_grid(np.ones(prediction.gamma.shape, bool)).values
    rim = (other > -2) & looked_at
    assert ((other > 0) & rim).any()
    assert not mean[rim].any()
    kept = np.argwhere(labels_of(prediction))
    near = np.zeros(shape, bool)  # within two pixels of the slice
    for i, j, k in kept:
        near[max(0, i - 2) : i + 3, max(0, j - 2) : j + 3, k] = True
    near &= looked_at
    np.testing.assert_allclose(mean[near], 1 / (1 + np.exp(-lesion[near] / 4)), atol=1e-5)
    assert not mean[~near].any()
    gamma = prediction.on_grid(prediction.gamma).values
    assert not gamma[~near].any()


def test_point_without_lesion_gives_empty_samples():
    values = np.full((9, 9, 20), -50.0)
    values[0, 0, 0] = 50
    model = KnownModel(brightest, size=(8, 8), plane="axial", centred_on="nodule")
    prediction = predict_volume(model, Volume(values, place()), point=(6, 6, 9), sampling=SOME)
    assert prediction.box[0] == slice(8, 11)  # one slice more on each side
    assert not prediction.labels.any()
    assert measure(prediction).classes["lesion"].present == 0
    assert measure(prediction).agreement == 1


@pytest.mark.parametrize("codes", ["LPS", "RAI"])
@pytest.mark.parametrize("corner", [(-0.5, -0.5, -0.5), (0, 0, 0), (7, 7, 5), (7.49, 7.49, 5.49), (-0.5, 7, -0.5)])
def test_point_may_be_on_the_border(codes, corner):
    volume = Volume(np.random.default_rng(0).normal(30, 1, (8, 8, 6)), place(codes))
    model = KnownModel(brightest, size=(6, 6), plane="axial", centred_on="nodule")
    found = labels_of(predict_volume(model, volume, point=corner, sampling=ONE))
    voxel = tuple(int(np.floor(place + 0.5)) for place in corner)
    assert found[voxel] == 1
    assert 9 <= found[:, :, voxel[2]].sum() <= 16  # a quarter of the 6 x 6 crop


# What is refused


def refused(match, *, error=DataError, model=None, values=None, point=None, sampling=None):
    volume = Volume(np.random.default_rng(0).normal(size=(6, 6, 3)) if values is None else values, place())
    with pytest.raises(error, match=match) as caught:
        predict_volume(model or KnownModel(brightest), volume, point=point, sampling=sampling, name="scan7")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("point", [(-0.6, 0, 0), (0, 5.5, 0), (0, 0, 3), (0, 0, 1e30), (6, 0, 0)])
def test_point_outside_is_rejected(point):
    model = KnownModel(brightest, centred_on="nodule")
    refused(r"scan7: the point \(.*\) is outside the 6 x 6 x 3 voxels", model=model, point=point)


@pytest.mark.parametrize("point", [(1, 2), (1, 2, float("nan")), (inf, 0, 0)])
def test_invalid_point_is_rejected(point):
    refused("give three finite", model=KnownModel(brightest, centred_on="nodule"), point=point)


def test_point_requires_a_crop_model():
    refused("whole slices and takes no point; predict scan7 without", error=ConfigError, point=(1, 1, 1))
    model = KnownModel(brightest, centred_on="nodule")
    refused("crops around a nodule; give its position in scan7", error=ConfigError, model=model)


def test_incompatible_volumes_are_rejected():
    noise = np.random.default_rng(0).normal(size=(6, 6, 3, 2))
    refused("scan7 has 2 channels, but the model takes 1", values=noise)
    refused("scan7 has 1 channels, but the model takes 3", model=KnownModel(brightest, channels=3))
    refused("scan7 is empty: every voxel is 0;", values=np.zeros((6, 6, 3), np.int16))
    refused("scan7 is empty: every voxel is 1;", values=np.ones((6, 6, 3), bool))
    refused(r"scan7 has shape \(6, 6\)", values=noise[:, :, 0, 0])
    refused(r"scan7 has shape \(6, 0, 3\)", values=noise[:, :0, :, 0])
    for bad in (np.nan, np.inf):
        noise[2, 2, 1, 0] = bad
        refused("scan7 has NaN or infinite voxels", values=noise[..., 0])


def test_invalid_settings_are_rejected():
    for name, value in (
        ("num_samples", 0),
        ("batch_size", 0),
        ("chunk_size", -1),
        ("level_draws", -1),
        ("noise_length_mm", -0.1),
        ("noise_length_mm", float("nan")),
        ("reach_mm", -2),
    ):
        with pytest.raises(ConfigError, match=name):
            Sampling(**{name: value})


@pytest.mark.parametrize("slices", [range(0), range(3, 6), range(0, 4, 2), range(-1, 2), range(2, 0, -1)])
def test_missing_slices_are_rejected(slices):
    with pytest.raises(ConfigError, match="are not consecutive slices of the 5 of the scan"):
        predict_volume(KnownModel(brightest, plane="axial"), ball((9, 9, 5), place()), slices=slices)


def test_slices_are_rejected_for_a_lesion():
    model = KnownModel(brightest, plane="axial", centred_on="nodule")
    with pytest.raises(ConfigError, match="omit the slices"):
        predict_volume(model, ball((9, 9, 5), place()), point=(4, 4, 2), slices=range(1))


@pytest.mark.parametrize("temperature", [-1.0, inf, float("nan")])
def test_negative_temperature_is_rejected(temperature):
    with pytest.raises(ConfigError, match="the temperature is"):
        Sampling(levels=(Level(temperature=temperature),))


def test_model_without_preprocessing_is_rejected():
    model = KnownModel(brightest)
    model.preprocessing["colour"] = "red"
    refused("preprocessing.json: unknown key 'colour'", error=ModelError, model=model)
    model.preprocessing = {}
    refused("has no preprocessing", error=ModelError, model=model)


def test_cases_have_independent_noise():
    """Sample sizes of different scans and of different points of one scan do not go together."""
    model = KnownModel(noisy, size=(4, 40), plane="axial")
    rng = np.random.default_rng(0)
    slope = np.broadcast_to(np.arange(-20, 20.0)[:, None, None], (40, 4, 3))
    sampling = Sampling(num_samples=60)
    sizes = [
        predict_volume(model, Volume(slope + rng.normal(0, 0.01, slope.shape), place()), sampling=sampling)
        .labels.sum((1, 2, 3))
        .astype(float)
        for _ in range(12)
    ]
    correlations = np.corrcoef(sizes)[np.triu_indices(12, 1)]
    assert abs(correlations.mean()) < 0.1  # the standard error of 66 correlations of 60 samples is below 0.04
    total = np.sum(sizes, axis=0)
    np.testing.assert_allclose(total.std(), np.sqrt(np.sum(np.var(sizes, axis=1))), rtol=0.4)


def test_noise_differs_between_points():
    volume = ball((12, 12, 12), place())
    assert case_key(volume, (1, 2, 3)) != case_key(volume, (1, 2, 4))
    assert case_key(volume, None) != case_key(ball((12, 12, 12), place(), radius=5), None)
    same = Volume(volume.values.astype(np.float64), volume.affine)
    assert case_key(volume, (1, 2, 3)) == case_key(same, (1, 2, 3))


@pytest.mark.parametrize("length", [0, 3, inf])
@pytest.mark.parametrize("shared", [0, 0.4, 1])
def test_shared_noise_sets_the_correlation_of_distant_slices(length, shared):
    noise = SliceNoise([(2, 50, 50)], 4, seed=0, keys=(), length_mm=length, shared=shared)
    near, far = noise.at(1.0)[0].flatten().numpy(), noise.at(51.5)[0].flatten().numpy()
    expected = 1.0 if length == inf else shared
    np.testing.assert_allclose(np.corrcoef(near, far)[0, 1], expected, atol=0.03)
    np.testing.assert_allclose([near.std(), far.std()], 1, atol=0.03)


def test_stored_coupling_of_a_model_is_used():
    slope = np.broadcast_to(np.arange(-20, 20.0)[:, None, None], (40, 4, 6))
    found = {}
    for coupling in ({}, {"length_mm": 3.0, "shared": 0.5}):
        model = KnownModel(noisy, size=(4, 40), plane="axial", slice_coupling=coupling)
        found[len(coupling)] = predict_volume(model, Volume(slope, place()), sampling=SOME).labels
    model = KnownModel(noisy, size=(4, 40), plane="axial")
    explicit = Sampling(num_samples=5, noise_length_mm=3.0, noise_shared=0.5)
    np.testing.assert_array_equal(found[2], predict_volume(model, Volume(slope, place()), sampling=explicit).labels)
    assert (found[0] != found[2]).any()


def test_temperature_of_selecting_noise_is_rejected():
    class Selecting(KnownModel):
        takes_temperature = (False,)

    volume, model = ball((9, 9, 1), place()), Selecting(noisy, plane="axial")
    assert predict_volume(model, volume, sampling=Sampling(num_samples=20, levels=(Level(seed=1),))).labels.any()
    with pytest.raises(ConfigError, match=r"has no temperature for this noise.*use 1"):
        predict_volume(model, volume, sampling=Sampling(num_samples=2, levels=(Level(temperature=2.0),)))
