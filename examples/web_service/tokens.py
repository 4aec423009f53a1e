"""Bearer tokens: who is calling is what this service has signed, and nothing that a client or a
model says.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Caller:
    """The user of a request. Staff may answer approvals."""

    user_id: str
    role: str = "customer"


class Tokens:
    """Makes and reads tokens with a key that all workers of the service share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def open(cls, path: Path) -> Tokens:
        """Read the key, or make one: the first process that asks does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_name(f"{path.name}.{os.getpid()}")
        own.touch(mode=0o600)
        own.write_text(secrets.token_hex(32), encoding="ascii")
        try:
            os.link(own, path)  # atomic, and fails if there is one already
        except FileExistsError:
            pass
        finally:
            own.unlink()
        return cls(path.read_bytes())

    def make(self, caller: Caller) -> str:
        said = base64.urlsafe_b64encode(json.dumps(asdict(caller)).encode()).decode()
        return f"{said}.{self._sign(said)}"

    def read(self, token: str) -> Caller | None:
        """Return whose token it is; None if this service did not make it."""
        said, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(said).encode()):
            return None
        return Caller(**json.loads(base64.urlsafe_b64decode(said)))

    def _sign(self, said: str) -> str:
        return hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()
