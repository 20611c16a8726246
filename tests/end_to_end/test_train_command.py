"""`phiseg train`: suggestions for unknown options, and `--resume` without a saved state."""

import pytest

from helpers.comparing_runs import assert_same_run, state


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--steps", "--steps is a recipe key; write --train.steps"),
        ("--step", "unknown option --step; did you mean --train.steps?"),
        ("--batch-sise", "unknown option --batch-sise; did you mean --train.batch_size?"),
        ("--num_levels", "--num_levels is a recipe key; write --model.num_levels"),
    ],
)
def test_unknown_option_suggests_recipe_key(option, says, cli, lesions, tmp_path):
    done = cli("train", "phiseg-small", "--data", lesions, "--out", tmp_path / "run", option, 5)
    assert done.code == 2
    assert says in done.err
    assert not (tmp_path / "run").exists()


def test_misspelt_option_of_the_command_suggests_no_recipe_key(cli, lesions, tmp_path):
    done = cli("train", "phiseg-small", "--dat", lesions, "--out", tmp_path / "run")
    assert done.code == 2
    assert "recipe" not in done.err
    assert "--data" in done.err


@pytest.fixture
def recipe(make_recipe, tmp_path):
    """Return a function that writes a recipe to a file."""

    def write(**changes):
        (tmp_path / "tiny-phiseg.yaml").write_text(make_recipe(**changes).to_yaml())
        return tmp_path / "tiny-phiseg.yaml"

    return write


def test_resume_without_state_starts_the_training(recipe, cli, lesions, trained, tmp_path):
    words = ("--data", lesions, "--out", tmp_path / "run", "--resume")
    (tmp_path / "run").mkdir()  # as left by a run that was stopped before its first state
    (tmp_path / "run" / "config.yaml").write_text(recipe(seed=7).read_text())
    done = cli("train", recipe(), *words)
    assert done.code == 0, done.err
    assert "has no saved state; the training starts at step 0" in done.out
    assert_same_run(tmp_path / "run", trained())
    again = cli("train", recipe(), *words)
    assert (again.code, "starts at step 0" in again.out) == (0, False)
    assert state(tmp_path / "run").step == 6
    other = cli("train", recipe(seed=7), *words)
    assert (other.code, "was started with train.seed = 0" in other.err) == (2, True)
