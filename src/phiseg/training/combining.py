"""Combine separately trained PHiSeg models into an ensemble."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phiseg.core.errors import ConfigError, ModelError
from phiseg.core.files import AnyPath, check_replaceable
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import Segmenter, build_model, load_model, save_model
from phiseg.models.model_folder import weights_hash
from phiseg.models.phiseg import PHiSeg
from phiseg.models.phiseg_ensemble import PHiSegEnsemble, PHiSegEnsembleConfig


def combine(
    folders: Sequence[AnyPath], out: AnyPath, *, half: bool = False, overwrite: bool = False
) -> PHiSegEnsemble:
    """Write an ensemble of several models as a model folder; each sample comes from one member, chosen uniformly.

    Fitted temperatures of the members are discarded; calibrate the ensemble with `phiseg calibrate`. The measured
    coverage of a member's volumes is discarded too, because it is not that of the ensemble.

    Args:
        folders: model or run folders of PHiSeg models with the same settings, trained on the same data.
        out: output folder.
        half: store weights in 16 bits, but not batch-norm statistics. They are converted to 32 bits on loading.
        overwrite: replace an existing model folder.

    Raises:
        ConfigError: there are fewer than two models, or one of them twice.
        ModelError: the models are not compatible.
        OutputError: the folder exists, or cannot be written.
    """
    paths, out = [Path(folder) for folder in folders], Path(out)
    check_replaceable(out, overwrite=overwrite, marker="config.json")
    if len(paths) < 2:
        raise ConfigError("an ensemble needs at least two members; pass their model folders")
    members = [load_model(folder, calibrated=False) for folder in paths]
    hashes = [weights_hash(folder) for folder in paths]
    for position, folder in enumerate(paths):
        _check_member(members[position], members[0], folder, paths[0])
        if hashes[position] in hashes[:position]:
            raise ConfigError(
                f"{folder} has the same weights as {paths[hashes.index(hashes[position])]}; pass it once"
            )
    settings = members[0].config.model_dump(exclude={"name"})
    ensemble = build_model(PHiSegEnsembleConfig(**settings, members=len(members)))
    assert isinstance(ensemble, PHiSegEnsemble)
    for target, member in zip(ensemble.members, members, strict=True):
        target.load_state_dict(member.state_dict())
    if half:
        for parameter in ensemble.parameters():
            parameter.data = parameter.data.half()
    provenance = _provenance(members, hashes)
    preprocessing = _unchecked(members[0])
    save_model(
        out,
        ensemble,
        preprocessing=preprocessing.to_json() if preprocessing else {},
        provenance=provenance,
        card=_card(members, paths),
    )
    return ensemble.float().eval()


def _check_member(model: Segmenter, first: Segmenter, folder: Path, first_folder: Path) -> None:
    if type(model) is not PHiSeg:
        raise ModelError(f"{folder} is a model '{model.config.name}'; all members must be models 'phiseg'")
    settings, expected = model.config.model_dump(), first.config.model_dump()
    if different := [key for key in settings if settings[key] != expected.get(key)]:
        key = different[0]
        raise ModelError(
            f"{folder} has model.{key} = {settings[key]}, but {first_folder} has {expected.get(key)}; "
            "combine models of the same recipe"
        )
    if model.provenance.get("patient_salt") != first.provenance.get("patient_salt"):
        raise ModelError(
            f"{folder} and {first_folder} record their patients in different ways: one of them was trained with an "
            "older phiseg, or on other data, or fine-tuned from a model of other data; combine models that were "
            "trained on the same data with this version"
        )
    if _unchecked(model) != _unchecked(first):
        raise ModelError(
            f"{folder} and {first_folder} were trained on different data, or on data with different preprocessing; "
            "combine models of the same dataset"
        )


def _unchecked(model: Segmenter) -> Preprocessing | None:
    """Return the preprocessing of a model without what was measured with its own weights."""
    preprocessing = Preprocessing.find(model)
    return preprocessing and preprocessing.model_copy(update={"volume_check": None})


def _provenance(members: Sequence[Segmenter], hashes: Sequence[str]) -> dict[str, Any]:
    """Return the common provenance, the patients of all members, and the origin of each member."""
    annotators = [member.provenance.get("annotator") for member in members]
    salt = members[0].provenance.get("patient_salt")
    patients = {
        kind: sorted({str(token) for member in members for token in member.provenance.get(kind) or ()})
        for kind in ("train_patients", "val_patients")
    }
    return {
        "recipe": f"{members[0].provenance.get('recipe', 'phiseg')} x {len(members)}",
        "annotator": annotators[0] if all(annotator == annotators[0] for annotator in annotators) else None,
        **({"patient_salt": salt} if salt else {}),
        **patients,
        "members": [
            {"sha256": digest, **{key: member.provenance.get(key) for key in ("recipe", "step", "annotator")}}
            for member, digest in zip(members, hashes, strict=True)
        ],
    }


def _card(members: Sequence[Segmenter], folders: Sequence[Path]) -> str:
    rows = "\n".join(
        f"| {folder.name} | {member.provenance.get('recipe')} | {member.provenance.get('step')} |"
        for folder, member in zip(folders, members, strict=True)
    )
    return f"""---
library_name: phiseg
tags: [medical-image-segmentation, uncertainty]
---

# Ensemble of {len(members)} PHiSeg models

This model samples plausible segmentations of an image:
`phiseg.load(FOLDER).sample(image, num_samples, seed=0)`. Each sample comes from one member, chosen at
random.

| member | recipe | weights of step |
|---|---|---|
{rows}

## Limitations

Research software, not a medical device. The model is valid only for images like its training images. Its samples
show how the training annotators and the members differ, not every way in which a segmentation can be wrong.
"""
