"""Ending a server with a signal after an upload."""

import os
import subprocess


def end_after_upload(words, upload, number, folder):
    """Start a server, upload a scan, end it with a signal, and check that it deletes the scan.

    Args:
        words: command that starts the server.
        upload: function of the standard output of the server that uploads a scan.
        number: signal.
        folder: empty folder for the temporary files of the server.
    """
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert upload(process.stdout).status_code == 200
            assert list(folder.rglob("*.nii"))
        finally:
            process.send_signal(number)
            try:
                _, errors = process.communicate(timeout=60)
            finally:
                process.kill()
    assert (process.returncode, errors) == (128 + number, b"")
    assert not list(folder.glob("phiseg-*"))
