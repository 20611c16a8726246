"""The program of the fault tests: its own errors, and the division of time."""

import sys
import tempfile

import pytest

from faults import kills
from faults.record import Part
from faults.scenarios import Scenario


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


def test_broken_part_is_reported_and_others_are_kept(campaign, monkeypatch, tmp_path):
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
    assert "**1 faults, 1 failure**" in text
    assert text.index("## Ranks") < text.index("- the part itself: no memory") < text.index("| NaN voxel | 1 |")


def test_kill_time_adapts_to_fast_commands(monkeypatch, tmp_path):
    class Ended:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def poll(self):
            return 0

        def wait(self, seconds):
            return 0

    class WhileItWrites:
        def random(self):
            return 1.0

        def uniform(self, low, high):
            spans.append(high)
            return high

    spans = []
    monkeypatch.setattr(kills, "_wait_for_change", lambda command, folder: None)
    monkeypatch.setattr(kills, "_pause", lambda command, seconds: 7.0)
    monkeypatch.setattr(Scenario, "start", lambda *_, **__: Ended())
    tally = kills.Tally()
    expected = kills.Undisturbed(tmp_path, before_writing=1, writing=20)
    for _ in range(2):
        kills.live(Scenario("train", []), tmp_path, expected, tally, WhileItWrites(), most=1)
    assert spans == [20, 7]


def test_share_divides_the_remaining_time(campaign):
    assert set(campaign.ORDER) == set(campaign.SHARES)
    assert campaign.share(campaign.ORDER, 1200) == campaign.LOAD_SECONDS
    assert campaign.share(campaign.ORDER, 60) == 10
    assert campaign.share(["kills", "bytes"], 820) == pytest.approx(400)
    assert campaign.share(["bytes"], 420) == pytest.approx(420)
    assert campaign.share(["kills", "bytes"], -1) == 0


def test_early_part_leaves_time_and_report_keeps_order(campaign, monkeypatch):
    clock, given, pages = [0.0], {}, []

    def part(name, takes):
        def run(*_, seconds, **__):
            given[name] = seconds
            clock[0] += takes
            return Part(name, "By hand.")

        return run

    monkeypatch.setattr(campaign.time, "monotonic", lambda: clock[0])
    for name, takes in {"disk": 1, "bad_bytes": 5, "kills": 19}.items():
        monkeypatch.setattr(campaign, name, part(name, takes))
    monkeypatch.setattr(campaign, "describe", lambda parts, **_: pages.append([part.title for part in parts]))
    monkeypatch.setattr(sys, "argv", ["faults", "--minutes", "1", "--parts", "kills", "bytes", "disk"])
    with pytest.raises(SystemExit):
        campaign.main()
    assert given == pytest.approx({"disk": 60 * 6 / 88, "kills": 59 * 40 / 82, "bad_bytes": 40})
    assert pages == [["kills", "bad_bytes", "disk"]]
