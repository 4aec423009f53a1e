"""read_artifact answers whatever it is asked, within a message; and one damaged artifact does not
close the store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edictum.core.values import dumps
from edictum.harness import ArtifactStore
from edictum.harness.artifact_reader import ANSWER_CHARS, make_reader

LONG = "x" * 100_000
FACES = {"\U0001f600" * 60 + str(number): "x" * 500 for number in range(60)}
TEXTS = {
    "list": json.dumps([1, 2, 3] * 5_000),
    "deep": "[" * 100_000,
    "faces": json.dumps(FACES),
    "keys": json.dumps({LONG: {"a": LONG}}),
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    store = ArtifactStore(tmp_path)
    ids = {name: store.store("s", text, "t").artifact_id for name, text in TEXTS.items()}
    reader = make_reader(store, "s")
    return lambda name, **how: reader(ids.get(name, name), **how)


@pytest.mark.parametrize(
    ("name", "how", "says"),
    [
        ("list", {"pointer": "/" + "9" * 5_000}, "is not an index"),
        ("list", {"pointer": "/\u0663"}, "is not an index"),
        ("list", {"pointer": "/" + LONG}, "is not an index"),
        ("list", {"pointer": LONG}, "begins with a slash"),
        ("list", {"pointer": "/0" * 100_000}, "looks into a int"),
        ("faces", {"pointer": "/nobody"}, "there is no 'nobody'"),
        ("deep", {"pointer": "/0"}, "not JSON, or nested too deeply"),
        ("list", {"grep": "\ud800"}, "lone surrogate"),
        ("list", {"grep": "(" * 100_000}, "grep: "),
        (LONG, {}, "No artifact"),
    ],
)
def test_what_cannot_be_answered_is_said_in_few_words(
    read: Callable[..., dict[str, Any]], name: str, how: dict[str, Any], says: str
) -> None:
    answer = read(name, **how)
    assert says in answer["error"]
    assert len(dumps(answer)) <= ANSWER_CHARS


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("faces", {"pointer": ""}),
        ("keys", {"pointer": f"/{LONG}/a"}),
        ("keys", {"pointer": ""}),
        ("list", {"offset": 10**9_000}),
    ],
)
def test_an_answer_fits_a_message_as_it_is_sent(
    read: Callable[..., dict[str, Any]], name: str, how: dict[str, Any]
) -> None:
    assert "error" not in (answer := read(name, **how))
    assert len(dumps(answer)) <= ANSWER_CHARS


def test_a_pointer_that_leads_somewhere_is_followed(read: Callable[..., dict[str, Any]]) -> None:
    assert read("list", pointer="/4")["value"] == 2
    assert read("faces", pointer="")["total_keys"] == len(FACES)


@pytest.mark.parametrize(
    "changed",
    [
        {"created_at": "yesterday"},
        {"ttl_s": None},
        {"ttl_s": True},
        {"ttl_s": float("nan")},
        {"created_at": float("inf")},
        {"ttl_s": 10**400},
        {"summary": ["a"]},
        {"chars": 1.5},
    ],
)
def test_a_damaged_artifact_is_left_out(
    tmp_path: Path, changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store = ArtifactStore(tmp_path)
    damaged, sound = (store.store("s", text, "t").artifact_id for text in ("one", "two"))
    (file,) = tmp_path.glob(f"*/{damaged}")
    header, _, content = file.read_text().partition("\n")
    file.write_text(json.dumps({**json.loads(header), **changed}) + "\n" + content)
    with caplog.at_level(logging.WARNING, "edictum"):
        assert store.retrieve(damaged, "s") is None
    assert damaged in caplog.text
    again = ArtifactStore(tmp_path)
    assert (again.retrieve(damaged, "s"), again.retrieve(sound, "s")) == (None, "two")
