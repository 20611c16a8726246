"""The command `phiseg push`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.bundled import find_model
from phiseg.core.hub import upload_model


@dataclass
class Push:
    """Upload a model folder to the Hugging Face Hub.

    Uploads the weights (safetensors), the JSON files and the model card in one commit, and prints the name that
    loads exactly this model: hf:owner/name@commit. Every command that takes MODEL accepts this name. Requires
    `pip install 'phiseg[hub]'` and a token with write access, from HF_TOKEN or `hf auth login`.

    The JSON files contain hashed identifiers of the training patients. Read the model card before you publish it.

    Examples:
        phiseg push runs/phiseg owner/name --private
        phiseg push runs/phiseg owner/name --branch v2
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, run folder that contains one, or name of a bundled model."""
    repo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
    """Repository, which is created if it does not exist."""
    private: Flag = False
    """Make a new repository private."""
    branch: Annotated[str | None, optional("NAME", "main")] = None
    """Branch to upload to, which is created if it does not exist."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Push, arguments, prog=prog)
    folder = find_model(Path(command.model))
    from phiseg.models import load_model

    load_model(folder)  # a damaged model is not uploaded
    pinned = upload_model(folder, command.repo, private=command.private, branch=command.branch)
    print(f"uploaded as {pinned}")
