"""Predictions of the viewer are kept: a repeated request is not computed again."""

from helpers.small_viewer import make_model, samples_of
from phiseg.viewer import server
from phiseg.viewer.click_prediction import draw


def test_repeated_request_is_not_computed_again(serve, monkeypatch):
    calls = []
    monkeypatch.setattr(server, "draw", lambda *arguments: calls.append(arguments) or draw(*arguments))
    served = serve(make_model())
    start = served.click(num_samples=6)
    held = served.click(num_samples=6, levels=[{}, {"hold": True}])
    assert served.click(num_samples=6) == start
    assert served.click(num_samples=6, levels=[{}, {"hold": True}]) == held
    assert (samples_of(held) != samples_of(start)).any()
    assert len(calls) == 2
    served.click(num_samples=6, seed=1)
    assert len(calls) == 3


def test_predictions_are_dropped_with_their_scan_and_beyond_the_limit(serve, monkeypatch):
    monkeypatch.setattr(server, "MAX_PREDICTIONS", 2)
    served = serve(make_model())
    first, second, third = (served.click(num_samples=2, seed=seed)[-1]["id"] for seed in range(3))
    assert served.viewer.prediction(first) is None
    assert served.click(num_samples=2, seed=1)[-1]["id"] == second  # now the most recent one
    fourth = served.click(num_samples=2, seed=0)[-1]["id"]
    assert [served.viewer.prediction(name) is None for name in (second, third, fourth)] == [False, True, False]
    served.viewer.scans._open.clear()  # the scan is read again
    assert served.click(num_samples=2, seed=0)[-1]["id"] != fourth
    assert served.viewer.prediction(fourth) is None


def test_warm_up_draws_samples_with_2d_models_only(serve, monkeypatch):
    for model, number in ((make_model(), 1), (make_model(dims=3, patch_size=(4, 16, 16), plane="axial"), 0)):
        viewer = serve(model).viewer
        drawn = []
        monkeypatch.setattr(server, "draw", lambda *arguments, drawn=drawn: kept(draw(*arguments), drawn))
        viewer.warm_up()
        assert len(drawn) == number
        assert not viewer._finished


def kept(messages, drawn):
    for message in messages:
        drawn.append(message)
        yield message
