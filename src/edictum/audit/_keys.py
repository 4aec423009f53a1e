"""Keys of heads: Ed25519, from the extra ``chain``."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

from edictum._optional import import_optional
from edictum.audit.chain import ChainHead
from edictum.errors import EdictumConfigError

KeyPath = str | os.PathLike[str]


def generate_key(path: KeyPath) -> Path:
    """Write a new private key that its owner alone can read, and beside it the public key; return
    the path of the public key. A file that is there is never replaced.
    """
    serialization, ed25519 = _import_cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    beside = Path(f"{os.fspath(path)}.pub")
    _create_file(Path(path), private, 0o600)
    try:
        _create_file(beside, public, 0o644)
    except EdictumConfigError:  # a private key alone would keep the next one from being written
        Path(path).unlink()
        raise
    return beside


def _create_file(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except OSError as exc:
        raise EdictumConfigError(
            f"The key {path} cannot be written: {exc.strerror}.",
            hint="Choose a name that is not taken, in a directory that can be written.",
        ) from exc


class HeadSigner:
    """Signs heads, and what evidence holds. It never shows its key, nor the content of a file that
    holds none.
    """

    def __init__(self, path: KeyPath) -> None:
        serialization, ed25519 = _import_cryptography()
        _check_rights(Path(path))
        try:
            key = serialization.load_pem_private_key(_read_key(path), password=None)
        except (ValueError, TypeError):
            raise _not_a_key(path, "private") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise _not_a_key(path, "private")
        self._key: Any = key
        self.key_id = identify_key(key.public_key().public_bytes_raw())

    def sign(self, head: ChainHead) -> ChainHead:
        """Return the head with its signature."""
        named = replace(head, key=self.key_id)
        return replace(named, signature=self.sign_bytes(named.to_signed_bytes()))

    def sign_bytes(self, content: bytes) -> str:
        """Return the signature of any content, in base64."""
        return base64.b64encode(self._key.sign(content)).decode()


class HeadVerifier:
    """Verifies with a public key whether a head was signed with its private key."""

    def __init__(self, path: KeyPath) -> None:
        serialization, ed25519 = _import_cryptography()
        try:
            key = serialization.load_pem_public_key(_read_key(path))
        except (ValueError, TypeError):
            raise _not_a_key(path, "public") from None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise _not_a_key(path, "public")
        self._key: Any = key
        self.key_id = identify_key(key.public_bytes_raw())

    def is_signed(self, head: ChainHead) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            signature = base64.b64decode(head.signature, validate=True)
            self._key.verify(signature, head.to_signed_bytes())
        except (InvalidSignature, ValueError):
            return False
        return True


def identify_key(public: bytes) -> str:
    """Return the name of a key in heads: the start of the digest of its public part."""
    return hashlib.sha256(public).hexdigest()[:16]


def _import_cryptography() -> tuple[Any, Any]:
    problem = "Signed heads need the package cryptography."
    base = "cryptography.hazmat.primitives"
    return (
        import_optional(f"{base}.serialization", "chain", problem),
        import_optional(f"{base}.asymmetric.ed25519", "chain", problem),
    )


def _read_key(path: KeyPath) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise EdictumConfigError(
            f"The key {os.fspath(path)} cannot be read: {exc.strerror}.",
            hint="Make one with: edictum audit keygen FILE.",
        ) from exc


def _check_rights(path: Path) -> None:
    if os.name == "posix" and path.exists() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise EdictumConfigError(
            f"The private key {path} can be read by others.", hint=f"Run: chmod 600 {path}"
        )


def _not_a_key(path: KeyPath, kind: str) -> EdictumConfigError:
    return EdictumConfigError(
        f"{os.fspath(path)} holds no {kind} Ed25519 key.",
        hint="Make one with: edictum audit keygen FILE. The public key is in FILE.pub.",
    )
