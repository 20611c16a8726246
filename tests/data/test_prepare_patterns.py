"""`phiseg prepare nifti` with patterns, on small copies of the layouts of public datasets."""

import re

import nibabel
import numpy as np
import pytest

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.nifti import prepare_nifti, preview_nifti
from phiseg.data.prepare.nifti_slices import Slicing
from phiseg.data.prepare.patterns import FilePatterns, compile_pattern
from phiseg.data.prepare.patterns_search import find_by_patterns
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume

AFFINE = np.diag([-1.0, -1.0, 3.0, 1.0])  # L, P, S: an axial slice is values[:, :, k].T


def image(seed, shape=(20, 18, 1)):
    return np.random.default_rng(seed).normal(100, 20, shape).astype(np.float32)


def mask(seed, shape=(20, 18, 1), classes=2):
    return np.random.default_rng(1000 + seed).integers(0, classes, shape).astype(np.uint8)


def write(path, values):
    write_nifti(path, Volume(values, AFFINE))


@pytest.fixture
def qubiq(tmp_path):
    """Two tasks with three raters each, in two dimensions, and a case without labels."""
    for case in (1, 2, 3):
        folder = tmp_path / "brain-tumor" / "Training" / f"case{case:02d}"
        write(folder / "image.nii.gz", image(case))
        for task in (1, 2):
            for rater in (1, 2, 3):
                write(folder / f"task{task:02d}_seg{rater:02d}.nii.gz", mask(100 * case + 10 * task + rater))
    write(tmp_path / "brain-tumor" / "Training" / "case04" / "image.nii.gz", image(4))
    return tmp_path / "brain-tumor"


@pytest.mark.parametrize(
    "options",
    [
        ["--rater", r"task02_seg(?P<rater>\d+).nii.gz"],
        ["--rater", "task02_seg*.nii.gz"],
        ["--rater", "task{target}_seg{rater}.nii.gz", "--target", "02"],
        ["--rater", "{case}/task02_seg{rater}.nii.gz"],
    ],
)
def test_qubiq_is_one_command_for_each_task(qubiq, tmp_path, cli, options):
    words = ["--image", "image.nii.gz", *options, "--workers", "1"]
    code, out, err = cli("prepare", "nifti", str(qubiq), str(tmp_path / "data"), *words)
    assert code == 0, err
    assert "annotators: 01, 02, 03" in out
    assert "case 'case04'" in err
    assert "1 of 4 cases skipped" in err
    dataset = Dataset.open(tmp_path / "data")
    assert [case["patient"] for case in dataset.cases] == ["case01", "case02", "case03"]
    for row, case in enumerate((1, 2, 3)):
        for annotator in range(3):
            expected = mask(100 * case + 20 + annotator + 1)[:, :, 0].T
            np.testing.assert_array_equal(dataset.labels[row, annotator], expected)


def test_third_axis_holds_the_channels_of_a_slice(tmp_path, cli):
    """The brain tumours of QUBIQ: images H x W x 4, labels H x W."""
    channels = {case: image(case, (20, 18, 4)) for case in (1, 2)}
    for case, values in channels.items():
        write(tmp_path / "src" / f"case{case}" / "image.nii.gz", values)
        for rater in (1, 2):
            path = tmp_path / "src" / f"case{case}" / f"task01_seg{rater}.nii.gz"
            nibabel.save(nibabel.Nifti1Image(mask(10 * case + rater)[..., 0], AFFINE), path)
    words = ["--image", "image.nii.gz", "--rater", "task01_seg*.nii.gz", "--workers", "1"]
    done = cli("prepare", "nifti", tmp_path / "src", tmp_path / "data", *words)
    assert done.code == 0, done.err
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.images.shape == (2, 4, 18, 20)
    third = channels[2][..., 2]
    np.testing.assert_allclose(dataset.images[1, 2], ((third - third.mean()) / third.std()).T, atol=1e-5)
    np.testing.assert_array_equal(dataset.labels[1, 0], mask(21)[:, :, 0].T)


def test_slice_of_another_size_than_the_image_is_rejected(tmp_path):
    write(tmp_path / "src" / "a" / "image.nii.gz", image(1, (20, 18, 4)))
    write(tmp_path / "src" / "a" / "seg1.nii.gz", mask(1, (20, 17, 1)))
    patterns = FilePatterns(images=("image.nii.gz",), rater="seg*.nii.gz")
    with pytest.raises(DataError, match="20 x 18 x 4 against 20 x 17 x 1 voxels"):
        preview_nifti(tmp_path / "src", patterns=patterns, strict=True, progress=False)


def test_split_in_the_path_is_kept(qubiq, tmp_path):
    (qubiq / "Validation").mkdir()
    (qubiq / "Training" / "case03").rename(qubiq / "Validation" / "case03")
    patterns = FilePatterns(images=("{split}/{case}/image.nii.gz",), rater="{case}/task01_seg{rater}.nii.gz")
    dataset = prepare_nifti(qubiq, tmp_path / "data", patterns=patterns, progress=False)
    assert dataset.splits == {"train": ["case01", "case02"], "val": ["case03"]}


def test_curvas_volumes_with_three_or_five_raters(tmp_path):
    for case, raters in (("UKCHLL001", 3), ("UKCHLL002", 5)):
        write(tmp_path / "src" / case / "image.nii.gz", image(raters, (20, 18, 4)))
        for rater in range(1, raters + 1):
            write(tmp_path / "src" / case / f"annotation_{rater}.nii.gz", mask(rater, (20, 18, 4), classes=4))
    patterns = FilePatterns(images=("image.nii.gz",), rater="annotation_*.nii.gz")
    options = {"patterns": patterns, "slicing": Slicing(volumes=True), "progress": False}
    dataset = prepare_nifti(tmp_path / "src", tmp_path / "data", **options)
    assert dataset.dims == 3
    assert dataset.info.source["raters"] == ["1", "2", "3", "4", "5"]
    assert dataset.valid.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert dataset.info.classes == ("background", "class 1", "class 2", "class 3")


def test_msseg2_time_points_are_channels(tmp_path):
    for case in ("013", "015"):
        for time in (1, 2):
            write(tmp_path / "src" / case / f"flair_time0{time}_on_middle_space.nii.gz", image(time, (20, 18, 2)))
        for expert in range(1, 5):
            write(tmp_path / "src" / case / f"ground_truth_expert{expert}.nii.gz", mask(expert, (20, 18, 2)))
        write(tmp_path / "src" / case / "ground_truth.nii.gz", mask(0, (20, 18, 2)))
    patterns = FilePatterns(
        images=("flair_time01*.nii.gz", "flair_time02*.nii.gz"), rater=r"ground_truth_expert(?P<rater>\d).nii.gz"
    )
    dataset = prepare_nifti(tmp_path / "src", tmp_path / "data", patterns=patterns, progress=False)
    assert dataset.images.shape == (4, 2, 18, 20)
    assert dataset.info.source["raters"] == ["1", "2", "3", "4"]
    second = image(2, (20, 18, 2))
    np.testing.assert_allclose(
        dataset.images[1, 1], ((second - second.mean()) / second.std())[:, :, 1].T, atol=1e-5
    )


@pytest.mark.parametrize("sessions", [("_ses-a", "_ses-b"), ("",)])
def test_bids_derivatives_are_grouped_by_subject(tmp_path, sessions):
    for subject in ("01", "02"):
        for session in sessions:
            name = f"sub-{subject}{session}"
            anat = tmp_path / "src" / f"sub-{subject}" / session.strip("_") / "anat"
            write(anat / f"{name}_FLAIR.nii.gz", image(1))
            home = tmp_path / "src" / "derivatives" / "manual" / f"sub-{subject}"
            for rater in (1, 2):
                for target in ("lesion", "brain"):
                    end = f"space-FLAIR_label-{target}_desc-rater{rater}_mask.nii.gz"
                    write(home / f"{name}_{end}", mask(rater if target == "lesion" else 7))
    patterns = FilePatterns(
        images=(r"(?P<case>(?P<patient>sub-[^_]+)(_ses-[^_]+)?)_FLAIR.nii.gz",),
        rater="{case}_space-FLAIR_label-{target}_desc-{rater}_mask.nii.gz",
        target="lesion",
    )
    dataset = prepare_nifti(tmp_path / "src", tmp_path / "data", patterns=patterns, progress=False)
    assert sorted({case["patient"] for case in dataset.cases}) == ["sub-01", "sub-02"]
    assert [case["scan"] for case in dataset.cases] == [
        f"sub-0{n}{session}" for n in (1, 2) for session in sessions
    ]
    assert dataset.info.source["raters"] == ["rater1", "rater2"]
    np.testing.assert_array_equal(dataset.labels[-1, 1], mask(2)[:, :, 0].T)


def test_labels_belong_to_the_image_whose_name_they_begin_with(tmp_path):
    for case in ("p1", "p10"):
        write(tmp_path / "src" / "img" / f"{case}.nii.gz", image(len(case)))
        for rater in "ab":
            write(tmp_path / "src" / "seg" / f"{case}_{rater}.nii.gz", mask(len(case) + ord(rater)))
    write(tmp_path / "src" / "seg" / "p100_a.nii.gz", mask(3))  # no image of this name
    patterns = FilePatterns(images=("img/*.nii.gz",), rater=r"seg/.*_(?P<rater>[ab]).nii.gz")
    preview = preview_nifti(tmp_path / "src", patterns=patterns, progress=False)
    paths = {(c.files.case, rater): path.name for c in preview.cases for rater, path in c.files.labels.items()}
    assert paths == {(case, rater): f"{case}_{rater}.nii.gz" for case in ("p1", "p10") for rater in "ab"}


def test_dry_run_lists_cases_and_writes_nothing(qubiq, tmp_path, cli):
    words = ["--image", "image.nii.gz", "--rater", "task01_seg*.nii.gz", "--dry-run"]
    code, out, _ = cli("prepare", "nifti", str(qubiq), str(tmp_path / "data"), *words)
    assert code == 0
    assert not (tmp_path / "data").exists()
    assert "case02: 1 x 18 x 20 voxels of 3 x 1 x 1 mm, 3 annotators" in out
    assert "3 cases of 3 patients" in out
    assert "annotators: 01, 02, 03" in out
    assert "classes:    0 background, 1 class 1" in out


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (
            ["--image", "img.nii.gz", "--rater", "task01_seg*.nii.gz"],
            ["image.nii.gz (4)", "did you mean --image 'image.nii.gz'?"],
        ),
        (
            ["--image", "image.nii.gz", "--rater", "task1_seg*.nii"],
            ["task*_seg*.nii.gz (18)", "did you mean --rater 'task{target}_seg{rater}.nii.gz' --target 01?"],
        ),
        (
            ["--image", "image.nii.gz", "--rater", "task*_seg*.nii.gz"],
            ["does not show which part", "did you mean --rater 'task{target}_seg{rater}.nii.gz' --target 01?"],
        ),
        (["--image", "image.nii.gz", "--rater", "task{target}_seg{rater}.nii.gz"], ["01, 02", "--target"]),
        (
            ["--image", "image.nii.gz", "--rater", "task{target}_seg{rater}.nii.gz", "--target", "3"],
            ["no label has the target '3'", "01, 02"],
        ),
        (["--image", "image.nii.gz", "--rater", "task01_seg*.nii.gz", "--target", "1"], ["{target}"]),
        (["--image", "image.nii.gz", "--rater", "{reader}.nii.gz"], ["did you mean 'rater'?"]),
        (["--image", "image.nii.gz", "--rater", "(?P<rater>[.nii.gz"], ["not a valid pattern"]),
        (["--image", "image.nii.gz"], ["together"]),
        (["--target", "01"], ["--target needs"]),
        (["--image", "image.nii.gz", "--rater", "*_seg{rater}.nii.gz"], ["both labels"]),
    ],
)
def test_wrong_pattern_error_shows_files_and_nearest_pattern(qubiq, tmp_path, cli, words, messages):
    code, _, err = cli("prepare", "nifti", str(qubiq), str(tmp_path / "data"), *words)
    assert code == 2
    for message in messages:
        assert message in err


def suggested(error):
    """Return the patterns that an error suggests."""
    options = dict(re.findall(r"--(image|rater|target) ['\"]?([^'\"? ]+)", str(error).split("did you mean ")[-1]))
    return FilePatterns(
        images=(options.get("image", "image.nii.gz"),), rater=options["rater"], target=options.get("target")
    )


@pytest.mark.parametrize(("images", "rater"), [("img.nii", "x*.nii"), ("image.nii.gz", "annotation_*.nii.gz")])
def test_suggested_patterns_of_an_error_work(qubiq, images, rater):
    with pytest.raises(ConfigError) as caught:
        preview_nifti(qubiq, patterns=FilePatterns(images=(images,), rater=rater), progress=False)
    preview = preview_nifti(qubiq, patterns=suggested(caught.value), progress=False)
    assert len(preview.cases) == 3
    assert preview.annotators == ("01", "02", "03")


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def find(folder, image, rater, target=None):
    patterns = FilePatterns(images=(image,), rater=rater, target=target)
    return find_by_patterns(folder, patterns, (".png",), SkippedCases())


@pytest.fixture
def isic(tmp_path):
    """Two images with three masks each; names of masks end with a hash."""
    names = [f"I_{case}_A{rater}_T1_S1_{97 * case + rater:08x}" for case in (1, 2) for rater in (3, 6, 9)]
    masks = [f"segs/{name}.png" for name in names]
    return touch(tmp_path / "ISIC", "images/I_1.png", "images/I_2.png", *masks)


def test_suggested_annotator_is_not_a_hash(isic):
    with pytest.raises(ConfigError, match=r"did you mean --rater 'I_\*_A\{rater\}_T\*_S\*_\*.png'\?"):
        find(isic, "images/{case}.png", "segs/{case}_B{rater}_*.png")
    assert find(isic, "images/{case}.png", "I_*_A{rater}_T*_S*_*.png").annotators == ["3", "6", "9"]


def test_no_pattern_is_suggested_if_none_distinguishes_annotators(tmp_path):
    touch(tmp_path, *(f"{case}/{name}.png" for case in "ab" for name in ("image", "anna", "ben")))
    with pytest.raises(
        ConfigError, match=r"write \{rater\} where the annotator is, in names such as .*a/anna.png$"
    ):
        find(tmp_path, "image.png", "mask{rater}.png")


def test_named_parts_work_in_regular_expressions(tmp_path):
    touch(tmp_path, *(f"p{case}{end}.png" for case in "12" for end in ("prime", "-1", "-2", "-draft")))
    found = find(tmp_path, r"(?P<case>p\d{1})prime.png", r"(?P<case>p\d)-{rater}\.png")
    assert [case.case for case in found.cases] == ["p1", "p2"]
    assert found.annotators == ["1", "2", "draft"]
    found = find(tmp_path, "{case}prime.png", r"{case}-(?P<rater>\d)\.png")
    assert found.annotators == ["1", "2"]


@pytest.mark.parametrize("rater", ["{case}-{rater}.png", "*-{rater}.png"])
@pytest.mark.parametrize(("folder", "end"), [("", "prime"), ("img/", "")])
def test_equal_case_names_begin_with_their_folders(tmp_path, folder, end, rater):
    for part, cases in (("a", "13"), ("b", "12")):
        touch(tmp_path, *(f"{part}/{folder}p{case}{end}.png" for case in cases))
        touch(tmp_path, *(f"{part}/p{case}-{annotator}.png" for case in cases for annotator in "12"))
    touch(tmp_path, "a/p2-1.png")  # without an image: b/p2 is another case
    found = find(tmp_path, f"{folder}{{case}}{end}.png", rater)
    names = [case.case.replace(folder, "") for case in found.cases]
    assert names == ["a/p1", "a/p3", "b/p1", "b/p2"]
    for case, name in zip(found.cases, names, strict=True):
        assert case.labels == {annotator: tmp_path / f"{name}-{annotator}.png" for annotator in "12"}


def test_label_of_two_equal_cases_is_rejected(tmp_path):
    touch(tmp_path, "t1/p1.png", "t2/p1.png", "seg/p1-1.png", "seg/p1-2.png")
    with pytest.raises(DataError, match=r"seg/p1-1.png is a label of case 'p1', which could be t1/p1 or t2/p1"):
        find(tmp_path, "t?/{case}.png", "{case}-{rater}.png")


def test_equal_case_names_in_one_folder_are_rejected(tmp_path):
    touch(tmp_path, "a/p1_x.png", "a/p1_y.png", "a/p1-1.png")
    with pytest.raises(DataError, match=r"a/p1_x.png and a/p1_y.png are both images of case 'a/p1'"):
        find(tmp_path, "(?P<case>p1)_..png", "{case}-{rater}.png")


def test_unknown_layout_error_suggests_patterns(tmp_path, cli):
    for case in ("UKCHLL001", "UKCHLL002"):
        write(tmp_path / "src" / case / "image.nii.gz", image(1))
        for rater in "123":
            write(tmp_path / "src" / case / f"annotation_{rater}.nii.gz", mask(1))
    done = cli("prepare", "nifti", tmp_path / "src", tmp_path / "data")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "UKCHLL*/annotation_*.nii.gz (6), UKCHLL*/image.nii.gz (2), which is not a known layout" in done.err
    assert "such as --image 'image.nii.gz' --rater 'annotation_{rater}.nii.gz'" in done.err


def test_labels_of_other_names_than_images_are_rejected(tmp_path):
    for case in "ab":
        write(tmp_path / "src" / "img" / f"{case}.nii.gz", image(1))
        write(tmp_path / "src" / "seg" / f"x{case}-1.nii.gz", mask(1))
    patterns = FilePatterns(images=("img/*.nii.gz",), rater=r"seg/.*-(?P<rater>\d).nii.gz")
    with pytest.raises(ConfigError, match=r"write \{case\} in both patterns"):
        preview_nifti(tmp_path / "src", patterns=patterns, progress=False)


@pytest.mark.parametrize(
    ("pattern", "path", "parts"),
    [
        ("**/x{rater}.nii", "a/b/x1.nii", {"rater": "1"}),
        ("{case}_{rater}.nii", "a/p_1_bob.nii", {"case": "p_1", "rater": "bob"}),
        ("r?[ab]_{rater}.nii", "rxa_1.nii", {"rater": "1"}),
        ("{case}/{case}-{rater}.nii", "p1/p1-z.nii", {"case": "p1", "rater": "z"}),
        ("{case}/{case}-{rater}.nii", "p2/p1-z.nii", None),
        ("seg{rater}.nii", "a/bseg1.nii", None),
    ],
)
def test_globs_match_the_end_of_a_path(pattern, path, parts):
    match = compile_pattern(pattern, "--rater").fullmatch(path)
    assert (match and match.groupdict()) == parts


@pytest.mark.parametrize(("spacing", "message"), [("60", "up to 20"), ("15", "2 x 2 pixels")])
def test_spacing_that_leaves_no_pixels_is_rejected(qubiq, tmp_path, cli, spacing, message):
    words = ["--image", "image.nii.gz", "--rater", "task01_seg*.nii.gz", "--spacing", spacing]
    code, _, err = cli("prepare", "nifti", str(qubiq), str(tmp_path / "data"), *words)
    assert code == 2
    assert message in err
    assert "such as 0.6" in err


def find_scans(folder, scans, skipped=None, **options):
    """Return the cases of scans with one label each."""
    for scan in scans:
        (folder / scan).mkdir(parents=True)
        for name in ("image.nii.gz", "seg_a.nii.gz"):
            (folder / scan / name).touch()
    patterns = FilePatterns(images=("image.nii.gz",), rater="seg_{rater}.nii.gz", **options)
    return find_by_patterns(folder, patterns, (".nii.gz",), skipped or SkippedCases()).cases


@pytest.mark.parametrize(
    ("scans", "noted"),
    [
        (["anna/2019", "anna/2020", "ben/2018"], "cases in one folder, such as anna, count as different patients"),
        (["anna/1", "ben/1"], "cases of one name in several folders, such as anna/1/image, count as"),
        (["anna/1", "ben/2"], None),
        (["train/a", "train/b", "val/c", "val/d"], None),
        (["lung/a", "lung/b"], None),
    ],
)
def test_several_scans_in_a_folder_are_noted(scans, noted, tmp_path, capsys):
    """They may be of one patient, who would be in two splits."""
    find_scans(tmp_path, scans)
    err = capsys.readouterr().err
    assert noted in err if noted else "different patients" not in err


def test_undecodable_name_is_skipped(tmp_path, capsys):
    broken = b"M\xfcller".decode("utf-8", errors="surrogateescape")
    try:
        (tmp_path / broken).mkdir()
    except OSError:
        pytest.skip("the file system accepts UTF-8 only")
    (tmp_path / broken).rmdir()
    skipped = SkippedCases()
    assert [case.case for case in find_scans(tmp_path, ["anna", broken], skipped)] == ["anna"]
    (reason,) = skipped.reasons
    assert "unprintable characters; rename" in reason
    reason.encode()  # the manifest is UTF-8
    assert "unprintable characters" in capsys.readouterr().err
