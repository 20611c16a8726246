"""A short version of every part of the fault tests. `make faults` runs the long one."""

import math

import numpy as np
import pytest

from faults.disk import disk
from faults.fuzzing import SHARES, bad_bytes
from faults.kills import Tally, _undisturbed, kills, live
from faults.load import load
from faults.numbers import numbers
from faults.ranks import _bad_batch, _lose_worker, ranks
from faults.scenarios import scenarios


@pytest.mark.parametrize("name", ["prepare nifti", "train"])
def test_killed_command_gives_the_same_files(name, good, tmp_path):
    (scenario,) = (scenario for scenario in scenarios(good, workers=1) if scenario.name == name)
    tally = Tally()
    expected = _undisturbed(scenario, tmp_path)
    live(scenario, tmp_path / "life", expected, tally, np.random.default_rng(0), most=3)
    assert tally.losses == []
    assert tally.lives == 1


def test_damaged_inputs_of_every_kind_are_handled(good):
    part = bad_bytes(good, seed=1, inputs=80, seconds=math.inf, workers=1)
    assert part.losses == []
    assert [row.what for row in part.rows if row.times] == list(SHARES)


def test_invalid_numbers_are_rejected_or_handled(good, tmp_path):
    assert numbers(good, tmp_path, seed=0).losses == []


def test_dead_worker_and_bad_batch_are_reported(good):
    assert _lose_worker() == []
    assert _bad_batch(good) == []


def test_viewer_serves_twenty_clients(good, tmp_path):
    part = load(good, tmp_path, seed=0, seconds=3)
    assert [loss for loss in part.losses if not loss.startswith("viewer memory")] == []  # too short to judge
    assert all(row.times for row in part.rows if row.what in ("clicks", "slices"))


@pytest.mark.slow
def test_training_that_loses_a_process_stops_and_resumes(good, tmp_path):
    assert ranks(good, tmp_path, seed=0, rounds=1, seconds=300).losses == []


@pytest.mark.slow
def test_full_disks_and_removed_folders_lose_no_results(good, tmp_path):
    assert disk(good, tmp_path, seed=0, rounds=1, seconds=300).losses == []


@pytest.mark.slow
def test_every_command_survives_kills(good, tmp_path):
    part = kills(good, tmp_path, seed=0, number=12, seconds=600)
    assert part.losses == []
    assert all(row.times for row in part.rows)
