"""Certificates that a test makes for its own servers."""

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(directory: Path) -> Path:
    """Make a certificate for 127.0.0.1 that signs itself, so that it is its own authority; its key is beside it, as
    key.pem. Skips where openssl is not installed.
    """
    program = shutil.which("openssl") or pytest.skip("no openssl: apt-get install openssl")
    directory.mkdir(exist_ok=True)
    certificate = directory / "certificate.pem"
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
            *("-keyout", str(directory / "key.pem"), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate
