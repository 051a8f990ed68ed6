"""Certificates of a test's own, made by openssl: one authority, and servers that it has signed."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Authority:
    """`file` is what a node is given to trust."""

    folder: Path
    file: Path

    def server(self, name: str) -> ssl.SSLContext:
        """A server's side of TLS, whose certificate names `name` (like "IP:127.0.0.1" or "DNS:host")."""
        key, wish, signed = (self.folder / f"server.{kind}" for kind in ("key", "csr", "pem"))
        extension = self.folder / "server.ext"
        extension.write_text(f"subjectAltName={name}\n")
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", wish, "-subj", "/CN=server")
        _openssl(
            *("x509", "-req", "-in", wish, "-CA", self.file, "-CAkey", self.folder / "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", extension, "-out", signed),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(signed, key)
        return context


def authority(folder: Path) -> Authority:
    """A new one; the test is skipped where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: install Debian's package openssl")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "ca.pem"
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority of a test"),
        *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"),
        *("-keyout", folder / "ca.key", "-out", file),
    )
    return Authority(folder, file)


def _openssl(*words: object) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
