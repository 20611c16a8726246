"""Models with known output, and volumes with any geometry."""

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from phiseg.imaging.volume import Volume, affine_towards
from phiseg.models.segmenter import Encoding, Segmenter, SegmenterConfig


class KnownModel(Segmenter):
    """Its logits are a function of the image (B, 1, C, H, W) and of one normal number a sample (B, S, 1, 1, 1).

    It keeps the images that it was shown.
    """

    Config = SegmenterConfig

    def __init__(self, logits, *, classes=("background", "lesion"), channels=1, size=(16, 16), **preprocessing):
        super().__init__(SegmenterConfig(name="known", image_channels=channels, num_classes=len(classes)))
        self.logits, self.seen = logits, []
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.preprocessing = {
            "classes": list(classes),
            "image_channels": channels,
            "size": list(size),
            "intensity": {"kind": "window", "low": -200, "high": 200},
            **preprocessing,
        }

    def forward(self, image, labels, *, generator):
        raise NotImplementedError

    def encode(self, image):
        self.check_image(image)
        self.seen.append(image.numpy())
        return Encoding((image,), (image.shape[-2], image.shape[-1]))

    def noise_shapes(self, size):
        return [(1,)]

    def decode_samples(self, encoding, noise, num_samples):
        assert noise[0].shape[1:] == (num_samples, 1)
        logits = self.logits(encoding.features[0][:, None], noise[0][..., None, None])
        return logits.expand(len(noise[0]), num_samples, -1, *encoding.size)


def brightest(image, noise):
    """The background has logit 0, and class k what channel k - 1 shows: the sign in a window around 0 decides."""
    return torch.cat([torch.zeros_like(image[:, :, :1]), 100 * image], dim=2)


def noisy(image, noise):
    """As `brightest`, with a threshold of its own in every sample: 8 units of the window above 0 for 1 sigma."""
    return torch.cat([torch.zeros_like(image[:, :, :1] + noise), 100 * (image - 0.02 * noise)], dim=2)


def place(codes="LPS", *, turn=(0, 0, 0), spacing=(1, 1, 1), origin=(0, 0, 0)):
    """An affine with axes towards `codes`, turned by some degrees."""
    affine = affine_towards(codes)
    affine[:3, :3] = Rotation.from_euler("xyz", turn, degrees=True).as_matrix() @ affine[:3, :3] * spacing
    affine[:3, 3] = origin
    return affine


def world(shape, affine):
    """The place of every voxel, (I, J, K, 3), one by one."""
    places = np.empty((*shape, 3))
    for index in np.ndindex(*shape):
        places[index] = (affine @ [*index, 1])[:3]
    return places


def depth_in_ball(shape, affine, centre, radius):
    """How deep every voxel lies in a ball, in mm; negative outside."""
    return radius - np.linalg.norm(world(shape, affine) - centre, axis=-1)


def ball(shape, affine, *, radius=4.0, offset=(0, 0, 0)):
    """A volume that shows a ball near its middle by how deep voxels lie in it."""
    middle = (affine @ [*((np.array(shape) - 1) / 2), 1])[:3]
    return Volume(depth_in_ball(shape, affine, middle + offset, radius).astype(np.float32), affine)
