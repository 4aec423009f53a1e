"""Typed outcomes: the seed's five types, field by field, and content that any value can be turned
into.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any, NamedTuple, get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import Edictum, EdictumInputError, Finding
from edictum.outcomes import (
    SCHEMA_VERSION,
    TOOL_MESSAGE_MAX_CHARS,
    UNSET,
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    outcome_blocks_tool,
    outcome_from_dict,
    outcome_is_error,
    outcome_is_retryable,
    outcome_kind,
    outcome_to_dict,
    outcome_to_model_content,
)
from edictum.success import http_status, non_empty
from support.values import nest

REQUIRED = dataclasses.MISSING
SEED: dict[type[Any], list[tuple[str, Any]]] = {
    ToolExecutionResult: [
        ("call_id", REQUIRED),
        ("tool_name", REQUIRED),
        ("output", REQUIRED),
        ("elapsed_ms", REQUIRED),
        ("was_coerced", False),
    ],
    ToolTimeout: [
        ("call_id", REQUIRED),
        ("tool_name", REQUIRED),
        ("deadline_s", REQUIRED),
        ("elapsed_ms", REQUIRED),
        ("retryable", True),
    ],
    ToolFailure: [
        ("call_id", REQUIRED),
        ("tool_name", REQUIRED),
        ("error", REQUIRED),
        ("retryable", True),
        ("elapsed_ms", 0),
    ],
    ToolDenied: [
        ("call_id", REQUIRED),
        ("tool_name", REQUIRED),
        ("reason", REQUIRED),
        ("details", ""),
    ],
    ToolArtifactReference: [
        ("call_id", REQUIRED),
        ("tool_name", REQUIRED),
        ("artifact_id", REQUIRED),
        ("summary", REQUIRED),
        ("size_bytes", 0),
    ],
}

RESULT = ToolExecutionResult("c", "t", {"ok": True}, 5)
TIMEOUT = ToolTimeout("c", "t", 12.5, 5)
FAILURE = ToolFailure("c", "t", "boom")
DENIED = ToolDenied("c", "t", "contract", "not today")
ARTIFACT = ToolArtifactReference("c", "t", "a-1", "first lines", 20_000)


@pytest.mark.parametrize("outcome", SEED, ids=lambda cls: cls.__name__)
class TestTheFiveTypes:
    def test_the_positional_fields_are_the_seeds(self, outcome: type[Any]) -> None:
        """Names, order and defaults, exactly."""
        positional = [field for field in dataclasses.fields(outcome) if not field.kw_only]
        assert [(field.name, field.default) for field in positional] == SEED[outcome]

    def test_what_was_added_is_keyword_only_and_has_a_default(self, outcome: type[Any]) -> None:
        """Code written for the seed's fields goes on working."""
        parameters = inspect.signature(outcome).parameters.values()
        added = [p for p in parameters if p.name not in dict(SEED[outcome])]
        assert added
        assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in added)

    def test_it_is_frozen(self, outcome: type[Any]) -> None:
        """An outcome is a value."""
        made = outcome(*["x"] * sum(default is REQUIRED for _, default in SEED[outcome]))
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.call_id = "other"
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
            made.something_new = 1


def test_the_union_is_closed_over_exactly_these_five() -> None:
    """A sixth type would have to be handled everywhere."""
    assert set(get_args(ToolOutcome)) == set(SEED)


def test_the_seeds_limit_of_a_message() -> None:
    """12,000 characters."""
    assert TOOL_MESSAGE_MAX_CHARS == 12_000


def test_outcomes_of_real_calls_are_frozen_too() -> None:
    """The fast way in which the library makes them is not a back door."""
    outcome = Edictum().dispatch_sync("t", {}, lambda: 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.call_id = "other"  # type: ignore[misc]
    assert outcome == dataclasses.replace(outcome)


def test_the_value_of_a_result_made_by_hand_is_its_output() -> None:
    """``value`` is what the tool returned; by hand that is the output."""
    assert RESULT.value == {"ok": True}
    assert ToolExecutionResult("c", "t", {}, 1, value=None).value is None
    assert repr(UNSET) == "<unset>"


# --- What the model reads -------------------------------------------------------------------------


def content(outcome: ToolOutcome) -> Any:
    return json.loads(outcome_to_model_content(outcome))


class TestModelContent:
    def test_a_result_is_its_output(self) -> None:
        """``json.dumps(outcome.output)``, to the letter."""
        outcome = ToolExecutionResult("c", "t", {"rows": [1, 2], "text": "ü"}, 5)
        assert outcome_to_model_content(outcome) == json.dumps(outcome.output)

    @pytest.mark.parametrize("retryable", [True, False])
    def test_a_timeout(self, retryable: bool) -> None:
        """An error that says that time ran out, and whether to retry."""
        said = content(ToolTimeout("c", "t", 12.5, 5, retryable))
        assert said == {
            "status": "error",
            "error": "Tool 't' timed out after 5 ms.",
            "timed_out": True,
            "retryable": retryable,
        }

    def test_a_timeout_whose_body_may_be_running_says_so(self) -> None:
        """The model must not believe that nothing happens any more."""
        assert (
            "may still be running"
            in content(ToolTimeout("c", "t", 12.5, 5, body_may_be_running=True))["error"]
        )

    @pytest.mark.parametrize("retryable", [True, False])
    def test_a_failure(self, retryable: bool) -> None:
        """An error with its text, and whether to retry."""
        assert content(ToolFailure("c", "t", "boom", retryable)) == {
            "status": "error",
            "error": "boom",
            "retryable": retryable,
        }

    def test_denied_as_a_duplicate(self) -> None:
        """The seed's warning."""
        assert content(ToolDenied("c", "t", "duplicate")) == {
            "warning": "duplicate_tool_call",
            "skipped": True,
        }

    def test_denied_because_the_tool_is_blocked(self) -> None:
        """The seed's warning."""
        assert content(ToolDenied("c", "t", "blocked")) == {
            "warning": "non_retryable_tool_failure",
            "skipped": True,
        }

    def test_denied_by_validation(self) -> None:
        """An error, the details, and a hint."""
        said = content(ToolDenied("c", "t", "validation", "x must be a number"))
        assert list(said) == ["error", "details", "hint"]
        assert (said["error"], said["details"]) == (
            "argument_validation_failed",
            "x must be a number",
        )
        assert said["hint"]

    def test_denied_by_the_deadline(self) -> None:
        """The seed's sentence."""
        assert content(ToolDenied("c", "t", "deadline")) == {
            "error": "Turn deadline expired; cannot execute tool.",
            "timed_out": True,
        }

    @pytest.mark.parametrize(
        "reason",
        ["contract", "limit", "pre_hook", "write_denied", "policy_error", "something else"],
    )
    def test_denied_otherwise(self, reason: str) -> None:
        """Blocked, with the details, or the reason when there are none."""
        assert content(ToolDenied("c", "t", reason, "not today")) == {
            "error": "Blocked: not today",
            "blocked": True,
        }
        assert content(ToolDenied("c", "t", reason)) == {
            "error": f"Blocked: {reason}",
            "blocked": True,
        }

    def test_an_artifact(self) -> None:
        """A reference, a summary, and the hint to use read_file."""
        said = content(ARTIFACT)
        assert list(said) == ["artifact_reference", "summary", "hint"]
        assert (said["artifact_reference"], said["summary"]) == ("a-1", "first lines")
        assert "read_file" in said["hint"]
        there = content(dataclasses.replace(ARTIFACT, reader="read_artifact"))
        assert list(there) == list(said)
        assert "read_artifact" in there["hint"], "the tool that is there"
        assert "read_file" not in there["hint"]


@pytest.mark.parametrize(
    ("outcome", "error", "retryable", "blocks"),
    [
        (RESULT, False, False, False),
        (ARTIFACT, False, False, False),
        (DENIED, False, False, False),
        (TIMEOUT, True, True, False),
        (dataclasses.replace(TIMEOUT, retryable=False), True, False, True),
        (FAILURE, True, True, False),
        (dataclasses.replace(FAILURE, retryable=False), True, False, True),
    ],
)
def test_the_predicates(outcome: ToolOutcome, error: bool, retryable: bool, blocks: bool) -> None:
    """Error, retryable, blocks: the whole table."""
    assert (
        outcome_is_error(outcome),
        outcome_is_retryable(outcome),
        outcome_blocks_tool(outcome),
    ) == (error, retryable, blocks)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (RESULT, "executed"),
        (TIMEOUT, "timeout"),
        (FAILURE, "failed"),
        (DENIED, "denied"),
        (ARTIFACT, "artifact"),
    ],
)
def test_each_type_has_a_word(outcome: ToolOutcome, kind: str) -> None:
    """The ``outcome`` field of audit events."""
    assert outcome_kind(outcome) == kind


def test_the_seeds_usage_pattern_runs() -> None:
    """Inject the result, block the tool, record for replay."""
    guard, messages, blocked, recorded = (
        Edictum(tools={"t": {"retry_on_failure": False}}),
        [],
        set(),
        [],
    )
    for call_id, fn in (("c-1", lambda: {"rows": []}), ("c-2", lambda: {"error": "no such table"})):
        outcome = guard.dispatch_sync("t", {}, fn, call_id=call_id)
        messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": outcome_to_model_content(outcome)}
        )
        if outcome_blocks_tool(outcome):
            blocked.add("t")
        recorded.append("failure" if outcome_is_error(outcome) else "success")
    assert [json.loads(m["content"]) for m in messages] == [
        {"rows": []},
        {"status": "error", "error": "no such table", "retryable": False},
    ]
    assert (blocked, recorded) == ({"t"}, ["success", "failure"])


# --- Any value serialises -------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    label: Any = None


class Pair(NamedTuple):
    left: int
    right: list[int]


class Shouting(str):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class HostileRepr:
    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]


class HostileMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("no items")

    def __iter__(self) -> Any:
        raise RuntimeError("no keys")

    def __len__(self) -> int:
        return 1


class HostileDict(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")

    def get(self, key: Any, default: Any = None) -> Any:
        raise RuntimeError("no get")


class HostileList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no iteration")


class NoTruth:
    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {"field": 1}


class BrokenModel:
    def model_dump(self) -> dict[str, Any]:
        raise RuntimeError("no dump")


def cycle() -> Any:
    items: list[Any] = [1]
    items.append({"again": items})
    return items


NASTY: dict[str, Callable[[], Any]] = {
    "date": lambda: date(2024, 2, 29),
    "datetime": lambda: datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    "time": lambda: time(12, 30),
    "timedelta": lambda: timedelta(seconds=90),
    "decimal": lambda: Decimal("1.10"),
    "uuid": lambda: UUID(int=5),
    "path": lambda: PurePosixPath("/srv/data"),
    "set": lambda: {3, 1, 2},
    "mixed set": lambda: {1, "a", None},
    "frozenset": lambda: frozenset({"a"}),
    "text bytes": lambda: b"hello",
    "binary": lambda: b"\xff\xfe",
    "bytearray": lambda: bytearray(b"hello"),
    "memoryview": lambda: memoryview(b"hello"),
    "dataclass": lambda: Point(1, Point(2)),
    "dataclass type": lambda: Point,
    "namedtuple": lambda: Pair(1, [2]),
    "enum": lambda: Colour.RED,
    "int enum": lambda: Level.HIGH,
    "nan": lambda: float("nan"),
    "infinity": lambda: [float("inf"), float("-inf")],
    "cycle": cycle,
    "deep": lambda: nest(5_000, "bottom"),
    "huge int": lambda: 10**6_000,
    "negative huge int": lambda: -(10**6_000),
    "lone surrogate": lambda: "\ud800 text",
    "str subclass": lambda: Shouting("hello"),
    "repr raises": Unprintable,
    "repr is no text": HostileRepr,
    "mapping": lambda: UserDict({"a": 1}),
    "ordered": lambda: OrderedDict(a=OrderedDict(b=1)),
    "mapping that raises": HostileMapping,
    "dict that raises": lambda: HostileDict(a=1),
    "list that raises": lambda: HostileList([1]),
    "odd keys": lambda: {1: "a", None: "b", (1, 2): "c", Unprintable(): "d", 2.5: "e", False: "f"},
    "no truth": NoTruth,
    "pydantic-like": Model,
    "broken pydantic-like": BrokenModel,
    "exception": lambda: ValueError("boom"),
    "function": lambda: len,
    "generator": lambda: (number for number in range(3)),
    "complex": lambda: 1 + 2j,
    "range": lambda: range(3),
    "object": object,
}


@pytest.mark.parametrize("name", NASTY)
class TestAnyValueSerialises:
    def test_as_the_content_of_a_result(self, name: str) -> None:
        """The model gets valid JSON, whatever the tool returned."""
        json.loads(
            outcome_to_model_content(ToolExecutionResult("c", "t", {"result": NASTY[name]()}, 1)),
            parse_constant=_refuse,
        )

    def test_as_a_dict_of_the_outcome(self, name: str) -> None:
        """An outcome can always be stored."""
        json.dumps(
            outcome_to_dict(ToolExecutionResult("c", "t", {}, 1, value=NASTY[name]())),
            allow_nan=False,
        )

    def test_when_the_tool_succeeded(self, name: str) -> None:
        """After the side effect has happened nothing may raise: not the outcome, not the audit."""
        value = NASTY[name]()
        guard = Edictum(success_check=lambda tool, result: True)
        outcome = guard.dispatch_sync("t", {}, lambda: value)
        assert isinstance(outcome, ToolExecutionResult)
        assert outcome.value is value
        json.loads(outcome_to_model_content(outcome), parse_constant=_refuse)
        json.dumps([event.to_dict() for event in guard.local_sink.events], allow_nan=False)

    def test_when_the_call_counts_as_failed(self, name: str) -> None:
        """The text of a failure is made from the value as well."""
        value = NASTY[name]()
        guard = Edictum(success_check=lambda tool, result: False)
        outcome = guard.dispatch_sync("t", {}, lambda: value)
        assert isinstance(outcome, ToolFailure)
        json.loads(outcome_to_model_content(outcome), parse_constant=_refuse)
        json.dumps([event.to_dict() for event in guard.local_sink.events], allow_nan=False)
        assert guard.session().failures == 1

    def test_with_the_default_heuristic(self, name: str) -> None:
        """Success detection survives every value, too."""
        value = NASTY[name]()
        guard = Edictum()
        assert isinstance(
            guard.dispatch_sync("t", {}, lambda: value), (ToolExecutionResult, ToolFailure)
        )
        assert guard.session().executions == 1

    def test_as_an_argument(self, name: str) -> None:
        """What is no plain data is passed on to the tool and shown in the audit as well as it can
        be.
        """
        guard = Edictum()
        if name in ("cycle", "deep"):
            with pytest.raises(EdictumInputError, match="200 levels"):
                guard.dispatch_sync("t", {"x": NASTY[name]()}, lambda x: "done")
            return
        value = NASTY[name]()
        outcome = guard.dispatch_sync("t", {"x": value}, lambda x: "done")
        assert isinstance(outcome, ToolExecutionResult)
        json.dumps([event.to_dict() for event in guard.local_sink.events], allow_nan=False)


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 12, 30, tzinfo=UTC), "2024-02-29T12:30:00+00:00"),
        (time(12, 30), "12:30:00"),
        (timedelta(seconds=90), 90.0),
        ({3, 1, 2}, [1, 2, 3]),
        (b"hello", "hello"),
        (b"\xff\xfe", "//4="),
        (Point(1, Point(2)), {"x": 1, "label": {"x": 2, "label": None}}),
        (Colour.RED, "red"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Decimal("1.10"), "1.10"),
        (UserDict({"a": {1}}), {"a": [1]}),
        (Model(), {"field": 1}),
        ({(1, 2): "c"}, {"(1, 2)": "c"}),
        (Unprintable(), "<Unprintable whose repr raises>"),
        (10**6_000, hex(10**6_000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_nearest_json_is_found(value: Any, shown: Any) -> None:
    """Not just something: what a reader would expect."""
    assert content(ToolExecutionResult("c", "t", {"result": value}, 1)) == {"result": shown}


def test_a_cycle_is_marked_and_a_value_that_occurs_twice_is_not() -> None:
    """Only what contains itself is circular."""
    shared = [1]
    value = cycle()
    assert content(ToolExecutionResult("c", "t", {"result": value}, 1)) == {
        "result": [1, {"again": "[circular reference]"}]
    }
    assert content(ToolExecutionResult("c", "t", {"a": shared, "b": shared, "c": {1}}, 1)) == {
        "a": [1],
        "b": [1],
        "c": [1],
    }


def test_what_is_nested_too_deeply_is_marked_there() -> None:
    """The rest is kept."""
    text = outcome_to_model_content(
        ToolExecutionResult("c", "t", {"near": 1, "far": nest(100_000, "bottom")}, 1)
    )
    assert json.loads(text)["near"] == 1
    assert "[nested too deeply]" in text


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.timedeltas(),
    st.decimals(),
    st.complex_numbers(),
    st.sampled_from([*NASTY]).map(lambda name: NASTY[name]()),
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Point, st.integers(), inner)
    ),
    max_leaves=15,
)


@given(values)
def test_no_value_breaks_content_or_storage(value: Any) -> None:
    """Valid JSON in both forms, always."""
    outcome = ToolExecutionResult("c", "t", {"result": value}, 1)
    json.loads(outcome_to_model_content(outcome), parse_constant=_refuse)
    json.dumps(outcome_to_dict(outcome), allow_nan=False)


# --- To a dict and back ---------------------------------------------------------------------------

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
notes = st.lists(st.text(), max_size=2).map(tuple)
findings = st.lists(
    st.builds(
        Finding,
        st.text(),
        st.text(),
        st.text(),
        st.text(),
        st.dictionaries(st.text(), plain, max_size=2),
    ),
    max_size=2,
)
records = st.dictionaries(st.text(), plain, max_size=3)
outcomes = st.one_of(
    st.builds(
        ToolExecutionResult,
        st.text(),
        st.text(),
        records,
        st.integers(),
        st.booleans(),
        value=plain,
        findings=findings.map(tuple),
        notes=notes,
    ),
    st.builds(
        ToolTimeout,
        st.text(),
        st.text(),
        st.floats(0, 1e9),
        st.integers(),
        st.booleans(),
        body_may_be_running=st.booleans(),
        notes=notes,
    ),
    st.builds(
        ToolFailure,
        st.text(),
        st.text(),
        st.text(),
        st.booleans(),
        st.integers(),
        value=plain,
        success_source=st.text(),
        success_reason=st.text(),
        policy_error=st.booleans(),
        findings=findings.map(tuple),
        notes=notes,
    ),
    st.builds(
        ToolDenied,
        st.text(),
        st.text(),
        st.text(),
        st.text(),
        decision_source=st.none() | st.text(),
        decision_name=st.none() | st.text(),
        policy_error=st.booleans(),
        notes=notes,
    ),
    st.builds(
        ToolArtifactReference,
        st.text(),
        st.text(),
        st.text(),
        st.text(),
        st.integers(),
        elapsed_ms=st.integers(),
        was_coerced=st.booleans(),
        findings=findings.map(tuple),
        notes=notes,
    ),
)


@given(outcomes)
def test_an_outcome_survives_being_stored(outcome: ToolOutcome) -> None:
    """Through JSON and back it is equal."""
    stored = json.dumps(outcome_to_dict(outcome))
    assert outcome_from_dict(json.loads(stored)) == outcome


def test_the_stored_form_names_version_and_kind() -> None:
    """What a reader in another process needs first."""
    assert outcome_to_dict(DENIED) == {
        "schema_version": 1,
        "kind": "denied",
        "call_id": "c",
        "tool_name": "t",
        "reason": "contract",
        "details": "not today",
        "decision_source": None,
        "decision_name": None,
        "policy_error": False,
        "notes": [],
    }


def test_an_exception_is_left_out_of_the_stored_form() -> None:
    """It is for this process only."""
    assert "exception" not in outcome_to_dict(
        ToolFailure("c", "t", "boom", exception=ValueError("boom"))
    )


def test_fields_that_an_earlier_version_did_not_write_have_their_defaults() -> None:
    """The seed's fields are enough."""
    stored = {
        "schema_version": 1,
        "kind": "executed",
        "call_id": "c",
        "tool_name": "t",
        "output": {"ok": True},
        "elapsed_ms": 5,
    }
    assert outcome_from_dict(stored) == RESULT


def test_fields_of_a_later_version_are_ignored() -> None:
    """Reading is lenient where nothing can be misunderstood."""
    assert outcome_from_dict({**outcome_to_dict(DENIED), "added_later": 1}) == DENIED


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_another_schema_version_is_refused(version: Any) -> None:
    """With the version that is there and the one that is read."""
    with pytest.raises(ValueError, match=rf"schema_version is {version!r}.*reads {SCHEMA_VERSION}"):
        outcome_from_dict({**outcome_to_dict(DENIED), "schema_version": version})


@pytest.mark.parametrize("kind", [None, "exploded"])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    """With the kinds there are."""
    with pytest.raises(ValueError, match=rf"kind is {kind!r}; expected one of executed"):
        outcome_from_dict({**outcome_to_dict(DENIED), "kind": kind})


def test_a_match_that_forgets_a_type_is_caught_at_run_time_too() -> None:
    """Something that is no outcome is an error, not silence."""
    with pytest.raises(AssertionError):
        outcome_to_model_content("not an outcome")  # type: ignore[arg-type]


# --- What a model reads of a failure --------------------------------------------------------------


def model_reads(result: Any, **options: Any) -> dict[str, Any]:
    outcome = Edictum(**options).dispatch_sync("t", {}, lambda: result)
    return json.loads(outcome_to_model_content(outcome))


def test_a_model_reads_why_a_result_counts_as_failed_and_the_result_as_data() -> None:
    """Not as JSON in JSON."""
    assert model_reads({"rows": []}, success_check=non_empty) == {
        "status": "error",
        "error": "rows is empty",
        "retryable": True,
        "output": {"rows": []},
    }
    body = {"status": 500, "body": {"detail": ["broken"]}}
    assert model_reads(body, success_check=http_status) == {
        "status": "error",
        "error": "status is 500",
        "retryable": True,
        "output": body,
    }


def test_a_model_reads_the_reason_beside_what_the_tool_says() -> None:
    """Where a rule of the program decided, and the tool says something else."""
    assert model_reads({"status": 503, "message": "Busy."}, success_check=http_status) == {
        "status": "error",
        "error": "Busy.",
        "retryable": True,
        "reason": "status is 503",
    }
    assert model_reads("Error: x") == {"status": "error", "error": "Error: x", "retryable": True}
    assert model_reads({"error": "x"}) == {"status": "error", "error": "x", "retryable": True}


@pytest.mark.parametrize("size", [10, 5_000, 10_950, 11_000, 12_000, 200_000])
def test_the_result_of_a_failure_fits_the_message(size: int) -> None:
    """Whole while there is room, else its beginning as text."""
    result = {"rows": [], "note": "ä" * (size // 6)}
    outcome = Edictum(success_check=non_empty).dispatch_sync("t", {}, lambda: result)
    text = outcome_to_model_content(outcome)
    assert len(text) <= TOOL_MESSAGE_MAX_CHARS
    shown = json.loads(text)["output"]
    assert shown == result if size < 10_900 else shown[:12] == '{"rows": [],'
