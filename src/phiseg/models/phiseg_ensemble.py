"""Ensemble of PHiSeg models: p(s|x) = 1/M sum_m p_m(s|x), where each p_m has a hierarchy of latents.

The prediction of a single network for a new image depends on its training run. Each sample of the ensemble comes
from a randomly selected member, so the samples also reflect the uncertainty between training runs.

Shapes: B batch, S samples, M members, K classes, Z latent channels, L latent levels.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import one_hot

from phiseg.models.layers import append_axes
from phiseg.models.mixture import pick
from phiseg.models.noise import Generators
from phiseg.models.objective import Loss
from phiseg.models.phiseg import PHiSeg, PHiSegConfig
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import Encoding, Segmenter


class PHiSegEnsembleConfig(PHiSegConfig):
    """Settings of the ensemble; all settings except `members` are those of each member."""

    name: Literal["phiseg-ensemble"] = "phiseg-ensemble"  # type: ignore[assignment]
    members: int = Field(default=4, ge=1)
    """Number of members M. The ensemble has M times the parameters; the cost per additional sample is the same."""

    @property
    def member(self) -> PHiSegConfig:
        """Settings of one member."""
        return PHiSegConfig(**self.model_dump(exclude={"name", "members"}))


class PHiSegEnsemble(Segmenter):
    """M independent PHiSeg models. `phiseg combine` creates it from M runs; it can also be trained as a whole."""

    Config = PHiSegEnsembleConfig
    config: PHiSegEnsembleConfig

    def __init__(self, config: PHiSegEnsembleConfig):
        super().__init__(config)
        self.members = nn.ModuleList(PHiSeg(config.member) for _ in range(config.members))

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the mean losses and terms of the members; see `Segmenter.forward`.

        By Jensen's inequality, the mean bound of the members is a lower bound on log p(s|x) of the ensemble.
        """
        losses = [member(image, labels, generator=generator) for member in self.members]
        total = torch.stack([loss.total for loss in losses]).mean()
        terms = {name: torch.stack([loss.terms[name] for loss in losses]).mean() for name in losses[0].terms}
        return Loss(total, terms)

    def encode(self, image: Tensor) -> Encoding:
        """Run the M encoders: features (B, C_l, h_l, w_l) of each level, fine to coarse, member by member."""
        encodings = [member.encode(image) for member in self.members]  # type: ignore[operator]
        return Encoding(tuple(f for encoding in encodings for f in encoding.features), encodings[0].size)

    @property
    def num_levels(self) -> int:
        """The number L of latent levels."""
        return self.config.num_levels

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return (Z, h_l, w_l) of each level, fine to coarse, and (): one number that selects the member."""
        shapes: list[tuple[int, ...]] = self.members[0].noise_shapes(size)  # type: ignore[operator]
        return [*shapes, ()]

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What each part of the noise controls: the latent levels, and the choice of the member."""
        names: tuple[str, ...] = self.members[0].noise_names  # type: ignore[assignment]
        return (*names, "member")

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Decode noise (B, S, *shape) to logits (B, S, K, H, W)."""
        return self.sample_levels(encoding, noise, num_samples)[0]

    def sample_levels(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> list[Tensor]:
        """Decode noise to the accumulated logits (B, S, K, H, W) of each level, fine to coarse."""
        *latent, choice = noise
        picked = pick(choice.to(encoding.features[0].device), len(self.members))  # (B, S)
        if self.training or torch.compiler.is_exporting():
            # Batch-norm statistics need all samples and exported graphs fixed shapes: every member decodes all.
            found = [member.sample_levels(part, latent, num_samples) for member, part in self._parts(encoding)]
            stacks = [torch.stack(level, dim=2) for level in zip(*found, strict=True)]  # (B, S, M, K, H, W) each
            shares = append_axes(one_hot(picked, len(self.members)), stacks[0].ndim)
            return [(stack * shares).sum(2) for stack in stacks]
        levels: list[Tensor] = []
        for number, (member, part) in enumerate(self._parts(encoding)):
            image, sample = (picked == number).nonzero(as_tuple=True)  # samples of this member
            if not len(image):
                continue
            own = Encoding(tuple(feature[image] for feature in part.features), part.size)
            logits = member.sample_levels(own, [level[image, sample][:, None] for level in latent], 1)
            levels = levels or [level.new_empty(*picked.shape, *level.shape[2:]) for level in logits]
            for level, values in zip(levels, logits, strict=True):
                level[image, sample] = values[:, 0]
        return levels

    def _parts(self, encoding: Encoding) -> Iterator[tuple[PHiSeg, Encoding]]:
        """Yield each member with its features."""
        number = len(encoding.features) // len(self.members)
        for position, member in enumerate(self.members):
            assert isinstance(member, PHiSeg)
            yield member, Encoding(encoding.features[number * position : number * (position + 1)], encoding.size)
