"""Without a browser the tests that need one are skipped visibly."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="tests in a browser need playwright")


def test_pytest_reports_how_to_get_the_browser(tmp_path):
    page = Path(__file__).with_name("test_viewer_page.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(page)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (number,) = re.findall(r"^(\d+) skipped in", done.stdout, re.MULTILINE)
    (line,) = re.findall(r"^.* browser tests skipped.*$", done.stdout, re.MULTILINE)
    assert line == f"{number} browser tests skipped: no chromium; install it with: apt-get install chromium"
