"""Building blocks, and batch norm over several processes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import multiprocessing, nn

from phiseg.models.blocks import (
    BatchNorm,
    Block,
    Blocks,
    Encoder,
    UNetBody,
    UpBlock,
    normalisation,
)
from phiseg.models.layers import output_layer, upsample
from phiseg.models.pyramid import Pyramid

CHANNELS = 3
MOMENTA = (0.01, None)


def batch_norm(kind, momentum=0.01):
    layer = kind(CHANNELS, momentum=momentum, eps=1e-3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 1.0, -2.0]))
        layer.bias.copy_(torch.tensor([1.0, 0.0, 3.0]))
        layer.running_mean.copy_(torch.tensor([0.1, 0.2, 0.3]))
        layer.running_var.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return layer


def use(layer, input, target):
    """Return output, gradients and statistics of one step through `layer`."""
    input = input.clone().requires_grad_()
    output = layer(input)
    (output * target).sum().backward()
    gradients = {"input": input.grad, "weight": layer.weight.grad, "bias": layer.bias.grad}
    return {"output": output.detach(), **gradients, **{k: v.clone() for k, v in layer.named_buffers()}}


def batches(number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [scale * torch.randn(4, CHANNELS, 3, 2, generator=generator) + scale for _ in range(2)]
        for scale in (1.0, 5.0, 0.2)[:number]
    ]


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_in_one_process_equals_torch(training, momentum):
    ours, torchs = (batch_norm(kind, momentum).train(training) for kind in (BatchNorm, nn.BatchNorm2d))
    for input, target in batches(3):
        expected, result = use(torchs, input, target), use(ours, input, target)
        assert expected.keys() == result.keys()
        assert all(torch.equal(expected[name], result[name]) for name in expected)


def steps(kind, share=slice(None), *, volumes=False):
    """Train on three batches and evaluate on a fourth for each momentum, using only `share` of each batch.

    With `volumes`, the pixels of the images are the voxels of volumes.
    """
    results = []

    def parts(batch):
        return [tensor[share].unsqueeze(3) if volumes else tensor[share] for tensor in batch]

    for momentum in MOMENTA:
        layer = batch_norm(kind, momentum)
        results += [use(layer, *parts(batch)) for batch in batches(3)]
        results.append(use(layer.eval(), *parts(batches(1, seed=1)[0])))
    return results


def one_of_two_processes(rank, folder):
    """Use every other image of each batch and store the results."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    share = slice(rank, None, 2)
    low = batch_norm(BatchNorm)(batches(1)[0][0][share].bfloat16())
    results = steps(BatchNorm, share) + steps(BatchNorm, share, volumes=True)
    torch.save((results, low), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_batch_norm_in_two_processes_equals_whole_batch(tmp_path):
    multiprocessing.spawn(one_of_two_processes, (str(tmp_path),), nprocs=2)
    (first, first_low), (second, second_low) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    expected = steps(nn.BatchNorm2d) + steps(nn.BatchNorm3d, volumes=True)
    for whole, left, right in zip(expected, first, second, strict=True):
        for name in ("output", "input"):
            together = torch.stack([left[name], right[name]], dim=1).flatten(0, 1)
            torch.testing.assert_close(together, whole[name], rtol=1e-4, atol=1e-5)
        for name in ("weight", "bias"):  # each process has the gradient of its own images
            torch.testing.assert_close(left[name] + right[name], whole[name], rtol=1e-4, atol=1e-4)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(left[name], whole[name], rtol=1e-5, atol=1e-6)
            assert torch.equal(left[name], right[name])
    assert first_low.dtype == second_low.dtype == torch.bfloat16


def test_normalisation_has_reference_constants():
    batch = normalisation("batch", 6)
    assert isinstance(batch, BatchNorm)
    assert (batch.momentum, batch.eps) == (0.01, 1e-3)
    assert [normalisation("group", width).num_groups for width in (16, 12, 6, 5)] == [8, 4, 2, 1]
    assert isinstance(normalisation("none", 6), nn.Identity)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_block_is_convolution_norm_and_relu(norm):
    block, x = Block(2, 8, norm=norm).eval(), torch.randn(3, 2, 5, 4)
    convolution = block[0]
    assert (convolution.bias is None) == (norm != "none")
    result = F.conv2d(F.pad(x, (1, 1, 1, 1)), convolution.weight, convolution.bias)
    if norm == "batch":
        result = result / math.sqrt(1 + 1e-3)
    if norm == "group":
        result = F.group_norm(result, 8)
    torch.testing.assert_close(block(x), result.clamp(min=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("kind", [Block, UpBlock])
def test_folded_batch_norm_gives_same_output(kind, residual):
    generator = torch.Generator().manual_seed(0)
    block, x = kind(3, 3, norm="batch", residual=residual).eval(), torch.randn(2, 3, 5, 4, generator=generator)
    convolution, norm, _ = block
    for values in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        values.copy_(torch.rand(3, generator=generator) + 0.5)
    entered = upsample(x, (2, 2)) if kind is UpBlock else x
    expected = norm(convolution(entered)).relu() + residual * entered
    found = block(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    parameters = list(block.parameters())
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("size", [(5, 4), (3, 5, 4)])
def test_join_equals_concatenation(size, norm, residual, training):
    generator = torch.Generator().manual_seed(0)
    blocks = Blocks(2, 6, 6, norm=norm, kernel=(3,) * len(size), residual=residual).train(training)
    for module in blocks.modules():
        if isinstance(module, BatchNorm):
            module.running_var.copy_(torch.rand(6, generator=generator) + 0.5)
            module.running_mean.copy_(torch.rand(6, generator=generator))
    items = torch.randn(5, 2, *size, generator=generator)
    images = torch.randn(3, 4, *size, generator=generator)
    image_of = torch.tensor([2, 0, 0, 2, 1])
    found = blocks.join(items, images, image_of)
    expected = blocks(torch.cat([items, images[image_of]], dim=1))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kernel", [(3, 3, 3), (1, 3, 3), (3, 1, 1)])
def test_volume_convolution_gradient_in_bfloat16(kernel, depth):
    generator = torch.Generator().manual_seed(0)
    layer = Block(8, 16, norm="none", kernel=kernel)[0]
    x, target = (torch.randn(4, width, depth, 3, 4, generator=generator) for width in (8, 16))
    plain = F.conv3d(x, layer.weight, layer.bias, padding=tuple(side // 2 for side in kernel))
    torch.testing.assert_close(layer(x), plain, rtol=1e-4, atol=1e-4)
    (expected,) = torch.autograd.grad((plain * target).sum(), layer.weight)
    for _ in range(5):  # wrong gradients contain whatever was in memory
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x)
        (found,) = torch.autograd.grad((output * target).sum(), layer.weight)
        torch.testing.assert_close(found, expected, rtol=0, atol=0.05 * expected.abs().max().item())


def test_convolutions_have_he_normal_init():
    torch.manual_seed(0)
    for layer, fan_in in ((Block(32, 64, norm="batch")[0], 288), (output_layer(64, 64, (1, 1)), 64)):
        std = math.sqrt(2 / fan_in)  # five standard errors of an estimated standard deviation
        assert layer.weight.std().item() == pytest.approx(std, abs=5 * std / math.sqrt(2 * layer.weight.numel()))
        assert layer.weight.mean().item() == pytest.approx(0, abs=5 * std / math.sqrt(layer.weight.numel()))
    assert not output_layer(4, 4, (1, 1)).bias.any()


def test_upsample_is_linear():
    row = torch.tensor([0.0, 4.0, 8.0]).view(1, 1, 1, 3)
    assert upsample(row, (1, 2))[0, 0, 0].tolist() == [0, 1, 3, 5, 7, 8]
    assert upsample(torch.randn(2, 3, 4, 5), (2, 2)).shape == (2, 3, 8, 10)


def test_blocks_are_sequential():
    chain = Blocks(3, 2, 5, norm="none")
    assert [(block[0].in_channels, block[0].out_channels) for block in chain] == [(2, 5), (5, 5), (5, 5)]


def test_encoder_halves_by_average_pooling():
    encoder = Encoder(1, (2, 3, 4), pyramid=Pyramid.regular(2, 3), num_blocks=2, norm="none").eval()
    x = torch.randn(2, 1, 8, 12)
    features = encoder(x)
    assert [tuple(f.shape) for f in features] == [(2, 2, 8, 12), (2, 3, 4, 6), (2, 4, 2, 3)]
    for level in (1, 2):
        quarters = [features[level - 1][..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
        torch.testing.assert_close(features[level], encoder.levels[level](sum(quarters) / 4))
    torch.testing.assert_close(features[0], encoder.levels[0](x))


def test_unet_body_uses_all_encoder_levels():
    body = UNetBody(1, (2, 3, 4), pyramid=Pyramid.regular(2, 3), num_blocks=1, norm="none")
    x = torch.randn(2, 1, 8, 12)
    fine, middle, coarse = body.encoder(x)
    ascended = body.decoder[1](torch.cat([upsample(coarse, (2, 2)), middle], dim=1))
    torch.testing.assert_close(body(x), body.decoder[0](torch.cat([upsample(ascended, (2, 2)), fine], dim=1)))
    assert body(x).shape == (2, 2, 8, 12)


def test_residual_block_adds_input_for_equal_widths():
    torch.manual_seed(0)
    plain = Blocks(2, 3, 4, norm="group")
    residual = Blocks(2, 3, 4, norm="group", residual=True)
    residual.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 5, 5)
    first = plain[0](x)
    torch.testing.assert_close(residual[0](x), first)
    torch.testing.assert_close(residual(x), first + plain[1](first))
