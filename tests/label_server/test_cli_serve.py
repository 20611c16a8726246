"""`phiseg serve`: arguments, the printed address, and shutdown."""

import json
import re
import signal
import subprocess
import urllib.request

import httpx
import pytest

from helpers.ending_servers import end_after_upload
from helpers.small_viewer import nifti_bytes, random_volume
from phiseg.cli.serve import checked_origin, server_address
from phiseg.core.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["nowhere"], "there is no model folder nowhere"),
        (["lidc-nodule", "--studies", "nothing"], "nothing does not exist"),
        (["lidc-nodule", "--allow-origin", "localhost:3000"], "--allow-origin 'localhost:3000' is not an address"),
        (
            ["lidc-nodule", "--studies", ".", "--dicomweb", "http://a"],
            "give either --studies or --dicomweb",
        ),
        (["lidc-nodule", "--dicomweb", "pacs"], "the address of the PACS is not valid"),
        (["lidc-nodule", "--time-limit", "0"], "--time-limit is 0; it must be positive"),
        (["lidc-nodule", "--port", "70000"], "--port 70000 is out of range"),
    ],
)
def test_invalid_arguments_give_one_line_error(cli, words, cause):
    result = cli("serve", *words)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert cause in result.err


@pytest.mark.parametrize(
    "origin", ["*", "http://", "http://a/b", "ftp://a", "http://a?b", "http://u@a", "http://[a"]
)
def test_origin_must_be_an_address(origin):
    with pytest.raises(ConfigError, match="is not an address"):
        checked_origin(origin)


def test_origin_has_the_form_of_browsers():
    assert checked_origin("HTTP://Localhost:3000/") == "http://localhost:3000"


def test_address_contains_token():
    assert server_address("127.0.0.1", 8000, None) == "http://127.0.0.1:8000/"
    assert server_address("::1", 8000, "abc") == "http://[::1]:8000/abc/"


def test_serve_prints_address_and_ends_on_interrupt(phiseg, studies):
    words = phiseg.command("serve", "--studies", studies, "--port", "0")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "models: lidc-nodule; images: 2\n"
            address = re.fullmatch(r"server: (http://127.0.0.1:\d+/)\n", process.stdout.readline())[1]
            with urllib.request.urlopen(f"{address}info/", timeout=60) as answer:
                info = json.load(answer)
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert info["models"]["lidc-nodule"]["labels"] == {"nodule": 1}
    assert (process.returncode, errors) == (0, "")


@pytest.mark.usefixtures("default_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_serve_deletes_uploads_on_signal(phiseg, trained, tmp_path, number):
    def upload(output):
        output.readline()
        address = output.readline().decode().split()[1]
        files = {"files": ("scan.nii", nifti_bytes(random_volume()))}
        return httpx.put(f"{address}session/", files=files, timeout=60)

    end_after_upload(phiseg.command("serve", trained(), "--port", "0"), upload, number, tmp_path)
