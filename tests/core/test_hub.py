"""Models of the Hugging Face Hub: names, and loading and uploading with a stand-in for the file API of the Hub."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from phiseg.core.bundled import bundled_models, find_model
from phiseg.core.errors import ConfigError
from phiseg.core.hub import FILES, parse_hub_name

needs_hub = pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="huggingface_hub is not installed")
FIRST, SECOND = "1" * 40, "2" * 40
LOAD = "import sys; from phiseg.core.bundled import Path, find_model; print(find_model(Path(sys.argv[1])))"
UPLOAD = (
    "import sys; from phiseg.core.hub import Path, upload_model as up; print(up(Path(sys.argv[1]), sys.argv[2]))"
)


@pytest.mark.parametrize(
    "name", ["hf:name", "hf:owner/name@", "hf:owner/name/x", "hf:../x@main", "hf:a b/c", "hf:a/b@c d"]
)
def test_invalid_hub_names_are_rejected(name):
    with pytest.raises(ConfigError, match=r"is not a model on the Hub; write hf:owner/name@revision"):
        parse_hub_name(name)
    assert parse_hub_name("hf:an-owner/a.name@refs/pr/1") == ("an-owner/a.name", "refs/pr/1")
    assert parse_hub_name("hf:owner/name") == ("owner/name", None)


def test_missing_package_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ConfigError, match=r"need the package huggingface_hub; install it: pip install 'phiseg\[hub\]'"
    ):
        find_model(Path("hf:owner/not-installed@main"))


class Hub(ThreadingHTTPServer):
    """The parts of the Hub that loading and uploading use."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits, self.refs, self.requests = {}, {}, []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, repo, commit, files):
        self.commits[repo, commit] = files
        self.refs[repo, "main"] = commit

    def commit(self, repo, commit, *, added, deleted):
        """Add a commit to main, which keeps the other files."""
        before = self.commits[repo, self.refs[repo, "main"]]
        self.add(repo, commit, {name: before[name] for name in before if name not in deleted} | added)

    def find(self, repo, revision):
        return self.refs.get((repo, revision), revision)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer_file()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            self.answer_listing(*match.groups())
        else:
            self.answer_file()

    def answer_listing(self, repo, kind, revision):
        commit = self.server.find(repo, revision)
        files = self.server.commits.get((repo, commit))
        if files is None:
            known = any(name == repo for name, _ in self.server.commits)
            self.answer({}, status=404, **{"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
        elif kind == "revision":
            self.answer({"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]})
        else:
            entries = ({"path": name, "size": len(files[name]), "oid": sha(files[name])} for name in files)
            self.answer([{"type": "file", **entry} for entry in entries])

    def answer_file(self):
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", unquote(urlsplit(self.path).path))
        repo, revision, name = match.groups()
        commit = self.server.find(repo, revision)
        content = self.server.commits[repo, commit][name]
        self.answer(content, **{"X-Repo-Commit": commit, "ETag": f'"{sha(content)}"'})

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode() if length else self.read_chunks().decode()
        if self.path == "/api/repos/create":
            assert self.headers["Authorization"] == "Bearer secret"
            if ("owner/new", "main") not in self.server.refs:
                self.server.add("owner/new", FIRST, {".gitattributes": b""})
            self.answer({"url": f"{self.server.address}/owner/new", "id": "owner/new"})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self.answer({"files": modes})
        elif "/commit/" in self.path:
            entries = [json.loads(line) for line in body.splitlines()]
            files = [entry["value"] for entry in entries if entry["key"] == "file"]
            added = {file["path"]: base64.b64decode(file["content"]) for file in files}
            deleted = {entry["value"]["path"] for entry in entries if entry["key"] == "deletedFile"}
            self.server.commit("owner/new", SECOND, added=added, deleted=deleted)
            self.answer({"commitUrl": f"{self.server.address}/owner/new/commit/{SECOND}", "commitOid": SECOND})
        else:
            self.answer({"errors": [], "warnings": []})

    def read_chunks(self):
        parts = []
        while self.headers.get("Transfer-Encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(parts)

    def answer(self, content, *, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def sha(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub():
    """A running Hub with one model, which also has a file that must not be downloaded."""
    server = Hub()
    folder = bundled_models()["lesion-phantom"]
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    server.add("owner/name", FIRST, files | {"setup.py": b"raise SystemExit", "model.pkl": b"x"})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def run(hub, tmp_path):
    """Return a function that runs Python with the stand-in as its Hub, and an empty cache."""

    def start(code, *words, **environment):
        own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "secret"}
        own |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*"}
        command = [sys.executable, "-c", code, *map(str, words)]
        env = os.environ | own | environment
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)

    return start


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


@needs_hub
def test_hub_model_is_downloaded_without_other_files(run, hub):
    done = run(LOAD, f"hf:owner/name@{FIRST}")
    assert (done.returncode, done.stderr) == (0, "")
    folder = find_model(Path(done.stdout.strip()))
    expected = hub.commits["owner/name", FIRST]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content for name, content in expected.items() if name in FILES
    }
    assert folder.name == FIRST
    assert not [path for path in hub.requests if path.endswith((".py", ".pkl"))]


@needs_hub
@pytest.mark.parametrize(("suffix", "what"), [("", "the latest revision"), ("@main", "revision main")])
def test_hub_revision_without_commit_is_resolved_and_shown(run, suffix, what):
    done = run(LOAD, f"hf:owner/name{suffix}")
    pinned = f"to pin it, use hf:owner/name@{FIRST}"
    assert done.stderr == f"phiseg: hf:owner/name{suffix}: using commit {FIRST} ({what}); {pinned}\n"


@needs_hub
def test_hub_cache_is_used_offline(run, hub):
    name = f"hf:owner/name@{FIRST}"
    done = run(LOAD, name, HF_HUB_OFFLINE="1")
    assert "it is not in the cache; check the connection, and unset HF_HUB_OFFLINE" in last_line(done)
    online = run(LOAD, name)
    hub.requests.clear()
    offline = run(LOAD, name, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout, hub.requests) == (0, online.stdout, [])
    unreachable = run(LOAD, name, HF_ENDPOINT="http://127.0.0.1:9")
    assert unreachable.stdout == online.stdout


@needs_hub
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("hf:owner/none@main", "check the name; for a private model, set HF_TOKEN"),
        ("hf:owner/name@none", "check the revision: a commit, branch or tag"),
    ],
)
def test_missing_hub_models_and_revisions_are_reported(run, name, advice):
    done = run(LOAD, name)
    assert done.returncode != 0
    assert f"ModelError: cannot load {name} (" in last_line(done)
    assert advice in last_line(done)
    assert "secret" not in done.stderr


@needs_hub
def test_uploaded_model_can_be_loaded_by_its_commit(run, tmp_path):
    source = shutil.copytree(bundled_models()["lesion-phantom"], tmp_path / "model")
    (source / "notes.txt").write_text("private")
    done = run(UPLOAD, source, "owner/new")
    assert (done.returncode, done.stdout) == (0, f"hf:owner/new@{SECOND}\n"), done.stderr
    loaded = run(LOAD, done.stdout.strip())
    assert loaded.returncode == 0, loaded.stderr
    folder = Path(loaded.stdout.strip())
    names = {path.name for path in source.iterdir()} & set(FILES)
    assert {path.name for path in folder.iterdir()} == names
    assert all((folder / name).read_bytes() == (source / name).read_bytes() for name in names)


@needs_hub
def test_upload_replaces_all_files_of_the_previous_model(run, hub, tmp_path):
    before = dict.fromkeys(FILES, b"old") | {"LICENSE": b"own"}
    hub.add("owner/new", FIRST, before)
    source = shutil.copytree(bundled_models()["lesion-phantom"], tmp_path / "model")
    (source / "calibration.json").unlink(missing_ok=True)
    done = run(UPLOAD, source, "owner/new")
    assert done.returncode == 0, done.stderr
    model = {name: (source / name).read_bytes() for name in FILES if (source / name).is_file()}
    assert hub.commits["owner/new", SECOND] == model | {"LICENSE": b"own"}


@needs_hub
def test_push_command_and_load_use_the_hub(run):
    push = "from phiseg.cli.main import main; main(['push', 'lesion-phantom', 'owner/new', '--private'])"
    done = run(push)
    assert (done.returncode, done.stdout) == (0, f"uploaded as hf:owner/new@{SECOND}\n"), done.stderr
    load = f"import phiseg; print(phiseg.load('hf:owner/new@{SECOND}').path.name)"
    assert run(load).stdout == f"{SECOND}\n"
