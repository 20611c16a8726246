"""Samples of 3-D models: patches are parts of one hypothesis, in bounded memory."""

import tracemalloc

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.known_models import ball, place
from helpers.tiny_models import trained
from phiseg.core.errors import ConfigError
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import case_key, level_outputs, predict_volume
from phiseg.inference.slice_noise import Level
from phiseg.inference.tiling import tiles
from phiseg.inference.volume_noise import VolumeNoise
from phiseg.inference.volume_sampler import VolumeSampler
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.probunet import ProbUNetConfig
from phiseg.models.segmenter import Encoding, Segmenter, SegmenterConfig
from phiseg.models.unet import UNetConfig

STRIDES = ((1, 2, 2), (2, 2, 2))


def preprocessing(size=(8, 8), depth=8, **changes):
    return {
        "classes": ["background", "lesion"],
        "image_channels": 1,
        "size": list(size),
        "patch_size": [depth, *size],
        "intensity": {"kind": "window", "low": -10, "high": 10},
        "plane": "axial",
        **changes,
    }


class Pointwise(Segmenter):
    """Each voxel has the logit of its value plus noise: of its own, of a coarse cell, and of the sample.

    The largest number of slices that it decoded at once is kept.
    """

    Config = SegmenterConfig

    def __init__(self, *, weights=(0.0, 0.0, 0.0), **changes):
        super().__init__(SegmenterConfig(name="known", dims=3, channels=(1, 1, 1), strides=STRIDES))
        self.weights, self.most = weights, 0
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.preprocessing = preprocessing(**changes)

    def forward(self, image, labels, *, generator):
        raise NotImplementedError

    def encode(self, image):
        self.check_image(image)
        return Encoding((image,), tuple(image.shape[2:]))

    def noise_shapes(self, size):
        return [(1, *self.level_size(size, 0)), (1, *self.level_size(size, 2)), ()]

    @property
    def num_levels(self):
        return 2

    def decode_samples(self, encoding, noise, num_samples):
        (image,), size = encoding
        self.most = max(self.most, num_samples * size[0])
        coarse = F.interpolate(noise[1][0], scale_factor=tuple(map(float, self.strides)))[None]
        parts = (noise[0], coarse, noise[2][..., None, None, None, None])
        logit = 20 * image[:, None] + sum(
            weight * part[..., : size[0], : size[1], : size[2]] if part.shape[-1] > 1 else weight * part
            for weight, part in zip(self.weights, parts, strict=True)
        )
        return torch.cat([torch.zeros_like(logit), logit], dim=2)


def scan(shape=(16, 12, 20), seed=0):
    values = np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)
    return Volume(values, place(spacing=(1, 1, 2)))


def assert_same(first, second, *, tolerance=1e-5):
    assert first.box == second.box
    assert (first.labels != second.labels).mean() < 1e-3  # a tie may be rounded either way
    for name in ("mean_probs", "mean_log_probs", "level_variance"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=0, atol=tolerance)


# Patches


@pytest.mark.parametrize("size", [(16, 16), (8, 8)])
@pytest.mark.parametrize("depth", [8, 6, 3, 1])
def test_patches_are_parts_of_one_sample(size, depth):
    """For a model of single voxels, patches give what the network gives for the whole volume in one piece."""
    model = Pointwise(weights=(1.0, 2.0, 1.5) if depth % 2 == 0 else (1.0, 0.0, 1.5), size=size, depth=depth)
    volume = scan()
    prediction = predict_volume(model, volume, sampling=Sampling(num_samples=3, level_draws=0))
    values = (
        torch.from_numpy(prediction.stack.stack.values[..., 0].clip(-10, 10))[None, None] / 20
    )  # (1, 1, D, H, W)
    noise = VolumeNoise(model, seed=0, keys=(case_key(volume, None),))
    height, width = values.shape[3:]
    row, column = (-int(origin) for origin in tiles(prediction.stack, 4)[0].origin)  # of the lattice
    padded = F.pad(values, (column, 20 - width - column, row, 20 - height - row))
    field = noise.patch((0, 0, 0), tuple(padded.shape[2:]), range(3))
    expected = model.decode_samples(model.encode(padded), field, 3).softmax(2)[0, :, 1]
    expected = expected[..., row : row + height, column : column + width].numpy()
    np.testing.assert_allclose(prediction.mean_probs[1], expected.mean(0), atol=1e-4)
    clear = np.abs(expected - 0.5) > 1e-4
    np.testing.assert_array_equal(prediction.labels[clear], (expected > 0.5)[clear])


def test_window_equals_whole_volume_away_from_its_ends():
    """A network with convolutions along the slices, up to its receptive field."""
    config = PHiSegConfig(
        dims=3,
        channels=(4, 4),
        num_levels=2,
        blocks_per_level=1,
        norm="none",
        head_init=1.0,
        strides=((2, 1, 1),),
        kernels=((3, 1, 1),) * 2,
    )
    model = trained(config, size=(8, 2, 2))
    model.preprocessing = preprocessing(size=(2, 2), depth=64)
    stack = PreparedStack.of(scan((2, 2, 128)), Preprocessing.of(model), name="scan")
    box = (slice(0, 128), slice(0, 2), slice(0, 2))
    found = []
    for window in (range(128), range(32, 96)):
        sampler = VolumeSampler(model, stack, Sampling(num_samples=4), tiles(stack, 1), key="case")
        sampler.windows = lambda numbers, window=window: [window]
        with torch.inference_mode():
            found.append(list(sampler.sample_slices(range(32, 96), box)))
    difference = [
        [np.abs(one - other).max() for one, other in zip(*slices, strict=True)]
        for slices in zip(*found, strict=True)
    ]  # (slices, 2): probabilities and variances of levels
    assert np.max(difference[20:-20]) < 1e-5
    assert np.max(difference) > 1e-3
    probs = np.stack([probs for probs, _ in found[0]])
    assert probs[:, :, 1].std(1).max() > 0.01  # samples differ


def test_neighbouring_windows_are_blended():
    """A model that is the surer the later in its window a slice is: no window ends with a jump."""

    class Ramp(Pointwise):
        def decode_samples(self, encoding, noise, num_samples):
            size = encoding.size
            ramp = torch.linspace(-2, 2, size[0])[:, None, None].expand(1, num_samples, 1, *size)
            return torch.cat([torch.zeros_like(ramp), ramp], dim=2)

    prediction = predict_volume(Ramp(depth=16), scan((8, 8, 50)), sampling=Sampling(num_samples=2, level_draws=0))
    mean = prediction.mean_probs[1, :, 0, 0]
    assert np.ptp(mean) > 0.4
    assert np.abs(np.diff(mean)).max() < 0.15


# Samples


@pytest.fixture(scope="module")
def phiseg():
    config = PHiSegConfig(
        dims=3,
        channels=(4, 4, 4),
        num_levels=2,
        blocks_per_level=1,
        strides=STRIDES,
        head_init=1.0,
        presence=True,
    )
    model = trained(config, size=(4, 8, 8), steps=6)
    model.preprocessing = preprocessing()
    return model


@pytest.mark.parametrize("at", [None, (7, 5, 8)])
@pytest.mark.parametrize(("batch_size", "chunk_size"), [(1, 1), (3, 5), (50, 50)])
def test_batches_and_chunks_change_nothing(phiseg, at, batch_size, chunk_size):
    phiseg.preprocessing = preprocessing(centred_on="lesion" if at else None)
    plain, other = (
        predict_volume(phiseg, scan(), point=at, sampling=Sampling(num_samples=5, level_draws=3, **sizes))
        for sizes in ({}, {"batch_size": batch_size, "chunk_size": chunk_size})
    )
    assert_same(plain, other)
    assert plain.level_variance.max() > 0
    shares = measure(plain).level_shares
    assert list(shares) == ["level 1", "level 2", "presence"]
    assert sum(shares.values()) == pytest.approx(1)


def test_first_samples_do_not_depend_on_their_number(phiseg):
    phiseg.preprocessing = preprocessing()
    few, many = (
        predict_volume(phiseg, scan(), sampling=Sampling(num_samples=number, level_draws=0)) for number in (2, 5)
    )
    np.testing.assert_array_equal(few.labels, many.labels[:2])
    assert len({labels.tobytes() for labels in many.labels}) > 1
    other = predict_volume(phiseg, scan(), sampling=Sampling(num_samples=5, level_draws=0, seed=1))
    assert (other.labels != many.labels).any()


def test_some_slices_equal_those_of_the_whole_scan(phiseg):
    phiseg.preprocessing = preprocessing()
    sampling = Sampling(num_samples=3, level_draws=2)
    whole = predict_volume(phiseg, scan(), sampling=sampling)
    some = predict_volume(phiseg, scan(), slices=range(5, 9), sampling=sampling)
    np.testing.assert_allclose(some.mean_probs, whole.mean_probs[:, 5:9], atol=1e-5)
    np.testing.assert_allclose(some.level_variance, whole.level_variance[:, 5:9], atol=1e-5)


def test_held_levels_have_no_share():
    model = Pointwise(weights=(1.0, 1.0, 1.0))
    levels = (Level(hold=True), Level(), Level(hold=True))
    found = predict_volume(model, scan(), sampling=Sampling(num_samples=4, levels=levels))
    assert measure(found).level_shares == {"level 1": 0, "level 2": 1, "level 3": 0}


@pytest.mark.parametrize("at", [None, (7, 5, 8)])
def test_level_outputs_end_in_first_sample(phiseg, at):
    phiseg.preprocessing = preprocessing(centred_on="lesion" if at else None)
    sampling = Sampling(num_samples=1, level_draws=0)
    prediction = predict_volume(phiseg, scan(), point=at, sampling=sampling)
    levels = level_outputs(phiseg, prediction.stack, point=at, slice_number=8, sampling=sampling)
    assert len(levels) == 2
    if at is None:
        np.testing.assert_allclose(levels[0], prediction.mean_probs[1, 8], atol=1e-5)


@pytest.mark.parametrize("config", [ProbUNetConfig, UNetConfig])
def test_other_models_of_volumes(config):
    model = trained(config(dims=3, channels=(4, 4, 4), blocks_per_level=1, strides=STRIDES), size=(4, 8, 8))
    model.preprocessing = preprocessing()
    prediction = predict_volume(model, scan(), sampling=Sampling(num_samples=4))
    assert prediction.labels.shape == (4, 20, 12, 16)
    np.testing.assert_allclose(prediction.mean_probs.sum(0), 1, atol=1e-5)
    assert (config is UNetConfig) == (prediction.labels == prediction.labels[:1]).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("at", [None, (4, 4, 0)])
def test_scan_with_fewer_slices_than_the_stride(depth, at):
    config = UNetConfig(dims=3, channels=(4, 4, 4, 4), blocks_per_level=1)  # a total stride of 8
    model = trained(config, size=(8, 8, 8), steps=1)
    model.preprocessing = preprocessing(centred_on="lesion" if at else None)
    prediction = predict_volume(model, scan((8, 8, depth)), point=at, sampling=Sampling(num_samples=2))
    assert prediction.on_grid(prediction.consensus).grid == (8, 8, depth)


def test_memory_does_not_grow_with_samples():
    """Apart from the labels, which are results."""
    volume, peaks = scan((32, 32, 8)), []
    for number in (8, 32):
        model = Pointwise(weights=(1.0, 1.0, 1.0), size=(32, 32), depth=4)
        sampling = Sampling(num_samples=number, level_draws=2, batch_size=2, chunk_size=4)
        tracemalloc.start()
        labels = predict_volume(model, volume, sampling=sampling).labels
        peaks.append(tracemalloc.get_traced_memory()[1] - labels.nbytes)
        tracemalloc.stop()
        assert model.most <= 8  # slices of all samples
    assert peaks[1] < 1.1 * peaks[0]


# Lesions


@pytest.mark.parametrize("codes", ["LPS", "SAR"])
@pytest.mark.parametrize(("radius", "depth"), [(3.0, 16), (9.0, 4), (9.0, 5)])
def test_lesion_is_followed_beyond_the_patch(codes, radius, depth):
    """A ball of 6 or 18 slices, and another one beside it."""
    affine = place(codes)
    shape = (40, 40, 40)
    volume = ball(shape, affine, radius=radius)
    beside = ball(shape, affine, radius=3, offset=(14, 0, 0))
    both = Volume(np.maximum(volume.values, beside.values), affine)
    model = Pointwise(size=(36, 36), depth=depth, centred_on="lesion")
    prediction = predict_volume(model, both, point=(20, 19, 20), sampling=Sampling(num_samples=2))
    found = prediction.on_grid(prediction.labels[0]).values
    np.testing.assert_array_equal(found, volume.values > 0)
    assert not prediction.truncated.any()


def test_lesion_at_the_end_of_the_scan_is_cut_off():
    volume = ball((24, 24, 40), place(), radius=6)
    part = Volume(volume.values[..., 20:], volume.affine)
    model = Pointwise(size=(20, 20), depth=8, centred_on="lesion")
    prediction = predict_volume(model, part, point=(12, 12, 1), sampling=Sampling(num_samples=2))
    np.testing.assert_array_equal(prediction.on_grid(prediction.labels[0]).values, part.values > 0)
    assert prediction.truncated_by["scan"].all()
    near = predict_volume(model, volume, point=(12, 12, 20), sampling=Sampling(num_samples=2, reach_mm=3))
    assert near.truncated_by["reach"].all()
    assert near.labels.shape[1] == 7


def test_slice_alone_equals_that_of_a_small_lesion():
    """As the viewer shows it: samples of the clicked slice, and then of the lesion."""
    volume = ball((24, 24, 24), place(), radius=4)
    model = Pointwise(weights=(0.5, 0.5, 0.5), size=(16, 16), depth=16, centred_on="lesion")
    lesion, alone = (
        predict_volume(model, volume, point=(12, 12, 12), sampling=Sampling(num_samples=4, reach_mm=reach))
        for reach in (None, 0.0)
    )
    assert alone.labels.shape[1] == 1
    inside = (lesion.labels > 0).any(0)[12 - lesion.box[0].start]
    clicked = lesion.labels[:, 12 - lesion.box[0].start]
    assert (clicked == alone.labels[:, 0])[:, inside].mean() > 0.95  # a voxel may touch the lesion in another slice


# Errors


def test_noise_along_slices_is_refused(phiseg):
    phiseg.preprocessing = preprocessing()
    for settings in ({"noise_length_mm": 5.0}, {"noise_shared": 0.5}):
        with pytest.raises(ConfigError, match="whose slices have no separate noise; omit --noise-length"):
            predict_volume(phiseg, scan(), sampling=Sampling(num_samples=1, **settings))


def test_missing_or_superfluous_point_is_refused():
    with pytest.raises(ConfigError, match="takes no point"):
        predict_volume(Pointwise(), scan(), point=(1, 1, 1))
    with pytest.raises(ConfigError, match=r"give its position in volume: point=\(x, y, z\)"):
        predict_volume(Pointwise(centred_on="lesion"), scan())
