"""Tokens: who sends a request to the proxy, from the bearer token that it bears."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from inspect import isawaitable
from pathlib import Path
from typing import Any

from edictum._logs import MCP_TOKEN_REFUSED, log
from edictum._optional import import_optional
from edictum.adapters._mcp import make_principal
from edictum.core.call import Principal
from edictum.errors import EdictumConfigError

# Those with a public key: a shared secret would let the proxy make tokens, too.
ALGORITHMS = [
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
]
Verify = Callable[[str], Any]


class TokenError(Exception):
    """A request bears no token, or not a valid one."""


class TokenVerifier:
    """Verifies tokens with a function: from the token to its claims or a Principal; None: invalid.

    The function may be asynchronous. If it raises, the token is not valid. ``issuer`` is where
    clients get tokens, if that is known.
    """

    def __init__(self, verify: Verify, issuer: str | None = None) -> None:
        self._verify, self.issuer = verify, issuer

    async def find_principal(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """Return the principal of a request; raise TokenError if there is none."""
        sent = [value for key, value in headers if key.lower() == b"authorization"]
        scheme, _, token = (sent[0] if len(sent) == 1 else b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise TokenError
        try:
            found = self._verify(token.strip())
            found = await found if isawaitable(found) else found
            return _read_principal(found)
        except TokenError:
            raise
        except Exception as exc:  # its text may hold parts of the token
            log(MCP_TOKEN_REFUSED, "a token was refused: %s", type(exc).__name__)
            raise TokenError from exc


def _read_principal(found: Any) -> Principal:
    if isinstance(found, Principal) and (found.user_id or found.service_id):
        return found
    subject = found.get("sub") if isinstance(found, Mapping) else None
    if not isinstance(subject, str) or not subject:
        raise TokenError
    return make_principal(subject, found)


def make_jwt_verifier(keys: str, issuer: str, audience: str) -> TokenVerifier:
    """Return a verifier of JSON Web Tokens, with the keys (JWKS) of a URL or a file."""
    jwt = import_optional("jwt", "mcp")
    find_key = _open_keys(jwt, keys)
    required = {"require": ["exp", "sub"]}

    async def verify(token: str) -> Any:
        key = await asyncio.to_thread(find_key, token)
        return jwt.decode(
            token, key, algorithms=ALGORITHMS, audience=audience, issuer=issuer, options=required
        )

    return TokenVerifier(verify, issuer)


def _open_keys(jwt: Any, keys: str) -> Callable[[str], Any]:
    """Return a function from a token to the key that it names."""
    if keys.lower().startswith(("http://", "https://")):
        client = jwt.PyJWKClient(keys)
        return lambda token: client.get_signing_key_from_jwt(token).key
    try:
        known = jwt.PyJWKSet.from_dict(json.loads(Path(keys).read_text(encoding="utf-8")))
    except Exception as exc:
        hint = "Give the URL of a JSON Web Key Set, or a file that holds one."
        raise EdictumConfigError(f"The keys in {keys} cannot be read: {exc}.", hint=hint) from exc
    return lambda token: known[jwt.get_unverified_header(token)["kid"]].key
