"""Properties: any tree of operators gives the same answer compiled and by a plain interpreter; any
bytes load or are refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import plain_interpreter as reference
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edictum import Edictum, EdictumConfigError, Principal
from edictum.outcomes import ToolDenied
from support.effort import effort

QUIET = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Generated conditions are full of things worth warning about."""
    logger = logging.getLogger("edictum")
    before, logger.level = logger.level, logging.CRITICAL
    yield
    logger.setLevel(before)


WORDS = st.sampled_from(
    [
        *["", "a", "b", "ab", "abc", "A", "aab", "10.0.0.1", "::1", "x" * 30, "a\nb", "ß", "SS"],
        *["1", "/", "..", "/ab/a", "12:30", "23:59:59"],
    ]
)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 1.5, 10**20, True, False])
FIELDS = st.recursive(
    WORDS | NUMBERS | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "0"]), inner, max_size=3)
    ),
    max_leaves=6,
)
SOME_TEXT = WORDS.filter(bool)
PATTERNS = st.sampled_from(
    [
        "a",
        "a+b",
        "^a",
        "b$",
        "[ab]{2}",
        r"\d",
        r"\w\s\w",
        "(a|b)c",
        "x.*x",
        "(?i)AB",
        "^$",
        r"a\nb",
        r"[^\W\d]",
    ]
)
PLAIN = (WORDS | NUMBERS).filter(lambda value: value is not None)
SIZES = st.integers(0, 3)
REFERENCES = st.sampled_from(["args.a", "args.b", "args.a.b", "principal.role", "metadata.a"]).map(
    lambda selector: {"field": selector}
)
TEMPLATES = st.sampled_from(
    ["{args.b}", "x{args.a}", "/{principal.role}/a", "{metadata.a}{args.b}", "{}", '{"a": {args}}']
)
TESTS = st.one_of(
    st.tuples(st.sampled_from(["exists", "empty"]), st.booleans()),
    st.tuples(
        st.sampled_from(["equals", "not_equals"]), FIELDS.filter(lambda value: value is not None)
    ),
    st.tuples(st.sampled_from(["in", "not_in"]), st.lists(PLAIN, min_size=1, max_size=10)),
    st.tuples(
        st.sampled_from(["contains", "starts_with", "ends_with", "equals_ignore_case"]), SOME_TEXT
    ),
    st.tuples(st.just("contains_any"), st.lists(SOME_TEXT, min_size=1, max_size=10)),
    st.tuples(st.just("matches"), PATTERNS),
    st.tuples(
        st.sampled_from(["matches_any", "matches_none"]), st.lists(PATTERNS, min_size=1, max_size=4)
    ),
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), st.sampled_from([-1, 0, 1, 2.5])),
    st.tuples(st.sampled_from(["length_gt", "length_gte", "length_lt", "length_lte"]), SIZES),
    st.tuples(st.sampled_from(["equals", "not_equals", "starts_with", "contains"]), TEMPLATES),
    st.tuples(
        st.sampled_from(["in", "not_in", "contains_any"]),
        st.lists(REFERENCES | TEMPLATES | SOME_TEXT, min_size=1, max_size=3),
    ),
    st.tuples(st.sampled_from(sorted(reference.COMPARABLE)), REFERENCES),
    st.tuples(st.just("between"), st.sampled_from([["09:00", "17:00"], ["22:00", "06:30"]])),
    st.tuples(
        st.just("in_cidr"),
        st.lists(st.sampled_from(["10.0.0.0/8", "::/64"]), min_size=1, max_size=2),
    ),
)
SELECTORS = st.sampled_from(
    [
        "args.a",
        "args.b",
        "args.a.b",
        "args.a.0",
        "args.a[*]",
        "args.a[*].b",
        "principal.role",
        "principal.claims.a",
        "metadata.a",
        "metadata.a[*]",
        "args.*",
        "args.a.*",
    ]
)
LEAVES = st.builds(lambda selector, test: {selector: {test[0]: test[1]}}, SELECTORS, TESTS)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"all": items}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda items: {"any": items}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda item: {"not": item}, inner),
    ),
    max_leaves=8,
)
ARGS = st.dictionaries(st.sampled_from(["a", "b"]), FIELDS, max_size=2)
PRINCIPALS = st.none() | st.builds(
    Principal, role=st.none() | WORDS, claims=st.dictionaries(st.just("a"), FIELDS, max_size=1)
)


def bundle(expressions: list[Any]) -> str:
    contracts = [
        {
            "id": f"c{number}",
            "type": "pre",
            "tool": "t",
            "when": when,
            "then": {"effect": "deny", "message": f"m{number}"},
        }
        for number, when in enumerate(expressions)
    ]
    return json.dumps(
        {
            "apiVersion": "edictum/v1",
            "kind": "ContractBundle",
            "metadata": {"name": "p"},
            "contracts": contracts,
        }
    )


def expected(expression: Any, args: Any, principal: Principal | None, metadata: Any) -> str:
    who = None if principal is None else {"role": principal.role, "claims": dict(principal.claims)}
    try:
        return (
            "holds"
            if reference.holds(expression, {"args": args, "principal": who, "metadata": metadata})
            else "passes"
        )
    except reference.Broken:
        return "error"


def plain(value: Any) -> Any:
    """Frozen lists and dicts as ordinary ones, for the interpreter."""
    return json.loads(json.dumps(value))


@pytest.mark.soak
@settings(QUIET, max_examples=effort(23, soak=1_000))
@given(st.lists(EXPRESSIONS, min_size=1, max_size=4), ARGS, PRINCIPALS, ARGS)
def test_compiled_and_interpreted_conditions_agree(
    expressions: list[Any], args: Any, principal: Principal | None, metadata: Any
) -> None:
    guard = Edictum.from_yaml_string(bundle(expressions))
    outcome = guard.dispatch_sync(
        "t", args, lambda **_: None, principal=principal, metadata=metadata
    )
    who = principal and Principal(role=principal.role, claims=plain(principal.claims))
    wanted = [expected(expression, plain(args), who, plain(metadata)) for expression in expressions]
    event = guard.local_sink.events[0]
    answers = [
        (
            "passes"
            if record["passed"]
            else "error"
            if record.get("metadata", {}).get("policy_error")
            else "holds"
        )
        for record in event.contracts_evaluated
    ]
    assert answers == wanted
    assert isinstance(outcome, ToolDenied) is any(answer != "passes" for answer in wanted)


@settings(QUIET, max_examples=effort(20))
@given(EXPRESSIONS, ARGS, PRINCIPALS)
def test_an_explanation_says_what_the_compiled_condition_says(
    expression: Any, args: Any, principal: Principal | None
) -> None:
    guard = Edictum.from_yaml_string(bundle([expression]))
    (part,) = guard.explain("t", args, principal=principal).contracts
    assert part.condition is not None
    said = {True: "holds", False: "passes", None: "error"}[part.condition.held]
    alone = guard.policy.contracts[0].check
    assert said == (
        "passes" if part.result.passed else "error" if part.result.policy_error else "holds"
    )
    assert callable(alone)


@pytest.mark.soak
@settings(QUIET, max_examples=effort(23, soak=1_000))
@given(st.binary(max_size=400))
def test_any_bytes_load_or_are_refused(content: bytes) -> None:
    try:
        Edictum.from_yaml_string(content)
    except EdictumConfigError:
        return


YAML_PIECES = st.sampled_from(
    [
        "apiVersion: edictum/v1",
        "kind: ContractBundle",
        "kind: Ruleset",
        "metadata: {name: x}",
        "contracts:",
        "rules:",
        "  - id: a",
        "    type: pre",
        "    type: session",
        "    tool: t",
        "    when: {args.x: {matches: '(a+)+$'}}",
        "    then: {effect: deny, message: '{x'}",
        "- ",
        "&a",
        "*a",
        "<<: *a",
        "? ",
        ": ",
        "[",
        "]",
        "{",
        "}",
        "!!binary x",
        "|",
        ">-",
        "\t",
        "%YAML 1.1",
        "---",
        "...",
        "'",
        '"',
        "# c",
        "limits: {per: 1s}",
        "\u2028",
        "\x85",
        "success:",
        "  - tool: '*'",
        "    failure_when: {result: {empty: true}}",
        "defaults: {unlisted_tools: deny}",
        "tools: {t: {verify: u}}",
        "limits: {max_failures: " + "9" * 390 + "}",
        "    when: {args.n: {gt: " + "9" * 390 + "}}",
        "1e999",
        "0x" + "f" * 60,
    ]
)


@pytest.mark.soak
@settings(QUIET, max_examples=effort(23, soak=1_000))
@given(st.lists(YAML_PIECES, max_size=14))
def test_any_yaml_loads_or_is_refused(pieces: list[str]) -> None:
    try:
        Edictum.from_yaml_string("\n".join(pieces))
    except EdictumConfigError:
        return


@pytest.mark.soak
@settings(QUIET, max_examples=effort(23, soak=1_000))
@given(st.text(max_size=30))
def test_any_pattern_is_compiled_or_refused(pattern: str) -> None:
    text = json.dumps({"args.x": {"matches": pattern}})
    content = bundle([0]).replace('"when": 0', f'"when": {text}')
    try:
        guard = Edictum.from_yaml_string(content)
    except EdictumConfigError:
        return
    guard.dispatch_sync("t", {"x": "some text"}, lambda x: None)
