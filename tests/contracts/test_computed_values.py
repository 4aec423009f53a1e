"""Values that are worked out for each call: fields, placeholders, directories of a sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import Edictum, EdictumConfigError, Principal
from edictum.outcomes import ToolDenied
from support.bundles import bundle_of, contract


def sandbox(**bounds: Any) -> str:
    own = {"id": "in", "type": "sandbox", "tool": "*", "message": "{violation}"}
    return bundle_of({**own, **bounds})


def read(path: str) -> str:
    return path


def denial(guard: Edictum, path: str, **who: Any) -> str | None:
    principal = Principal(**who) if who else None
    outcome = guard.dispatch_sync("read", {"path": path}, read, principal=principal)
    return outcome.details if isinstance(outcome, ToolDenied) else None


def test_a_sandbox_has_the_directories_of_each_caller() -> None:
    guard = Edictum.from_yaml_string(
        sandbox(
            within=["/srv/{principal.org_id}", "/pub"], not_within=["/srv/{principal.org_id}/k"]
        )
    )
    for org in ("acme", "other", "acme"):
        assert denial(guard, f"/srv/{org}/a", org_id=org) is None
        assert denial(guard, "/pub/a", org_id=org) is None
        assert denial(guard, f"/srv/{org}/k/a", org_id=org) is not None
        assert denial(guard, "/srv/third/a", org_id=org) is not None
        assert denial(guard, f"/srv/{org}2/a", org_id=org) is not None


@pytest.mark.parametrize(
    ("org", "why"),
    [
        (None, "'principal.org_id' is missing"),
        ("", "'principal.org_id' is empty"),
        ("..", "'principal.org_id' is not one name of a path: '..'"),
        (".", "'principal.org_id' is not one name of a path: '.'"),
        ("../..", "'principal.org_id' is not one name of a path: '../..'"),
        ("a/b", "'principal.org_id' is not one name of a path: 'a/b'"),
        ("a\\b", "'principal.org_id' is not one name of a path: 'a\\\\b'"),
        ("a\0b", "'principal.org_id' is not one name of a path: 'a\\x00b'"),
    ],
)
def test_a_part_that_cannot_be_filled_in_denies(org: str | None, why: str) -> None:
    guard = Edictum.from_yaml_string(sandbox(within=["/srv/{principal.org_id}"]))
    outcome = guard.dispatch_sync("read", {"path": "/srv/a"}, read, principal=Principal(org_id=org))
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert outcome.details == why


@given(org=st.text(min_size=1, max_size=12))
def test_no_value_leads_out_of_the_directory(org: str) -> None:
    guard = Edictum.from_yaml_string(sandbox(within=["/srv/{principal.org_id}"]))
    assert denial(guard, "/etc/passwd", org_id=org) is not None
    assert denial(guard, "/srv", org_id=org) is not None


def test_a_selector_may_be_asynchronous_in_a_sandbox() -> None:
    async def tenant(call: Any) -> dict[str, str]:
        return {"dir": "acme"}

    guard = Edictum.from_yaml_string(
        sandbox(within=["/srv/{tenant.dir}"]), custom_selectors={"tenant": tenant}
    )
    assert denial(guard, "/srv/acme/x") is None
    assert denial(guard, "/srv/x") is not None


def test_explain_shows_the_field_that_is_compared_with() -> None:
    when = {"args.owner": {"not_equals": {"field": "principal.user_id"}}}
    guard = Edictum.from_yaml_string(bundle_of(contract("own", when=when)))
    shown = str(guard.explain("t", {"owner": "bob"}, principal=Principal(user_id="ann")))
    assert (
        "args.owner not_equals field principal.user_id: holds"
        "  (value: 'bob'; principal.user_id is 'ann')" in shown
    )
    shown = str(guard.explain("t", {"owner": "bob"}))
    assert "error  (value: 'bob'; principal.user_id is missing)" in shown
    assert "('principal.user_id' is missing)" in shown


def test_explain_hides_a_secret_that_is_compared_with() -> None:
    when = {"args.given": {"not_equals": {"field": "principal.claims.password"}}}
    guard = Edictum.from_yaml_string(bundle_of(contract("own", when=when)))
    who = Principal(claims={"password": "hunter2"})
    assert "hunter2" not in str(guard.explain("t", {"given": "bob"}, principal=who))


@pytest.mark.parametrize(
    ("when", "why"),
    [
        (
            {"args.x": {"equals": {"field": "principal.usr_id"}}},
            "a principal has no field 'usr_id'",
        ),
        ({"args.x": {"equals": {"field": "nosuch.x"}}}, "unknown selector 'nosuch.x'"),
        ({"args.x": {"equals": {"field": "result.x"}}}, "is not known before the tool has run"),
        (
            {"args.x": {"equals": {"field": "args.y[*]"}}},
            "'args.y[*]' stands for several values, and one is needed here",
        ),
        ({"args.x": {"equals": "{args.*}"}}, "'args.*' stands for several values"),
        ({"args.x": {"equals": "{principal.usr}"}}, "a principal has no field 'usr'"),
        (
            {"args.x": {"matches": {"field": "args.y"}}},
            "takes what the bundle says, and not a field",
        ),
        (
            {"args.x": {"exists": {"field": "args.y"}}},
            "takes what the bundle says, and not a field",
        ),
        (
            {"args.x": {"between": {"field": "args.y"}}},
            "takes what the bundle says, and not a field",
        ),
    ],
)
def test_a_value_that_can_never_be_taken_is_an_error_at_load(when: Any, why: str) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        Edictum.from_yaml_string(bundle_of(contract("c", when=when)))
    assert why in str(caught.value)


def test_a_counter_cannot_be_compared_with_where_a_person_is_asked() -> None:
    when = {"args.n": {"gt": {"field": "session.successes"}}}
    with pytest.raises(EdictumConfigError, match=r"'session\.successes' cannot be combined"):
        Edictum.from_yaml_string(bundle_of(contract("c", when=when, effect="approve")))


def test_a_result_that_holds_a_value_of_the_call_is_redacted_whole() -> None:
    when = {"result.note": {"contains": {"field": "args.secret"}}}
    rule = contract("c", type="post", when=when, effect="redact")
    guard = Edictum.from_yaml_string(bundle_of(rule))
    outcome = guard.dispatch_sync(
        "t", {"secret": "s3"}, lambda secret: {"note": f"x {secret}", "other": 1}
    )
    assert outcome.value == {"note": "[REDACTED]", "other": 1}  # type: ignore[union-attr]
