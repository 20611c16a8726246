"""Rows of the benchmark: rows.csv with one line per training, and a file with the scores of its cases.

    python experiments/benchmark/rows.py add EVAL --track TRACK --method NAME --code URL --commit HASH --seed N \
        --minutes M --hardware TEXT [--seconds S] [--set-aside REASON] [--note TEXT] [--folder FOLDER]
    python experiments/benchmark/rows.py table [--folder FOLDER]

EVAL is an evaluation with the number of samples of the track, written by `phiseg score` or `phiseg evaluate`. `add`
stores it as a row, `table` makes the tables and plots of results/ from all rows.
"""

import argparse
import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from phiseg.core.errors import DataError, PhisegError
from phiseg.data.split_files import read_split_file
from phiseg.evaluation.evaluation_folder import Cases, cases_to_csv, read_evaluation
from phiseg.evaluation.summary import TEXT_COLUMNS, defined
from phiseg.metrics.score_registry import SCORES, case_scores
from phiseg.metrics.significance import patient_interval, patient_t_test
from phiseg.plotting.primitives import to_png

HERE = Path(__file__).parent
COLUMNS = (
    *("track", "method", "seed", "code", "commit", "minutes", "hardware", "seconds_per_100_samples", "parameters"),
    *("num_samples", "samples_sha256", "phiseg_version", "cases", "set_aside", "note"),
)
"""Columns of rows.csv. `cases` is the file with the scores of the cases, `minutes` the budget of the training,
`set_aside` the reason why a row is shown but not compared with others, such as unsuitable settings."""
SHOWN = ("ged_unbiased", "ged", "ged_floor", "hm_iou", "s_ncc", "dice")
NOTES = ("set_aside", "note")
SIGNIFICANCE = 0.01
MIN_PATIENTS = 5
DIGITS = 6
"""Digits after the point in table.csv, so that it does not depend on the rounding of a CPU."""

Row = dict[str, str]


def add_row(evaluation: Path, values: dict[str, Any], folder: Path = HERE) -> Row:
    """Store an evaluation as a row, and return it.

    Args:
        evaluation: folder of the evaluation.
        values: track, method, seed, code, commit, minutes, hardware; optionally seconds_per_100_samples,
            parameters, set_aside and note.
        folder: folder of the benchmark.

    Raises:
        DataError: the evaluation does not follow the protocol of its track, a value cannot be shown in a table, or
            the row exists already.
    """
    tracks = json.loads((folder / "tracks.json").read_text(encoding="utf-8"))
    if values["track"] not in tracks:
        raise DataError(f"there is no track '{values['track']}'; choose one of {', '.join(tracks)}")
    found = read_evaluation(evaluation)
    summary, protocol = found.summary, tracks[values["track"]]
    for name in ("num_samples", "split", "dice_annotator"):
        if (given := getattr(summary, name)) != protocol[name]:
            raise DataError(f"{evaluation} has {name} {given}, but track {values['track']} needs {protocol[name]}")
    if file := protocol.get("split_file"):
        name, given = read_split_file(folder / file).name, summary.dataset.split_name
        if given != name:
            raise DataError(
                f"{evaluation} was scored on {'an unnamed split' if given is None else repr(given)}, but track "
                f"{values['track']} needs '{name}'; run phiseg data split DATA --read {file}, and score again"
            )
    if broken := [name for name, value in values.items() if re.search(r"[|\n]", str(value))]:
        raise DataError(f"{broken[0]} contains '|' or a line break, which a table cannot show; rewrite it")
    rows = read_rows(folder)
    slug = re.sub(r"[^a-z0-9]+", "-", f"{values['track']} {values['method']} seed {values['seed']}".lower()).strip(
        "-"
    )
    row = dict.fromkeys(COLUMNS, "") | {name: str(value) for name, value in values.items() if value is not None}
    row |= {
        "num_samples": str(summary.num_samples),
        "parameters": str(summary.num_parameters or row["parameters"]),
        "samples_sha256": summary.samples.sha256 if summary.samples else "",
        "phiseg_version": summary.phiseg_version,
        "cases": f"cases/{slug}.csv.gz",
    }
    if any(other["cases"] == row["cases"] for other in rows):
        raise DataError(f"rows.csv already has {row['cases']}; choose another method name or seed")
    for other in rows:
        if other["track"] == row["track"]:
            check_same_cases(found.cases, read_cases(folder / other["cases"]), evaluation)
            break
    (folder / "cases").mkdir(exist_ok=True)
    (folder / row["cases"]).write_bytes(gzip.compress((evaluation / "cases.csv").read_bytes(), mtime=0))
    write_rows(folder, [*rows, row])
    return row


def check_same_cases(cases: Cases, others: Cases, where: Path) -> None:
    """Check that two rows have the same cases with the same annotations.

    The mean distance of two annotations depends on the annotations only, so it shows whether they are the same.

    Raises:
        DataError: they differ.
    """
    ours, theirs = (dict(zip(one["case"], one["ged_within_annotations"], strict=True)) for one in (cases, others))
    if different := ours.keys() ^ theirs.keys():
        raise DataError(
            f"{where} has other cases than the track ({len(different)} differ, such as '{min(different)}')"
        )
    for case, value in ours.items():
        if value != theirs[case] and (None in (value, theirs[case]) or abs(value - theirs[case]) > 1e-6):
            raise DataError(f"{where}: case '{case}' has other annotations than in the track; use its preparation")


def read_rows(folder: Path = HERE) -> list[Row]:
    """Return the lines of rows.csv.

    Raises:
        DataError: the columns are not those of a benchmark.
    """
    with (folder / "rows.csv").open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if tuple(reader.fieldnames or ()) != COLUMNS or any(None in row or None in row.values() for row in rows):
        raise DataError(f"{folder / 'rows.csv'} has other columns than {', '.join(COLUMNS)}")
    return rows


def write_rows(folder: Path, rows: list[Row]) -> None:
    """Write rows.csv, sorted by track, method and seed."""
    ordered = sorted(rows, key=lambda row: (row["track"], row["method"], int(row["seed"] or 0)))
    (folder / "rows.csv").write_text(cases_to_csv({name: [row[name] for row in ordered] for name in COLUMNS}))


def read_cases(path: Path) -> Cases:
    """Return the scores of the cases of a row; an undefined score is None."""
    header, *lines = csv.reader(gzip.decompress(path.read_bytes()).decode().splitlines())
    columns: Cases = dict(zip(header, map(list, zip(*lines, strict=True)), strict=True))
    return {
        name: values if name in TEXT_COLUMNS else [float(value) if value else None for value in values]
        for name, values in columns.items()
    }


def make_tables(folder: Path = HERE) -> dict[str, list[dict[str, Any]]]:
    """Write results/table.md, table.csv and the plots from the rows, and return the lines of each track."""
    results = folder / "results"
    results.mkdir(exist_ok=True)
    tracks = json.loads((folder / "tracks.json").read_text(encoding="utf-8"))
    lines: dict[str, list[dict[str, Any]]] = {}
    for track in tracks:
        methods: dict[str, list[Row]] = {}
        for row in read_rows(folder):
            if row["track"] == track:
                methods.setdefault(row["method"], []).append(row)
        lines[track] = _table(methods, folder)
        if lines[track]:
            (results / f"{track}.png").write_bytes(to_png(_plot(lines[track])))
    everything = [{"track": track, **line} for track, part in lines.items() for line in part]
    names = list(dict.fromkeys(name for line in everything for name in line))
    table = {name: [line.get(name) for line in everything] for name in names}
    (results / "table.csv").write_text(cases_to_csv(table) if table else "")
    (results / "table.md").write_text(_markdown(tracks, lines), encoding="utf-8")
    return lines


def _table(methods: dict[str, list[Row]], folder: Path) -> list[dict[str, Any]]:
    """Return one line per method, averaged over its seeds; the best ones by unbiased GED come first."""
    scores = {name: _aligned([read_cases(folder / row["cases"]) for row in rows]) for name, rows in methods.items()}
    budgets = {name: {row["minutes"] and float(row["minutes"]) for row in rows} for name, rows in methods.items()}
    set_aside = {name for name, rows in methods.items() if any(row["set_aside"] for row in rows)}
    lines = []
    for method, rows in methods.items():
        rivals = [name for name in methods if name != method and budgets[name] == budgets[method]]
        rivals = [] if method in set_aside else [name for name in rivals if name not in set_aside]
        line: dict[str, Any] = {"method": method, "trainings": len(rows)}
        for name in SHOWN:
            values = [cases[name] for cases in scores[method]]
            known = [value for part in values for value in defined(part)]
            interval = patient_interval(values, scores[method][0]["patient"]) if known else None
            line[name] = round(float(np.mean(known)), DIGITS) if known else None
            for end, bound in zip(("low", "high"), interval or (None, None), strict=True):
                line[f"{name}_{end}"] = None if bound is None else round(bound, DIGITS)
        seconds = [float(row["seconds_per_100_samples"]) for row in rows if row["seconds_per_100_samples"]]
        line |= {"seconds_per_100_samples": float(np.mean(seconds)) if seconds else None}
        line |= {name: rows[0][name] for name in ("minutes", "parameters")}
        line |= {name: _joined(rows, name) for name in ("commit", "code")}
        line["best"] = " ".join(name for name in SHOWN if _is_best(name, method, rivals, scores))
        line |= {name: _joined(rows, name) for name in NOTES}
        lines.append(line)
    return sorted(lines, key=lambda line: (line["ged_unbiased"] is None, line["ged_unbiased"]))


def _joined(rows: list[Row], name: str) -> str:
    """Return the different values of a column."""
    return "; ".join(dict.fromkeys(row[name] for row in rows if row[name]))


def _aligned(trainings: list[Cases]) -> list[Cases]:
    """Return trainings with their cases in alphabetical order, with a column for every score."""
    ordered = []
    for cases in trainings:
        order = np.argsort(cases["case"])
        full = {score.name: [None] * len(order) for score in case_scores()} | cases
        ordered.append({name: [values[place] for place in order] for name, values in full.items()})
    return ordered


def _is_best(name: str, method: str, others: list[str], scores: dict[str, list[Cases]]) -> bool:
    """Return whether a method is better than all others in a score, in a paired test over patients and seeds."""
    if not SCORES[name].sign or not defined(scores[method][0][name]):
        return False
    rivals = [other for other in others if defined(scores[other][0][name])]
    patients = scores[method][0]["patient"]
    for rival in rivals:
        ours, theirs = ([cases[name] for cases in scores[one]] for one in (method, rival))
        test = patient_t_test(ours, theirs, patients)
        better = test.mean_difference is not None and test.mean_difference * SCORES[name].sign > 0
        if test.num_pairs < MIN_PATIENTS or test.p_value is None or test.p_value >= SIGNIFICANCE or not better:
            return False
    return bool(rivals)


def _markdown(tracks: dict[str, Any], lines: dict[str, list[dict[str, Any]]]) -> str:
    parts = ["# Results of the benchmark\n", "Made from rows.csv by `rows.py table`; do not edit.\n"]
    for track, protocol in tracks.items():
        parts.append(f"## {track}\n\n{protocol['title']}, {protocol['num_samples']} samples.\n")
        if not lines[track]:
            parts.append("No rows yet.\n")
            continue
        heads = [
            "method",
            "seeds",
            "budget",
            *(f"{SCORES[name].heading} {SCORES[name].arrow}".strip() for name in SHOWN),
        ]
        rows = [f"| {' | '.join([*heads, 's per 100 samples'])} |", f"|---|{'---:|' * (len(heads))}"]
        for line in lines[track]:
            cells = [_cell(line, name) for name in SHOWN]
            seconds = line["seconds_per_100_samples"]
            budget = f"{float(line['minutes']):g} min" if line["minutes"] else "-"
            shown = [
                f"{line['method']} †" if line["set_aside"] else line["method"],
                str(line["trainings"]),
                budget,
                *cells,
                "-" if seconds is None else f"{seconds:.3g}",
            ]
            rows.append(f"| {' | '.join(shown)} |")
        parts.append("\n".join(rows) + "\n")
        parts.append(
            "\n".join(f"- {line['method']}: {text}" for line in lines[track] if (text := _note(line))) + "\n"
        )
        parts.append(f"![Unbiased GED and sampling time of each method]({track}.png)\n")
    note = (
        "Brackets: 95 % interval over patients, and seeds if there are several. Bold: better than all other "
        f"methods of the same budget, p < {SIGNIFICANCE} in a paired test over patients (with one seed, without "
        "the variance between seeds). †: shown, but not compared with others.\n"
    )
    return "\n".join([*parts, note])


def _note(line: dict[str, Any]) -> str:
    return "; ".join([f"† {line['set_aside']}"] * bool(line["set_aside"]) + [line["note"]] * bool(line["note"]))


def _cell(line: dict[str, Any], name: str) -> str:
    value, low, high = (line[key] for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return "-"
    mark = "**" if name in line["best"].split() else ""
    interval = "" if low is None or not SCORES[name].sign else f" [{low:.3f}, {high:.3f}]"
    return f"{mark}{value:.4f}{mark}{interval}"


def _plot(lines: list[dict[str, Any]]) -> Figure:
    """Draw the unbiased GED of each method with its interval, and against the sampling time if it is known."""
    timed = [line for line in lines if None not in (line["seconds_per_100_samples"], line["ged_unbiased"])]
    height = 1.2 + 0.35 * max(4, len(lines))
    figure = Figure(figsize=(8.5, height), layout="constrained")
    bars, scatter = figure.subplots(1, 2, width_ratios=(1.4, 1))
    for place, line in enumerate(lines):
        value, low, high = (line[f"ged_unbiased{end}"] for end in ("", "_low", "_high"))
        if low is not None:
            bars.plot([low, high], [place, place], color="#777777", linewidth=1.5)
        bars.plot([value], [place], "o", color="#1f4e79")
    bars.axvline(0, color="#999999", linewidth=0.8, linestyle=":")
    bars.set(yticks=range(len(lines)), yticklabels=[line["method"] for line in lines], xlabel="unbiased GED")
    bars.locator_params(axis="x", nbins=5)
    bars.invert_yaxis()
    seconds = [line["seconds_per_100_samples"] for line in timed]
    heights = [72 * (height - 1) * value for value in _shares([line["ged_unbiased"] for line in timed])]
    raised = 0.0
    for line, time, own in sorted(zip(timed, seconds, heights, strict=True), key=lambda each: each[2]):
        scatter.plot(time, line["ged_unbiased"], "o", color="#1f4e79")
        side, offset = ("left", 4) if time**2 <= min(seconds) * max(seconds) else ("right", -4)  # inside the plot
        raised = max(own + 4, raised + 8)  # in points; names must not overlap
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "ha": side}
        if raised > own + 4:
            style["arrowprops"] = {"arrowstyle": "-", "linewidth": 0.4, "color": "#888888"}
        scatter.annotate(line["method"], (time, line["ged_unbiased"]), xytext=(offset, raised - own), **style)
    if timed:
        scatter.set(xscale="log", xlabel="seconds per 100 samples", ylabel="unbiased GED")
        scatter.margins(y=0.12)  # for the name above the highest point
        scatter.xaxis.set(
            major_locator=LogLocator(subs=(1, 2, 5)),
            major_formatter=StrMethodFormatter("{x:g}"),
            minor_formatter=NullFormatter(),
        )
    else:
        scatter.set_axis_off()
        scatter.text(0.5, 0.5, "no sampling times", ha="center", va="center", color="#888888")
    return figure


def _shares(values: list[float]) -> list[float]:
    """Return the positions of values in their range with a margin of 12 %, as shares of the axis."""
    span = max(values, default=0) - min(values, default=0)
    return [(0.12 + (value - min(values)) / span) / 1.24 if span else 0.5 for value in values]


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="store an evaluation as a row")
    add.add_argument("evaluation", type=Path)
    for name in ("track", "method", "code", "commit"):
        add.add_argument(f"--{name}", required=True)
    add.add_argument("--seed", type=int, required=True)
    add.add_argument("--minutes", type=float, required=True, help="training time")
    add.add_argument("--hardware", required=True, help="device of the training")
    add.add_argument(
        "--seconds", type=float, dest="seconds_per_100_samples", help="time of 100 samples of one case"
    )
    add.add_argument("--parameters", type=int, help="number of parameters, if the evaluation has none")
    add.add_argument("--set-aside", metavar="REASON", help="why the row is not compared with others")
    add.add_argument("--note", default="")
    for one in (add, commands.add_parser("table", help="make results/ from the rows")):
        one.add_argument("--folder", type=Path, default=HERE)
    values = vars(parser.parse_args(arguments))
    command, folder = values.pop("command"), values.pop("folder")
    try:
        if command == "add":
            row = add_row(values.pop("evaluation"), values, folder)
            print(f"{folder / row['cases']}: added; run 'rows.py table' to update the results")
        else:
            lines = make_tables(folder)
            print(f"{folder / 'results'}: {sum(map(len, lines.values()))} methods in {len(lines)} tracks")
    except PhisegError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
