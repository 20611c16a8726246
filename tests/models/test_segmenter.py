"""Functions shared by all models: padding, and the order of samples in a folded batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phiseg.models.registry import build_model
from phiseg.models.segmenter import fold_samples, repeat_samples, unfold_samples, unpad, with_labels
from phiseg.models.unet import UNetConfig

quick = settings(max_examples=40)
sides = st.integers(1, 30)


def model_with_stride(stride):
    return build_model(UNetConfig(channels=(1,) * (stride.bit_length()), blocks_per_level=1))


@quick
@given(sides, sides, st.sampled_from([1, 2, 8]))
def test_pad_replicates_border_and_crop_inverts(height, width, stride):
    model = model_with_stride(stride)
    assert model.strides == (stride, stride)
    image = torch.arange(2 * height * width).view(1, 2, height, width).float()
    padded = model.pad(image)
    assert padded.shape[-2:] == model.padded_size((height, width))
    assert all(side % stride == 0 for side in padded.shape[-2:])
    assert all(0 <= new - old < stride for new, old in zip(padded.shape[-2:], (height, width), strict=True))
    assert torch.equal(unpad(padded, (height, width)), image)
    rows = torch.arange(padded.shape[-2]).clamp(max=height - 1)
    columns = torch.arange(padded.shape[-1]).clamp(max=width - 1)
    assert torch.equal(padded, image[:, :, rows][..., columns])


@pytest.mark.parametrize("num_samples", [1, 3])
def test_repeat_samples_matches_fold_order(num_samples):
    images, samples = torch.arange(4)[:, None], torch.arange(4).view(4, 1, 1).expand(4, num_samples, 1)
    assert torch.equal(repeat_samples(images, num_samples), fold_samples(samples))
    assert torch.equal(unfold_samples(fold_samples(samples), num_samples), samples)


def test_with_labels_appends_centred_one_hot():
    image = torch.full((1, 2, 2, 2), 7.0)
    planes = with_labels(image, torch.tensor([[[0, 2], [1, 1]]]), 3)
    assert torch.equal(planes[:, :2], image)
    one_hot = planes[:, 2:] + 0.5
    assert one_hot.tolist() == [[[[1, 0], [0, 0]], [[0, 0], [1, 1]], [[0, 1], [0, 0]]]]
    assert planes.dtype == torch.float32
