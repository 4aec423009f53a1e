"""Which keys name something secret: ``api_key``, ``dbPassword``, ``access-token``.

Keys are judged by their words, not by substrings: ``monkey``, ``max_tokens`` and ``sort_key`` are
not sensitive. Words that were run together (``dbpassword``, ``authtoken``) are split where that is
safe: at an ending that no ordinary word has, or at one that follows a known word.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SENSITIVE_WORDS = _words(
    """
    password passwords passwd pwd secret secrets credential credentials passphrase authorization
    auth token apikey privatekey accesstoken refreshtoken clientsecret cookie
    """
)
# Sensitive alone; with a safe companion they count or refer to something (``next_page_token``).
WEAK_WORDS = frozenset({"token", "auth", "cookie"})
SENSITIVE_PHRASES = frozenset({("connection", "string"), ("database", "url")})
KEY_WORDS = frozenset({"key", "keys", "tokens"})
SAFE_COMPANIONS = _words(
    """
    max min num n count total limit budget usage prompt completion input output cached per next
    page continuation type sort primary foreign partition cache public index row group map
    object id name names error order range hash lookup reasoning used remaining left s3 json
    change dict idempotency routing message kind length size estimated
    """
)
# Endings of words that were run together. No ordinary word has the first; the others need one of
# FRONTS before them, because of ``compass`` and ``monkey``.
SURE_ENDINGS = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "apikey", "apikeys"),
    *("credential", "credentials", "connectionstring", "databaseurl"),
)
OTHER_ENDINGS = {
    "token": "token",
    "tokens": "tokens",
    "key": "key",
    "keys": "keys",
    "pass": "password",
    "pwd": "password",
}
FRONTS = _words(
    """
    access account admin api app auth aws azure bearer bot client csrf db deploy device
    encryption ftp gcp github gitlab google hmac http jwt ldap login mail master my mysql oauth
    openai personal pg postgres private proxy redis refresh root secret security server service
    session signing slack smtp sql ssh ssl stripe telegram tls user vault webhook wifi xsrf
    """
)
MAX_KEY = 256
# Under ``value`` stands what is called otherwise: ``{"name": "DB_PASSWORD", "value": ...}``.
VALUE_KEYS = frozenset({"value", "Value", "VALUE"})
_NAME_KEYS = ("name", "key", "Name", "Key", "NAME", "KEY", "variable")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def name_of(key: Any, holder: Any) -> Any:
    """Return the name of what a mapping holds under a key: that of its pair, or the key itself."""
    if key not in VALUE_KEYS:
        return key
    return next((holder[each] for each in _NAME_KEYS if type(holder.get(each)) is str), key)


def is_sensitive_by_words(key: str) -> bool:
    """Return whether the words of a key name a secret. Only both ends of a very long key are
    read.
    """
    half = MAX_KEY // 2
    return _is_sensitive(key if len(key) <= MAX_KEY else f"{key[:half]} {key[-half:]}")


@lru_cache(maxsize=4_096)
def _is_sensitive(key: str) -> bool:
    words = [part for word in _WORD.findall(key) for part in _split(word.lower())]
    if _has_sensitive_phrase(words):
        return True
    secret = SENSITIVE_WORDS.intersection(words)
    if secret:
        return not (secret <= WEAK_WORDS and _has_safe_companion(words))
    return _has_key_of_something(words) and not _has_safe_companion(words)


def _has_sensitive_phrase(words: list[str]) -> bool:
    """Return whether two adjacent words name a secret: ``database_url``, ``smtp_pass``."""
    return any(
        pair in SENSITIVE_PHRASES or (pair[0] in FRONTS and pair[1] in ("pass", "pwd"))
        for pair in pairwise(words)
    )


def _has_safe_companion(words: list[str]) -> bool:
    return not SAFE_COMPANIONS.isdisjoint(words)


def _has_key_of_something(words: list[str]) -> bool:
    """Return whether a word says what the key is for: ``signing_key``, not ``key`` alone."""
    return not KEY_WORDS.isdisjoint(words) and any(
        word not in KEY_WORDS and not word.isdigit() for word in words
    )


def _split(word: str) -> tuple[str, ...]:
    """Return a word, or the two that were run together in it."""
    if word in SENSITIVE_WORDS:
        return (word,)
    for ending in SURE_ENDINGS:
        if word.endswith(ending):
            return word.removesuffix(ending), "password"
    for ending, meaning in OTHER_ENDINGS.items():
        if word.endswith(ending) and _ends_in_front(word.removesuffix(ending)):
            return word.removesuffix(ending), meaning
    return (word,)


def _ends_in_front(word: str) -> bool:
    """Return whether a word is one of FRONTS or ends in a long one (``githubaccess``)."""
    return word in FRONTS or any(word.endswith(front) for front in FRONTS if len(front) > 5)
