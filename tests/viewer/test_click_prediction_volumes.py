"""The viewer with models and datasets of volumes."""

import numpy as np
import pytest
import torch

from helpers.small_viewer import box_shape, make_model, nifti_bytes, of_type, random_volume, samples_of, unpacked
from helpers.small_volumes import write_volumes
from phiseg.imaging.volume import to_slices
from phiseg.inference.measures import measure
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume
from phiseg.metrics.case import score_case

POINT = [2, 11, 8]
"""Slice, row and column."""


@pytest.mark.parametrize("centred_on", ["lesion", None])
def test_click_shows_slices_of_the_sampled_volume(serve, centred_on):
    model = make_model(dims=3, centred_on=centred_on, patch_size=(4, 16, 16), plane="axial")
    served, volume = serve(model), random_volume()
    scan = served.drop(("scan.nii", nifti_bytes(volume))).json()
    messages = served.click(scan["id"], POINT, num_samples=5, seed=7)
    assert messages[-1]["type"] == "done"
    stack = to_slices(volume, "axial")
    voxel = np.rint(np.linalg.inv(volume.affine) @ stack.affine @ [*POINT, 1])[:3]
    expected = predict_volume(
        model, volume, point=voxel if centred_on else None, sampling=Sampling(num_samples=5, seed=7)
    )
    place = POINT[0] - expected.box[0].start
    np.testing.assert_array_equal(samples_of(messages), expected.labels[:, place])
    (lesion,) = of_type(messages, "volume")
    labels = unpacked(lesion["labels"], 5, lesion["num_slices"], *box_shape(lesion))
    np.testing.assert_array_equal(labels, expected.labels)
    (summary,) = of_type(messages, "slice")
    mean = unpacked(summary["mean_probs"], 1, *box_shape(summary)) / 255
    np.testing.assert_allclose(mean, expected.mean_probs[1:, place], atol=0.5 / 255 + 1e-6)
    (numbers,) = of_type(messages, "numbers")
    (levels,) = of_type(messages, "levels")
    assert levels["totals"] == pytest.approx(measure(expected.at_slice(POINT[0])).level_shares)
    found = measure(expected).classes["lesion"].volume_ml.samples
    assert numbers["classes"]["lesion"]["size"]["samples"] == list(found)


def test_volume_of_a_dataset_has_annotations_and_scores(serve, tmp_path):
    dataset = write_volumes(tmp_path / "volumes")
    model = make_model(dims=3, plane="axial", low=-1000, high=1000, channels=2, centred_on=None)
    served = serve(model, dataset.path)
    info = served.client.get("/api/scans/case-1").json()
    assert (info["num_slices"], info["height"], info["width"]) == dataset.size(1)
    assert info["spacing_mm"] == pytest.approx([2.5, 0.5, 0.7])
    assert info["annotators"] == ["annotator 0", "annotator 2"]
    info = served.client.get("/api/scans/case-2").json()
    annotations = dataset.annotations(2)
    drawn = served.client.get("/api/scans/case-2/annotations").json()
    np.testing.assert_array_equal(unpacked(drawn["labels"], *annotations.shape), annotations)
    assert annotations[:, *info["start"]].any()
    shown = served.client.get("/api/scans/case-2/slices/3").content
    np.testing.assert_array_equal(np.frombuffer(shown, "<f4").reshape(5, 8), dataset.stored_image(2)[0, 3])

    messages = served.click("case-2", [3, 2, 4], num_samples=3)
    (scores,) = of_type(messages, "scores")
    volume = served.viewer.scans.get("case-2").volume
    prediction = predict_volume(model, volume, sampling=Sampling(num_samples=3))
    whole = (prediction.labels, prediction.mean_probs, prediction.mean_log_probs, annotations)
    expected = score_case(*(torch.from_numpy(np.ascontiguousarray(array)) for array in whole))
    for name in ("ged", "ged_floor", "s_ncc", "dice"):
        assert scores[name] == pytest.approx(expected[name], abs=1e-5), name
    (lesion,) = of_type(messages, "volume")
    gamma = unpacked(lesion["gamma"], *prediction.gamma.shape) / 255 * lesion["gamma_max"]
    np.testing.assert_allclose(gamma, prediction.gamma, atol=lesion["gamma_max"] / 500)


@pytest.mark.parametrize("plane", ["axial", "coronal", "sagittal"])
def test_planes_are_those_of_the_radiological_convention(serve, plane):
    served, volume = serve(make_model(plane=plane)), random_volume()
    scan = served.drop(("scan.nii", nifti_bytes(volume))).json()
    assert scan["planes"][0]["name"] == plane
    for number, info in enumerate(scan["planes"]):
        expected = to_slices(volume, info["name"]).values  # slices towards S, P or L
        own = to_slices(volume, plane).values
        across, down, right = info["axes"]
        assert (own.shape[across], own.shape[down], own.shape[right]) == expected.shape
        for at in (0, own.shape[across] - 1):
            answer = served.client.get(f"/api/scans/{scan['id']}/slices/{at}", params={"plane": number})
            found = np.frombuffer(answer.content, "<f4").reshape(expected.shape[1:])
            ends = expected[[at, expected.shape[0] - 1 - at]]  # the numbers may count the other way round
            assert any(np.array_equal(found, picture) for picture in ends), info
        answer = served.client.get(f"/api/scans/{scan['id']}/slices/{own.shape[across]}", params={"plane": number})
        assert answer.status_code == 404
