"""Parts of the documentation that are taken from the repository when it is built, so that they stay current.

`reference/cli.md` shows what each command's --help prints, `reference/config.md` every key of a recipe, and
`reference/api/` the docstrings. Pages link to files of the repository as they lie there; on the site a link into
`src/phiseg` leads to that function's docstring and source.
"""

import pkgutil
import posixpath
import re
from importlib import import_module
from pathlib import Path

from generated import command_reference, config_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import NOTEBOOK, PAGE, as_page

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "api": "The Python interface",
    "core": "The core",
    "models": "Models",
    "metrics": "Metrics",
    "imaging": "Imaging",
    "compute": "Devices and processes",
    "data": "Data",
    "inference": "Inference",
    "plotting": "Plotting",
    "training": "Training",
    "evaluation": "Evaluation",
    "comparison": "Comparison",
    "experiment": "Experiments",
    "viewer": "The viewer",
    "label_server": "The server for 3D Slicer and OHIF",
}
SHOWN = [
    path
    for folder in ("experiments", "src/phiseg/weights")
    for path in sorted(ROOT.glob(f"{folder}/**/*"))
    if path.suffix in {".md", ".png"}
]
PROJECT = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *(path.relative_to(ROOT).as_posix() for path in SHOWN),
)
"""Pages and pictures that live outside of docs/ and are part of the site, under project/."""
LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the Python API, the notebook, and the pages that live outside of docs/."""
    for package, title in PACKAGES.items():
        text = f"# {title}\n\n" + "\n\n".join(f"::: {module}" for module in modules(package))
        files.append(File.generated(config, f"reference/api/{package}.md", content=text))
    page, pictures = as_page(NOTEBOOK)
    files.append(File.generated(config, f"{PAGE}.md", content=page))
    for name, data in pictures.items():
        files.append(File.generated(config, name, content=data))
    for path in PROJECT:
        files.append(File.generated(config, f"project/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Fill in what a page takes from the code, and turn links to files of the repository into links of the site."""
    for name, make in GENERATED.items():
        if name in markdown:
            markdown = markdown.replace(name, make())
    place = page.file.src_uri
    if "/results/" in place and not markdown.startswith("# "):  # a table that phiseg wrote, without a title
        experiment, _, file = place.removeprefix("project/experiments/").partition("/")
        about = "../" * file.count("/") + "README.md"
        markdown = f"# Results of {experiment}\n\n[About this experiment]({about})\n\n{markdown}"
    source = place.removeprefix("project/") if place.startswith("project/") else f"docs/{place}"

    def follow(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        found = site_link(target, (match[2] or "").removeprefix("#"))
        return match[0] if found is None else f"]({posixpath.relpath(found, posixpath.dirname(place) or '.')})"

    return LINK.sub(follow, markdown).replace("\\<", "&lt;")  # an escape that Python's Markdown does not know


def on_page_content(html: str, **_: object) -> str:
    """Keep an arrow or a percent sign on the line of the word before it, except in code."""
    return re.sub(
        r"(<pre.*?</pre>|<code.*?</code>)| (?=[↑↓%])", lambda match: match[1] or "\u00a0", html, flags=re.DOTALL
    )


def site_link(target: str, name: str) -> str | None:
    """Return where a file of the repository is found on the site, None for what needs no change.

    Args:
        target: path from the root of the repository.
        name: what is linked to in it: a heading of a page, or a function or class of a module.
    """
    anchor = f"#{name}" if name else ""
    if target in PROJECT:
        return f"project/{target}{anchor}"
    if target == f"docs/{NOTEBOOK.name}":
        return f"{PAGE}.md"
    if target.startswith("docs/"):
        return target.removeprefix("docs/") + anchor
    if target.startswith("src/phiseg/") and target.endswith(".py"):
        module = target.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"reference/api/{module.split('.')[1]}.md#{module}" + (f".{name}" if name else "")
    return None


def modules(package: str) -> list[str]:
    """List the modules of a package by their full names."""
    imported = import_module(f"phiseg.{package}")
    found = pkgutil.walk_packages(imported.__path__, f"{imported.__name__}.")
    return [module.name for module in found if not module.ispkg]


GENERATED = {
    "<!-- generated: commands -->": command_reference,
    "<!-- generated: keys -->": config_reference,
}
