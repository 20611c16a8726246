"""Points in three coordinate systems, and invalid tables."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.known_models import KnownModel, ball, brightest, place
from phiseg.core.errors import ConfigError, DataError
from phiseg.imaging.volume import Volume
from phiseg.inference.points import Point, read_point_annotations, read_points
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume

affines = st.builds(
    place,
    st.sampled_from(["LPS", "RAS", "ASL", "IRP"]),
    turn=st.tuples(*[st.floats(-40, 40)] * 3),
    spacing=st.tuples(*[st.floats(0.5, 4)] * 3),
    origin=st.tuples(*[st.floats(-200, 200)] * 3),
)


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("120,88,40", Point(120, 88, 40, "voxel")),
        (" 1.5, 2 ,-3e0", Point(1.5, 2, -3, "voxel")),
        ("mm:-10.25,3,4", Point(-10.25, 3, 4, "mm")),
        ("lps:0,-1,2.5", Point(0, -1, 2.5, "lps")),
    ],
)
def test_points_are_read(text, point):
    assert Point.parse(text) == point


@pytest.mark.parametrize(
    "text", ["", "1,2", "1,2,3,4", "1 2 3", "a,b,c", "mm:1,2", "cm:1,2,3", ":1,2,3", "nan,1,2", "mm:inf,0,0", "mm:"]
)
def test_invalid_point_is_rejected(text):
    with pytest.raises(ConfigError, match="is not a point; write x,y,z in voxels, such as 120,88,40") as caught:
        Point.parse(text)
    assert f"'{text}'" in str(caught.value)


@settings(max_examples=30)
@given(affine=affines, voxel=st.tuples(*[st.floats(-5, 50)] * 3))
def test_voxel_mm_and_lps_agree(affine, voxel):
    volume = Volume(np.zeros((2, 2, 2)), affine)
    x, y, z, _ = affine @ [*voxel, 1]
    assert Point(*voxel).in_voxels(volume) == voxel
    assert Point(x, y, z, "mm").in_voxels(volume) == pytest.approx(voxel, abs=1e-6)
    assert Point(-x, -y, z, "lps").in_voxels(volume) == pytest.approx(voxel, abs=1e-6)


def test_equal_points_give_equal_samples():
    affine = place("RAS", turn=(10, 20, -30), spacing=(0.8, 1, 2), origin=(-30, 12, 7))
    volume = ball((12, 14, 9), affine)
    x, y, z, _ = affine @ [5, 8, 4, 1]
    model = KnownModel(brightest, centred_on="nodule", size=(8, 8))
    found = [
        predict_volume(model, volume, point=Point.parse(text).in_voxels(volume), sampling=Sampling(num_samples=2))
        for text in ("5,8,4", f"mm:{x},{y},{z}", f"lps:{-x},{-y},{z}")
    ]
    assert found[0].labels.any()
    for other in found[1:]:
        assert (other.point, other.box) == (found[0].point, found[0].box)
        np.testing.assert_array_equal(other.labels, found[0].labels)


# Tables


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a table with this text."""

    def read(text):
        (tmp_path / "points.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_points(tmp_path / "points.csv")

    return read


def test_read_points_keeps_order_per_case(read):
    table = (
        "z,case,x,y,unit,remark\r\n3,b,1,2,,big\r\n\r\n6,a,4,5,mm,\r\n9, b ,7,8, lps ,small\r\n0,a,0,0,voxel,x\r\n"
    )
    assert read(table) == {
        "b": [Point(1, 2, 3, "voxel"), Point(7, 8, 9, "lps")],
        "a": [Point(4, 5, 6, "mm"), Point(0, 0, 0, "voxel")],
    }


def test_read_points_accepts_spreadsheet_without_units(read):
    assert read('\ufeffcase,x,y,z\n"a,1",1,2,3\n') == {"a,1": [Point(1, 2, 3)]}
    assert read("Case, X,Y,Z,Unit\na,1,2,3,mm\n") == {"a": [Point(1, 2, 3, "mm")]}


@pytest.mark.parametrize(
    "line",
    [
        "a,1,2",
        "a,1,2,",
        "a,1,b,3",
        "a",
        "a,nan,1,2",
        "a,1,2,inf",
        "a,1,2,3,cm",
        "a,1,2,3,MM",
        "a,1,5,2,5,3,5",
        ",,,",
    ],
)
def test_read_points_names_invalid_line(read, tmp_path, line):
    with pytest.raises(DataError, match="line 3 is not a point; give a case, three numbers and the unit") as caught:
        read(f"case,x,y,z,unit\nok,1,2,3,mm\n{line}\nok,1,2,3,mm\n")
    assert str(tmp_path / "points.csv") in str(caught.value)


def test_read_points_names_line_without_case(read):
    with pytest.raises(DataError, match="line 2 is not a point; give a case"):
        read("x,y,z,case\n1,2,3\n")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "has no column case, x, y, z"),
        ("case;x;y;z\na;1;2;3\n", "has no column case, x, y, z; it needs case,x,y,z"),
        ("case,x,y\na,1,2\n", "has no column z"),
        ("case,x,y,z\n", "has no points"),
        (b"case,x,y,z\n\xff\xfe,1,2,3\n", "not a CSV file in UTF-8"),
        ("case,x,y,z\n" + "a" * 200_000 + ",1,2,3\n", "not a CSV file"),
    ],
)
def test_read_points_rejects_invalid_table(read, text, match):
    with pytest.raises(DataError, match=match):
        read(text)


def test_read_points_rejects_missing_table(tmp_path):
    for path, reason in ((tmp_path / "none.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(DataError, match=f"cannot read .*{reason}"):
            read_points(path)


@pytest.mark.parametrize(
    "stored",
    [
        {"type": "Point", "point": [1, 2.5, -3]},
        {"type": "Multiple points", "points": [{"name": "a", "point": [1, 2.5, -3]}], "version": {"major": 1}},
    ],
)
def test_point_annotations_are_in_patient_coordinates(tmp_path, stored):
    (tmp_path / "p.json").write_text(json.dumps(stored))
    assert read_point_annotations(tmp_path / "p.json") == [Point(1, 2.5, -3, "lps")]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"points": []}', '{"point": [1, 2]}', '{"point": [1, 2, NaN]}', '{"points": [[1, 2, 3]]}'],
)
def test_invalid_point_annotations_are_rejected(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(DataError, match=r"p\.json has no valid points; it needs"):
        read_point_annotations(tmp_path / "p.json")
    with pytest.raises(DataError, match=r"cannot read .*none\.json"):
        read_point_annotations(tmp_path / "none.json")
