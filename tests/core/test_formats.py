import pytest

from phiseg.core.formats import EVALUATION, MODEL, is_from_phiseg


def test_format_recognises_its_own_files_in_any_version():
    assert MODEL.marks(MODEL.marker)
    assert MODEL.marks(MODEL.marker | {"version": 99})
    assert not MODEL.is_current(MODEL.marker | {"version": 99})
    assert MODEL.is_current(MODEL.marker | {"further": "keys"})


@pytest.mark.parametrize(
    "values", [EVALUATION.marker, {}, {"version": 1}, {"format": None}, [], "phiseg-model", None]
)
def test_format_rejects_other_content(values):
    assert not MODEL.marks(values)
    assert not MODEL.is_current(values)


def test_is_from_phiseg_recognises_formats_of_later_versions():
    assert is_from_phiseg({"format": "phiseg-anything"})
    assert not any(map(is_from_phiseg, ({"format": "other"}, {}, [], None)))
