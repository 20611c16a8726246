"""Shards of an evaluation: merged, they give the files of a single run; anything else is an error."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.core.shard import Shard
from phiseg.evaluation.model_evaluation import evaluate
from phiseg.evaluation.shards import rows_of_shard

OPTIONS = {"num_samples": 3, "num_examples": 2, "batch_size": 1, "split": "train", "progress": False}
NUM_CASES = 9


@pytest.fixture(scope="module")
def single(trained, lesions, tmp_path_factory):
    """Return the evaluation that a single run writes."""
    folder = tmp_path_factory.mktemp("single") / "eval"
    evaluate(trained(), lesions, folder, **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def shards(trained, lesions, tmp_path_factory):
    """Return the folders of the four shards; copy one before changing it."""
    folder = tmp_path_factory.mktemp("shards")
    sizes = [
        evaluate(trained(), lesions, folder / str(number), shard=Shard(number, 4), **OPTIONS).num_cases
        for number in (3, 1, 4, 2)
    ]
    assert sorted(sizes) == [2, 2, 2, 3]
    assert sum(sizes) == NUM_CASES
    return [folder / str(number) for number in (1, 2, 3, 4)]


@pytest.fixture
def merge(trained, lesions, tmp_path):
    def merge(folders, **changes):
        evaluate(trained(), lesions, tmp_path / "merged", merge=folders, **(OPTIONS | changes))
        return tmp_path / "merged"

    return merge


def contents(folder):
    """Return all files; arrays by name, because zip files contain their time."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".npz"}
    for path in folder.glob("*.npz"):
        with np.load(path) as arrays:
            found |= {f"{path.name}/{name}": arrays[name].tobytes() for name in arrays.files}
    return found


def test_merged_shards_equal_a_single_run(single, shards, merge):
    merged = merge([shards[2], shards[0], shards[3], shards[1]])
    assert contents(merged) == contents(single)
    assert len(contents(merged)) > 10


def test_merge_samples_nothing(shards, merge, monkeypatch):
    monkeypatch.setattr(
        "phiseg.evaluation.model_evaluation.score_sampled_case", lambda *_: pytest.fail("it scores")
    )
    assert merge(shards).is_dir()


def test_workers_change_nothing(trained, lesions, single, tmp_path):
    workers = 2 * torch.get_num_threads()  # one thread each, as in `single`
    evaluate(trained(), lesions, tmp_path / "eval", workers=workers, **OPTIONS)
    assert contents(tmp_path / "eval") == contents(single)


def test_error_in_a_worker_is_raised(trained, lesions, copy, tmp_path):
    data = copy(lesions, "data")
    images = np.load(data / "images.npy", mmap_mode="r+")
    images[:] = np.nan
    images.flush()
    with pytest.raises(DataError, match="NaN or infinite pixels"):
        evaluate(trained(), data, tmp_path / "eval", workers=2, **OPTIONS)
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1 /2", "1/2\n"])
def test_shard_rejects_other_text(text):
    with pytest.raises(ConfigError, match="use I/N with I from 1 to N"):
        Shard.parse(text)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 6))
def test_shards_divide_the_rows(num_rows, batch_size, count):
    rows = list(range(num_rows))
    num_batches = -(-num_rows // batch_size)
    own = [
        rows_of_shard(Shard(number, count), rows, batch_size) for number in range(1, min(count, num_batches) + 1)
    ]
    assert sorted(row for part in own for row in part) == rows
    for number in range(num_batches + 1, count + 1):
        with pytest.raises(ConfigError, match=f"use at most {num_batches} shards"):
            rows_of_shard(Shard(number, count), rows, batch_size)


def test_shard_does_not_replace_an_evaluation(trained, lesions, single):
    with pytest.raises(OutputError, match="contains no shard"):
        evaluate(trained(), lesions, single, shard=Shard(1, 2), overwrite=True, **OPTIONS)


def test_shard_and_merge_exclude_each_other(merge, shards):
    with pytest.raises(ConfigError, match="use one of them"):
        merge(shards, shard=Shard(1, 2))


def test_merge_reports_missing_shards(shards, merge, tmp_path):
    with pytest.raises(DataError, match="no folder of shard 2/4, 4/4 was given"):
        merge([shards[0], shards[2]])
    with pytest.raises(DataError, match=r"empty is not a shard of an evaluation \(no shard.json\)"):
        merge([*shards[:3], tmp_path / "empty"])
    assert not (tmp_path / "merged").exists()


def test_merge_reports_a_duplicate_shard(shards, merge, copy):
    with pytest.raises(DataError, match=r"2 and .*copy are both shard 2/4"):
        merge([*shards, copy(shards[1])])


def test_merge_reports_shards_of_two_divisions(shards, merge, trained, lesions, tmp_path):
    evaluate(trained(), lesions, tmp_path / "half", shard=Shard(2, 2), **OPTIONS)
    with pytest.raises(DataError, match=r"is shard 1/4, but .*half is shard 2/2"):
        merge([shards[0], tmp_path / "half"])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_samples": 4}, "num_samples = 3, but this command has 4"),
        ({"seed": 1}, "seed = 0, but this command has 1"),
        ({"split": "val"}, "split = train, but this command has val"),
        ({"dice_annotator": 1}, "dice_annotator = all, but this command has 1"),
        ({"method": "other"}, "method = tiny-phiseg, but this command has other"),
        ({"num_examples": 4}, "use the --num-examples of the shards"),
    ],
)
def test_merge_reports_other_settings(changes, problem, shards, merge, tmp_path):
    with pytest.raises(DataError, match=problem):
        merge(shards, **changes)
    assert not (tmp_path / "merged").exists()


def test_merge_reports_another_precision(shards, merge, bfloat16):
    with pytest.raises(DataError, match="precision = float32, but this command has bfloat16"):
        merge(shards, precision=bfloat16)


def test_merge_reports_another_model(shards, trained, lesions, tmp_path):
    with pytest.raises(DataError, match=r"model\.sha256 = |method = "):
        evaluate(trained("unet"), lesions, tmp_path / "merged", merge=shards, **OPTIONS)
    with pytest.raises(DataError, match=r"num_parameters = |model\."):
        evaluate(trained("unet"), lesions, tmp_path / "merged", merge=shards, method="tiny-phiseg", **OPTIONS)


def test_merge_reports_other_splits(shards, trained, lesions, copy, tmp_path):
    data = copy(lesions, "data")
    splits = json.loads((data / "splits.json").read_text())
    moved = splits["train"].pop()
    splits["val"].append(moved)
    (data / "splits.json").write_text(json.dumps(splits))
    with pytest.raises(DataError, match=f"'{moved}', which is missing or repeated"):
        evaluate(trained(), data, tmp_path / "merged", merge=shards, **OPTIONS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shard.json", "{"),
        ("shard.json", "[]"),
        ("shard.json", '{"format": "phiseg-evaluation-shard", "version": 1}'),
        ("shard.json", '{"format": "phiseg-evaluation-shard", "version": 99}'),
        ("arrays.npz", "no zip file"),
    ],
)
def test_merge_reports_a_damaged_shard(name, text, shards, merge, copy):
    damaged = copy(shards[3])
    (damaged / name).write_text(text)
    with pytest.raises(DataError, match=f"cannot read .*{name}.*run this shard again with --overwrite"):
        merge([*shards[:3], damaged])


DYING = """
import os, signal, sys
from phiseg.evaluation import model_evaluation
original, number = model_evaluation.score_sampled_case, iter(range(9))

def dying(*arguments):
    if next(number) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

model_evaluation.score_sampled_case = dying
from phiseg.cli.main import main
main(sys.argv[1:])
"""
"""A program that runs phiseg and is killed when it scores its second case."""


def test_killed_shard_is_run_again(phiseg, trained, lesions, single, tmp_path):
    words = ("evaluate", trained(), "--data", lesions, "--num-samples", 3, "--num-examples", 2, "--batch-size", 1)
    words = [str(word) for word in (*words, "--split", "train")]
    folders = [str(tmp_path / "shards" / f"{number}") for number in (1, 2)]
    done = phiseg(*words, "--out", folders[0], "--shard", "1/2")
    assert done.code == 0, done.err
    assert "shard 1/2 of tiny-phiseg: 5 train cases" in done.out
    second = [*words, "--out", folders[1], "--shard", "2/2"]
    killed = subprocess.run([sys.executable, "-c", DYING, *second], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["1"]
    merging = [*words, "--out", str(tmp_path / "eval"), "--merge", *folders]
    done = phiseg(*merging)
    assert done.code == 2
    assert "2 is not a shard of an evaluation" in done.err
    for command in (second, merging):
        done = phiseg(*command)
        assert done.code == 0, done.err
    assert "tiny-phiseg on 9 train cases" in done.out
    assert contents(tmp_path / "eval") == contents(single)
