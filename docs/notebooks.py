"""Run the notebook of the documentation, and convert it to a page.

`python docs/notebooks.py` runs docs/tutorial.ipynb in a temporary folder and stores its output in the file.
"""

import base64
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")
PAGE = "tutorial-notebook"
"""Name of its page on the site."""
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Codes for the colours of a terminal."""
_LANGUAGE = {"name": "python3", "display_name": "Python 3", "language": "python"}


def run_notebook(path: Path, *, folder: Path) -> Any:
    """Run a notebook in `folder` and return it with its output.

    Raises:
        CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    os.environ.setdefault("TQDM_MININTERVAL", "1")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=3600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _tidied(cell.outputs)
    notebook.metadata = nbformat.from_dict({"kernelspec": _LANGUAGE, "language_info": {"name": "python"}})
    return notebook


def _tidied(outputs: list[Any]) -> list[Any]:
    """Join what was printed piece by piece, and leave out progress bars, which differ from run to run."""
    tidied: list[Any] = []
    for output in outputs:
        last = tidied[-1] if tidied else None
        if last and output["output_type"] == "stream" == last["output_type"] and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            tidied.append(output)
    for output in tidied:
        if output["output_type"] == "stream":
            lines = re.split(r"[\r\n]+", COLOURS.sub("", output["text"]))
            output["text"] = "".join(f"{line}\n" for line in lines if line.strip() and "%|" not in line)
    return [output for output in tidied if output["output_type"] != "stream" or output["text"]]


def as_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{PAGE}-{number}-{place}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({name})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


if __name__ == "__main__":
    import nbformat

    with tempfile.TemporaryDirectory() as place:
        nbformat.write(run_notebook(NOTEBOOK, folder=Path(place)), NOTEBOOK)
