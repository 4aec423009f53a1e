"""Certificates for servers on the loopback, and clients that trust them."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    """Signs certificates, and is a file that clients can be told to trust."""

    def __init__(self, directory: Path, name: str) -> None:
        self._authority = trustme.CA()
        self._directory = directory
        self.file = directory / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def server_context(self, *names: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*names).configure_cert(context)
        return context

    def client_files(self, name: str) -> tuple[Path, Path]:
        """A certificate for that client, and its key."""
        issued, certificate, key = (
            self._authority.issue_cert(name),
            self._directory / "client.pem",
            self._directory / "client.key",
        )
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key
