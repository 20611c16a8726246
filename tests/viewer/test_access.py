"""Who is let in, and what a request can reach."""

import asyncio

import pytest
from starlette.exceptions import HTTPException

from phiseg.viewer import access
from phiseg.viewer.access import is_loopback, limited
from phiseg.viewer.server import STATIC


@pytest.mark.parametrize("host", ["localhost", "localhost:8760", "127.0.0.1:1", "[::1]:8760", "127.9.9.9"])
def test_localhost_is_accepted_by_all_names(served, host):
    assert served.client.get("/api/session", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["example.org", "localhost.example.org:80", "192.168.0.1", "[::1", "", "a@b:c"])
def test_other_host_names_are_rejected(served, host):
    answer = served.client.get("/api/session", headers={"host": host})
    assert (answer.status_code, answer.json()["message"]) == (
        421,
        "this server only accepts requests for localhost",
    )


@pytest.mark.parametrize("origin", ["http://example.org", "null", "http://localhost:1234", "http://localhost.evil"])
def test_other_origins_are_rejected(served, origin):
    headers = {"origin": origin, "host": "localhost:8760"}
    answer = served.client.post("/api/predictions", json={}, headers=headers)
    assert answer.status_code == 403


def test_own_origin_is_accepted(served):
    headers = {"origin": "http://localhost:8760", "host": "localhost:8760"}
    assert served.client.get("/api/session", headers=headers).status_code == 200


def test_token_is_required_and_stored_in_cookie(serve):
    client = serve(token="secret", base_url="http://lab.example:8760").client
    for path in ("/", "/api/session", "/api/scans/example", "/api/session?token=wrong", "/?token="):
        assert client.get(path).status_code == 401, path
    answer = client.get("/api/session?token=secret")
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/api/session").status_code == 200
    client.cookies.clear()
    assert client.get("/api/session", headers={"host": "localhost"}).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "/..%5cserver.py",
        "/static/../../server.py",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/etc/passwd",
        f"/{STATIC.parent / 'server.py'}",
        "/index.html%00.js",
        "/assets",
    ],
)
def test_only_files_of_the_page_are_served(served, path):
    answer = served.client.get(path)
    assert (answer.status_code, answer.json()) == (404, {"message": "page not found"})


@pytest.mark.parametrize(
    "scan", ["..%2f..%2fetc%2fpasswd", "/etc/passwd", "case-0", "file-x", "case--1", "example%00"]
)
def test_only_open_scans_are_served(served, scan):
    for route in ("", "/slices/0", "/annotations"):
        assert served.client.get(f"/api/scans/{scan}{route}").status_code in (400, 404)


def test_content_security_policy_forbids_other_sources(served):
    client = served.client
    for path in ("/", "/api/session", "/nowhere", "/api/scans/none"):
        policy = client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert "http" not in policy
    refused = client.get("/", headers={"host": "example.org"})
    assert "content-security-policy" in refused.headers


def test_page_is_served(served):
    answer = served.client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("chunked", [False, True])
def test_large_request_is_rejected(served, chunked):
    data = b'{"scan": "' + b"x" * 100_000 + b'"}'
    content = iter([data[:50_000], data[50_000:]]) if chunked else data
    headers = {"content-type": "application/json"}
    answer = served.client.post("/api/predictions", content=content, headers=headers)
    assert answer.status_code == 413
    assert "uploads are limited to 64 KB" in answer.json()["message"]


def test_pause_is_limited_until_the_request_is_complete(monkeypatch):
    monkeypatch.setattr(access, "MAX_PAUSE", 0.01)
    body = {"type": "http.request", "body": b"x"}

    async def receive_all(*messages):
        async def receive():
            await asyncio.sleep(0.05 if len(waiting) == 1 else 0)  # before the last message
            return waiting.pop(0)

        waiting = list(messages)
        receive_limited = limited(receive, 100)
        return [await receive_limited() for _ in messages]

    messages = [body | {"more_body": True}, body]
    with pytest.raises(HTTPException, match=r"no data arrived for 0\.01 s") as error:
        asyncio.run(receive_all(*messages))
    assert error.value.status_code == 408
    messages = [body, {"type": "http.disconnect"}]
    assert asyncio.run(receive_all(*messages)) == messages


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"num_samples": 101}, "num_samples"),
        ({"num_samples": 0}, "num_samples"),
        ({"seed": -1}, "seed"),
        ({"point": [1, 2]}, "point"),
        ({"levels": [{"temperature": 1e9}]}, "temperature"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_invalid_request_is_explained(served, change, cause):
    request = {"scan": "example", "point": [0, 0, 0]} | change
    answer = served.client.post("/api/predictions", json=request)
    assert answer.status_code == 422
    assert answer.json()["message"].startswith("invalid request: body.")
    assert cause in answer.json()["message"]


def test_bug_gives_one_line_and_keeps_server_running(serve, monkeypatch):
    served = serve()

    def broken(*_):
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(served.viewer.scans, "get", broken)
    answer = served.client.get("/api/scans/example")
    assert answer.status_code == 500
    assert "unexpected error (RuntimeError)" in answer.json()["message"]
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers
    (failed,) = served.messages(
        served.client.post("/api/predictions", json={"scan": "example", "point": [0, 0, 0]})
    )
    assert failed["type"] == "error"
    assert "secret" not in failed["message"]
    monkeypatch.undo()
    assert served.click(num_samples=1)[-1]["type"] == "done"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("x", False),
    ],
)
def test_is_loopback_recognises_local_addresses(host, local):
    assert is_loopback(host) is local
