"""Models on the Hugging Face Hub, named `hf:owner/name@revision`. Needs the optional package huggingface_hub.

Only the files of a model folder are downloaded and uploaded: JSON, safetensors and the model card. The package
keeps them in its cache, reads its token from its own settings (HF_TOKEN or `hf auth login`), and works offline with
HF_HUB_OFFLINE=1. Importing this module is fast.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from phiseg.core.errors import ConfigError, ModelError

PREFIX = "hf:"
FILES = ("config.json", "model.safetensors", "preprocessing.json", "calibration.json", "README.md")
"""Files of a model folder."""

_PART = r"[A-Za-z0-9][\w.-]*"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_hub_name(name: str | Path) -> bool:
    """Return whether a name is that of a model on the Hub.

    >>> is_hub_name("hf:owner/name@main"), is_hub_name("runs/phiseg")
    (True, False)
    """
    return str(name).startswith(PREFIX)


def parse_hub_name(name: str) -> tuple[str, str | None]:
    """Return the repository and the revision (None if it is not given) of a name.

    >>> parse_hub_name("hf:owner/name@v1.0")
    ('owner/name', 'v1.0')

    Raises:
        ConfigError: the name has another form.
    """
    match = re.fullmatch(rf"{PREFIX}({_PART}/{_PART})(?:@([\w./-]+))?", name)
    if match is None:
        raise ConfigError(f"'{name}' is not a model on the Hub; write hf:owner/name@revision")
    return match[1], match[2]


def is_in_cache(folder: Path) -> bool:
    """Return whether a model folder is in the cache of the Hub, as CACHE/models--OWNER--NAME/snapshots/COMMIT.

    >>> is_in_cache(Path("hub/models--owner--name/snapshots/3f2a")), is_in_cache(Path("runs/phiseg/model"))
    (True, False)
    """
    snapshots = folder.resolve().parent
    return snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")


@cache
def download_model(name: str) -> Path:
    """Return the folder in the cache of the Hub with a model, downloaded if it is not there.

    If the revision is missing or is a branch or tag, its commit is printed to stderr.

    Args:
        name: hf:owner/name@revision.

    Raises:
        ConfigError: the name is invalid, or huggingface_hub is not installed.
        ModelError: there is no such model or revision, or it is neither reachable nor in the cache.
    """
    repo, revision = parse_hub_name(name)
    hub = _import_hub()
    with _wrap_errors(f"cannot load {name}"):
        folder = Path(hub.snapshot_download(repo, revision=revision, allow_patterns=list(FILES)))
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} contains no model of phiseg: there is no config.json; check the name")
    commit = folder.name
    if revision is None or not _COMMIT.fullmatch(revision):
        what = f"revision {revision}" if revision else "the latest revision"
        pinned = f"{PREFIX}{repo}@{commit}"
        print(f"phiseg: {name}: using commit {commit} ({what}); to pin it, use {pinned}", file=sys.stderr)
    return folder


def upload_model(folder: Path, repo: str, *, private: bool = False, branch: str | None = None) -> str:
    """Upload a model folder in one commit; the repository and the branch are created if they do not exist.

    Files of a previous model that the folder does not have, such as calibration.json, are deleted. Other files of
    the repository are kept.

    Args:
        folder: model folder.
        repo: owner/name.
        private: make a new repository private.
        branch: branch to upload to; by default main.

    Returns:
        The name with the commit after an @.

    Raises:
        ConfigError: `repo` is invalid, or huggingface_hub is not installed.
        ModelError: the upload failed.
    """
    if not re.fullmatch(f"{_PART}/{_PART}", repo):
        raise ConfigError(f"'{repo}' is not the name of a repository; write owner/name")
    hub = _import_hub()
    with _wrap_errors(f"cannot upload to {PREFIX}{repo}"):
        api = hub.HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        if branch:
            api.create_branch(repo, branch=branch, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            revision=branch,
            allow_patterns=list(FILES),
            delete_patterns=[name for name in FILES if not (folder / name).is_file()],
            commit_message="Upload a model of phiseg",
        )
    return f"{PREFIX}{repo}@{done.oid}"


def _import_hub() -> ModuleType:
    try:
        import huggingface_hub
    except ImportError:
        raise ConfigError(
            "models on the Hub need the package huggingface_hub; install it: pip install 'phiseg[hub]'"
        ) from None
    module: ModuleType = huggingface_hub
    return module


@contextmanager
def _wrap_errors(what: str) -> Iterator[None]:
    """Convert any exception of huggingface_hub, whose HTTP library depends on its version, into a ModelError."""
    from huggingface_hub import errors

    advice = {
        errors.GatedRepoError: "request access on its page, and set HF_TOKEN",
        errors.RevisionNotFoundError: "check the revision: a commit, branch or tag",
        errors.RepositoryNotFoundError: "check the name; for a private model, set HF_TOKEN or run `hf auth login`",
        errors.LocalEntryNotFoundError: "it is not in the cache; check the connection, and unset HF_HUB_OFFLINE",
    }
    try:
        yield
    except Exception as error:
        default = "check the connection and the permissions of HF_TOKEN"
        fix = next((text for kind, text in advice.items() if isinstance(error, kind)), default)
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"{what} ({reason}); {fix}") from error
