"""A convolution of one volume, which is computed by other code, equals that of several volumes."""

import pytest
import torch
import torch.nn.functional as F

from phiseg.models.layers import convolution

LAYOUTS = (torch.contiguous_format, torch.channels_last_3d)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kernel", [(1, 3, 3), (3, 3, 3), (1, 1, 1)])
@pytest.mark.parametrize("size", [(5, 12, 9), (2, 4, 4), (1, 1, 1)])
def test_convolution_of_one_volume_matches_batch(size, kernel, layout):
    torch.manual_seed(0)
    layer = convolution(3, 4, kernel, bias=True).to(memory_format=layout)
    volumes = torch.randn(2, 3, *size).to(memory_format=layout)
    found = torch.cat([layer(volume[None]) for volume in volumes])
    padding = tuple(side // 2 for side in kernel)
    expected = F.conv3d(volumes.double(), layer.weight.double(), layer.bias.double(), padding=padding)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)


def test_convolution_of_one_volume_has_gradients():
    torch.manual_seed(0)
    layer, volume = convolution(3, 4, (3, 3, 3), bias=True), torch.randn(1, 3, 4, 5, 6, requires_grad=True)
    weights = torch.randn(1, 4, 4, 5, 6)
    found = torch.autograd.grad((weights * layer(volume)).sum(), [volume, *layer.parameters()])
    plain = F.conv3d(volume, layer.weight, layer.bias, padding=1)
    expected = torch.autograd.grad((weights * plain).sum(), [volume, *layer.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_convolution_of_one_volume_follows_autocast():
    layer = convolution(3, 4, (3, 3, 3), bias=True)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(1, 3, 4, 5, 6)).dtype == torch.bfloat16


def test_exported_convolution_contains_standard_operators():
    layer = convolution(3, 4, (3, 3, 3), bias=True)
    exported = torch.export.export(layer, (torch.randn(1, 3, 4, 5, 6),))
    calls = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert calls == {"aten.conv3d.default"}
