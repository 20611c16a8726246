"""Several trained PHiSegs as one model: the members of an ensemble that were trained apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phiseg.core.errors import ConfigError, ModelError
from phiseg.core.files import check_replaceable
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import Segmenter, build_model, load_model, save_model
from phiseg.models.phiseg import PHiSeg
from phiseg.models.phiseg_ensemble import PHiSegEnsemble, PHiSegEnsembleConfig
from phiseg.models.pretrained import weights_hash


def combine(folders: Sequence[Path], out: Path, *, half: bool = False, overwrite: bool = False) -> PHiSegEnsemble:
    """Write a model folder whose samples come from each of the models in equal parts.

    Temperatures that were fitted for a member are left behind: fit those of the ensemble with `phiseg calibrate`.

    Args:
        folders: model folders, or the run folders around them, of PHiSegs with the same settings that were trained
            on the same data.
        out: the folder to write.
        half: store the weights, but not the statistics of batch norm, in 16 bits. They are read as 32 bits again.
        overwrite: replace a model folder that is there.

    Raises:
        ConfigError: fewer than two models, or one of them twice.
        ModelError: they do not go together.
        OutputError: the folder exists, or cannot be written.
    """
    check_replaceable(out, overwrite=overwrite, marker="config.json")
    if len(folders) < 2:
        raise ConfigError("an ensemble has two members or more; give their model folders")
    members = [load_model(folder, calibrated=False) for folder in folders]
    hashes = [weights_hash(folder) for folder in folders]
    for position, folder in enumerate(folders):
        _check_member(members[position], members[0], folder, folders[0])
        if hashes[position] in hashes[:position]:
            raise ConfigError(
                f"{folder} has the weights of {folders[hashes.index(hashes[position])]}; give it once"
            )
    settings = members[0].config.model_dump(exclude={"name"})
    ensemble = build_model(PHiSegEnsembleConfig(**settings, members=len(members)))
    assert isinstance(ensemble, PHiSegEnsemble)
    for own, member in zip(ensemble.members, members, strict=True):
        own.load_state_dict(member.state_dict())
    if half:
        for parameter in ensemble.parameters():
            parameter.data = parameter.data.half()
    provenance = _provenance(members, hashes)
    save_model(
        out, ensemble, preprocessing=members[0].preprocessing, provenance=provenance, card=_card(members, folders)
    )
    return ensemble.float().eval()


def _check_member(model: Segmenter, first: Segmenter, folder: Path, first_folder: Path) -> None:
    if not isinstance(model, PHiSeg):
        raise ModelError(f"{folder} is a model '{model.config.name}'; the members of this ensemble are of 'phiseg'")
    ours, theirs = model.config.model_dump(), first.config.model_dump()
    if different := [key for key in ours if ours[key] != theirs.get(key)]:
        key = different[0]
        raise ModelError(
            f"{folder} has model.{key} = {ours[key]}, {first_folder} has {theirs.get(key)}; "
            "combine models of one recipe"
        )
    if model.provenance.get("patient_salt") != first.provenance.get("patient_salt"):
        raise ModelError(
            f"{folder} and {first_folder} record their patients in different ways, since an older phiseg trained "
            "one of them; combine models that one version trained"
        )
    if Preprocessing.find(model) != Preprocessing.find(first):
        raise ModelError(
            f"{folder} and {first_folder} were trained on other data, or on data prepared in another way; "
            "combine models of one dataset"
        )


def _provenance(members: Sequence[Segmenter], hashes: Sequence[str]) -> dict[str, Any]:
    """Return what all members have in common, whom any of them was trained on, and where each comes from."""
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

# An ensemble of {len(members)} PHiSegs

`phiseg.load(FOLDER).sample(image, num_samples, generator=...)` draws segmentations; each comes from one of the
members, picked at random.

| member | recipe | weights of step |
|---|---|---|
{rows}

## Limits

Research software, not a medical device. The model knows the kind of image it was trained on and nothing else; its
samples show how the training annotators and the members differ, not every way in which a segmentation can be wrong.
"""
