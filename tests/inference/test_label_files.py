"""Label files of annotators in public datasets are not predicted."""

import pytest

from phiseg.inference.scans import find_scans

LAYOUTS = {
    "folders": ("a/image.nii.gz b/image.nii.gz", "a/rater-anna.nii.gz a/rater-ben.nii.gz"),
    "nnunet": ("imagesTr/c_0000.nii.gz imagesTr/c_0001.nii.gz", "labelsTr_anna/c.nii.gz labelsTr/c.nii.gz"),
    "qubiq": (
        "Training/case01/image.nii.gz",
        "Training/case01/task01_seg01.nii.gz Training/case01/task02_seg03.nii.gz",
    ),
    "curvas": ("UKCHLL001/image.nii.gz", "UKCHLL001/annotation_1.nii.gz UKCHLL001/annotation_2.nii.gz"),
    "msseg": (
        "013/flair_time01_on_middle_space.nii.gz 013/flair_time02_on_middle_space.nii.gz",
        "013/ground_truth.nii.gz 013/ground_truth_expert1.nii.gz",
    ),
    "bids": (
        "sub-01/anat/sub-01_FLAIR.nii.gz sub-02/ses-1/anat/sub-02_ses-1_acq-mask1_T1w.nii.gz",
        "sub-01/anat/sub-01_label-lesion_desc-rater1_mask.nii.gz "
        "derivatives/labels/sub-02/ses-1/anat/sub-02_ses-1_label-lesion_desc-rater2_mask.nii.gz",
    ),
    "riga": ("MESSIDOR/image1prime.tif MESSIDOR/image12prime.tif", "MESSIDOR/image1-1.tif MESSIDOR/image12-6.tif"),
    "refuge": ("images/T0001.jpg", "rater1/T0001.png rater2/T0001.png"),
    "isic": ("images/ISIC_0000001.JPG", "segs/ISIC_0000001_A01_T1_S1_0123abcd.png"),
    "without images": (
        "a/rater-x.nii.gz b/labels/c.nii.gz b/segs/d_A01_T1_S1_0123abcd.png c/annotation_1.nii.gz c/scan-1.tif "
        "c/scan2prime.tif d/task01_seg01.nii.gz d/ground_truth.nii.gz sub-03/sub-03_ses-2_mask.nii.gz "
        "sub-03/sub-03_ses-1_FLAIR.nii.gz e/images/f.png e/other/g.png",
        "",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_label_files_of_datasets_are_skipped_with_their_number(tmp_path, layout):
    images, labels = (text.split() for text in LAYOUTS[layout])
    for file in (*images, *labels):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    folders = sorted(tmp_path / name for name in {label.partition("/")[0] for label in labels})
    several = f"{len(folders)} folders" if len(folders) > 1 else str(*folders)
    everything = sorted(tmp_path.iterdir())
    for inputs, where in (([tmp_path], str(tmp_path)), (everything, several)):  # `folder` and `folder/*`
        found, notes = find_scans(inputs)
        assert sorted(str(scan.path.relative_to(tmp_path)) for scan in found) == sorted(images)
        files = f"{len(labels)} label file{'s' * (len(labels) > 1)}"
        assert notes == ([f"skipping {files} of annotators in {where}"] if labels else [])
    for label in labels:
        found, notes = find_scans([tmp_path, tmp_path / label])  # as asked
        assert {scan.path for scan in found} == {tmp_path / file for file in (*images, label)}
        assert len(notes) == (len(labels) > 1)


def test_label_files_alone_are_predicted(tmp_path):
    """A folder of masks that is given without its images was chosen on purpose."""
    for file in ("images/a.png", "rater1/a.png"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    ((scan,), notes) = find_scans([tmp_path / "rater1"])
    assert (scan.name, notes) == ("a", [])
