"""The fault campaign, importable, and its specimens."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # where the campaign lies: it is no part of the package


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """One small good thing of every kind."""
    from faults.processes import import_all
    from faults.specimens import make_specimens

    import_all()
    root = tmp_path_factory.mktemp("campaign") / "good"
    root.mkdir()
    return make_specimens(root)
