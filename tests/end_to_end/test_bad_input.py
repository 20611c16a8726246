"""User errors: one line with advice, exit code 2, no traceback, and no partial results."""

import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.training.checkpoints import load_state


def snapshot(folder):
    """Return every file below a folder with its content."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def assert_refused(result, *words):
    assert result.code == 2, result
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("phiseg: error: ")
    for word in words:
        assert str(word) in line, line


@pytest.fixture
def refuses(cli, tmp_path):
    """Return a function that runs a command, and checks that it is refused and leaves everything as it was."""

    def run(*words, says=()):
        before = snapshot(tmp_path)
        assert_refused(cli(*words), *(says if isinstance(says, list | tuple) else [says]))
        assert snapshot(tmp_path) == before

    return run


@pytest.fixture
def train_words(recipe_file, lesions, tmp_path):
    """Return a function that gives the words of a training command."""

    def words(*more, model="phiseg", data=lesions, out=tmp_path / "run", **changes):
        return ("train", recipe_file(model, **changes), "--data", data, "--out", out, *more)

    return words


# Names and numbers


def test_unknown_command_suggests_the_nearest(refuses):
    refuses("trian", says="did you mean 'train'?")
    refuses("prepare", "fantom", says="unknown command 'prepare fantom'")


def test_unknown_recipe_suggests_the_nearest(refuses, lesions, tmp_path):
    refuses(
        *("train", "phiseg-smal", "--data", lesions, "--out", tmp_path / "run"), says="did you mean 'phiseg-small'?"
    )
    refuses("info", "phiseg-smal", says="did you mean 'phiseg-small'?")
    refuses("info", "not/there", says="'not/there' is not a folder, bundled model or recipe (valid: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--train.stepz", "5"], ["unknown key 'train.stepz'", "did you mean 'steps'?"]),
        (["--model.num_classez=3"], ["unknown key 'model.num_classez'", "did you mean 'num_classes'?"]),
        (["--trian.steps", "5"], ["unknown key 'trian'", "did you mean 'train'?"]),
        (["--train.steps"], ["--train.steps needs a value"]),
        (["--train.steps", "many"], ["'train.steps' = 'many'"]),
        (["--train.batch_size", "0"], ["'train.batch_size' = 0"]),
        (["--train.annotator", "4"], ["annotator 4 does not exist", "use 0 to 3, or random"]),
        (["--train.annotator", "-1"], ["annotator -1 does not exist"]),
        (
            ["--model.num_classes", "3"],
            ["model.num_classes = 3", "has 2", "remove model.num_classes from the recipe"],
        ),
        (["--model.image_channels", "2"], ["model.image_channels = 2", "has 1"]),
        (
            ["--train.batch_size", "1", "--model.channels", "[4, 4, 4, 4, 4]"],
            ["train.batch_size 1", "model.norm group"],
        ),
    ],
    ids=str,
)
def test_invalid_setting_is_rejected(words, says, refuses, train_words):
    refuses(*train_words(*words), says=says)


def test_indivisible_batch_size_is_reported_once(phiseg, train_words, tmp_path):
    """In a process of its own: were it refused too late, further processes would run this test."""
    words = train_words("--train.devices", 3, "--train.batch_size", 4)
    before = snapshot(tmp_path)
    assert_refused(phiseg(*words), "batch_size 4 cannot be divided among 3 processes", "such as 3")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("command", ["evaluate", "sample"])
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--split", "tset", "did you mean 'test'?"),
        ("--num-samples", 0, "num_samples is 0; it must be at least 1"),
        ("--num-samples", -3, "num_samples is -3"),
        ("--batch-size", 0, "batch_size is 0"),
        ("--chunk-size", 0, "chunk_size is 0"),
        ("--device", "banana", "device 'banana' is not available"),
        ("--device", "meta", "device 'meta' is not available"),
    ],
)
def test_invalid_option_is_rejected(command, option, value, says, refuses, trained, lesions, tmp_path):
    refuses(command, trained(), "--data", lesions, "--out", tmp_path / "out", option, value, says=says)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_rejected(refuses, train_words, trained, lesions, tmp_path):
    refuses("sample", trained(), "--data", lesions, "--out", tmp_path / "out", "--device", "cuda", says="use cpu")
    scan = tmp_path / "scan.nii"
    write_nifti(scan, Volume(np.arange(64.0).reshape(4, 4, 4), np.eye(4)))
    for accelerator in ("cuda", "gpu"):
        says = f"cannot compute with accelerator {accelerator}, devices 1"
        refuses(*train_words("--train.accelerator", accelerator), says=says)
        words = ("predict", trained(), scan, "--out", tmp_path / "out")
        for option in ("--device", "--accelerator"):
            refuses(*words, option, accelerator, says="device 'cuda' is not available")
        refuses(*words, "--device", accelerator, "--devices", 2, says="cannot compute with accelerator")


def test_single_device_for_several_processes_is_rejected(refuses, trained, lesions, tmp_path):
    words = ("--out", tmp_path / "out", "--devices", 2, "--device", "cuda:1")
    says = "--device cuda:1 is a single device, but several processes run"
    refuses("evaluate", trained(), "--data", lesions, *words, says=says)
    refuses("predict", trained(), lesions, *words, says=says)


def test_unknown_dice_annotator_is_rejected(refuses, trained, lesions, tmp_path):
    words = ("evaluate", trained(), "--data", lesions, "--out", tmp_path / "out")
    refuses(*words, "--dice-annotator", 4, says="annotator 4 does not exist; use 0 to 3, all, majority or staple")
    refuses(*words, "--num-examples", 0, says="num_examples is 0")


@pytest.mark.parametrize("words", [("--steps", 0), ("--num-samples", 0), ("--num-cases", 0)], ids=str)
def test_demo_with_invalid_numbers_is_rejected(words, refuses, tmp_path):
    refuses("demo", "--out", tmp_path / "demo", *words)


# Data


def test_missing_data_folder_is_rejected(refuses, train_words, trained, tmp_path):
    missing = tmp_path / "missing"
    refuses(*train_words(data=missing), says=[missing, "phiseg prepare"])
    refuses("evaluate", trained(), "--data", missing, "--out", tmp_path / "out", says=missing)
    refuses("sample", trained(), "--data", missing, "--out", tmp_path / "out", says=missing)


def test_folder_that_is_not_a_dataset_is_rejected(refuses, train_words, trained, tmp_path):
    refuses(*train_words(data=trained()), says="dataset.json is missing")
    (tmp_path / "empty").mkdir()
    refuses(*train_words(data=tmp_path / "empty"), says="dataset.json is missing")
    refuses("info", tmp_path / "empty", says="contains no model")


def test_labels_outside_classes_are_rejected(refuses, train_words, trained, lesions, copy, tmp_path):
    for split in ("train", "val", "test"):
        data = copy(lesions, split)
        labels = np.load(data / "labels.npy")
        labels[Dataset.open(data).rows(split)[-1], 2, 3, 3] = 7
        np.save(data / "labels.npy", labels)
        says = ["label 7 is not one of the classes (0 background, 1 lesion)", "annotator 2"]
        if split == "test":
            refuses("evaluate", trained(), "--data", data, "--out", tmp_path / "out", says=says)
        else:
            refuses(*train_words(data=data), says=says)


def test_info_finds_a_changed_pixel(cli, refuses, lesions, copy):
    data = copy(lesions)
    assert "arrays: checksums match" in cli("info", data).out
    images = np.load(data / "images.npy")
    images[0, 0, 0, 0] += 1
    np.save(data / "images.npy", images)
    refuses("info", data, says="images.npy changed after preparation")


def test_empty_split_is_rejected(refuses, train_words, trained, lesions, copy, tmp_path):
    for split in ("train", "val", "test"):
        data = copy(lesions, split)
        splits = json.loads((data / "splits.json").read_text())
        (data / "splits.json").write_text(json.dumps(splits | {split: []}))
        says = f"split '{split}' has no case"
        if split == "test":
            for command in ("evaluate", "sample"):
                refuses(command, trained(), "--data", data, "--out", tmp_path / "out", says=says)
        else:
            refuses(*train_words(data=data), says=says)


def test_late_error_is_the_last_line(cli, train_words, trained, lesions, copy, replace_arrays, tmp_path):
    data = copy(lesions, "nan")
    images = np.load(data / "images.npy")
    images[:, 0, 0, 0] = np.nan
    replace_arrays(data, images=images)
    for words in (
        train_words(data=data),
        ("evaluate", trained(), "--data", data, "--out", tmp_path / "out"),
        ("sample", trained(), "--data", data, "--out", tmp_path / "out"),
    ):
        result = cli(*words)
        assert result.code == 2
        last = result.err.splitlines()[-1]
        assert last.startswith("phiseg: error: ")
        assert "has NaN or infinite pixels" in last
        assert "Traceback" not in result.err
    assert not (tmp_path / "out").exists()


# Folders


def test_results_are_not_overwritten(refuses, train_words, trained, lesions, copy, tmp_path):
    run = copy(trained(), "run")
    refuses(*train_words(), says=["already contains a run", "--resume (in Python: resume=True)"])
    for command in ("evaluate", "sample"):
        refuses(command, run, "--data", lesions, "--out", run, says="exists, but is not a result of phiseg")


def test_overwrite_replaces_only_results_of_the_same_kind(refuses, trained, lesions, copy, tmp_path, monkeypatch):
    run = copy(trained(), "run")
    monkeypatch.setattr("phiseg.inference.sampling._draw", lambda *_: pytest.fail("it computes"))
    for command in ("evaluate", "sample"):
        words = (command, run, "--data", lesions, "--overwrite", "--out")
        refuses(*words, run, says="is not a result of phiseg")
        refuses(*words, tmp_path / ("n" * 300), says="cannot write")
    refuses("prepare", "phantom", "lesion", run, "--overwrite", says="is not a result of phiseg")
    monkeypatch.chdir(run)
    refuses("evaluate", ".", "--data", lesions, "--out", ".", says="exists, but is not")
    refuses("prepare", "phantom", "lesion", ".", says="exists, but is not")


def test_existing_dataset_is_kept(cli, lesions, copy, tmp_path):
    data = copy(lesions)
    before = snapshot(tmp_path)
    result = cli("prepare", "phantom", "lesion", data, "--size", 16, "--num-cases", 3)
    assert result.code == 2
    assert "already exists; choose another folder or pass --overwrite (in Python: overwrite=True)" in result.err
    assert snapshot(tmp_path) == before


def test_file_instead_of_folder_is_rejected(refuses, train_words, trained, lesions, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    refuses(*train_words(out=file), says="is a file")
    refuses(*train_words(out=file / "run"), says="cannot write")
    for command in ("evaluate", "sample"):
        words = (command, trained(), "--data", lesions, "--overwrite", "--out")
        refuses(*words, file, says="is a file; choose another folder")
        refuses(*words, file / "out", says="cannot write")


@pytest.fixture
def read_only(tmp_path):
    """A folder that cannot be written, even by root."""
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    if not os.access(folder, os.W_OK):
        yield folder
        folder.chmod(0o755)
        return
    with mounted(folder, "ro"):
        yield folder


@contextmanager
def mounted(folder, options):
    """Mount an empty file system; skip where that is not allowed."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_unwritable_folder_is_rejected(refuses, train_words, trained, lesions, read_only):
    out = read_only / "out"
    refuses(*train_words(out=out), says=f"cannot write {out}")
    for command in ("sample", "evaluate"):
        refuses(command, trained(), "--data", lesions, "--out", out, says=f"cannot write {out}")


def test_os_error_is_one_line(refuses, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "/some/file")

    monkeypatch.setattr("phiseg.cli.info.parse", fail)
    refuses("info", says="/some/file: Permission denied")


# Models and states


def test_missing_model_is_rejected(refuses, lesions, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in ("evaluate", "sample"):
        words = ("--data", lesions, "--out", tmp_path / "out")
        refuses(command, tmp_path / "missing", *words, says="there is no model folder")
        refuses(command, tmp_path / "empty", *words, says="contains no model")
        refuses(command, lesions, *words, says="contains no model")


def test_weights_of_another_model_are_rejected(refuses, trained, lesions, copy, tmp_path):
    run = copy(trained())
    shutil.copy(trained("unet") / "model" / "model.safetensors", run / "model" / "model.safetensors")
    for words in (("evaluate", run), ("sample", run)):
        refuses(*words, "--data", lesions, "--out", tmp_path / "out", says="contains the weights of another model")
    refuses("info", run, says="contains the weights of another model")


@pytest.mark.parametrize("length", [0, 5, 100, 5000])
def test_truncated_weights_are_rejected(length, refuses, trained, lesions, copy, tmp_path):
    run = copy(trained())
    path = run / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    refuses("sample", run, "--data", lesions, "--out", tmp_path / "out", says=[path, "damaged"])


def test_model_with_other_classes_is_rejected(refuses, trained, zones, tmp_path):
    for command in ("evaluate", "sample"):
        refuses(command, trained(), "--data", zones, "--out", tmp_path / "out", says="the model has 2 classes")


def test_state_of_another_model_is_rejected(refuses, train_words, trained, copy):
    run = copy(trained(), "run")
    shutil.copy(trained("unet") / "state" / "last.pt", run / "state" / "last.pt")
    refuses(*train_words("--resume"), says=["state/last.pt", "weights of another model"])


@pytest.mark.parametrize("length", [0, 5, 1000, 50000])
def test_truncated_state_is_rejected(length, refuses, train_words, trained, copy):
    path = copy(trained(), "run") / "state" / "last.pt"
    path.write_bytes(path.read_bytes()[:length])
    refuses(*train_words("--resume"), says=[path, "restore the file"])


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


@pytest.mark.parametrize("place", ["state/last.pt", "model/model.safetensors"])
@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_malicious_file_is_not_executed(place, archive, refuses, train_words, trained, lesions, copy, tmp_path):
    path = copy(trained(), "run") / place
    bomb = {"format": "phiseg-state", "weights": Bomb(tmp_path / "executed")}
    if archive:
        torch.save(bomb, path)
    else:
        path.write_bytes(pickle.dumps(bomb, protocol=2))
    if place.startswith("state"):
        refuses(*train_words("--resume"), says=path)
    else:
        refuses("sample", tmp_path / "run", "--data", lesions, "--out", tmp_path / "out", says=path)
    assert not (tmp_path / "executed").exists()


def test_resume_with_another_recipe_or_dataset_is_rejected(refuses, train_words, trained, zones, copy):
    copy(trained(), "run")
    words = train_words("--resume", "--train.learning_rate", "0.1")
    refuses(*words, says=["was started with train.learning_rate = 0.001, but now it is 0.1"])
    refuses(*train_words("--resume", model="unet"), says="was started with model.name")


# A full disk


@contextmanager
def files_limited_to(size):
    """Let no file grow beyond `size` bytes: writing fails as on a full disk (Python ignores the signal)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_training_on_full_disk_keeps_state_and_resumes(cli, train_words, trained, tmp_path):
    assert cli(*train_words(steps=2)).code == 0
    state = tmp_path / "run" / "state" / "last.pt"
    before = state.read_bytes()
    with files_limited_to(len(before) - 1000):
        result = cli(*train_words("--resume"))
    assert result.code == 2
    last = result.err.splitlines()[-1]
    assert last.startswith(f"phiseg: error: cannot write {state}")
    assert "free space" in last
    assert state.read_bytes() == before
    assert not list((tmp_path / "run").rglob(".*"))
    assert cli(*train_words("--resume")).code == 0
    assert load_state(state).step == 6
    for file in ("metrics.jsonl", "model/model.safetensors"):
        # a run of 2 steps validates its last one; all else is as in a run that never stopped
        ours, theirs = (tmp_path / "run" / file).read_bytes(), (trained() / file).read_bytes()
        if file == "metrics.jsonl":
            ours = b"".join(
                line for line in ours.splitlines(True) if not line.startswith(b'{"step": 2, "kind": "val"')
            )
        assert ours == theirs


@pytest.mark.parametrize("command", ["prepare", "sample", "evaluate"])
def test_full_disk_leaves_no_partial_results(command, cli, trained, lesions, tmp_path):
    (tmp_path / "disk").mkdir()
    out = tmp_path / "disk" / "out"
    words = {
        "prepare": ("prepare", "phantom", "lesion", out, "--size", 64, "--num-cases", 50),
        "sample": ("sample", trained(), "--data", lesions, "--out", out, "--num-samples", 50, "--probs"),
        "evaluate": ("evaluate", trained(), "--data", lesions, "--out", out, "--num-samples", 2),
    }[command]
    size = "4k" if command == "evaluate" else "64k"
    with mounted(tmp_path / "disk", f"size={size}"):
        result = cli(*words)
        assert result.code == 2
        assert result.err.splitlines()[-1].startswith("phiseg: error: cannot write ")
        assert "No space left on device" in result.err
        assert "Traceback" not in result.err
        assert list((tmp_path / "disk").iterdir()) == []


def test_training_on_filling_disk_ends_with_one_line(cli, train_words, tmp_path):
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk", "size=300k"):
        result = cli(*train_words(out=tmp_path / "disk" / "run"))
        assert result.code == 2
        assert result.err.splitlines()[-1].startswith("phiseg: error: cannot write ")
        assert "Traceback" not in result.err
        assert not list((tmp_path / "disk").rglob(".*"))


@pytest.mark.parametrize(
    ("word", "meant"), [("--steps", "--train.steps"), ("--flip-vertical", "--augment.flip_vertical")]
)
def test_recipe_key_without_section_is_suggested(cli, lesions, tmp_path, word, meant):
    done = cli("train", "phiseg-small", "--data", lesions, "--out", tmp_path / "run", word, "3")
    assert done.code == 2
    assert f"write {meant}" in done.err


def test_unprintable_name_is_escaped(phiseg, lesions, copy):
    data = copy(lesions)
    info = json.loads((data / "dataset.json").read_text())
    (data / "dataset.json").write_text(json.dumps(info | {"name": "gl\u00e4nds \u03b3"}))
    result = phiseg("info", data, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert result.code == 0, result.err
    assert "dataset: gl\\xe4nds \\u03b3 in" in result.out


def test_error_line_is_printable_for_any_file_content(cli, lesions, copy):
    data = copy(lesions)
    splits = json.loads((data / "splits.json").read_text())
    for name in ("\x1b[2Jevil\n", "\ud800", "x" * 100_000):
        (data / "splits.json").write_text(json.dumps(splits | {"val": [name]}))
        result = cli("data", "check", data)
        assert result.code == 2
        (line,) = result.err.splitlines()
        assert line.startswith(f"phiseg: error: {data}/splits.json: patient '")
        assert line.isprintable()
        assert len(line) < 2100


def test_out_of_memory_is_one_line(refuses, tmp_path, monkeypatch):
    def run(words):
        raise MemoryError(f"Unable to allocate 14.6 GiB for {words[0]}")

    monkeypatch.setattr("phiseg.cli.main._run", run)
    refuses("info", says="not enough memory: Unable to allocate 14.6 GiB for info")
