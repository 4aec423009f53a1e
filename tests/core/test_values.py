"""Values against a plain model: frozen, written as JSON, told apart and redacted.

The model is a few recursive functions without limits, which values of few levels do not need.
"""

from __future__ import annotations

import base64
import json
import math
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from edictum import RedactionPolicy
from edictum.core.freeze import FrozenDict, FrozenList, FrozenSet, freeze, thaw
from edictum.core.redaction import MAX_STRING, shorten
from edictum.core.values import (
    CIRCULAR,
    MAX_VALUE_DEPTH,
    TOO_DEEP,
    TooDeepError,
    canonical,
    change_text,
    digest,
    dumps,
    has_same_form,
    identity,
    is_same,
    show,
    to_json,
)
from support.effort import effort
from support.values import nest

POLICY = RedactionPolicy()
SECRET = "ghp_" + "a1B2" * 9


@dataclass
class Box:
    content: Any
    label: str = "box"


class Model(BaseModel):
    content: Any = None
    label: str = "model"

    def __repr__(self) -> str:
        return f"Model({show(self.content)})"


class Pair(NamedTuple):
    left: Any
    right: Any


class Words(dict[str, Any]):
    """A dict of the user's own."""


small = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["\ud800", "e\u0301", "\u00e9", "\u212a", "K", ""]),
    st.binary(max_size=6),
    st.complex_numbers(allow_nan=False, allow_infinity=False),
)
scalars = st.one_of(small, st.sampled_from([0, 1]).map(lambda number: 10**4_301 + number))
keys = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.floats())
hashables = st.recursive(small, lambda inner: st.tuples(inner, inner), max_leaves=4)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items, named = st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner)
    return st.one_of(
        items,
        items.map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        named.map(Words),
        named.map(OrderedDict),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        inner.map(Box),
        inner.map(lambda value: Model(content=value)),
        st.builds(Pair, inner, inner),
    )


values = st.recursive(scalars, containers, max_leaves=12)
plain = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.sets(hashables, max_size=3),
    ),
    max_leaves=12,
)


# --- The model ------------------------------------------------------------------------------------


def model_json(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if value.bit_length() < 14_000 else hex(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): model_json(v) for key, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [model_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        try:
            return [model_json(item) for item in sorted(value)]
        except Exception:
            return [model_json(item) for item in sorted(value, key=repr)]
    if isinstance(value, Box):
        return {field.name: model_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Model):
        return model_json(value.model_dump())
    return str(value)


def texts_in(value: Any) -> list[str]:
    """Every text that somebody could read in a value."""
    if isinstance(value, (str, bytes)):
        return [value if isinstance(value, str) else value.decode("latin-1")]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts_in(part)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [text for part in value for text in texts_in(part)]
    if isinstance(value, (Box, Model)):
        return texts_in(vars(value))
    return [show(value)]


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return bool(one == other)


def is_frozen(value: Any) -> bool:
    kinds = (FrozenDict, FrozenList, FrozenSet, frozenset, tuple, str, bytes, int, float, complex)
    parts = (
        [*value.values()]
        if isinstance(value, dict)
        else [*value]
        if isinstance(value, (list, tuple, set, frozenset))
        else []
    )
    return (value is None or isinstance(value, kinds)) and all(map(is_frozen, parts))


# --- Agreement ------------------------------------------------------------------------------------


@given(values)
@settings(max_examples=effort(100))
def test_json_is_that_of_the_model(value: Any) -> None:
    """As data and as text."""
    expected = model_json(value)
    assert json.dumps(to_json(value)) == json.dumps(expected)
    assert json.loads(dumps(value)) == json.loads(
        json.dumps(value, allow_nan=False) if _is_json(value) else json.dumps(expected)
    )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except Exception:
        return False
    return True


@given(plain)
@settings(max_examples=effort(100))
def test_a_frozen_value_cannot_be_changed_and_thaws_to_what_it_was(value: Any) -> None:
    """Twice frozen, too."""
    frozen = freeze(value)
    assert is_frozen(frozen)
    assert same(thaw(frozen), value)
    assert same(thaw(freeze(frozen)), value)
    assert digest(frozen) == digest(value)
    assert canonical(frozen) == canonical(value)


@given(values)
@settings(max_examples=effort(66))
def test_objects_are_frozen_as_copies(value: Any) -> None:
    """What is done to the copy does not reach the original."""
    holder = {"box": Box([value])}
    thawed = thaw(freeze(holder))
    assert digest(thawed) == digest(holder)
    thawed["box"].content.append("more")
    assert len(holder["box"].content) == 1


@given(values, values)
@settings(max_examples=effort(166))
def test_a_digest_is_equal_for_the_same_values_alone(one: Any, other: Any) -> None:
    """Down to their types."""
    assert digest(one) == digest(one)
    assert (digest(one) == digest(other)) is ("".join(told(one)) == "".join(told(other)))
    if is_same(one, other):
        assert digest(one) == digest(other)
        assert canonical(one) == canonical(other)
    if digest(one) == digest(other):
        assert identity(one) == identity(other)


flat_items = st.text(max_size=8) | st.integers() | st.booleans() | st.none() | st.floats()


@given(st.dictionaries(st.text(max_size=12), flat_items, max_size=4))
def test_a_short_identity_is_the_canonical_text(arguments: dict[str, Any]) -> None:
    """However it is written: flat arguments have a quicker way."""
    text = canonical(arguments)
    assert identity(arguments) == (text if len(text) <= 256 else digest(text))
    assert identity(freeze(arguments)) == identity(arguments)


def told(value: Any) -> list[str]:
    """A text for what a tool can tell apart, by the model."""
    if isinstance(value, dict):
        pairs = sorted("".join(told(key)) + "=" + "".join(told(v)) for key, v in value.items())
        return ["dict", repr(pairs)]
    if isinstance(value, (list, tuple)):
        return ["list", repr([told(item) for item in value])]
    if isinstance(value, (set, frozenset)):
        return ["set", repr(sorted(told(item) for item in value))]
    if isinstance(value, (Box, Model)):
        held = value.model_dump() if isinstance(value, Model) else vars(value)
        return [type(value).__name__, *told(dict(held))]
    if isinstance(value, int) and not isinstance(value, bool):
        return ["int", hex(value)]
    return [type(value).__name__, repr(value)]


@given(values)
@settings(max_examples=effort(66))
def test_a_changed_text_is_changed_everywhere_and_nothing_else_is(value: Any) -> None:
    """Keys included."""
    assert same(change_text(value, lambda text: text), value)
    marked = change_text(value, lambda text: "T")
    assert not [
        text for text in texts_in(_plain_parts(marked)) if text != "T" and "T (" not in text
    ]


def _plain_parts(value: Any) -> Any:
    """What change_text looks into: texts in plain containers."""
    if type(value) is dict:
        return [_plain_parts(part) for pair in value.items() for part in pair]
    if type(value) in (list, tuple, set, frozenset):
        return [_plain_parts(part) for part in value]
    return value if isinstance(value, str) else []


def plant(value: Any) -> Any:
    """The same value with a secret wherever there was a text."""
    if isinstance(value, str):
        return f"see {SECRET}"
    if isinstance(value, bytes):
        return f"see {SECRET}".encode()
    if type(value) is Pair:
        return Pair(*map(plant, value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(map(plant, value))
    if isinstance(value, dict):
        return type(value)({plant(key): plant(item) for key, item in value.items()})
    if isinstance(value, (Box, Model)):
        return type(value)(content=plant(value.content), label=plant(value.label))
    return value


@given(values.map(plant))
@settings(max_examples=effort(100))
def test_no_redaction_shows_a_secret(value: Any) -> None:
    """Whatever the value is made of."""
    for redact in (
        POLICY.redact_value,
        POLICY.redact_secrets,
        POLICY.redact_args,
        POLICY.redact_result,
        lambda value: POLICY.redact_value(freeze(value)),
        lambda value: POLICY.redact_args(freeze(value)),
    ):
        shown = redact(value)
        assert not [text for text in texts_in(shown) if "a1B2a1B2" in text]
        assert "a1B2a1B2" not in dumps(shown)
        assert "a1B2a1B2" not in show(shown)


@given(values)
@settings(max_examples=effort(66))
def test_without_secrets_nothing_is_redacted(value: Any) -> None:
    """Values keep their types."""
    policy = RedactionPolicy(detect_secret_values=False)
    assume(not any(map(policy.is_sensitive, texts_in(model_json(value)))))  # such as a key "Auth"
    assert same(policy.redact_secrets(value), value)
    shown = change_text(model_json(value), lambda text: shorten(text, MAX_STRING))
    assert policy.redact_args({"x": value}) == {"x": shown}


def test_objects_keep_their_types_when_a_secret_is_taken_out_of_them() -> None:
    """Where their type can be rebuilt."""
    for value in (
        Box([SECRET], label="a"),
        Model(content={"x": SECRET}),
        Words(x=SECRET),
        defaultdict(list, x=[SECRET]),
        UserDict({"x": SECRET}),
    ):
        shown = POLICY.redact_secrets(value)
        assert type(shown) is type(value)
        assert "[REDACTED]" in dumps(shown)
    clean = Box(["fine"])
    assert POLICY.redact_secrets(clean) is clean
    assert POLICY.redact_secrets(Pair(SECRET, 1)) == Pair("[REDACTED]", 1)
    assert POLICY.redact_secrets(SECRET.encode()) == b"[REDACTED]"


# --- Limits ---------------------------------------------------------------------------------------


WRAPS = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "dict": lambda value: {"x": value},
    "dict subclass": lambda value: Words(x=value),
    "dataclass": Box,
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("levels", [150, MAX_VALUE_DEPTH, MAX_VALUE_DEPTH + 1, 290])
def test_what_is_too_deep_is_replaced_where_it_is_shown(levels: int, wrap: Any) -> None:
    """By the limit that holds everywhere."""
    value = nest(levels, SECRET, wrap)
    for shown in (
        dumps(POLICY.redact_value(value)),
        dumps(POLICY.redact_secrets(value)),
        dumps(POLICY.redact_args(value)),
        POLICY.redact_result(value, 10_000),
    ):
        assert "a1B2" not in shown
    levels_each = 2 if wrap is Box else 1
    assert (TOO_DEEP in dumps(to_json(value))) is (levels * levels_each > MAX_VALUE_DEPTH)
    assert (TOO_DEEP in dumps(value)) is (levels * levels_each > MAX_VALUE_DEPTH)


@pytest.mark.parametrize("wrap", [WRAPS["list"], WRAPS["tuple"], WRAPS["dict"]])
def test_what_is_too_deep_is_refused_where_it_is_frozen_or_digested(wrap: Any) -> None:
    """It must not be taken for another value."""
    assert digest(nest(MAX_VALUE_DEPTH, 1, wrap)) != digest(nest(MAX_VALUE_DEPTH, 2, wrap))
    assert same(thaw(freeze(nest(MAX_VALUE_DEPTH, 1, wrap))), nest(MAX_VALUE_DEPTH, 1, wrap))
    too_deep = nest(MAX_VALUE_DEPTH + 1, 1, wrap)
    for refuse in (freeze, digest):
        with pytest.raises(TooDeepError, match=f"more than {MAX_VALUE_DEPTH} levels"):
            refuse(too_deep)
    assert canonical(too_deep) == canonical(too_deep)
    assert canonical(too_deep) != canonical(nest(MAX_VALUE_DEPTH + 1, 1, wrap))
    assert not is_same(too_deep, too_deep)


def circles() -> dict[str, Any]:
    looped: list[Any] = [1]
    looped.append(looped)
    named: dict[str, Any] = {}
    named["self"] = {"x": named}
    box = Box(None)
    box.content = [box]
    return {"list": looped, "dict": named, "dataclass": box}


@pytest.mark.parametrize("kind", circles())
def test_a_value_that_contains_itself_ends_somewhere(kind: str) -> None:
    """In every form."""
    value = circles()[kind]
    assert CIRCULAR in dumps(value)
    assert CIRCULAR in dumps(POLICY.redact_args(value))
    assert TOO_DEEP in dumps(POLICY.redact_value(value)) or kind == "dataclass"
    assert len(POLICY.redact_result(value)) <= 500
    assert canonical(value) == canonical(value)
    with pytest.raises(TooDeepError):
        digest(value)


def test_a_form_is_its_keys_and_types() -> None:
    """Not its values."""
    assert has_same_form({"a": 1, "b": {"c": None}}, {"a": 2, "b": {"c": "x"}})
    assert not has_same_form({"a": 1}, {"a": "1"})
    assert not has_same_form({"a": 1}, {"b": 1})
    assert has_same_form(nest(5_000, 1, WRAPS["dict"]), nest(5_000, 1, WRAPS["dict"]))
