"""Many clients at once, and clients that go away, on a real socket."""

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest
import torch
import uvicorn

from helpers.small_viewer import nifti_bytes, random_volume, samples_of
from phiseg.cli.listening import listen
from phiseg.viewer import request_queue, server


@pytest.fixture
def running(serve):
    """A viewer that listens, and the port."""
    viewer = serve().viewer
    listener = listen("127.0.0.1", 0)
    serving = uvicorn.Server(
        uvicorn.Config(server.create_app(viewer), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = Thread(target=serving.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield viewer, listener.getsockname()[1]
    serving.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def click(port, **settings):
    request = {"scan": "example", "point": [6, 8, 8], "num_samples": 3} | settings
    return ask(port, "POST", "/api/predictions", json.dumps(request), {"content-type": "application/json"})


def wait_until(happened, seconds=20):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def slow(monkeypatch):
    """Predictions that stop after their first message until they are let go."""
    begun, go = Event(), Event()
    draw = request_queue._without_errors

    def held(answer):
        for message in draw(answer):
            yield message
            begun.set()
            assert go.wait(30)

    monkeypatch.setattr(request_queue, "_without_errors", held)
    yield begun, go
    go.set()


def test_twenty_clients_get_their_own_predictions(running):
    viewer, port = running
    alone = {}
    for seed in (0, 7, 19):
        _, content = click(port, seed=seed)
        alone[seed] = samples_of([json.loads(line) for line in content.splitlines()])
    viewer._finished.clear()  # they are computed again
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: click(port, seed=number), range(20)))
    for number, (status, content) in enumerate(answers):
        messages = [json.loads(line) for line in content.splitlines()]
        assert (status, messages[-1]["type"]) == (200, "done")
        if number in alone:
            assert (samples_of(messages) == alone[number]).all()
    waited = [b'"queued"' in content for _, content in answers]
    assert sum(waited) >= 10


def test_waiting_clients_see_position_and_page_stays_responsive(running, slow):
    viewer, port = running
    begun, go = slow
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(click, port)
        assert begun.wait(20)
        second = pool.submit(click, port)
        wait_until(lambda: len(viewer.queue._line) == 2)
        assert ask(port, "GET", "/api/session")[0] == 200
        go.set()
        assert b'"queued"' not in first.result()[1]
        assert json.loads(second.result()[1].splitlines()[0]) == {"type": "queued", "ahead": 1}


def test_surplus_clients_are_rejected(running, slow):
    viewer, port = running
    begun, _ = slow
    viewer.queue.max_waiting = 0
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(click, port)
        assert begun.wait(20)
        status, content = click(port)
        assert status == 503
        assert "too many requests are waiting" in json.loads(content)["message"]
        slow[1].set()
        assert first.result()[0] == 200


def connect(port):
    """Click without waiting for the answer."""
    request = json.dumps({"scan": "example", "point": [6, 8, 8], "num_samples": 100})
    head = "POST /api/predictions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(f"{head}Content-Length: {len(request)}\r\n\r\n{request}".encode())
    return connection


def test_disconnected_clients_do_not_block_others(running, slow):
    viewer, port = running
    begun, go = slow
    gone = []
    for number in range(5):
        gone.append(connect(port))
        wait_until(lambda number=number: len(viewer.queue._line) == number + 1)
    assert begun.wait(20)
    for connection in gone:
        connection.close()
    wait_until(lambda: not viewer.queue._line)
    go.set()
    status, content = click(port)
    assert (status, json.loads(content.splitlines()[-1])["type"]) == (200, "done")


def test_computation_of_disconnected_client_stops_at_next_layer(running, monkeypatch, caplog):
    _, port = running
    begun = Event()

    def without_end(model, scan, request):
        while True:
            model.encode(torch.zeros(1, 1, 16, 16))
            begun.set()
        yield

    with monkeypatch.context() as patch:
        patch.setattr(server, "draw", without_end)
        connection = connect(port)
        assert begun.wait(20)
    connection.close()
    status, content = click(port)
    assert (status, json.loads(content.splitlines()[-1])["type"]) == (200, "done")
    assert not caplog.records


def test_aborted_upload_leaves_no_files(running, tmp_path, monkeypatch):
    viewer, port = running
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    head = "POST /api/scans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    part = 'Content-Disposition: form-data; name="files"; filename="a.nii"'
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(
        f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n{part}\r\n\r\nabc".encode()
    )
    wait_until(lambda: list(tmp_path.rglob("*.nii")))
    connection.close()
    wait_until(lambda: not list(tmp_path.iterdir()))
    wait_until(lambda: viewer.num_uploads == 0)


def test_surplus_uploads_are_rejected(running):
    viewer, port = running
    viewer.num_uploads = 2
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.nii"\r\n\r\n'
    body = head + nifti_bytes(random_volume()) + b"\r\n--x--\r\n"
    upload = ("POST", "/api/scans", body, {"content-type": "multipart/form-data; boundary=x"})
    assert ask(port, *upload)[0] == 503
    viewer.num_uploads = 0
    assert ask(port, *upload)[0] == 200


@pytest.mark.parametrize("path", ["/../server.py", "/static/../../server.py", "//etc/passwd", "/%2e%2e/server.py"])
def test_unusual_paths_reach_no_files(running, path):
    assert ask(running[1], "GET", path) == (404, b'{"message":"page not found"}')
