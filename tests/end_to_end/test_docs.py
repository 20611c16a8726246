"""Checks of the documentation: links, commands and Python code."""

import ast
import importlib.util
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from phiseg.api.model import Model
from phiseg.cli.main import COMMANDS, main
from phiseg.cli.train import split_overrides
from phiseg.core.bundled import find_model, recipe_names
from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.models import MODELS, Segmenter, build_model, save_model
from phiseg.models.phiseg import PHiSegConfig
from phiseg.training.recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[2]
PLACES = ("*.md", "docs/**/*.md", "experiments/**/*.md", "src/phiseg/weights/*/*.md", "benchmarks/*.md")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))
GENERATED = {"results", "table", "result"}
WRITTEN = [page for page in PAGES if page.stem not in GENERATED]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(<?([^)\s>]*)")
LANGUAGES = {"sh", "python", "yaml", "text"}
OTHER_PROGRAMS = {"cd", ".", "python", "python3", "make", "pip", "torchrun", "srun", "docker", "curl"}


def name_of(page):
    return str(page.relative_to(ROOT))


def load_generated(name="generated"):
    """Import docs/generated.py, which is no part of the package, or another module beside it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(text, language):
    return [code for tag, code in FENCE.findall(text) if tag == language]


def command_lines(text):
    """Return the words of every command line, without comments."""
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def phiseg_words(words):
    """Return what follows `phiseg` where a line runs it, by itself or through a launcher; None elsewhere."""
    if words[0] == "phiseg":
        return words[1:]
    if words[:2] == ["docker", "run"] and "phiseg-batch" in words:  # its entry point
        return ["batch", "/input", "/output", *(words[words.index("phiseg-batch") + 1 :] or ("--model", "model"))]
    launched = words[0] in {"srun", "torchrun"} or words[:2] == ["docker", "run"]
    return words[words.index("phiseg") + 1 :] if launched else None


def anchors(text):
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def defined_names(source):
    """Return the functions and classes of a module, and the methods as Class.method."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, kinds):
            inner = [child.name for child in node.body if isinstance(child, kinds)]
            names |= {node.name, *(f"{node.name}.{name}" for name in inner)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_targets(page):
    for address in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if address.startswith(("https://", "http://", "mailto:")):
            continue
        link, _, anchor = address.partition("#")
        target = page.parent / link if link else page
        assert target.resolve().is_relative_to(ROOT), link
        assert target.exists(), link
        if anchor:
            text = target.read_text(encoding="utf-8")
            assert anchor in (defined_names(text) if target.suffix == ".py" else anchors(text)), f"{link}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_blocks_have_a_language(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") == 2 * len(FENCE.findall(text))
    for language, code in FENCE.findall(text):
        assert language in LANGUAGES
        assert language == "sh" or not re.search(r"^(phiseg|pip|make) ", code, re.MULTILINE)


def overlong(text):
    """Return the numbers of the lines over 120 characters, without code, tables, front matter and single words."""
    blank = FENCE.sub(lambda block: "\n" * block.group().count("\n"), text)
    for pattern in (r"!?\[[^\]]*\]\([^)]*\)", r"https?://\S+"):
        blank = re.sub(pattern, lambda link: re.sub(r"[^\n]", "", link.group()), blank)
    return [
        number
        for number, line in enumerate(blank.split("\n"), 1)
        if len(line) > 120 and not line.lstrip().startswith("|")
    ]


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_lines_are_wrapped(page):
    assert overlong(page.read_text(encoding="utf-8")) == []


def test_overlong_exempts_links_code_and_tables():
    long = "word " * 30
    assert overlong(f"short\n{long}\n") == [2]
    assert overlong(f"```sh\n{long}\n```\n| {long} |\n[{long}](page.md)\nhttps://{long.replace(' ', '')}\n") == []
    assert overlong(f"```sh\n{long}\n```\n{long}\n") == [4]


class Understood(Exception):  # noqa: N818 - no error
    """Raised in place of running a command."""


def understand(words, monkeypatch):
    """Parse a command line with the command's own parser, and check the recipe and the keys that it names."""
    for module in {module for module, _ in COMMANDS.values()}:
        monkeypatch.setattr(f"phiseg.cli.{module}.parse", stop_after_parsing)
    own, overrides = split_overrides(words)
    with pytest.raises(Understood) as stopped:
        main(words)
    (command,) = stopped.value.args
    if words[0] == "train":
        load_recipe(command.recipe, overrides)
    elif words[0] == "experiment":
        for method in command.methods or ("phiseg-small",):
            load_recipe(method, overrides)
    else:
        assert own == words, "only train and experiment take keys of a recipe"


def stop_after_parsing(command, arguments, **settings):
    from phiseg.cli import parsing

    raise Understood(parsing.parse(command, arguments, **settings))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_valid(page, monkeypatch):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for words in command_lines(page.read_text(encoding="utf-8")):
        arguments = phiseg_words(words)
        if arguments is not None:
            understand(arguments, monkeypatch)
            continue
        if words[0].startswith("experiments/"):
            assert os.access(ROOT / words[0], os.X_OK), words[0]
            continue
        assert words[0] in OTHER_PROGRAMS
        if words[0] == "make":
            assert words[1] in targets
        if words[0] == "pip":
            assert set(re.findall(r"phiseg\[(\w+)\]", " ".join(words))) <= extras.keys()


def test_reference_lists_all_commands_with_valid_examples(monkeypatch):
    text = load_generated().command_reference()
    for words in command_lines(text):
        understand(phiseg_words(words), monkeypatch)
    for name in COMMANDS:
        section = text.split(f"## phiseg {name}\n")[1].split("\n## ")[0]
        assert f"usage: phiseg {name} " in section
        assert "--help" in section
    assert re.search(r"--num-cases N\s+Number of images", text)
    assert not re.search(r"default:\s*(None)?\)", text)


@pytest.mark.parametrize("wrong", ["sample runs/a --data d --out o --sampels 3", "trian unet", "demo --steps many"])
def test_invalid_commands_are_detected(wrong, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        understand(wrong.split(), monkeypatch)
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_in_the_text_exist(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    groups = {name.split()[0] for name in COMMANDS}
    for first in re.findall(r"`phiseg ([a-z]\w*)", text):
        assert first in groups
    sections = {
        name: {key for config in configs for key in config.model_fields}
        for name, configs in {
            "train": [Recipe.model_fields["train"].annotation],
            "augment": [Recipe.model_fields["augment"].annotation],
            "model": [model.Config for model in MODELS.values()],
        }.items()
    }
    sections["model"] |= {"noise_scale", "safetensors"}  # the key of an example, and a file
    attributes = {*dir(Model), "network", *dir(Segmenter), *Segmenter.__annotations__}
    for option, section, key in re.findall(r"`(--)?(train|augment|model)\.(\w+)", text):
        assert key in sections[section] or (not option and key in attributes)
    for recipe in re.findall(r"`((?:phiseg|probunet|unet)-[a-z0-9-]+)`", text):
        assert recipe in {*recipe_names(), *MODELS}


def test_reference_lists_all_recipe_keys():
    text = load_generated().config_reference()
    for section in ("train", "augment"):
        for key in Recipe.model_fields[section].annotation.model_fields:
            assert f"| `{key}` |" in text.split(f"## `{section}`")[1].split("\n## ")[0]
    for model in MODELS.values():
        for key in model.Config.model_fields.keys() - {"name"}:
            assert f"| `{key}` |" in text.split("## `model`")[1]
    assert "|  |" not in text, "a key without a docstring"
    assert text.count("| `free_nats` |") == 1, "the ensemble repeats a key of PHiSeg"
    assert "| `batch_size` | whole number | `12` | Images per step, in total over all processes. |" in text
    assert "| `kl_weights` | `paper`, `reference`, `unit` or list of numbers | `reference` |" in text
    assert "| `strides` | list of lists of whole numbers or null |" in text


def test_reference_lists_selection_criteria():
    text = load_generated().config_reference()
    assert "| `select_by` | `loss`, `elbo`, `ged`, `ged_unbiased`, `s_ncc`, `dice`," in text


def test_table_of_scores_is_current():
    page = (ROOT / "docs" / "explanation" / "metrics.md").read_text(encoding="utf-8")
    current = load_generated().with_score_table(page)
    assert page == current, "run: python docs/generated.py"
    assert current.count("| `hm_iou` | HM-IoU ↑ | cases |") == 1


def test_site_lists_all_pages():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for inner in (entry.values() if isinstance(entry, dict) else entry) for page in pages(inner)]

    named = pages(config["nav"])
    written = {page for page in named if not page.startswith(("project/", "reference/api/"))}
    pages_on_disk = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert written == {*pages_on_disk, "tutorial-notebook.md"}
    rooms = {page.split("/")[-1] for page in named if page.startswith("reference/api/")}
    layers = import_layers()
    assert rooms == {f"{room}.md" for room in layers if room != "cli"}
    project = {page.removeprefix("project/") for page in named if page.startswith("project/")}
    assert all((ROOT / page).is_file() for page in project)
    outside = [*ROOT.glob("experiments/*/README.md"), *ROOT.glob("src/phiseg/weights/*/README.md")]
    assert {page.relative_to(ROOT).as_posix() for page in outside} <= project


def import_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [room for layer in layers for room in layer.split(" | ")]


def test_architecture_picture_is_current():
    picture = (ROOT / "docs/pictures/architecture.svg").read_text(encoding="utf-8")
    words = re.findall(r">([^<\n]+)</text>", picture)
    layers = import_layers()
    assert [word for word in words if word in layers] == layers
    shown = {word.removeprefix("phiseg ").split(",")[0] for word in words if word.startswith("phiseg ")}
    assert shown <= {*COMMANDS, "prepare"}


def run_python(page, changes=None):
    """Run a page's Python blocks one after the other, as a reader would; return the names they made.

    `changes` replaces parts of the code, to make it faster.
    """
    names = {}
    code = "\n".join(blocks((ROOT / page).read_text(encoding="utf-8"), "python"))
    for old, new in (changes or {}).items():
        assert old in code
        code = code.replace(old, new)
    exec(code, names)
    return names


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with models and files that are called as the pages call them, which code runs in."""
    torch.manual_seed(0)
    model = build_model(PHiSegConfig(channels=(2, 2, 2, 2, 2), num_levels=5, blocks_per_level=1)).eval()
    save_model(tmp_path / "runs" / "phiseg", model, preprocessing={}, provenance={}, card="")
    model = build_model(PHiSegConfig(channels=(2, 2, 2), num_levels=3, blocks_per_level=1)).eval()
    preprocessing = {
        "classes": ["background", "nodule"],
        "image_channels": 1,
        "size": [16, 16],
        "intensity": {"kind": "window", "low": -1000, "high": 400},
        "plane": "axial",
        "centred_on": "nodule",
    }
    save_model(tmp_path / "runs" / "nodules", model, preprocessing=preprocessing, provenance={}, card="")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


def test_all_pages_with_python_are_run():
    source = Path(__file__).read_text(encoding="utf-8")
    pages = [name_of(page) for page in PAGES if blocks(page.read_text(encoding="utf-8"), "python")]
    assert [page for page in pages if f'run_python("{page}"' not in source] == []


def test_readme_python_runs():
    assert run_python("README.md")["samples"].shape == (1, 16, 64, 64)


def test_model_card_python_runs():
    assert run_python("src/phiseg/weights/lidc-nodule/README.md")["samples"].shape == (1, 16, 64, 64)


def test_tutorial_python_draws_a_picture(workplace, lesions, cli):
    (workplace / "data").symlink_to(lesions)
    make = ("sample", "runs/phiseg", "--data", "data", "--num-samples", "4", "--out", "samples")
    assert cli(*make).code == 0
    names = run_python("docs/tutorial.md")
    names["plt"].close("all")
    assert names["labels"].shape == (4, 16, 16)
    assert (workplace / "samples.png").stat().st_size > 1000


TOY_PYTHON = {
    "size=64, num_cases=500": "size=32, num_cases=30, progress=False",
    "steps=500": "steps=2, validate_every=2, recalibration_batches=2, validation_samples=2",
    "num_samples=16": "num_samples=3",
}


def test_reference_python_runs(workplace, capsys):
    values = np.random.default_rng(0).integers(-1000, 400, (40, 48, 6)).astype(np.int16)
    write_nifti(workplace / "scan.nii.gz", Volume(values, np.diag([-0.7, -0.7, 2.5, 1.0])))
    names = run_python("docs/reference/python.md", TOY_PYTHON)
    assert names["labels"].shape == (1, 4, 16, 16)
    assert (names["slower"].train.learning_rate, names["slower"].model.kl_weights) == (1e-4, "unit")
    assert names["samples"].labels.shape == (6, 8, 32, 32)
    assert [len(names[name]) for name in ("losses", "table", "found")] == [1, 2, 1]
    assert names["worst"]["ged"] == max(names["scores"].cases["ged"])
    assert names["gamma"].shape == (16, 16)
    assert (workplace / "report" / "report.html").is_file()


def test_notebook_has_output():
    notebooks = load_generated("notebooks")
    text = notebooks.NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 400_000
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not re.search(r"/(home|root|tmp|work|usr)/|Traceback", text)
    page, pictures = notebooks.as_page(notebooks.NOTEBOOK)
    assert len(pictures) == page.count("![") == 3
    assert all(data.startswith(b"\x89PNG") for data in pictures.values())
    for link in re.findall(r"(?<!!)\[[^]]+\]\(([^)]+)\)", page):
        assert (notebooks.NOTEBOOK.parent / link).is_file(), link


@pytest.mark.slow
def test_notebook_runs(tmp_path):
    pytest.importorskip("nbclient")
    notebooks = load_generated("notebooks")
    executed = notebooks.run_notebook(notebooks.NOTEBOOK, folder=tmp_path)
    assert "probunet-small" in executed.cells[-2].outputs[-1].data["text/plain"]
    assert (tmp_path / "report" / "report.html").is_file()


def test_prediction_python_runs(workplace, capsys):
    values = np.random.default_rng(0).integers(-1000, 400, (40, 48, 6)).astype(np.int16)
    write_nifti(workplace / "scan.nii.gz", Volume(values, np.diag([-0.7, -0.7, 2.5, 1.0])))
    names = run_python("docs/how-to/predict.md")
    assert names["prediction"].labels.shape[::2] == (8, 16)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert " ml, 90 % from " in printed[0]


def test_arrays_page_makes_a_dataset(workplace, cli):
    random = np.random.default_rng(0)
    (block,) = blocks((ROOT / "docs/how-to/arrays-and-legacy-files.md").read_text(encoding="utf-8"), "python")
    given = {
        "images": random.normal(size=(6, 8, 8)),
        "masks": random.integers(0, 2, (6, 3, 8, 8), dtype=np.uint8),
        "patients": np.array(list("aabbcd")),
        "splits": np.array(["train"] * 4 + ["val", "test"]),
        "valid": np.ones((6, 3)),
        "spacing": 0.7,
    }
    exec(block, given)  # what run_python("docs/how-to/arrays-and-legacy-files.md") does, with the reader's arrays
    (line,) = (words for words in command_lines_of("how-to/arrays-and-legacy-files.md") if "crops.npz" in words)
    done = cli(*line[1:])
    assert done.code == 0, done.err
    assert np.load("data/labels.npy").shape == (6, 3, 8, 8)


def test_data_source_of_the_contributing_page_makes_a_dataset(workplace):
    Path("source").mkdir()
    random = np.random.default_rng(0)
    image, masks = random.normal(-500, 300, (64, 64)), random.integers(0, 2, (4, 64, 64))
    for number in range(5):
        np.savez(f"source/case{number}.npz", image=image, masks=masks, patient=f"patient{number}")
    dataset = run_python("CONTRIBUTING.md")["dataset"]
    assert [case["patient"] for case in dataset.cases] == [f"patient{number}" for number in range(5)]
    np.testing.assert_array_equal(dataset.annotations(2), masks)


def command_lines_of(page):
    return command_lines((ROOT / "docs" / page).read_text(encoding="utf-8"))


def test_other_samples_page_runs(workplace, lesions, capsys):
    Path("data").symlink_to(lesions)
    cases = Dataset.open("data").rows("test")
    random = np.random.default_rng(0)
    probs = random.dirichlet([1, 1], (4, 8, 16, 16)).transpose(0, 1, 4, 2, 3).astype(np.float32)
    np.save("their_probs.npy", probs)
    np.save("their_samples.npy", probs.argmax(2))
    np.save("annotations.npy", random.integers(0, 2, (4, 4, 16, 16)))
    names = run_python("docs/how-to/score-other-samples.md")
    printed = capsys.readouterr().out.splitlines()
    assert printed[: len(cases)] == [f"lesion-{row:05d}" for row in cases]
    scores = [line.split()[0] for line in printed[len(cases) :][:5]]
    assert scores == ["ged", "ged_floor", "ged_unbiased", "hm_iou", "best_dice"]
    ours = names["energy_distance"](names["s"], torch.from_numpy(names["annotations"][3]), num_classes=2)
    assert names["scores"][3]["ged"] == ours.ged


def test_new_model_page_fulfils_the_contract(workplace):
    names = run_python("docs/how-to/new-model.md")
    model, image = names["model"], names["image"]
    assert names["logits"].shape == (2, 5, 2, 30, 32)
    assert all(parameter.grad is not None for parameter in model.parameters())
    again = model.sample(image, 5, generator=torch.Generator().manual_seed(0), chunk_size=2)
    torch.testing.assert_close(again, names["logits"])
    assert not torch.equal(again[:, 0], again[:, 1])
    (recipe,) = blocks((ROOT / "docs/how-to/new-model.md").read_text(encoding="utf-8"), "yaml")
    values = yaml.safe_load(recipe)
    config, small = type(model.config).parse(values["model"], where="the page"), load_recipe("phiseg-small")
    assert (config.channels, config.blocks_per_level) == (small.model.channels, small.model.blocks_per_level)
    for section in ("augment", "train"):
        found = Recipe.model_fields[section].annotation.parse(values[section], where="the page")
        assert found == getattr(small, section), "what every small recipe has"


def test_levels_page_runs(workplace, capsys):
    names = run_python("docs/explanation/levels.md")
    assert [level.shape for level in names["levels"]] == [(1, 8, 2, 64, 64)] * 5
    assert torch.equal(names["finer"][4], names["latents"][4])
    assert not torch.equal(names["finer"][0], names["latents"][0])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == [f"level {number}" for number in range(1, 6)]
    assert all(float(line.split()[-1]) > 0 for line in printed)


def test_site_builds_without_external_content(tmp_path):
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("**/*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|img|iframe)[^>]+src=\"?(https?:)?//", text), page
        assert not re.search(r"<link[^>]+href=\"?(https?:)?//", text), page


@pytest.mark.slow
def test_onnx_page_runs(workplace, cli, capfd):
    pytest.importorskip("onnxruntime")
    (line,) = (words for words in command_lines_of("how-to/deploy.md") if "--onnx" in words)
    done = cli(*line[1:])
    assert done.code == 0, done.err
    names = run_python("docs/how-to/deploy.md")
    assert names["probs"].shape == (16, 2, 16, 16)
    assert len(np.unique(names["probs"], axis=0)) == 16


TOY = {"--size": "64", "--num-cases": "30", "--num-samples": "4", "--train.steps": "2", "--steps": "2"}
TOY_TRAINING = {
    "--train.steps": "2",
    "--train.validate_every": "2",
    "--train.batch_size": "4",
    "--train.recalibration_batches": "2",
    "--train.validation_samples": "2",
}
APPENDED = {
    "train": TOY_TRAINING,
    "calibrate": {"--num-samples": "4"},
    "evaluate": {"--num-samples": "4"},
    "predict": {"--num-samples": "4", "--level-draws": "0"},
}


@pytest.fixture
def run_small(tmp_path, monkeypatch, cli):
    """Return a function that runs a page's command in a folder of its own, with fewer cases, steps and samples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # for rows

    def run(words, *options):
        given = [TOY.get(before, word) for before, word in zip(["", *words], words, strict=False)]
        for option, value in APPENDED.get(given[1], {}).items():
            given += [] if option in given and not option.startswith("--train.") else [option, value]
        done = cli(*given[1:], *options)
        assert done.code == 0, f"{' '.join([*given, *options])}\n{done.err}"

    return run


def phiseg_lines(page, *, section=None):
    """Return the words of the lines of a page, or of a section of it, that run phiseg."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [words for words in command_lines(text) if words[0] == "phiseg"]


def write_volumes(folder, dataset, *, num_cases=6):
    """Write images of a dataset as NIfTI with one label file per rater, two slices a case."""
    images, labels = np.asarray(dataset.images, dtype=np.float32)[:, 0], np.asarray(dataset.labels)
    affine = np.diag([0.6, 0.6, 3.3, 1.0])
    for number in range(num_cases):
        case, rows = folder / f"case{number}", [number, (number + 1) % len(images)]
        case.mkdir(parents=True)
        write_nifti(case / "image.nii.gz", Volume(np.moveaxis(images[rows], 0, 2), affine))
        for rater in range(labels.shape[1]):
            write_nifti(case / f"rater-{rater}.nii.gz", Volume(np.moveaxis(labels[rows, rater], 0, 2), affine))


@pytest.mark.slow
def test_tutorial_commands_run(tmp_path, run_small):
    for page in ("docs/tutorial.md", "docs/how-to/combine-and-calibrate.md", "docs/explanation/levels.md"):
        for words in phiseg_lines(page):
            run_small(words)
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.slow
def test_readme_commands_run(tmp_path, run_small):
    for words in phiseg_lines("README.md", section="Your first result in five commands"):
        run_small(words)
    assert (tmp_path / "runs" / "report" / "report.html").is_file()


@pytest.mark.slow
def test_prepare_data_commands_run(tmp_path, lesions, run_small):
    source = Dataset.open(lesions)
    images, masks = np.asarray(source.images)[:, 0], np.asarray(source.labels)
    write_volumes(tmp_path / "SRC", source)
    np.savez(tmp_path / "crops.npz", images=images, masks=masks)
    with h5py.File(tmp_path / "data_lidc.hdf5", "w") as file:
        for number, split in enumerate(("train", "val", "test")):
            part = slice(5 * number, 5 * number + 5)
            group = file.create_group(split)
            group["images"] = images[part].astype(np.float32)
            group["labels"] = np.moveaxis(masks[part], 1, 3)
            group["uids"] = np.arange(5 * number, 5 * number + 5)
    ran = []
    page = "docs/how-to/prepare-data.md"
    for words in (*phiseg_lines(page, section="Choose a source"), *phiseg_lines(page, section="Check it")):
        if words[1:3] == ["prepare", "lidc"]:
            continue  # needs the archive; tests/data/test_prepare_lidc.py has its like
        options = ["--overwrite"] * (words[1] == "prepare") + ["--workers", "1"] * (words[2] == "nifti")
        run_small(words, *options)
        ran.append(" ".join(words[1:3]))
    assert ran == [
        *("prepare nifti", "prepare arrays", "prepare legacy"),
        *("data check", "data show", "data split"),
    ]
    assert Dataset.open(tmp_path / "data").num_cases == 15


@pytest.mark.slow
def test_readme_prediction_runs(tmp_path, run_small):
    view, example, predict = phiseg_lines("README.md", section="Segment a scan with the bundled model")
    assert view == ["phiseg", "view"]  # tests/viewer and tests/browser use it
    run_small(example)
    run_small(predict)
    assert (tmp_path / "pred" / "report.html").is_file()


@pytest.mark.slow
def test_prostate_commands_run(tmp_path, zones, run_small):
    write_volumes(tmp_path / "SRC", Dataset.open(zones))
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "a.nii.gz").write_bytes((tmp_path / "SRC/case0/image.nii.gz").read_bytes())
    for words in phiseg_lines("docs/how-to/prostate.md"):
        if words[1] == "predict":  # with the reader's own training
            run_small(["phiseg", "train", "phiseg-small", "--data", "data/prostate", "--out", "runs/prostate"])
        run_small(words, *(["--workers", "1"] if words[2] == "nifti" else []))
    assert (tmp_path / "runs" / "zones-report" / "report.html").is_file()
    assert (tmp_path / "pred" / "report.html").is_file()


@pytest.mark.slow
def test_own_nifti_data_commands_run(tmp_path, lesions, zones, run_small):
    """One annotator or several, the samples of a model, and a recipe's keys; then volumes with labels to merge."""
    write_volumes(tmp_path / "SRC", Dataset.open(lesions))
    for page in ("docs/how-to/one-annotator.md", "docs/how-to/score-other-samples.md", "docs/reference/config.md"):
        for words in phiseg_lines(page):
            if "their_samples.npy" in words or "theirs-eval" in words or words[1] == "score":
                continue  # needs samples of another program; test_score_samples.py has them
            run_small(words, *(["--workers", "1"] if words[2] == "nifti" else []))
    assert np.load("samples/labels.npy").shape[1:] == (4, 64, 64)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "phiseg",
        "phiseg-eval",
        "one",
        "one-eval",
        "a",
        "b",
    }
    shutil.rmtree(tmp_path / "SRC")
    write_volumes(tmp_path / "SRC", Dataset.open(zones))
    (prepare,) = phiseg_lines("docs/how-to/own-nifti-data.md")
    run_small(prepare, "--workers", "1")
    assert Dataset.open(tmp_path / "DATA").info.classes == ("background", "tz", "pz")


@pytest.mark.slow
def test_arrays_and_legacy_commands_run(tmp_path, lesions, run_small):
    source = Dataset.open(lesions)
    images, masks = np.asarray(source.images, dtype=np.float32)[:, 0], np.asarray(source.labels)
    np.savez(tmp_path / "crops.npz", images=images, masks=masks)
    np.savez(tmp_path / "lidc_slices.npz", images=(255 * images).astype(np.uint8), masks=masks)
    crops = {
        f"c{n}": {"image": images[n], "masks": [*masks[n]], "series_uid": f"1.{n}"} for n in range(len(images))
    }
    (tmp_path / "data_lidc.pickle").write_bytes(pickle.dumps(crops))
    for number, split in enumerate(("train", "train", "val", "test")):
        for kind in ("images", "gt"):
            (tmp_path / "lidc_crops" / split / kind / f"p{number}").mkdir(parents=True)
        place = tmp_path / "lidc_crops" / split
        Image.fromarray((255 * images[number]).astype(np.uint8)).save(place / "images" / f"p{number}" / "a.png")
        for reader, mask in enumerate(masks[number]):
            Image.fromarray(255 * mask).save(place / "gt" / f"p{number}" / f"a_l{reader}.png")
        nodule = tmp_path / "LIDC-IDRI-slices" / f"p{number}" / "nodule-0"
        shutil.copytree(place / "images" / f"p{number}", nodule / "images")
        (nodule / "images" / "a.png").rename(nodule / "images" / "slice-0.png")
        for reader, mask in enumerate(masks[number]):
            (nodule / f"mask-{reader}").mkdir()
            Image.fromarray(255 * mask).save(nodule / f"mask-{reader}" / "slice-0.png")
    sizes = []
    for words in phiseg_lines("docs/how-to/arrays-and-legacy-files.md"):
        run_small(words, "--overwrite")
        sizes.append((Dataset.open(tmp_path / "data").num_cases, Dataset.open(tmp_path / "data").info.size))
    number = len(images)
    assert sizes == [
        *((number, (16, 16)), (number, (64, 64))),
        *((number, (16, 16)), (4, (64, 64)), (4, (16, 16))),
    ]


@pytest.mark.slow
def test_experiments_commands_run(tmp_path, lesions, run_small):
    shutil.copytree(lesions, tmp_path / "data")
    few = ("--methods", "phiseg-small", "unet-small", "--rows", "all/phiseg*", "--num-samples", "4")
    training = [word for option, value in TOY_TRAINING.items() if "steps" not in option for word in (option, value)]
    for words in phiseg_lines("docs/how-to/experiments.md"):
        run_small(words, *few, *training)
    assert (tmp_path / "table1" / "report.html").is_file()


@pytest.mark.slow
def test_lidc_predict_and_deploy_commands_run(tmp_path, shared_data, run_small):
    (tmp_path / "LIDC-IDRI").symlink_to(shared_data("lidc_dicom"))
    (tmp_path / "LIDC-IDRI-0003").symlink_to(shared_data("lidc_dicom/LIDC-IDRI-0003"))
    for words in phiseg_lines("docs/how-to/lidc.md"):
        run_small(words)
    assert (tmp_path / "sheet.png").is_file()
    shutil.copytree(find_model(Path("lidc-nodule")), tmp_path / "runs" / "nodules")
    shutil.copytree(find_model(Path("lesion-phantom")), tmp_path / "runs" / "prostate")  # of whole slices, too
    values = np.random.default_rng(0).integers(-1000, 400, (128, 96, 44)).astype(np.int16)
    write_nifti(tmp_path / "scan.nii.gz", Volume(values, np.diag([-0.7, -0.7, 2.5, 1.0])))
    (tmp_path / "scans").mkdir()
    shutil.copyfile("scan.nii.gz", "scans/scan.nii.gz")
    (tmp_path / "nodules.csv").write_text("case,x,y,z\nscan,60,50,20\n")
    (tmp_path / "names.csv").write_text("scan,case\nscan.nii.gz,first\n")
    for page in ("predict", "deploy"):
        for words in phiseg_lines(f"docs/how-to/{page}.md"):
            run_small(words)
            shutil.rmtree("pred", ignore_errors=True)  # each of them is a page's first command
    assert (tmp_path / "nodules.onnx").is_file()
    assert (tmp_path / "nodules-bundle" / "configs" / "inference.json").is_file()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "tutorial.ipynb"], ids=name_of)
def test_floor_is_never_defined_without_independent_annotators(page):
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    for passage in re.split(r"\n\n|\n(?=[-|])", text):
        if "annotators' own distribution" in " ".join(passage.split()):
            assert "independent" in passage, passage
