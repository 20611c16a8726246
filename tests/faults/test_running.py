"""The campaign itself: what breaks in it, and who gets how much of the time."""

import sys
import tempfile

import pytest

from faults.record import Part


@pytest.fixture
def campaign(monkeypatch):
    """The program, without the long things it begins with; what it changes in this process is set back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    monkeypatch.setattr(tempfile, "tempdir", None)
    from faults import __main__ as campaign

    monkeypatch.setattr(campaign, "import_all", lambda: None)
    monkeypatch.setattr(campaign, "make_specimens", lambda root: None)
    return campaign


def test_a_part_that_breaks_is_told_and_the_others_are_not_lost(campaign, monkeypatch, tmp_path):
    def numbers(good, work, *, seed):
        part = Part("Bad numbers", "By hand.")
        part.add("NaN voxel", 1, "refused", [])
        return part

    def ranks(*_, **__):
        raise RuntimeError("the training said:\nno memory\n")

    monkeypatch.setattr(campaign, "numbers", numbers)
    monkeypatch.setattr(campaign, "ranks", ranks)
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["faults", "--parts", "ranks", "numbers", "--out", str(page)])
    with pytest.raises(SystemExit) as ended:
        campaign.main()
    assert ended.value.code == 1
    text = page.read_text()
    assert "**1 faults, 1 lost**" in text
    assert text.index("## Ranks") < text.index("- the part itself: no memory") < text.index("| NaN voxel | 1 |")
