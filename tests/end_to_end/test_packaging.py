"""The wheel, the container and the pre-commit hooks."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


def instructions():
    """Return the Dockerfile's instructions, (name, rest) each, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [tuple(line.split(maxsplit=1)) for line in text.replace("\\\n", " ").splitlines() if line]


def copied_files():
    """Return what the Dockerfile takes from the repository."""
    copies = [rest.split() for name, rest in instructions() if name == "COPY" and "--from=" not in rest]
    return [source for words in copies for source in words[:-1]]


def last_stage():
    steps = instructions()
    start = max(place for place, (name, _) in enumerate(steps) if name == "FROM")
    return steps[start:]


def test_container_runs_as_unprivileged_user():
    (user,) = (rest for name, rest in last_stage() if name == "USER")
    assert user.isdigit(), "a number, so that a cluster can see that it is not root"
    assert int(user) > 0
    names = [name for name, _ in last_stage()]
    assert set(names[names.index("USER") + 1 :]) == {"ENTRYPOINT", "CMD"}
    assert dict(last_stage())["ENTRYPOINT"] == '["phiseg"]'


def test_container_installations_are_constrained():
    commands = [part for name, rest in instructions() if name == "RUN" for part in re.split(r"&&|\|\||;", rest)]
    installing = [command for command in commands if re.search(r"\bpip\b", command)]
    assert len(installing) == 3
    assert all(re.search(r"\bpip (install|wheel) -c constraints\.txt ", command) for command in installing)


def test_dockerfile_names_no_host():
    arguments = dict(rest.split("=") for name, rest in instructions() if name == "ARG")
    images = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert set(images) == {"${BASE}"}
    assert re.fullmatch(r"[a-z0-9-]+:[\w.-]+", arguments["BASE"]), "a name and a tag, without a registry"
    assert "://" not in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_dockerignore_matches_copied_files():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied_files())


def test_how_to_names_existing_build_arguments():
    page = (ROOT / "docs/how-to/container.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--build-arg (\w+)=", page)) == {
        rest.split("=")[0] for name, rest in instructions() if name == "ARG"
    }


def test_pre_commit_hooks_match_make_lint():
    recipe = re.search(r"^lint:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == commands


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built of a copy of those files alone that the container has."""
    source, built = (tmp_path_factory.mktemp(name) for name in ("source", "wheel"))
    for name in copied_files():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    run_pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", built, source)
    (path,) = built.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return a function that runs a program of a venv with nothing but the wheel, from an empty folder."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    run_pip(folder / "bin" / "python", "install", "-c", CONSTRAINTS, wheel)
    place = tmp_path_factory.mktemp("empty")

    def run(program, *words, start=subprocess.run, **options):
        return start([folder / "bin" / program, *words], cwd=place, env=own_environment(), text=True, **options)

    return run


def own_environment():
    """Return the environment without what leads to the repository or its venv."""
    hidden = ("PYTHON", "COV", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def run_pip(python, *words):
    """Run pip as the Makefile does: what it builds with is constrained too."""
    pinned = {name: str(CONSTRAINTS) for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")}
    command = [python, "-m", "pip", "--quiet", *words]
    done = subprocess.run(command, env=own_environment() | pinned, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_wheel_works_without_repository(installed):
    def phiseg(*words):
        done = installed("phiseg", *words, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = installed("python", "-c", "import phiseg; print(phiseg.__file__)", capture_output=True, check=True)
    assert "site-packages" in where.stdout
    assert Path(where.stdout.strip()).with_name("py.typed").exists(), "type checkers use the annotations"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert version in phiseg("info")
    assert "demo" in phiseg("--help")
    small = ("--steps", "2", "--size", "64", "--num-cases", "10", "--num-samples", "2")
    assert "report: demo/report.html" in phiseg("demo", "--out", "demo", *small)

    viewing = ("view", "demo/phiseg-small", "--no-browser")
    with installed("phiseg", *viewing, start=subprocess.Popen, stdout=subprocess.PIPE) as viewer:
        try:
            link = re.fullmatch(r"viewer: (http://127\.0\.0\.1:\d+/)\n", viewer.stdout.readline())[1]
            page = fetch(link)
            (script,) = re.findall(r'<script[^>]+src="\./([^"]+)"', page)
            assert "PHiSeg" in page
            assert len(fetch(link + script)) > 10_000
        finally:
            viewer.send_signal(signal.SIGINT)
            viewer.wait(timeout=60)
    assert viewer.returncode == 0


def fetch(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()
