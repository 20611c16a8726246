"""Options of `phiseg predict` for a PACS, and when results are stored. No server is needed."""

import pytest

from phiseg.cli.pacs import predict_from_pacs
from phiseg.core.errors import OutputError
from phiseg.inference.prediction_folder import PredictionFolder

SERVER = ("--dicomweb", "https://pacs.example.org/dicom-web")
STORED = ("regions.seg.dcm", "mean.pm.dcm", "gamma.pm.dcm", "report.sr.dcm")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--store", "IN"), "--store needs the PACS; give its address with --dicomweb"),
        (("--series", "1.2"), "--series needs the folder of the series (INPUT), or a PACS; give its address with"),
        (SERVER, "--dicomweb needs the series to fetch; give its UID with --series"),
        ((*SERVER, "--series", "1.2", "IN"), "give either INPUT or --dicomweb, not both"),
        ((*SERVER, "--series", "1.2", "--devices", "2"), "--dicomweb predicts one series in one process"),
        ((*SERVER, "--series", "a/b"), "'a/b' is not a series UID"),
        ((*SERVER, "--series", "1.2", "--timeout", "0"), "the time-out is 0.0 s; it must be positive"),
        ((*SERVER, "--series", "1.2", "--ca-file", "none.pem"), "none.pem does not exist; give a PEM file"),
        ((*SERVER, "--series", "1.2", "--credentials", "none.json"), "cannot read none.json: No such file"),
        (("--dicomweb", "https://a:b@pacs/", "--series", "1.2"), "the address of the PACS contains credentials"),
    ],
)
def test_invalid_options_give_one_line_error(cli, tmp_path, words, reason):
    pytest.importorskip("dicomweb_client", reason="a PACS needs dicomweb-client")
    words = [str(tmp_path) if word == "IN" else word for word in words]
    result = cli("predict", "lidc-nodule", *words, "--at", "1,2,3", "--out", tmp_path / "pred")
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith("phiseg: error: ")
    assert reason in line


def test_missing_point_is_reported_before_the_series_is_fetched(cli, tmp_path):
    result = cli("predict", "lidc-nodule", *SERVER, "--series", "1.2", "--out", tmp_path / "pred")
    assert result.code == 2
    assert "give its position in 1.2: --at x,y,z" in result.err


class Recorder:
    """A PACS that sends a single file and accepts everything."""

    def __init__(self):
        self.fetched, self.stored = [], []

    def fetch_series(self, series_uid, folder):
        folder.mkdir()
        (folder / "a.dcm").write_text(series_uid)
        self.fetched.append(folder)

    def store(self, files):
        self.stored.append([file.name for file in files])


@pytest.fixture
def predict(tmp_path):
    """Return a function that pretends to predict some cases."""

    def make(*, failed=(), files=STORED):
        def run(folder):
            assert (folder / "a.dcm").read_text() == "1.2.3"
            for case in ("a", "a-2"):
                (tmp_path / case).mkdir()
                for name in (*files, "labels.seg.dcm", "mean.seg.dcm", "mean.nii.gz"):
                    (tmp_path / case / name).touch()
            return PredictionFolder(tmp_path, tmp_path / "report.html", ("a", "a-2"), dict.fromkeys(failed, "no"))

        return run

    return make


def test_results_of_all_cases_are_stored_in_one_request(predict):
    server = Recorder()
    predict_from_pacs(server, "1.2.3", predict(), store=True)
    assert server.stored == [[*STORED, *STORED]]
    assert not server.fetched[0].exists()


@pytest.mark.parametrize("options", [{"failed": ["a-3"]}, {}])
def test_nothing_is_stored_unless_requested_and_complete(predict, options):
    server = Recorder()
    written = predict_from_pacs(server, "1.2.3", predict(**options), store=bool(options))
    assert server.stored == []
    assert written.failed == dict.fromkeys(options.get("failed", ()), "no")


def test_missing_dicom_results_are_an_error(predict):
    server = Recorder()
    with pytest.raises(OutputError, match="a has no DICOM results; nothing was stored"):
        predict_from_pacs(server, "1.2.3", predict(files=()), store=True)
    assert server.stored == []
