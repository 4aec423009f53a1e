"""Redaction of any text: no crash, JSON stays JSON, nothing of a secret is added, and what was
hidden stays hidden.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edictum import RedactionPolicy
from edictum.core.redaction import Redactor, hide_secrets
from edictum.core.replacements import keyed_hash, mask, redact, replace_detections
from edictum.core.secret_forms import read_forms
from edictum.core.secret_scan import secret_detector
from edictum.redaction import Detection, detector, scan
from support.secret_samples import make_sample

FORMS = [form.text for form in read_forms()]
secrets = st.builds(
    lambda form, seed: make_sample(form, random.Random(seed)),
    st.sampled_from(FORMS),
    st.integers(0, 10_000),
)
pieces = st.sampled_from(
    [
        *(
            "password",
            "token",
            "api_key",
            "Authorization",
            "Cookie",
            ": ",
            "=",
            '"',
            "'",
            "\\",
            "\n",
        ),
        *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "eyJ", "://", "@", "Bearer "),
        *(
            "datadog",
            "%41",
            "%3D",
            "--",
            "-p ",
            "mysql ",
            "****",
            "[REDACTED]",
            "é",
            "\ud800",
            "\0",
        ),
    ]
)
texts = st.lists(st.one_of(pieces, secrets, st.text(max_size=8)), max_size=10).map("".join)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
ALL = detector("secrets", "pii")


def keep(text: str, found: Sequence[Detection]) -> list[str]:
    """The parts of a text in which nothing was found."""
    starts = [0, *(each.end for each in found)]
    ends = [*(each.start for each in found), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


@given(texts)
def test_only_what_was_found_is_replaced(text: str) -> None:
    """All else stands as it was; quotes may be added around what was a number in JSON."""
    found = scan(text)
    parts = map(re.escape, keep(text, found))
    wanted = r'(?:\\{0,4}")?\[REDACTED\](?:\\{0,4}")?'.join(parts)
    assert re.fullmatch(wanted, hide_secrets(text), re.DOTALL)


@given(texts)
def test_everything_at_once(text: str) -> None:
    """Secrets and personal data; nothing overlaps."""
    found = ALL.scan(text)
    assert all(one.end <= other.start for one, other in pairwise(found))
    for replace in (redact, keyed_hash(b"0123456789abcdef")):
        shown = replace_detections(text, found, replace)
        kept = "".join(keep(text, found))
        for each in found:
            secret = text[each.start : each.end]
            assert len(secret) < 16 or secret not in shown or secret in kept


@given(values)
def test_json_stays_json(value: Any) -> None:
    """JSON that is text, and JSON in JSON."""
    for text in (json.dumps(value), json.dumps({"in": json.dumps(value)})):
        shown = json.loads(hide_secrets(text))
        assert type(shown) is type(json.loads(text))


@given(values)
def test_values_keep_their_shape(value: Any) -> None:
    """And are the same if nothing is found in them."""
    redactor = Redactor((secret_detector(),), mask, RedactionPolicy().is_sensitive)
    shown = redactor.redact(value)
    assert type(shown) is type(value) or isinstance(value, str)
    if isinstance(value, (list, dict)):
        assert len(shown) == len(value)
    assert redactor.finds(value) or shown == value


@given(secrets, st.sampled_from(["", "see ", '{"a": "', "x=", "\\n"]))
def test_a_mask_shows_at_most_four_characters(secret: str, before: str) -> None:
    """Of a secret that is at least three times as long."""
    text = f"{before}{secret}"
    for each in scan(text):
        whole = text[each.start : each.end]
        shown = mask(each.kind, whole)
        assert shown.startswith("****")
        assert len(shown) <= 8
        assert len(shown) == 4 or len(whole) >= 12


@given(st.text(max_size=40), st.text(max_size=40))
def test_hashes_are_equal_for_equal_secrets_only(one: str, other: str) -> None:
    """And different under another key."""
    first, second = keyed_hash(b"0123456789abcdef"), keyed_hash(b"fedcba9876543210")
    assert (first("k", one) == first("k", other)) is (one == other)
    assert first("k", one) != second("k", one)
    assert scan(first("k", one)) == []
