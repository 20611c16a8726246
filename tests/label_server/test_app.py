"""The requests of MONAI Label's protocol and the form of their answers."""

import io
from email import message_from_bytes
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK

from helpers.dicom_slices import COLUMNS, ROWS
from helpers.label_server import POINT, UID, client_of, infer, make_server, read_nifti_bytes
from helpers.small_viewer import nifti_bytes, random_volume
from phiseg.core.bundled import find_model
from phiseg.inference.example_scan import example_volume
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume
from phiseg.models import load_model


def expected(model, *, point=POINT, num_samples=16, seed=0):
    sampling = Sampling(num_samples=num_samples, seed=seed, level_draws=0)
    return predict_volume(model, random_volume(), point=point, sampling=sampling)


def image_of(answer):
    assert answer.status_code == 200, answer.text
    return read_nifti_bytes(answer.content)


def parts_of(answer):
    """Return the JSON text and the file of a multipart answer, parsed by Python's mail parser."""
    assert answer.status_code == 200, answer.text
    head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
    description, file = message_from_bytes(head + answer.content).get_payload()
    return description, file


def test_info_describes_models_for_the_plugins(served):
    info = served.client.get("/info/").json()
    assert info["labels"] == ["background", "lesion", "inner", "outer"]
    assert "config" not in info  # Slicer takes it for an outdated server
    kinds = {name: (model["type"], model["labels"]) for name, model in info["models"].items()}
    assert kinds["tiny"] == ("deepedit", {"lesion": 1})
    assert kinds["whole"] == ("segmentation", {"inner": 1, "outer": 2})
    assert all(model["dimension"] == 3 for model in info["models"].values())
    options = info["models"]["tiny"]["config"]
    assert options["result"] == ["labels", "quantile", "sample", "levels"]
    assert options["num_samples"] == 16
    assert info["datastore"]["total"] == 2


def test_datastore_lists_images_by_name_and_series_uid(served):
    assert served.client.get("/datastore/").json() == {"total": 2, "completed": 0, "label_tags": {}}
    objects = served.client.get("/datastore/", params={"output": "all"}).json()["objects"]
    assert set(objects) == {"scan", UID}
    assert objects["scan"]["image"] == {"ext": ".nii.gz", "info": {"name": "scan.nii.gz"}}
    assert served.client.get("/datastore/image/info", params={"image": UID}).json() == {"name": "series.nii.gz"}


def test_datastore_sends_nifti_file_unchanged(served, studies):
    answer = served.client.get("/datastore/image", params={"image": "scan"})
    assert answer.content == (studies / "scan.nii.gz").read_bytes()
    assert served.client.head("/datastore/image", params={"image": "scan"}).status_code == 200


def test_datastore_sends_series_as_nifti(served, studies):
    image = image_of(served.client.get("/datastore/image", params={"image": UID}))
    slices = [pydicom.dcmread(path) for path in (studies / "series").iterdir()]
    slices.sort(key=lambda data: data.ImagePositionPatient[2])
    assert image.shape == (COLUMNS, ROWS, len(slices))
    position = image.affine @ [0, 0, 1, 1]
    x, y, z = slices[1].ImagePositionPatient
    np.testing.assert_allclose(position[:3], [-x, -y, z], atol=1e-4)
    values = slices[1].pixel_array * 2.0 - 1000
    np.testing.assert_allclose(image.get_fdata()[:, :, 1], values.T)


def test_next_sample_goes_through_all_images(studies):
    client = client_of(make_server(studies))
    found = [client.post("/activelearning/next", json={"client_id": "me"}).json() for _ in range(3)]
    assert {image["id"] for image in found[:2]} == {"scan", UID}
    assert found[2] == found[0]
    assert all(set(image) == {"id", "name"} for image in found)  # no paths of this machine
    assert client.post("/activelearning/random", json={}).status_code == 404
    assert client_of(make_server()).post("/activelearning/next", json={}).json() == {}


@pytest.mark.parametrize("key", ["foreground", "points", "lesion"])
def test_labels_are_the_consensus_on_the_grid_of_the_scan(served, studies, key):
    image = image_of(infer(served.client, image="scan", output="image", params={key: [POINT], "background": []}))
    prediction = expected(served.models["tiny"])
    np.testing.assert_array_equal(image.get_fdata(), prediction.on_grid(prediction.consensus).values)
    np.testing.assert_allclose(image.affine, nibabel.load(studies / "scan.nii.gz").affine)
    assert image.get_data_dtype() == np.uint8


def test_single_point_is_accepted(served):
    one = infer(served.client, image="scan", output="image", params={"point": POINT})
    other = infer(served.client, image="scan", output="image", params={"foreground": [POINT]})
    assert image_of(one).dataobj[:].any()
    assert one.content == other.content


def test_sample_and_seed_select_one_sample(served):
    params = {"foreground": [POINT], "result": "sample", "sample": 3, "num_samples": 4, "seed": 5}
    image = image_of(infer(served.client, image="scan", output="image", params=params))
    prediction = expected(served.models["tiny"], num_samples=4, seed=5)
    np.testing.assert_array_equal(image.get_fdata(), prediction.on_grid(prediction.labels[2]).values)


def test_quantile_is_the_sample_with_that_rank_of_volume(served):
    volumes = []
    for quantile in (0, 0.5, 1):
        params = {"foreground": [POINT], "result": "quantile", "quantile": quantile, "num_samples": 9}
        image = image_of(infer(served.client, image="scan", output="image", params=params))
        volumes.append(np.count_nonzero(image.get_fdata()))
    sizes = sorted(np.count_nonzero(labels) for labels in expected(served.models["tiny"], num_samples=9).labels)
    assert volumes == [sizes[0], sizes[4], sizes[8]]
    assert sizes[0] < sizes[8]


def test_levels_are_nested_regions_of_the_mean(served):
    params = {"foreground": [POINT], "result": "levels"}
    description, file = parts_of(infer(served.client, image="scan", params=params))
    mean = image_of(
        infer(served.client, image="scan", output="image", params={**params, "result": "mean"})
    ).get_fdata()
    levels = read_nifti_bytes(file.get_payload(decode=True)).get_fdata()
    for number, level in enumerate((0.1, 0.5, 0.9), start=1):
        np.testing.assert_array_equal(levels >= number, mean >= np.float32(level))
    assert '"lesion 10%": 1, "lesion 50%": 2, "lesion 90%": 3' in description.get_payload()


def test_mean_and_gamma_are_maps(served):
    prediction = expected(served.models["tiny"])
    for result, values in (("mean", prediction.mean_probs[1]), ("gamma", prediction.gamma)):
        params = {"foreground": [POINT], "result": result}
        image = image_of(infer(served.client, image="scan", output="image", params=params))
        np.testing.assert_allclose(image.get_fdata(), prediction.on_grid(values).values, rtol=1e-6)
        assert image.get_data_dtype() == np.float32


def test_whole_slice_model_needs_no_point(served):
    image = image_of(infer(served.client, "whole", image="scan", output="image", params={"num_samples": 2}))
    prediction = expected(served.models["whole"], point=None, num_samples=2)
    np.testing.assert_array_equal(image.get_fdata(), prediction.on_grid(prediction.consensus).values)
    mean = infer(served.client, "whole", image="scan", output="image", params={"num_samples": 2, "result": "mean"})
    assert image_of(mean).shape == (*image.shape, 2)


def test_points_of_several_lesions_are_combined(served):
    far = [2, 3, 0]
    one, other, both = (
        image_of(infer(served.client, image="scan", output="image", params={"foreground": points})).get_fdata()
        for points in ([POINT], [far], [POINT, far])
    )
    assert both.sum() > one.sum()
    inside = one[tuple(far)] > 0  # a point inside the first lesion adds nothing
    np.testing.assert_array_equal(both, one if inside else np.maximum(one, other))


def test_point_inside_segmented_lesion_adds_nothing(served):
    one = infer(served.client, image="scan", output="json", params={"foreground": [POINT]}).json()
    labels = image_of(
        infer(served.client, image="scan", output="image", params={"foreground": [POINT]})
    ).get_fdata()
    again = [int(place) for place in np.argwhere(labels)[-1]]
    both = infer(served.client, image="scan", output="json", params={"foreground": [POINT, again]}).json()
    assert both["measurements"] == one["measurements"]


def test_json_has_labels_centroids_and_measurements(served):
    found = infer(served.client, image="scan", output="json", params={"foreground": [POINT]}).json()
    image = image_of(infer(served.client, image="scan", output="image", params={"foreground": [POINT]}))
    assert found["label_names"] == {"lesion": 1}
    number, *centroid = found["centroids"]["lesion"]
    assert number == 1
    np.testing.assert_allclose(centroid, np.argwhere(image.get_fdata()).mean(0), atol=0.01)
    (measured,) = found["measurements"]
    assert measured["point"] == POINT
    assert len(measured["classes"]["lesion"]["volume_ml"]["samples"]) == found["num_samples"] == 16


def test_ohif_parameters_give_raw_nrrd_in_a_form(served, tmp_path):
    params = {
        "lesion": [[float(place) for place in POINT]],
        "result_extension": ".nrrd",
        "result_dtype": "uint16",
        "result_compress": False,
        "restore_label_idx": False,
    }
    answer = infer(served.client, image="scan", output="all", params=params)
    assert answer.headers["content-type"].startswith("multipart/form-data; boundary=")
    text = answer.content.decode()  # OHIF decodes the whole body as UTF-8
    assert text.count("\r\nContent-Type: application/json\r\n\r\n{") == 1
    assert text.count("\r\nContent-Type: application/octet-stream\r\n\r\nNRRD") == 1
    _, file = parts_of(answer)
    path = tmp_path / file.get_filename()
    path.write_bytes(file.get_payload(decode=True))
    assert b"encoding: raw" in path.read_bytes()
    image = SimpleITK.ReadImage(str(path))
    assert image.GetPixelIDTypeAsString() == "16-bit unsigned integer"
    prediction = expected(served.models["tiny"])
    labels = prediction.on_grid(prediction.consensus).values
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(image).T, labels)


def test_dicom_seg_refers_to_the_series(served):
    params = {"foreground": [[3, 2, 2]], "num_samples": 3}
    answer = infer(served.client, "ct", image=UID, output="dicom_seg", params=params)
    assert answer.headers["content-type"] == "application/dicom"
    segmentation = pydicom.dcmread(io.BytesIO(answer.content))
    assert segmentation.Modality == "SEG"
    assert segmentation.ReferencedSeriesSequence[0].SeriesInstanceUID == UID
    assert [segment.SegmentLabel for segment in segmentation.SegmentSequence] == ["lesion"]
    labels = image_of(infer(served.client, "ct", image=UID, output="image", params=params)).get_fdata()
    assert segmentation.pixel_array.sum() == np.count_nonzero(labels) > 0
    mean = infer(served.client, "ct", image=UID, output="dicom_seg", params={**params, "result": "mean"})
    assert pydicom.dcmread(io.BytesIO(mean.content)).SegmentationType == "FRACTIONAL"


def test_request_without_model_gives_empty_segmentation(served):
    description, file = parts_of(served.client.post("/infer/", params={"image": "scan"}))
    assert '"label_names": {"lesion": 1, "inner": 2, "outer": 3}' in description.get_payload()
    image = read_nifti_bytes(file.get_payload(decode=True))
    assert (image.shape, image.get_fdata().any()) == ((20, 22, 5), False)


def test_image_of_the_form_is_segmented(served):
    files = [("file", ("a.nii", nifti_bytes(random_volume())))]
    answer = infer(served.client, output="image", params={"foreground": [POINT]}, files=files)
    known = infer(served.client, image="scan", output="image", params={"foreground": [POINT]})
    np.testing.assert_array_equal(image_of(answer).get_fdata(), image_of(known).get_fdata())


def test_repeated_request_uses_the_same_samples(served, monkeypatch):
    params = {"foreground": [POINT], "num_samples": 7}
    first = infer(served.client, image="scan", output="json", params=params).json()

    def fail(*_, **__):
        raise AssertionError

    monkeypatch.setattr("phiseg.label_server.inference_service.predict_prepared", fail)
    second = infer(served.client, image="scan", output="json", params={**params, "result": "sample"}).json()
    assert second["measurements"] == first["measurements"]


@pytest.mark.parametrize("codes", ["RAS", "PIL", "SRP"])
def test_point_is_a_voxel_of_the_file_in_any_orientation(codes, tmp_path):
    model = load_model(find_model(Path("lidc-nodule")))
    volume, (number, row, column) = example_volume(Preprocessing.of(model))
    start = nibabel.Nifti1Image(volume.values[..., 0], volume.affine)
    world = start.affine @ [column, row, number, 1]
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(start.affine), nibabel.orientations.axcodes2ornt(codes)
    )
    turned = start.as_reoriented(turn)
    nibabel.save(turned, tmp_path / "scan.nii.gz")
    point = [round(place) for place in np.linalg.solve(turned.affine, world)[:3]]
    client = client_of(make_server(tmp_path, models={"nodule": model}))
    params = {"nodule": [point], "num_samples": 2}
    image = image_of(infer(client, "nodule", image="scan", output="image", params=params))
    assert image.get_fdata()[tuple(point)] == 1
    np.testing.assert_allclose(image.affine, turned.affine, atol=1e-5)
    centre = image.affine @ [*np.argwhere(image.get_fdata()).mean(0), 1]
    assert np.linalg.norm((centre - world)[:3]) < 5  # mm
