"""LIDC XML: reading and rejection of invalid files."""

import numpy as np
import pytest

from phiseg.core.errors import DataError
from phiseg.imaging.lidc_xml import read_lidc_xml, read_series_uid

HEAD = '<?xml version="1.0" encoding="UTF-8"?>'


def roi(points, *, z="-12.5", inclusion="TRUE", sop="1.2.9"):
    edges = "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in points)
    return (
        f"<roi><imageZposition>{z}</imageZposition><imageSOP_UID>{sop}</imageSOP_UID>"
        f"<inclusion>{inclusion}</inclusion>{edges}</roi>"
    )


def message(*sessions, uid="1.2.3", namespace=' xmlns="http://www.nih.gov"'):
    read = "".join(
        "<readingSession>"
        + "".join(
            f"<unblindedReadNodule><noduleID>N{i}</noduleID>{n}</unblindedReadNodule>" for i, n in enumerate(s)
        )
        + "<nonNodule><nonNoduleID>X</nonNoduleID></nonNodule></readingSession>"
        for s in sessions
    )
    head = f"<ResponseHeader><SeriesInstanceUid>{uid}</SeriesInstanceUid></ResponseHeader>"
    return f"{HEAD}<LidcReadMessage{namespace}>{head}{read}</LidcReadMessage>"


@pytest.fixture
def xml(tmp_path):
    def write(text):
        path = tmp_path / "reading.xml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("namespace", [' xmlns="http://www.nih.gov"', ""])
def test_read_lidc_xml_returns_rows_and_columns(xml, namespace):
    points = [(7, 3), (8, 4), (7, 5)]
    path = xml(message([roi(points, z=" -12.500 ")], [], [roi(points, inclusion="FALSE")], namespace=namespace))
    reading = read_lidc_xml(path)
    assert reading.series_uid == read_series_uid(path) == "1.2.3"
    first, second = reading.annotations
    assert (first.reader, first.nodule, second.reader) == (0, "N0", 2)
    assert (first.outlines[0].z_mm, first.outlines[0].sop_uid, first.outlines[0].inclusion) == (
        -12.5,
        "1.2.9",
        True,
    )
    assert not second.outlines[0].inclusion
    np.testing.assert_array_equal(first.outlines[0].points, [(3, 7), (4, 8), (5, 7)])


def test_read_lidc_xml_skips_nodules_below_3_mm(xml):
    small, mixed = roi([(1, 1)]), roi([(1, 1)]) + roi([(1, 1), (2, 2), (3, 1)])
    (annotation,) = read_lidc_xml(xml(message([small, mixed]))).annotations
    assert annotation.nodule == "N1"
    assert [len(outline.points) for outline in annotation.outlines] == [3]


def test_read_lidc_xml_rejects_radiograph(xml):
    path = xml(f"{HEAD}<IdriReadMessage xmlns='http://www.nih.gov/idri'></IdriReadMessage>")
    assert read_series_uid(path) is None
    with pytest.raises(DataError, match="chest radiograph"):
        read_lidc_xml(path)


BOMB = (
    HEAD + '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    '<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>'
    "<LidcReadMessage><ResponseHeader><SeriesInstanceUid>&c;</SeriesInstanceUid></ResponseHeader></LidcReadMessage>"
)
OUTSIDE = (
    HEAD + '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]>'
    "<LidcReadMessage><ResponseHeader><SeriesInstanceUid>&a;</SeriesInstanceUid></ResponseHeader></LidcReadMessage>"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "declares a document type or entities"),
        (OUTSIDE, "declares a document type or entities"),
        (f"{HEAD}<html></html>", "is a <html>"),
        (f"{HEAD}<LidcReadMessage></LidcReadMessage>", "does not name its series"),
        (message([roi([(1, 1), (2, 2)])])[:-60], "damaged"),
        ("", "damaged"),
        ("not xml at all", "damaged"),
        (message([roi([("one", 1), (2, 2)])]), "damaged"),
        (message([roi([(1, 1), (2, 2)], z="nan")]), "damaged"),
        (message([roi([(1, 1), (2, 2)], z="high")]), "damaged"),
        (message([roi([(1, 1), (2, 2)], z="[" * 5000)]), "damaged"),
        (message([roi([(1, 1), (2, 2)], inclusion="MAYBE")]), "damaged"),
        (message([roi([(1, 1), (10**9, 2)])]), "far outside"),
        (message(["<roi><inclusion>TRUE</inclusion></roi>"]), "has no <imageZposition>"),
    ],
)
def test_read_lidc_xml_rejects_invalid_files(xml, text, reason):
    path = xml(text)
    with pytest.raises(DataError, match=reason) as error:
        read_lidc_xml(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 200


def test_read_lidc_xml_rejects_huge_file(tmp_path):
    path = tmp_path / "large.xml"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(DataError, match="more than 100,000,000 bytes"):
        read_series_uid(path)


def test_read_lidc_xml_handles_deep_nesting(xml):
    depth = 200_000
    text = message(["<a>" * depth + "</a>" * depth + roi([(1, 1), (2, 2), (1, 3)])])
    assert len(read_lidc_xml(xml(text)).annotations) == 1
