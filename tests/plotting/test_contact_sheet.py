"""The contact sheet: the requested cases, with the outlines of all annotators who are not missing."""

import json

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.image import imread

from helpers.small_volumes import make_volume, write_volumes
from phiseg.core.errors import ConfigError, DataError
from phiseg.data.check import disagreement
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.plotting import contact_sheet as contact_sheet_module
from phiseg.plotting.contact_sheet import choose_cases, contact_sheet
from phiseg.plotting.primitives import to_png


def outlines(axes):
    return [to_hex(drawn.get_edgecolor()[0]) for drawn in axes.collections if isinstance(drawn, LineCollection)]


def legend(figure):
    (legend,) = figure.legends
    lines = zip(legend.get_texts(), legend.get_lines(), strict=True)
    return {text.get_text(): to_hex(line.get_color()) for text, line in lines}


@pytest.mark.parametrize("name", ["lesions", "gaps"])
def test_case_shows_outlines_in_annotator_colours(name, request):
    dataset = Dataset.open(request.getfixturevalue(name))
    rows = list(range(dataset.num_cases))
    figure = contact_sheet(dataset, rows)
    colours = legend(figure)
    assert len(set(colours.values())) == 4
    assert len(figure.axes) == len(rows)
    for row, axes in enumerate(figure.axes):
        drew = [a for a in range(4) if dataset.valid[row, a] and (dataset.labels[row, a] == 1).any()]
        assert outlines(axes) == [colours[f"annotator {annotator}"] for annotator in drew]
        looked = dataset.valid[row].sum()
        told = f"{len(drew)} of {looked} drew" + (f", {4 - looked} missing" if looked < 4 else "")
        assert axes.get_title() == f"{dataset.cases[row]['case']}\n{told}"
        np.testing.assert_array_equal(axes.images[0].get_array(), dataset.image(row)[0])
        assert axes.images[0].get_clim() == (-0.5, 0.5)


def test_several_classes_have_a_picture_per_annotator(copy, zones, replace_arrays):
    folder = copy(zones)
    valid = np.load(folder / "valid.npy")
    valid[1, 4] = False
    replace_arrays(folder, valid=valid)
    dataset = Dataset.open(folder)
    figure = contact_sheet(dataset, [0, 1])
    colours = legend(figure)
    assert list(colours) == ["transition zone", "peripheral zone"]
    pictures = np.array(figure.axes, dtype=object).reshape(2, 7)
    assert [axes.get_title() for axes in pictures[0]] == ["image", *(f"annotator {a}" for a in range(6))]
    for row in (0, 1):
        assert outlines(pictures[row, 0]) == []
        for annotator in range(6):
            present = [k for k in (1, 2) if valid[row, annotator] and (dataset.labels[row, annotator] == k).any()]
            assert outlines(pictures[row, 1 + annotator]) == [[*colours.values()][k - 1] for k in present]
    assert [text.get_text() for text in pictures[1, 5].texts] == ["missing"]
    assert not pictures[1, 5].images


def test_annotator_colours_are_distinct():
    for number in (1, 10, 30):
        assert len(set(contact_sheet_module._annotator_colours(number))) == number


def test_names_are_escaped_and_shortened(copy, lesions):
    folder = copy(lesions)
    text = (folder / "cases.csv").read_text()
    patients = json.loads((folder / "splits.json").read_text())
    first = Dataset.open(folder).cases[0]["case"]
    unusual = r"$\frac{1}$-" + "x" * 60 + "-end"
    (folder / "cases.csv").write_text(text.replace(first, unusual))
    patients = {
        key: [unusual if p == first else p for p in part] for key, part in patients.items() if key != "seed"
    }
    (folder / "splits.json").write_text(json.dumps(patients))
    figure = contact_sheet(Dataset.open(folder), [0])
    to_png(figure)  # a formula would fail here
    title = figure.axes[0].get_title().split("\n")[0]
    assert title.startswith(r"\$\frac{1}\$-x")
    assert title.endswith("x-end")
    assert len(title) < 32


def test_large_images_are_subsampled_with_outlines(tmp_path, monkeypatch):
    dataset = prepare_phantom("lesion", tmp_path / "data", size=50, num_cases=3, progress=False)
    monkeypatch.setattr(contact_sheet_module, "MAX_PIXELS", 20)
    (axes,) = contact_sheet(dataset, [0]).axes
    assert axes.images[0].get_array().shape == (17, 17)
    np.testing.assert_array_equal(axes.images[0].get_array(), dataset.image(0)[0, ::3, ::3])
    assert axes.get_xlim() == (-0.5, 16.5)


@pytest.mark.parametrize("number", [1, 3, 7])
def test_sheet_of_any_length_is_drawn(number, lesions, tmp_path):
    (tmp_path / "sheet.png").write_bytes(to_png(contact_sheet(Dataset.open(lesions), list(range(number)))))
    pixels = imread(tmp_path / "sheet.png")
    assert pixels.std() > 0.1


def test_cases_in_row_order_are_evenly_spaced(lesions):
    dataset = Dataset.open(lesions)
    assert choose_cases(dataset, 5) == [0, 4, 7, 10, 14]
    assert choose_cases(dataset, 100) == list(range(15))
    assert choose_cases(dataset, 100, split="val") == dataset.rows("val").tolist()


def test_random_cases_depend_on_the_seed(lesions):
    dataset = Dataset.open(lesions)
    first = choose_cases(dataset, 6, order="random", seed=1)
    assert first == choose_cases(dataset, 6, order="random", seed=1)
    assert first != choose_cases(dataset, 6, order="random", seed=2)
    assert len(set(first)) == 6


def test_most_disputed_cases_come_first(lesions):
    dataset = Dataset.open(lesions)
    chosen = choose_cases(dataset, 4, order="disagreement")
    values = [disagreement(dataset, row) for row in chosen]
    assert values == sorted(values, reverse=True)
    assert min(values) >= max(disagreement(dataset, row) for row in range(15) if row not in chosen)


def test_empty_sheet_is_rejected(lesions):
    dataset = Dataset.open(lesions)
    with pytest.raises(ConfigError, match="use 1 or more"):
        choose_cases(dataset, 0)
    with pytest.raises(DataError, match="did you mean 'train'"):
        choose_cases(dataset, 3, split="trian")


def test_non_square_pixels_and_annotator_names_are_shown(zones, copy):
    folder = copy(zones)
    info = json.loads((folder / "dataset.json").read_text())
    info["spacing_mm"] = [0.5, 0.25]
    info["source"]["raters"] = ["anna", "ben", "cem", "dora", "e_$x$", "f"]
    (folder / "dataset.json").write_text(json.dumps(info))
    figure = contact_sheet(Dataset.open(folder), [0])
    pictures = [axes for axes in figure.axes if axes.images]
    assert {axes.get_aspect() for axes in pictures} == {2.0}
    assert [axes.get_title() for axes in pictures[1:4]] == ["anna", "ben", "cem"]


def test_volume_is_shown_in_three_planes(tmp_path):
    labels = np.zeros((3, 4, 5, 8))
    labels[0, 1, 2:4, 3:7] = 1
    labels[2, 1:3, 2, 6] = 1
    dataset = write_volumes(tmp_path / "data", [make_volume(0, labels=labels), *map(make_volume, range(1, 5))])
    figure = contact_sheet(dataset, [0])
    colours = [legend(figure)[f"annotator {number}"] for number in (0, 2)]
    image = dataset.image(0)[0]
    titles = ["axial, 2 of 3 drew", "coronal", "sagittal"]
    for axes, title, picture in zip(figure.axes, titles, (image[1], image[:, 2], image[:, :, 6]), strict=True):
        assert axes.get_title() == f"volume-0\n{title}"
        np.testing.assert_array_equal(axes.images[0].get_array(), picture)
        assert outlines(axes) == colours
    np.testing.assert_allclose([axes.get_aspect() for axes in figure.axes], [0.5 / 0.7, 2.5 / 0.7, 2.5 / 0.5])
    to_png(figure)


def test_volume_with_several_classes_has_a_row_per_plane(tmp_path):
    dataset = write_volumes(tmp_path / "data", classes=("background", "one", "two"), plane=None)
    figure = contact_sheet(dataset, [2, 1])
    pictures = np.array(figure.axes, dtype=object).reshape(6, 4)
    assert [text.get_text() for text in pictures[3, 2].texts] == ["missing"]
    for row, plane in enumerate(["xy plane, 3 of 3 drew", "xz plane", "yz plane"]):
        assert f"volume-2\n{plane}" in [text.get_text() for text in figure.texts]
        assert pictures[row, 1].images
