"""Record the losses of a few short trainings, which refactorings must reproduce.

    python tests/golden/record.py

overwrites `losses.txt`. Run it after a change that intentionally affects the losses, and state the reason in the
commit. All settings are given here, so that new defaults have no effect.
"""

import sys
import tempfile
from pathlib import Path

FILE = Path(__file__).with_name("losses.txt")

WIDTHS = {"channels": [4, 6, 8], "blocks_per_level": 2, "norm": "batch"}
LATENT = {"min_std": 1e-4, "head_init": 0.1}
MODELS = {
    "phiseg": WIDTHS
    | LATENT
    | {"num_levels": 2, "latent_channels": 2, "latents_at": "coarsest", "kl_weights": "reference"},
    "phiseg-finest": WIDTHS
    | LATENT
    | {"name": "phiseg", "num_levels": 3, "latent_channels": 1, "latents_at": "finest", "kl_weights": "paper"},
    "probunet": WIDTHS | LATENT | {"latent_dimensions": 3, "kl_weight": 1.0},
    "unet": WIDTHS,
    "mcdropout": WIDTHS | {"dropout": 0.5, "dropout_levels": 2},
    "ensemble": WIDTHS | {"members": 3},
    "multihead": WIDTHS | {"heads": 4, "relaxation": 0.05},
    "cvae": WIDTHS | LATENT | {"latent_dimensions": 3, "kl_weight": 1.0},
    "ssn": WIDTHS | LATENT | {"rank": 3, "monte_carlo": 4},
    "flow-ssn": WIDTHS
    | LATENT
    | {"rank": 3, "monte_carlo": 4, "flow_channels": [4, 6], "flow_blocks": 1, "num_steps": 3, "base_std": 1.0},
    "ccdm": WIDTHS | {"diffusion_steps": 20, "num_steps": 4},
    "mose": WIDTHS
    | {"experts": 3, "latent_dimensions": 1, "training_samples": 2, "max_share": 0.5, "kl_weight": 1.0},
    "hprobunet": WIDTHS
    | LATENT
    | {"num_levels": 2, "latent_channels": 1, "kappa": 0.05, "top_k": 0.02}
    | {"geco_decay": 0.99, "geco_rate": 0.05, "max_multiplier": 100.0},
}
AUGMENT = {
    "enabled": True,
    "probability": 0.5,
    "rotation_degrees": 10.0,
    "min_crop_fraction": 0.75,
    "flip_horizontal": True,
    "flip_vertical": False,
    "quarter_turns": False,
}
TRAIN = {
    "steps": 4,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "seed": 0,
    "annotator": "random",
    "validate_every": 4,
    "validation_samples": 4,
    "checkpoint_every": 4,
    "log_every": 1,
    "select_by": "loss",
    "norm_statistics": "recalibrated",
    "recalibration_batches": 2,
    "precision": "32-true",
    "accelerator": "cpu",
}

FURTHER = {
    "mose": {"annotations_per_image": 3},
    "ccdm": {"norm_statistics": "training"},
    "flow-ssn": {"norm_statistics": "training"},
}
"""Training settings of single models."""


def losses(model: str, folder: Path) -> dict[str, float]:
    """Train a model in `folder` and return all numbers of its metrics.jsonl by `model step kind name`."""
    from phiseg.data.prepare.phantom import prepare_phantom
    from phiseg.training.loop import train
    from phiseg.training.recipe import Recipe
    from phiseg.training.tracking import read_metrics

    if not (folder / "data").exists():
        prepare_phantom("zones", folder / "data", seed=0, size=24, num_cases=10, progress=False)
    settings = TRAIN | FURTHER.get(model, {})
    values = {"name": model, "model": {"name": model, **MODELS[model]}, "augment": AUGMENT, "train": settings}
    train(Recipe.parse(values, where="the golden recipe"), folder / "data", folder / model, progress=False)
    return {
        f"{model} {line['step']} {line['kind']} {name}": value
        for line in read_metrics(folder / model / "metrics.jsonl")
        for name, value in line.items()
        if name not in ("step", "kind", "skipped")
    }


def recorded() -> dict[str, float]:
    """Return the numbers in `losses.txt`."""
    rows = (line.rpartition(" ") for line in FILE.read_text(encoding="utf-8").splitlines())
    return {key: float(value) for key, _, value in rows if not key.startswith("#")}


def main() -> None:
    """Write `losses.txt`."""
    with tempfile.TemporaryDirectory() as folder:
        found = {key: value for model in MODELS for key, value in losses(model, Path(folder)).items()}
    rows = "".join(f"{key} {value:.7g}\n" for key, value in found.items())
    FILE.write_text(
        f"# model step kind name value; made by python tests/golden/record.py\n{rows}", encoding="utf-8"
    )
    print(f"{len(found)} numbers in {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()
