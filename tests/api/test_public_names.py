"""`import phiseg`: the public names, and the import time."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import phiseg

LIGHT = """
import sys
import phiseg
heavy = {"torch", "numpy", "scipy", "pydantic", "matplotlib", "lightning_fabric", "yaml"} & sys.modules.keys()
assert not heavy, heavy
assert "train" in dir(phiseg)
phiseg.load
assert "torch" in sys.modules
"""


def test_import_loads_no_heavy_package_until_a_name_is_used():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_public_name_can_be_imported():
    for name in phiseg.__all__:
        value = getattr(phiseg, name)
        assert name.startswith("__") or value.__doc__, name
    assert {"load", "Dataset", "train", "evaluate", "compare", "sample", "predict", "metrics"} <= set(dir(phiseg))
    assert {"Recipe", "load_recipe"} <= set(dir(phiseg))
    assert phiseg.metrics.energy_distance


def test_type_checkers_see_the_names_that_are_there():
    tree = ast.parse(Path(phiseg.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == phiseg._HOMES | {"metrics": "phiseg"}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = phiseg.tarin
