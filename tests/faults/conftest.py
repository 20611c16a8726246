"""Inputs of the fault tests."""

import pytest


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """One small good thing of every kind."""
    from faults.processes import import_all
    from faults.specimens import make_specimens

    import_all()
    root = tmp_path_factory.mktemp("campaign") / "good"
    root.mkdir()
    return make_specimens(root)
