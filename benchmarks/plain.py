"""A plain implementation of PHiSeg, the baseline of all ratios in the benchmarks.

It has the same network as `phiseg-reference`, with the same parameters under the same names (`load_state_dict`
copies the weights), the same objective and the same scores. It is written like public ports: eager, float32,
contiguous NCHW tensors, torch's default Adam, the whole network for each sample, Python loops over pairs of masks.
tests/benchmarks/test_plain.py checks that it computes the same numbers.

It contains no artificial delays, copies or computations. Comments mark the choices that cost time.

Shapes: B batch, S samples, A annotators, K classes, D latent channels. Lists run fine to coarse.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from phiseg.data.store import Dataset
from phiseg.models.phiseg import PHiSegConfig


def blocks(number: int, in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a chain of convolution, batch norm and ReLU as separate modules."""
    widths = [in_channels, *[out_channels] * number]
    return nn.Sequential(*[block(a, b) for a, b in itertools.pairwise(widths)])


def block(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.01),
        nn.ReLU(),
    )


def double(x: Tensor) -> Tensor:
    """Upsample bilinearly by two."""
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class Head(nn.Module):
    """Mean and standard deviation of a latent."""

    def __init__(self, in_channels: int, config: PHiSegConfig, mean_kernel_size: int = 1):
        super().__init__()
        latent, padding = config.latent_channels, mean_kernel_size // 2
        self.mean = nn.Conv2d(in_channels, latent, mean_kernel_size, padding=padding)
        self.raw_std = nn.Conv2d(in_channels, latent, 1)
        self.min_std = config.min_std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, (B, D, h, w)."""
        return self.mean(x), F.softplus(self.raw_std(x)) + self.min_std


class Level(nn.Module):
    """A latent level above the coarsest."""

    def __init__(self, level: int, offset: int, config: PHiSegConfig):
        super().__init__()
        embedding, width = 32 * config.latent_channels, config.channels[level]
        self.embed = blocks(2, config.latent_channels, embedding)
        self.merge = blocks(2, embedding + config.channels[level + offset], width)
        self.head = Head(width, config)

    def forward(self, features: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation given the features and the latent below."""
        mean, std = self.head(self.merge(torch.cat([self.embed(double(below)), features], dim=1)))
        return mean, std


class Encoder(nn.Module):
    """The downward path."""

    def __init__(self, in_channels: int, config: PHiSegConfig):
        super().__init__()
        widths = [in_channels, *config.channels]
        self.levels = nn.ModuleList(blocks(config.blocks_per_level, a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the features of every resolution, fine to coarse."""
        features = []
        for number, level in enumerate(self.levels):
            x = level(F.avg_pool2d(x, 2) if number else x)
            features.append(x)
        return features


class Hierarchy(nn.Module):
    """The prior or the posterior: its encoder and latent levels always run together."""

    def __init__(self, in_channels: int, config: PHiSegConfig):
        super().__init__()
        self.num_levels = config.num_levels
        self.offset = len(config.channels) - config.num_levels
        self.encoder = Encoder(in_channels, config)
        self.levels = nn.ModuleList(Level(level, self.offset, config) for level in range(self.num_levels - 1))
        self.coarsest = Head(config.channels[-1], config, mean_kernel_size=3)

    def forward(
        self, x: Tensor, noise: Sequence[Tensor] | None, given: Sequence[Tensor] | None = None
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return latents, means and standard deviations of every level; `given` replaces the latents."""
        features = self.encoder(x)[self.offset :]
        latents: list[Tensor] = []
        means: list[Tensor] = []
        stds: list[Tensor] = []
        for level in reversed(range(self.num_levels)):
            mean, std = self.levels[level](features[level], latents[0]) if latents else self.coarsest(features[-1])
            if given is not None:
                latent = given[level]
            else:
                latent = mean + std * (torch.randn_like(std) if noise is None else noise[level])
            latents.insert(0, latent)
            means.insert(0, mean)
            stds.insert(0, std)
        return latents, means, stds


class Likelihood(nn.Module):
    """The decoder: latents to the residual logits of every level at full size."""

    def __init__(self, config: PHiSegConfig):
        super().__init__()
        channels, num_levels = config.channels, config.num_levels
        offset = len(channels) - num_levels
        merged = [channels[level + offset] for level in range(num_levels - 1)] + [channels[num_levels - 1]]
        self.embed = nn.ModuleList(blocks(2, config.latent_channels, channels[i]) for i in range(num_levels))
        self.ascend = nn.ModuleList(
            nn.ModuleList(block(channels[i], channels[i]) for _ in range(offset)) for i in range(num_levels)
        )
        self.carry = nn.ModuleList(block(merged[i + 1], channels[i]) for i in range(num_levels - 1))
        self.merge = nn.ModuleList(blocks(2, 2 * channels[i], merged[i]) for i in range(num_levels - 1))
        self.output = nn.ModuleList(nn.Conv2d(width, config.num_classes, 1) for width in merged)

    def forward(self, latents: Sequence[Tensor]) -> list[Tensor]:
        """Return s_l (B, K, H, W) of every level, fine to coarse."""
        contexts: list[Tensor] = []
        for level in reversed(range(len(latents))):
            x = self.embed[level](latents[level])
            for up in self.ascend[level].children():
                x = up(double(x))
            if contexts:
                x = self.merge[level](torch.cat([self.carry[level](double(contexts[0])), x], dim=1))
            contexts.insert(0, x)
        size = contexts[0].shape[-2:]
        return [
            F.interpolate(output(x), size=size, mode="nearest")  # a copy at the finest level, as in ports
            for output, x in zip(self.output, contexts, strict=True)
        ]


class PlainPHiSeg(nn.Module):
    """Prior, posterior, likelihood, and eq. 2 of the paper."""

    def __init__(self, config: PHiSegConfig):
        super().__init__()
        self.num_classes = config.num_classes
        self.prior = Hierarchy(config.image_channels, config)
        self.posterior = Hierarchy(config.image_channels + config.num_classes, config)
        self.likelihood = Likelihood(config)

    def loss(self, image: Tensor, labels: Tensor, noise: Sequence[Tensor] | None = None) -> Tensor:
        """Return the training loss with the weights 4^i of the reference code.

        Args:
            image: (B, C, H, W).
            labels: (B, H, W).
            noise: (B, D, h_l, w_l) of each level; drawn if not given.
        """
        one_hot = one_hot_batch(labels.numpy(), self.num_classes)
        x = torch.cat([image, torch.from_numpy(one_hot).float() - 0.5], dim=1)
        latents, q_means, q_stds = self.posterior(x, noise)
        _, p_means, p_stds = self.prior(image, None, given=latents)
        residuals = self.likelihood(latents)
        criterion = nn.CrossEntropyLoss(reduction="none")
        accumulated: Tensor | None = None
        total = torch.zeros(())
        for level in reversed(range(len(latents))):
            divergence = gaussian_kl(q_means[level], q_stds[level], p_means[level], p_stds[level])
            total = total + 4**level * divergence
            accumulated = residuals[level] if accumulated is None else accumulated + residuals[level]
            total = total + criterion(accumulated, labels).flatten(1).sum(1).mean()
        return total

    @torch.no_grad()
    def sample(self, image: Tensor, num_samples: int, noise: Sequence[Sequence[Tensor]] | None = None) -> Tensor:
        """Return logits (S, K, H, W) of one image (1, C, H, W), with encoder, prior and decoder for each sample.

        `noise` has (1, D, h_l, w_l) of each level for each sample; it is drawn if not given.
        """
        samples = []
        for number in range(num_samples):
            latents, _, _ = self.prior(image, None if noise is None else noise[number])
            samples.append(sum_levels(self.likelihood(latents)))
        return torch.cat(samples)

    @torch.no_grad()
    def sample_tiled(self, image: Tensor, num_samples: int, noise: Sequence[Tensor] | None = None) -> Tensor:
        """Return the same from one batch of `num_samples` copies of the image, as in other ports.

        `noise` has (S, D, h_l, w_l) of each level; it is drawn if not given.
        """
        latents, _, _ = self.prior(image.repeat(num_samples, 1, 1, 1), noise)
        return sum_levels(self.likelihood(latents))


def sum_levels(residuals: Sequence[Tensor]) -> Tensor:
    """Return the sum of the residual logits, coarse to fine."""
    total = residuals[-1]
    for residual in reversed(residuals[:-1]):
        total = total + residual
    return total


def gaussian_kl(q_mean: Tensor, q_std: Tensor, p_mean: Tensor, p_std: Tensor) -> Tensor:
    """Return KL[q || p], summed over the latent, averaged over the batch."""
    q_var, p_var = q_std.flatten(1) ** 2, p_std.flatten(1) ** 2
    distance = (q_mean - p_mean).flatten(1) ** 2
    return (0.5 * ((q_var + distance) / p_var + torch.log(p_var) - torch.log(q_var) - 1)).sum(1).mean()


def one_hot_batch(labels: NDArray[np.integer], num_classes: int) -> NDArray[np.float64]:
    """Return labels (B, H, W) as one-hot (B, K, H, W), image by image and class by class."""
    images = []
    for image in labels:
        one_hot = np.zeros((num_classes, *image.shape))
        for label in range(num_classes):
            one_hot[label] = image == label
        images.append(one_hot)
    return np.asarray(images)


class PlainTraining:
    """The training step: forward, check of the loss, backward, Adam."""

    def __init__(self, network: PlainPHiSeg, learning_rate: float):
        self.network = network.train()
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)  # not fused, torch's default

    def step(self, image: Tensor, labels: Tensor, noise: Sequence[Tensor] | None = None) -> float:
        """Take a step and return the loss."""
        loss = self.network.loss(image, labels, noise)
        value = loss.item()
        if math.isnan(value):
            raise FloatingPointError("the loss is NaN")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return value


def scores(probs: NDArray[np.float32], annotations: NDArray[np.uint8]) -> dict[str, float]:
    """Return GED, S_NCC and HM-IoU of softmax samples (S, K, H, W) against annotations (A, H, W), pair by pair."""
    num_classes = probs.shape[1]
    labels = probs.argmax(1)
    return {
        "ged": ged(labels, annotations, num_classes),
        "s_ncc": s_ncc(probs, annotations),
        "hm_iou": hm_iou(labels, annotations, num_classes),
    }


def iou(first: NDArray[np.integer], second: NDArray[np.integer], num_classes: int) -> float:
    """Return the mean IoU of two masks (H, W) over the foreground labels; 1 for labels absent from both."""
    values = []
    for label in range(1, num_classes):
        a, b = first == label, second == label
        union = np.logical_or(a, b).sum()
        values.append(np.logical_and(a, b).sum() / union if union else 1.0)
    return float(sum(values) / len(values))


def ged(samples: NDArray[np.integer], annotations: NDArray[np.integer], num_classes: int) -> float:
    """Return the squared GED by a loop over all ordered pairs, including i = j."""

    def mean_distance(first: NDArray[np.integer], second: NDArray[np.integer]) -> float:
        distances = [1 - iou(a, b, num_classes) for a in first for b in second]
        return sum(distances) / len(distances)

    within = mean_distance(samples, samples) + mean_distance(annotations, annotations)
    return 2 * mean_distance(samples, annotations) - within


def s_ncc(probs: NDArray[np.float32], annotations: NDArray[np.integer]) -> float:
    """Return the mean correlation of the gamma map with each annotator's error map, sample by sample."""

    def cross_entropy(target: NDArray[np.float64], sample: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(-(target * np.log(sample + 1e-8)).sum(0))

    samples = probs.astype(np.float64)
    mean = samples.mean(0)
    gamma = np.mean([cross_entropy(mean, sample) for sample in samples], axis=0)
    correlations = []
    for target in one_hot_batch(annotations, probs.shape[1]):
        error = np.mean([cross_entropy(target, sample) for sample in samples], axis=0)
        correlations.append(np.corrcoef(gamma.ravel(), error.ravel())[0, 1])
    return float(np.mean(correlations))


def hm_iou(samples: NDArray[np.integer], annotations: NDArray[np.integer], num_classes: int) -> float:
    """Return the Hungarian-matched IoU: IoU of each pair, then both sets repeated to their common multiple."""
    similarity = np.array([[iou(a, b, num_classes) for b in annotations] for a in samples])
    size = math.lcm(*similarity.shape)
    for axis in (0, 1):
        similarity = similarity.repeat(size // similarity.shape[axis], axis)
    return float(similarity[linear_sum_assignment(similarity, maximize=True)].mean())


def augmented_batch(
    dataset: Dataset, rows: NDArray[np.integer], annotators: NDArray[np.integer], matrices: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the batch of the loader for the same cases and random draws, image by image.

    Args:
        dataset: dataset with images and labels.
        rows: (B,) cases.
        annotators: (B,) annotators.
        matrices: (B, 2, 3) from `phiseg.data.augment.draw_augmentation`.

    Returns:
        Images (B, C, H, W) and labels (B, H, W).
    """
    images, labels = [], []
    for row, annotator, matrix in zip(rows, annotators, matrices, strict=True):
        image = torch.from_numpy(dataset.image(row))[None]
        grid = F.affine_grid(matrix[None], list(image.shape), align_corners=False)
        images.append(F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=False))
        one_hot = one_hot_batch(dataset.labels[row, annotator][None], len(dataset.info.classes))
        share = F.grid_sample(
            torch.from_numpy(one_hot).float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )
        share[:, 0] = 1 - share[:, 1:].sum(1)  # pixels outside are background
        labels.append(share.argmax(1))
    return torch.cat(images), torch.cat(labels)
