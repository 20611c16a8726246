"""The commands of docs/how-to/public-datasets.md, on small copies of the layouts."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.metrics.conventions import CONVENTIONS

PAGE = Path(__file__).parents[2] / "docs/how-to/public-datasets.md"


def commands(name):
    """Return the words of each command of this name on the page."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    return [words for words in lines if words[0] == name]


def preparations():
    """Return the words of each command that prepares a dataset, by the name of its source."""
    return {words[2]: words for words in commands("prepare")}


def scan(path, *, high=None):
    values = np.random.default_rng(len(str(path))).integers(0, high or 200, (20, 18, 2)).astype(np.uint8)
    write_nifti(path, Volume(values, np.diag([-1.0, -1.0, 3.0, 1.0])))


def picture(path, *, values=None, shape=(24, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(len(str(path)))
    pixels = random.integers(0, 256, (*shape, 3)) if values is None else random.choice(values, shape)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def write_layouts():
    """Write three cases of each dataset, with two raters."""
    for case in ("1", "2", "3"):
        scan(Path(f"brain-growth/Training/case0{case}/image.nii.gz"))
        scan(Path(f"CURVAS/UKCHLL00{case}/image.nii.gz"))
        for time in (1, 2):
            scan(Path(f"MSSEG-2/01{case}/flair_time0{time}_on_middle_space.nii.gz"))
        subject = f"sub-0{case}" if case == "3" else f"sub-0{case}_ses-1"  # one subject without sessions
        scan(Path(f"bids/sub-0{case}/anat/{subject}_FLAIR.nii.gz"))
        folder = "MESSIDOR" if case == "3" else f"BinRushed{case}"
        picture(Path(f"RIGA/{folder}/image1prime.tif"))
        picture(Path(f"REFUGE/images/T000{case}.jpg"))
        picture(Path(f"ISIC/images/ISIC_000000{case}.JPG"), shape=(20 + int(case), 30))
        picture(Path(f"scans/{case}.png"), shape=(16, 16))
        for rater in (1, 2):
            scan(Path(f"brain-growth/Training/case0{case}/task01_seg0{rater}.nii.gz"), high=2)
            scan(Path(f"brain-growth/Training/case0{case}/task02_seg0{rater}.nii.gz"), high=2)
            scan(Path(f"CURVAS/UKCHLL00{case}/annotation_{rater}.nii.gz"), high=4)
            scan(Path(f"MSSEG-2/01{case}/ground_truth_expert{rater}.nii.gz"), high=2)
            name = f"{subject}_label-lesion_desc-rater{rater}_mask.nii.gz"
            scan(Path(f"bids/derivatives/labels/sub-0{case}/{name}"), high=2)
            picture(Path(f"RIGA/{folder}/image1-{rater}.tif"), values=(0, 128, 255))
            picture(Path(f"REFUGE/rater{rater}/T000{case}.png"), values=(0, 128, 255))
            name = f"ISIC_000000{case}_A0{rater}_T1_S1_0123abcd.png"
            picture(Path(f"ISIC/segs/{name}"), values=(0, 255), shape=(20 + int(case), 30))
            picture(Path(f"drawn/{case}-{rater}.png"), values=(0, 255), shape=(16, 16))
    rows = [f"scans/{case}.png,{rater},drawn/{case}-{rater}.png" for case in "123" for rater in "12"]
    Path("files.csv").write_text("\n".join(["image,rater,label", *rows]))


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_layouts()
    return folder


EXPECTED = {  # raters, channels, classes
    "brain-growth": (["01", "02"], 1, 2),
    "CURVAS": (["1", "2"], 1, 4),
    "MSSEG-2": (["1", "2"], 2, 2),
    "bids": (["rater1", "rater2"], 1, 2),
    "RIGA": (["1", "2"], 3, 3),
    "REFUGE": (["rater1", "rater2"], 3, 3),
    "ISIC": (["01", "02"], 3, 2),
    "files.csv": (["1", "2"], 3, 2),
}


def test_every_command_of_the_page_is_run():
    assert preparations().keys() == EXPECTED.keys()


def test_scores_of_the_challenges_exist():
    named = [words[words.index("--conventions") + 1 :] for words in commands("score")]
    assert [len(names) for names in named] == [1, 3]
    assert {name for names in named for name in names} <= CONVENTIONS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_command_prepares_its_layout(name, layouts, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(layouts)
    kind, source, _, *options = preparations()[name][1:]
    workers = ["--workers", "1"] if kind == "nifti" else []
    done = cli("prepare", kind, source, tmp_path / "data", *options, *workers)
    assert done.code == 0, done.err
    assert "skipped" not in done.err
    dataset = Dataset.open(tmp_path / "data")
    found = (dataset.annotator_names, dataset.info.image_channels, len(dataset.info.classes))
    assert found == EXPECTED[name]
    assert len({case["patient"] for case in dataset.cases}) == 3
    assert dataset.valid.all()
