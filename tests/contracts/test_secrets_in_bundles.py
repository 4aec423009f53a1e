"""What a bundle can say about secrets and personal data, in arguments and in results."""

from __future__ import annotations

from typing import Any

import pytest

from edictum import Edictum, EdictumConfigError, InMemoryApprovalBackend, RedactionPolicy
from edictum.outcomes import ToolDenied, ToolExecutionResult

HEAD = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: p}\n"
TOKEN = "ghp_" + "a1B2" * 9
RESULT = {
    "note": f"use {TOKEN} ok",
    "mail": ["ada@example.com"],
    "password": "hunter2",
    "card": (1, "4111111111111111"),
}


def guard_with(contract: str, more: str = "", **options: Any) -> Edictum:
    return Edictum.from_yaml_string(
        f"{HEAD}{more}contracts:\n  - {{id: a, {contract}}}\n", **options
    )


def shown(contract: str, result: Any = RESULT, more: str = "", **options: Any) -> Any:
    outcome = guard_with(f"type: post, tool: t, {contract}", more, **options).dispatch_sync(
        "t", {}, lambda: result
    )
    assert isinstance(outcome, ToolExecutionResult)
    return outcome.value


HIDDEN = "[REDACTED]"
THEN = "then: {effect: redact, message: m}"
CASES: dict[str, dict[str, Any]] = {
    "redact: secrets": {"note": f"use {HIDDEN} ok", "password": HIDDEN},
    "redact: [pii.email, pii.card]": {"mail": [HIDDEN], "card": (1, HIDDEN)},
    "redact: [secrets, pii]": {
        "note": f"use {HIDDEN} ok",
        "password": HIDDEN,
        "mail": [HIDDEN],
        "card": (1, HIDDEN),
    },
    "redact: secrets, then: {effect: mask, message: m}": {
        "note": "use ****a1B2 ok",
        "password": "****",
    },
    "redact: pii.card, then: {effect: mask, message: m}": {"card": (1, "****1111")},
    "then: {effect: redact, message: m}": {"note": f"use {HIDDEN} ok", "password": HIDDEN},
    f"when: {{output.text: {{contains_secret: true}}}}, {THEN}": {
        "note": f"use {HIDDEN} ok",
        "password": HIDDEN,
    },
    f"when: {{result.note: {{contains_secret: true}}}}, {THEN}": {"note": f"use {HIDDEN} ok"},
    f"when: {{result: {{contains: {{pii: [email]}}}}}}, {THEN}": {"mail": [HIDDEN]},
    f"when: {{result.mail: {{contains: {{pii: [email, card]}}}}}}, {THEN}": {"mail": [HIDDEN]},
    "when: {result.note: {matches: 'ghp_[a-zA-Z0-9]+'}}, then: {effect: mask, message: m}": {
        "note": "use ****a1B2 ok"
    },
    "when: {result.note: {exists: true}}, redact: pii.email": {"mail": [HIDDEN]},
    "when: {result.none: {exists: true}}, redact: pii.email": {},
    "redact: secrets, then: {effect: warn, message: m}": {},
    "redact: pii.us_ssn": {},
}


@pytest.mark.parametrize("contract", CASES)
def test_what_is_taken_out_of_a_result(contract: str) -> None:
    assert shown(contract) == {**RESULT, **CASES[contract]}


@pytest.mark.parametrize("effect", ["suppress", "deny"])
def test_a_result_can_be_suppressed(effect: str) -> None:
    then = f"then: {{effect: {effect}, message: m}}"
    assert shown(f"redact: secrets, {then}") == {"suppressed": "[OUTPUT SUPPRESSED] m"}
    assert shown(f"redact: secrets, {then}", {"n": 1}) == {"n": 1}
    assert shown(then, {"n": 1}) == {"suppressed": "[OUTPUT SUPPRESSED] m"}


def test_hashes_can_be_joined() -> None:
    """Equal secrets have equal hashes, under the same key in every process; others under others."""
    then = "redact: pii.email, then: {effect: hash, message: m}"
    result = ["ada@example.com", "x ada@example.com", "bob@example.com"]
    key = RedactionPolicy(hash_key="0123456789abcdef0123456789abcdef")
    ada, again, bob = shown(then, result, redaction=key)
    assert ada == again.removeprefix("x ") != bob
    assert ada.startswith("[pii.email:")
    assert shown(then, result, redaction=key) == [ada, again, bob]
    assert shown(then, result)[0] != ada


def test_the_finding_says_what_it_was_and_not_what_it_held() -> None:
    guard = guard_with("type: post, tool: t, redact: [secrets, pii.email]")
    outcome = guard.dispatch_sync("t", {}, lambda: RESULT)
    assert isinstance(outcome, ToolExecutionResult)
    assert [each.message for each in outcome.findings] == [
        "The result held secrets and email, which were taken out."
    ]
    assert TOKEN not in repr(outcome) + repr([e.to_dict() for e in guard.local_sink.events])


ARGS: dict[str, tuple[dict[str, Any], bool]] = {
    "args: {contains_secret: true}": ({"a": {"b": [TOKEN]}}, True),
    "args.a: {contains_secret: true}": ({"a": f"x {TOKEN}"}, True),
    "args: {contains_secret: false}": ({"a": "x"}, True),
    "args.b: {contains_secret: false}": ({"a": "x"}, True),
    "args.b: {contains_secret: true}": ({"a": TOKEN}, False),
    "args: {contains: {pii: [email]}}": ({"a": ["x", "ada@example.com"]}, True),
    "args.a: {contains: {pii: [card]}}": ({"a": "ada@example.com"}, False),
    "args.a: {contains: ada}": ({"a": "ada@example.com"}, True),
    "args.n: {contains_secret: true}": ({"n": 5}, False),
}


@pytest.mark.parametrize("when", ARGS)
def test_a_condition_on_arguments(when: str) -> None:
    args, held = ARGS[when]
    for effect in ("deny", "approve"):
        then = f"then: {{effect: {effect}, message: m}}"
        backend = InMemoryApprovalBackend(False)
        guard = guard_with(
            f"type: pre, tool: t, when: {{{when}}}, {then}", approval_backend=backend
        )
        assert (guard.evaluate("t", args).verdict == "allow") is not held
        outcome = guard.dispatch_sync("t", args, lambda **_: "ran")
        assert isinstance(outcome, ToolDenied) is held


# --- Kinds of one's own ---------------------------------------------------------------------------

OWN = (
    "secrets:\n  - {kind: acme.key, pattern: 'acme_[a-z0-9]{12}', samples: [acme_0123456789ab],"
    " not_samples: [acme_short]}\n"
)


def test_a_bundle_can_describe_kinds_of_its_own() -> None:
    """For contracts and for the audit."""
    guard = guard_with("type: post, tool: t, redact: secrets", OWN)
    outcome = guard.dispatch_sync("t", {"x": "acme_0123456789ab"}, lambda x: f"got {x}")
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == "got [REDACTED]"
    assert "acme_0123456789ab" not in repr([e.to_dict() for e in guard.local_sink.events])
    guard = guard_with(
        "type: pre, tool: t, when: {args.x: {contains_secret: true}}, then: {effect: deny, message: m}",
        OWN,
    )
    assert guard.evaluate("t", {"x": "acme_0123456789ab"}).verdict == "deny"
    assert guard.evaluate("t", {"x": "acme_short"}).verdict == "allow"


async def test_a_reload_replaces_them() -> None:
    guard = guard_with("type: post, tool: t, redact: secrets", OWN)
    await guard.reload(f"{HEAD}contracts:\n  - {{id: a, type: post, tool: t, redact: secrets}}\n")
    assert guard.redaction.redact_text("acme_0123456789ab") == "acme_0123456789ab"


async def test_layers_add_theirs() -> None:
    contracts = "contracts:\n  - {id: a, type: post, tool: t, redact: secrets}\n"
    guard = Edictum()
    await guard.reload(HEAD + OWN + contracts, HEAD + OWN.replace("acme", "beta") + contracts)
    assert guard.redaction.redact_text("acme_0123456789ab") == "[REDACTED]"
    assert guard.redaction.redact_text("beta_0123456789ab") == "[REDACTED]"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            OWN.replace("[acme_0123456789ab]", "[acme_0]"),
            "does not find all of the sample 'acme_0'",
        ),
        (OWN.replace("[acme_short]", "[xacme_0123456789abx]"), "finds something in"),
        (OWN.replace("{12}", "{12}("), "missing )"),
        (OWN.replace(", samples: [acme_0123456789ab]", ""), "the key 'samples' is missing"),
        (OWN + OWN.removeprefix("secrets:\n"), "the id 'acme.key' is taken"),
    ],
)
def test_a_wrong_row_is_refused_when_the_bundle_is_loaded(row: str, said: str) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        guard_with("type: post, tool: t, redact: secrets", row)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        ("type: post, tool: t, redact: passwords", "'passwords' is not one of the known words"),
        ("type: post, tool: t, redact: []", "this list is empty"),
        ("type: post, tool: t", "at least one of then, redact is needed"),
        ("type: pre, tool: t, redact: secrets, when: {args.a: {exists: true}}, then: {effect: deny, message: m}", "unknown key 'redact'"),
        ("type: post, tool: t, when: {result: {contains: {pii: [mail]}}}, then: {effect: redact, message: m}", "Did you mean 'email'?"),
        ("type: post, tool: t, when: {result: {contains: {pii: []}}}, then: {effect: redact, message: m}", "this list is empty"),
        ("type: post, tool: t, when: {result: {contains_secret: yes please}}, then: {effect: redact, message: m}", "true or false"),
    ],
)  # fmt: skip # contracts on one line each
def test_mistakes_have_their_message(contract: str, said: str) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        guard_with(contract)
    assert said in str(caught.value)
