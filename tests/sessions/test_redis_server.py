"""A Redis server that evicts keys, asks for a password, or has lost its scripts."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from store_helpers import unique

from edictum import (
    EdictumConfigError,
)
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.testing.ledger import Book


def test_a_server_that_evicts_is_refused(own_valkey_url: str, opened: Any) -> None:
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(EdictumConfigError, match="noeviction"):
                open_ledger(own_valkey_url)
            PORTAL.run(opened(f"{own_valkey_url}?allow_eviction=1").snapshot("s"))
        finally:
            admin.config_set("maxmemory-policy", "noeviction")


def test_a_password_in_the_url_is_used(opened: Any, valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url) as admin:
        admin.acl_setuser(
            "tester", enabled=True, passwords=["+sesame"], categories=["+@all"], keys=["*"]
        )
        try:
            with_password = valkey_url.replace("redis://", "redis://tester:sesame@")
            assert Book(opened(with_password)).run("a", sid=unique("password"))
            wrong = opened(valkey_url.replace("redis://", "redis://tester:wrong@") + "?wait=1")
            with pytest.raises(BackendError):
                PORTAL.run(wrong.snapshot("s"))
        finally:
            admin.acl_deluser("tester")


def test_flushed_scripts_are_loaded_again(valkey_url: str, opened: Any) -> None:
    book = Book(opened(valkey_url))
    session = unique("flushed")
    assert book.run("a", sid=session)
    with redis.Redis.from_url(valkey_url) as admin:
        admin.script_flush()
    assert book.run("b", sid=session)
    assert book.totals(session)[1] == 2


def test_a_session_with_counters_cannot_become_a_child(valkey_url: str, opened: Any) -> None:
    """Its keys are in another slot of a cluster than its parent's, and its counters would be left
    behind.
    """
    book, session = Book(opened(valkey_url)), unique("grown up")
    book.run("a", sid=session)
    with pytest.raises(BackendError, match="without a parent"):
        book.reserve("b", sid=session, parents=("root",))
    assert book.totals(session) == (1, 1, 1, 0, 0, 0)
