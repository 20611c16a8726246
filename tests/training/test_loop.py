"""Training loop: reproducibility, model selection and non-finite steps."""

import json
import math

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from helpers.comparing_runs import assert_same_run, assert_same_tensors, lines, state
from phiseg.core.errors import DataError, ModelError, OutputError, TrainingError
from phiseg.core.random import derive_seed
from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.models import build_model, load_model, save_model
from phiseg.models.model_folder import weights_hash
from phiseg.training import loop
from phiseg.training.card import patient_tokens, provenance
from phiseg.training.loop import train
from phiseg.training.recipe import load_recipe


@pytest.fixture
def run(make_recipe, lesions, tmp_path):
    """Return a function that trains on the lesions and returns the run folder."""

    def run(name="run", *, data=lesions, model="phiseg", resume=False, settings=None, **changes):
        recipe = make_recipe(model, settings=settings, **changes)
        train(recipe, data, tmp_path / name, resume=resume, progress=False)
        return tmp_path / name

    return run


@pytest.mark.parametrize("model", ["phiseg", "probunet", "unet"])
def test_train_is_reproducible_and_depends_on_seed(model, run):
    first, again, other = (run(str(number), model=model, steps=3, seed=number // 2) for number in range(3))
    assert_same_run(first, again)
    assert (first / "model/model.safetensors").read_bytes() != (other / "model/model.safetensors").read_bytes()
    assert lines(first, "train")[0]["loss"] != lines(other, "train")[0]["loss"]


def test_train_keeps_global_random_state(run):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_train_reduces_loss(run):
    folder = run(model="unet", steps=40, validate_every=40, learning_rate=0.01)
    losses = [line["loss"] for line in lines(folder, "train")]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_train_writes_documented_files(run):
    folder = run(steps=4, log_every=2, validate_every=3)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "config.yaml",
        "environment.json",
        "lock",
        "metrics.jsonl",
        "state/last.pt",
        *(f"model/{name}" for name in ("config.json", "model.safetensors", "preprocessing.json", "README.md")),
    }
    assert [line["step"] for line in lines(folder, "train")] == [2, 4]
    assert [line["step"] for line in lines(folder, "val")] == [3, 4], "the last step is always validated"
    assert state(folder).step == 4
    assert json.loads((folder / "environment.json").read_text())["processes"] == 1
    card = (folder / "model" / "README.md").read_text()
    assert "tiny-phiseg trained on phantom-lesion" in card
    assert "| ged |" in card


# Selection of the best model


@pytest.fixture
def scripted(monkeypatch):
    """Return a function that sets the validation results and returns the steps with a saved model."""
    saved = []

    def script(**columns):
        rows = iter([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
        default = {"loss": 1.0, "elbo": -1.0, "ged": 1.0, "s_ncc": 0.0}
        monkeypatch.setattr("phiseg.training.loop.validate", lambda *_, **__: default | next(rows))

        def save(folder, model, **options):
            saved.append(options["provenance"]["step"])
            save_model(folder, model, **options)

        monkeypatch.setattr("phiseg.training.loop.save_model", save)
        return saved

    return script


@pytest.mark.parametrize(
    ("select_by", "values", "steps"),
    [
        ("loss", [5.0, 3.0, 4.0, 3.0, 2.0], [1, 2, 5]),
        ("ged", [0.5, 0.7, 0.3, 0.3, 0.4], [1, 3]),
        ("s_ncc", [0.1, 0.3, 0.2, 0.4, 0.4], [1, 2, 4]),
        ("elbo", [-3.0, -2.0, -4.0, -2.0, -1.0], [1, 2, 5]),
        ("loss", [None, 3.0, None, 4.0, 2.0], [2, 5]),
    ],
)
def test_train_saves_model_when_criterion_improves(select_by, values, steps, scripted, run):
    saved = scripted(**{select_by: values})
    folder = run(steps=5, validate_every=1, select_by=select_by)
    assert saved == steps
    assert load_model(folder).provenance["step"] == steps[-1]
    assert state(folder).best == values[steps[-1] - 1]


def test_saved_model_has_weights_of_its_step(scripted, run):
    scripted(loss=[2.0, 1.0, 3.0])
    folder = run(steps=3, validate_every=1)
    scripted(loss=[1.0])
    expected = state(run("until-2", steps=2, validate_every=2)).weights
    found = load_model(folder).state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_resume_keeps_best_score(scripted, run):
    scripted(loss=[2.0, 3.0])
    run(steps=2, validate_every=1)
    saved = scripted(loss=[2.5, 1.5])
    saved.clear()
    run(steps=4, validate_every=1, resume=True)
    assert saved == [4]


def test_train_selects_lowest_validation_loss(run):
    folder = run(steps=8, validate_every=1, learning_rate=0.03)
    losses = {line["step"]: line["loss"] for line in lines(folder, "val")}
    best = min(losses, key=losses.get)
    assert load_model(folder).provenance["step"] == best
    assert state(folder).best == losses[best]


def test_train_fails_without_finite_validation(scripted, run):
    scripted(loss=[None, None])
    with pytest.raises(TrainingError, match=r"no validation had a finite loss.*learning_rate"):
        run(steps=2, validate_every=1)


# Steps that are not finite


@pytest.fixture
def poison(monkeypatch):
    """Return a function that inserts NaN into the images of some steps."""
    original = TrainingStream.batch

    def poison(steps):
        def batch(self, step, device="cpu"):
            found = original(self, step, device)
            if step in steps:
                found.image[0, 0, 0, 0] = math.nan
            return found

        monkeypatch.setattr(TrainingStream, "batch", batch)

    return poison


def test_non_finite_step_is_skipped(poison, run):
    for mode in ("running", "both"):
        clean = state(run(f"clean-{mode}", steps=3, norm_statistics=mode))
        poison({3})
        poisoned = state(run(f"poisoned-{mode}", steps=4, norm_statistics=mode))
        assert_same_tensors(clean, poisoned)
        assert (clean.skipped, poisoned.skipped) == (0, 1)
        poison(())


def test_train_continues_after_non_finite_step(poison, run, capsys):
    poison({3})
    folder = run(steps=8, validate_every=4)
    found = lines(folder, "train")
    assert [line["skipped"] for line in found] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [line["loss"] is None for line in found] == [step == 4 for step in range(1, 9)]
    assert all(line["loss"] is not None for line in lines(folder, "val"))
    assert all(tensor.isfinite().all() for tensor in state(folder).weights.values())
    assert "1 of 8 steps were skipped" in capsys.readouterr().out
    assert "NaN" not in (folder / "metrics.jsonl").read_text()


def test_non_finite_gradient_is_skipped(monkeypatch, run):
    clean = state(run("clean", steps=2, norm_statistics="running"))
    original, calls = Fabric.backward, []

    def backward(self, loss, *args, **kwargs):
        original(self, loss, *args, **kwargs)
        calls.append(loss)
        if len(calls) == 3:
            next(parameters_of(loss)).grad.view(-1)[0] = math.inf

    monkeypatch.setattr(Fabric, "backward", backward)
    folder = run("poisoned", steps=3, norm_statistics="running")
    assert_same_tensors(clean, state(folder))
    last = lines(folder, "train")[-1]
    assert (last["skipped"], last["gradient_norm"]) == (1, None)
    assert last["loss"] is not None


def parameters_of(loss):
    """Yield the parameters in the graph of a loss."""
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [inner for inner, _ in node.next_functions if inner is not None]


def test_finite_steps_reset_skip_counter(poison, run):
    poison({2, 3, 5, 6, 8, 9})
    assert state(run(steps=12, max_skipped_steps=3)).skipped == 6


def test_train_stops_after_too_many_skipped_steps(poison, run, tmp_path):
    poison(range(4, 99))
    with pytest.raises(TrainingError, match=r"3 consecutive steps, up to step 7; lower train\.learning_rate"):
        run(steps=12, max_skipped_steps=3, checkpoint_every=4, validate_every=12)
    assert (state(tmp_path / "run").step, state(tmp_path / "run").skipped) == (4, 0)
    poison(())
    resumed = run(steps=12, max_skipped_steps=3, checkpoint_every=4, validate_every=12, resume=True)
    whole = run("whole", steps=12, max_skipped_steps=3, checkpoint_every=4, validate_every=12)
    assert_same_run(resumed, whole)


# Kinds of training


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16-mixed"},
        {"annotator": 0},
        {"norm_statistics": "both"},
        {"settings": {"norm": "group"}},
        {"settings": {"latents_at": "finest", "kl_weights": "paper"}},
        {"model": "probunet", "precision": "bf16-mixed"},
        {"model": "unet", "annotator": 3},
    ],
    ids=str,
)
def test_train_has_finite_losses(changes, gaps, run):
    folder = run(data=gaps, steps=3, checkpoint_every=9, **changes)  # annotators are missing in `gaps`
    assert all(line["loss"] is not None and line["skipped"] == 0 for line in lines(folder, "train"))
    assert all(math.isfinite(line["loss"]) for line in lines(folder, "val"))
    assert load_model(folder).provenance["annotator"] == changes.get("annotator", "random")


def test_train_with_several_classes(zones, run):
    folder = run(data=zones, steps=3)
    assert load_model(folder).config.num_classes == 3


def test_train_fails_if_run_folder_disappears(monkeypatch, run, tmp_path):
    def save_and_lose(folder, *args, **kwargs):
        save_model(folder, *args, **kwargs)
        folder.parent.rename(tmp_path / "gone")

    monkeypatch.setattr("phiseg.training.loop.save_model", save_and_lose)
    with pytest.raises(OutputError, match="no longer exists; restore the folder"):
        run(steps=2, validate_every=2, checkpoint_every=2)
    assert not (tmp_path / "run").exists()


def test_train_rejects_changed_data(lesions, run, copy):
    data = copy(lesions)
    images = np.load(data / "images.npy")
    images[0, 0, 0, 0] += 1
    np.save(data / "images.npy", images)
    with pytest.raises(DataError, match=r"images\.npy changed after preparation"):
        run(data=data)


def test_train_does_not_overwrite_partial_run(run):
    folder = run()
    (folder / "config.yaml").unlink()
    for resume in (False, True):
        with pytest.raises(OutputError, match=r"contains part of a run, but no config\.yaml"):
            run(resume=resume)


def test_learning_rate_schedule(make_recipe):
    constant, cosine = (make_recipe(steps=8, schedule=name).train for name in ("constant", "cosine"))
    assert [constant.learning_rate_at(step) for step in (0, 4, 7)] == [1e-3] * 3
    assert [cosine.learning_rate_at(step) for step in (0, 4, 8)] == pytest.approx([1e-3, 5e-4, 0])


def test_learning_rate_warmup(make_recipe):
    settings = make_recipe(steps=10, schedule="cosine", warmup_steps=3).train
    plain = make_recipe(steps=10, schedule="cosine").train
    shares = [settings.learning_rate_at(step) / plain.learning_rate_at(step) for step in range(6)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_weight_decay_is_decoupled(run):
    """The gradient of the first step is the same, so the weights differ only by the decay."""
    plain, decayed = (run(f"decay-{value}", steps=1, weight_decay=value) for value in (0.0, 2.0))
    first, second = (load_model(folder).state_dict() for folder in (plain, decayed))
    untrained = build_first_weights(plain)
    for name in untrained:
        torch.testing.assert_close(
            first[name] - second[name], 1e-3 * 2.0 * untrained[name], rtol=1e-3, atol=1e-6, msg=name
        )


def build_first_weights(folder):
    """Return the initial parameters of a run."""
    recipe = load_recipe(str(folder / "config.yaml"))
    torch.manual_seed(derive_seed(recipe.train.seed, "weights"))
    return dict(build_model(recipe.model).named_parameters())


def test_cosine_schedule_changes_weights_less(run):
    """The first step is the same with both schedules."""
    constant, cosine = (lines(run(name, schedule=name, steps=6), "train") for name in ("constant", "cosine"))
    assert constant[:2] == cosine[:2]
    assert constant[2]["loss"] != cosine[2]["loss"]


def test_train_with_one_annotator_ignores_others(lesions, run, copy, replace_arrays):
    other = copy(lesions)
    labels = np.load(other / "labels.npy")
    labels[:, 1:] = labels[:, 1:, ::-1]  # flip the annotations of the others
    replace_arrays(other, labels=labels)
    first, second = run("first", annotator=0), run("second", data=other, annotator=0)
    assert lines(first, "train") == lines(second, "train")
    assert [line["loss"] for line in lines(first, "val")] == [line["loss"] for line in lines(second, "val")]
    assert lines(run("third"), "train") != lines(run("fourth", data=other), "train")


def test_train_rejects_annotator_without_validation_cases(gaps, run, copy, replace_arrays):
    data = copy(gaps)
    valid = np.load(data / "valid.npy")
    valid[Dataset.open(gaps).rows("val"), 0] = False
    valid[:, 1] = True
    labels = np.load(data / "labels.npy")
    labels[labels == 255] = 0
    replace_arrays(data, valid=valid, labels=labels)
    with pytest.raises(DataError, match="annotator 0 has no case in split 'val'"):
        run(data=data, annotator=0)
    run(data=data, annotator=0, select_by="ged", steps=2)


def test_train_writes_tensorboard(run):
    pytest.importorskip("tensorboard")
    folder = run(steps=2, tensorboard=True)
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(("devices", "raised"), [(2, TrainingError), (1, RuntimeError)])
def test_train_reports_lost_process(devices, raised, monkeypatch, make_recipe, lesions, tmp_path):
    def run(_):
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    monkeypatch.setattr(loop._Training, "run", run)
    with pytest.raises(raised, match=r"has died.*--resume" if devices == 2 else "Connection closed"):
        train(make_recipe(devices=devices), lesions, tmp_path / "run", progress=False)


def test_train_reports_insufficient_memory(monkeypatch, make_recipe, lesions, tmp_path):
    def run(_):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(loop._Training, "run", run)
    with pytest.raises(
        TrainingError, match=r"not enough memory for a training step; use a smaller train\.batch_size"
    ):
        train(make_recipe(), lesions, tmp_path / "run", progress=False)


def test_train_keeps_other_runtime_errors(monkeypatch, make_recipe, lesions, tmp_path):
    def run(_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(loop._Training, "run", run)
    with pytest.raises(RuntimeError, match="mat1"):
        train(make_recipe(devices=2), lesions, tmp_path / "run", progress=False)


def test_initial_weights_are_those_of_the_given_model(run):
    """A learning rate of nearly zero leaves the weights where they start."""
    first = run("first", steps=3)
    second = run("second", steps=1, seed=5, learning_rate=1e-12, initial_weights=str(first))
    start, after = (dict(load_model(folder).named_parameters()) for folder in (first, second))
    for name, parameter in after.items():
        torch.testing.assert_close(parameter, start[name], rtol=0, atol=1e-9)


def test_initial_weights_carry_their_training_patients(run, lesions, copy):
    """A model fine-tuned on some patients has also learned from those of the model it started from."""
    first = run("first", steps=1)
    fewer = copy(lesions)
    splits = json.loads((fewer / "splits.json").read_text())
    splits["test"] += splits["train"][4:]
    splits["train"] = splits["train"][:4]
    (fewer / "splits.json").write_text(json.dumps(splits))
    second = run("second", steps=1, data=fewer, initial_weights=str(first))
    before, after = (load_model(folder).provenance for folder in (first, second))
    assert after["patient_salt"] == before["patient_salt"]
    assert after["train_patients"] == before["train_patients"]
    assert after["initial_model"] == {"recipe": before["recipe"], "step": 1, "sha256": weights_hash(first)}
    assert "initial_model" not in before


def test_initial_weights_carry_their_validation_patients(lesions, make_recipe):
    initial = {"patient_salt": "s", "train_patients": ["a"], "val_patients": ["b"]}
    found = provenance(make_recipe(), Dataset.open(lesions), 1, initial=initial)
    own = patient_tokens(Dataset.open(lesions), "val", salt="s")
    assert found["val_patients"] == sorted(["b", *own])


def test_initial_weights_without_recorded_patients_are_reported_once(run, capsys):
    first = run("first", steps=1)
    config = json.loads((first / "model/config.json").read_text())
    del config["provenance"]["patient_salt"]
    (first / "model/config.json").write_text(json.dumps(config))
    run("second", steps=2, validate_every=1, initial_weights=str(first))
    assert capsys.readouterr().err.count("no record of its patients") == 1


def test_resume_does_not_need_the_initial_model(run, tmp_path):
    first = run("first", steps=1)
    settings = {"validate_every": 2, "initial_weights": str(first)}
    whole = run("whole", steps=4, **settings)
    part = run("part", steps=2, **settings)
    first.rename(tmp_path / "moved")
    run("part", steps=4, resume=True, **settings)
    assert_same_run(part, whole)
    assert "sha256" in load_model(part).provenance["initial_model"]


def test_initial_weights_of_another_network_are_refused(run):
    first = run("first", steps=1, model="unet")
    with pytest.raises(ModelError, match=r"initial_weights.*weights of another model"):
        run("second", steps=1, initial_weights=str(first))
