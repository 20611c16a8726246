"""A table that pandas accepts."""

import pytest

from phiseg.core.errors import ConfigError
from phiseg.core.records import Records

ROWS = [{"case": "a", "ged": 0.25, "n": 4}, {"case": "<b>", "ged": None, "n": 3}]


def test_records_gives_rows_columns_and_slices():
    table = Records(ROWS)
    assert (len(table), list(table), table[-1]) == (2, ROWS, ROWS[1])
    assert (table["n"], table[1:]["case"], table.columns) == ([4, 3], ["<b>"], ["case", "ged", "n"])
    with pytest.raises(ConfigError, match=r"no column 'gde' .did you mean 'ged'"):
        table["gde"]


def test_records_fills_missing_values():
    assert Records([{"step": 1, "loss": 2.0}, {"step": 2, "ged": 0.5}])["loss"] == [2.0, None]
    assert list(Records([])) == []
    assert str(Records([])) == ""


def test_pandas_accepts_records():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(Records(ROWS))
    assert list(frame.columns) == ["case", "ged", "n"]
    assert frame["ged"].tolist()[0] == 0.25
    assert frame["ged"].isna().tolist() == [False, True]
    assert frame["n"].sum() == 7


def test_records_escapes_html_in_a_notebook():
    shown = Records(ROWS)._repr_html_()
    assert "<td>&lt;b&gt;</td><td>-</td><td>3</td>" in shown
    assert shown.count("<tr>") == 3


def test_records_from_csv_converts_whole_columns_only():
    table = Records.from_csv("method,n,ged,best,note\n1,4,0.5,true,7\n2,,,false,x\n", text_columns=["method"])
    assert table[0] == {"method": "1", "n": 4, "ged": 0.5, "best": True, "note": "7"}
    assert table[1] == {"method": "2", "n": None, "ged": None, "best": False, "note": "x"}


def test_records_without_rows_keeps_its_columns():
    table = Records.from_csv("method,n\n")
    assert (table.columns, len(table), table["n"], str(table)) == (["method", "n"], 0, [], "method  n")
    assert Records(table).columns == ["method", "n"]
    assert Records(ROWS)[:0]["ged"] == []


def test_records_from_csv_has_no_empty_text():
    assert Records.from_csv("case,note\n7,\n8,9\n", text_columns=["case", "note"])["note"] == [None, "9"]
