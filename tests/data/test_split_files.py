"""Split files: writing, reading, use with another dataset, and errors."""

import json

import pytest

from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.data.split_files import apply_split_file, read_split_file, write_split_file
from phiseg.data.store import Dataset


@pytest.fixture
def dataset(lesions, copy):
    return Dataset.open(copy(lesions))


def test_split_file_restores_the_splits(dataset, tmp_path):
    path = tmp_path / "split.json"
    write_split_file(dataset, path, name="lesions-a", source="Doe et al. 2026, https://example.org")
    other = dataset.resplit(seed=5, fractions=(40, 30, 30))
    assert other.splits != dataset.splits
    applied, absent, unassigned = apply_split_file(other, path)
    assert {name: set(part) for name, part in applied.splits.items()} == {
        name: set(part) for name, part in dataset.splits.items()
    }
    assert (absent, unassigned) == ([], [])
    stored = json.loads((dataset.path / "splits.json").read_text())
    assert (stored["name"], stored["source"]) == ("lesions-a", "Doe et al. 2026, https://example.org")
    assert "seed" not in stored
    for split in ("train", "val", "test"):
        assert applied.rows(split).tolist() == dataset.rows(split).tolist()


def test_dataset_remembers_the_split_file_until_it_is_split_again(dataset, tmp_path):
    assert (dataset.split_name, dataset.split_source) == (None, "")
    path = tmp_path / "split.json"
    write_split_file(dataset, path, name="lesions-a", source="Doe et al. 2026")
    applied = apply_split_file(dataset, path).dataset
    assert (applied.split_name, applied.split_source) == ("lesions-a", "Doe et al. 2026")
    assert applied.fingerprint == dataset.fingerprint
    assert applied.resplit(seed=1, fractions=(60, 20, 20)).split_name is None


@pytest.mark.parametrize("changes", [{"name": "a\nb"}, {"name": 3}, {"source": "a\x1b[31m"}], ids=str)
def test_invalid_name_of_a_split_file_in_a_dataset_is_refused(dataset, changes):
    change(dataset.path / "splits.json", **changes)
    with pytest.raises(DataError, match=f"the {next(iter(changes))} of the split file is invalid"):
        Dataset.open(dataset.path)


def test_split_may_be_called_name(dataset):
    splits = json.loads((dataset.path / "splits.json").read_text())
    (dataset.path / "splits.json").write_text(json.dumps({"name": splits["train"], "val": splits["val"]}))
    changed = Dataset.open(dataset.path)
    assert (changed.split_name, changed.splits["name"]) == (None, splits["train"])


def test_split_file_is_readable_json(dataset, tmp_path):
    write_split_file(dataset, tmp_path / "split.json", name="a")
    values = json.loads((tmp_path / "split.json").read_text())
    assert (values["format"], values["version"], values["name"]) == ("phiseg-split", 1, "a")
    assert set(values["splits"]) == {"train", "val", "test"}
    listed = [patient for part in values["splits"].values() for patient in part]
    assert sorted(listed) == sorted({case["patient"] for case in dataset.cases})


def change(path, **changes):
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))


def test_dataset_without_some_patients_needs_partial(dataset, tmp_path):
    path = tmp_path / "split.json"
    write_split_file(dataset, path, name="a")
    splits = json.loads(path.read_text())["splits"]
    left_out = splits["test"].pop()
    splits["train"].append("unknown")
    change(path, splits=splits)
    with pytest.raises(DataError, match=r"no cases of 1 of the 15 patients .* 'unknown'; pass --partial"):
        apply_split_file(dataset, path)
    assert Dataset.open(dataset.path).splits == dataset.splits
    applied, absent, unassigned = apply_split_file(dataset, path, partial=True)
    assert (absent, unassigned) == (["unknown"], [left_out])
    assert len(applied.rows("test")) == 2


def test_split_of_other_patients_is_refused(dataset, tmp_path):
    path = tmp_path / "split.json"
    write_split_file(dataset, path, name="a")
    change(path, splits={"train": ["x"], "test": ["y"]})
    with pytest.raises(DataError, match=r"no cases of 2 of the 2 patients .*use the dataset of the split"):
        apply_split_file(dataset, path, partial=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is not a split file"),
        ({"version": 2}, "is not a split file of version 1"),
        ({"name": "two words"}, "name"),
        ({"splits": {"train": ["a"], "test": ["a"]}}, "patient 'a' is in split 'train' and in 'test'"),
        ({"splits": {}}, "splits"),
        ({"splits": {"train": [1]}}, "splits"),
        ({"more": 1}, "more"),
    ],
)
def test_invalid_split_file_is_refused(changes, message, dataset, tmp_path):
    path = tmp_path / "split.json"
    write_split_file(dataset, path, name="a")
    change(path, **changes)
    with pytest.raises(DataError, match=message):
        read_split_file(path)


def test_unreadable_split_file_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{")
    for name in ("x.json", "absent.json"):
        with pytest.raises(DataError, match="cannot read"):
            read_split_file(tmp_path / name)


def test_existing_file_and_invalid_name_are_refused(dataset, tmp_path):
    write_split_file(dataset, tmp_path / "split.json", name="a")
    with pytest.raises(OutputError, match="already exists"):
        write_split_file(dataset, tmp_path / "split.json", name="b")
    assert write_split_file(dataset, tmp_path / "split.json", name="b", overwrite=True).name == "b"
    with pytest.raises(ConfigError, match="name"):
        write_split_file(dataset, tmp_path / "other.json", name="two words")


def test_command_writes_and_reads_a_split(dataset, cli, tmp_path):
    path = tmp_path / "split.json"
    assert cli("data", "split", dataset.path, "--write", path).code == 2
    done = cli("data", "split", dataset.path, "--write", path, "--name", "a", "--source", "drawn with seed 0")
    assert done.code == 0
    assert "a, train 9 cases of 9 patients" in done.out
    assert Dataset.open(dataset.path).splits == dataset.splits
    assert cli("data", "split", dataset.path, "--seed", "3").code == 0
    done = cli("data", "split", dataset.path, "--read", path)
    assert done.code == 0, done.err
    assert Dataset.open(dataset.path).rows("test").tolist() == dataset.rows("test").tolist()
    splits = json.loads(path.read_text())["splits"]
    change(path, splits=splits | {"test": splits["test"][1:]})
    done = cli("data", "split", dataset.path, "--read", path)
    assert "warning: 1 patients are in no split" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--read", "s.json", "--seed", "3"], "--seed draws new splits; omit it with --read and --write"),
        (["--read", "s.json", "--fractions", "50,25,25"], "--fractions draws new splits"),
        (["--write", "s.json", "--name", "a", "--hold-out", "val"], "--hold-out draws new splits"),
        (["--partial"], "--partial needs --read FILE"),
        (["--seed", "3", "--name", "a"], "--name needs --write FILE"),
        (["--read", "s.json", "--source", "a"], "--source needs --write FILE"),
    ],
)
def test_command_refuses_options_without_effect(options, message, dataset, cli):
    done = cli("data", "split", dataset.path, *options)
    assert (done.code, message in done.err) == (2, True), done.err
    assert Dataset.open(dataset.path).splits == dataset.splits


def test_split_called_seed_is_refused(dataset, tmp_path):
    """In splits.json, this key is the seed of the splits."""
    patients = dataset.splits["test"]
    values = {"format": "phiseg-split", "version": 1, "name": "a", "splits": {"train": [], "seed": patients}}
    (tmp_path / "split.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match="a split cannot be called 'seed'"):
        apply_split_file(dataset, tmp_path / "split.json")
