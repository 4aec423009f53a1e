"""What adapters for servers ask of a policy: which tools can be allowed, pins, stated limits."""

from __future__ import annotations

import pytest

from edictum import Edictum, EdictumConfigError, OperationLimits, Verdict, precondition

HEAD = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: served}\n"
PIN, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
NO = "then: {effect: deny, message: No.}"


def can_allow(rule: str, mode: str = "enforce", **options: object) -> bool:
    bundle = f"{HEAD}defaults: {{mode: {mode}}}\ncontracts: [{{id: x, {rule}}}]\n"
    return Edictum.from_yaml_string(bundle, **options)._can_allow("wipe")


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (f"type: pre, tool: wipe, {NO}", False),
        (f"type: pre, tool: 'w*', {NO}", False),
        (f"type: pre, tool: other, {NO}", True),
        (f"type: pre, tool: wipe, mode: observe, {NO}", True),
        (f"type: pre, tool: wipe, when: {{args.a: {{equals: 1}}}}, {NO}", True),
        ("type: pre, tool: wipe, then: {effect: approve, message: May it?}", True),
        (f"type: session, limits: {{max_calls_per_tool: {{wipe: 0}}}}, {NO}", False),
        (f"type: session, limits: {{max_attempts: 0}}, {NO}", False),
        (f"type: session, limits: {{max_failures: 0}}, {NO}", True),
        (f"type: session, limits: {{max_tool_calls: 1}}, {NO}", True),
        (
            "type: session, limits: {max_tool_calls: 0}, then: {effect: approve, message: May it?}",
            True,
        ),
    ],
)
def test_whether_some_call_of_a_tool_can_be_allowed(rule: str, allowed: bool) -> None:
    """Only what denies every call of a tool, and is enforced, says that none can be."""
    assert can_allow(rule) is allowed
    assert can_allow(rule, mode="observe") is True


def test_a_contract_in_python_may_have_a_condition() -> None:
    """So it does not hide a tool; a limit of 0 does, where limits are enforced."""

    @precondition("wipe")
    def no_wiping(call: object) -> Verdict:
        return Verdict.fail("No.")

    assert Edictum(contracts=[no_wiping])._can_allow("wipe")
    assert not Edictum(limits=OperationLimits(max_tool_calls=0))._can_allow("wipe")
    assert Edictum(limits=OperationLimits(max_tool_calls=0), mode="observe")._can_allow("wipe")


def test_a_pin_is_kept_by_entries_that_state_none() -> None:
    """Layers, Python's own table and merged guards cannot drop it by not naming it."""
    bundle = (
        f"{HEAD}tools: {{look: {{pin: '{PIN}'}}, 'all_*': {{pin: '{OTHER}'}}}}\ncontracts: []\n"
    )
    above = f"{HEAD}tools: {{look: {{side_effect: read}}}}\ncontracts: []\n"
    rule = f"contracts: [{{id: x, type: pre, tool: none, {NO}}}]"
    bundle, above = (text.replace("contracts: []", rule) for text in (bundle, above))
    layered = Edictum.from_yaml_string(bundle, above)
    given = Edictum.from_yaml_string(bundle, tools={"look": {"side_effect": "read"}})
    merged = Edictum.from_multiple([given, Edictum(tools={"look": {"pin": OTHER}})])
    for guard in (layered, given, merged):
        entry = guard.policy.entry("look")
        assert (entry.pin, entry.side_effect) == (PIN, "read")
        assert guard.policy.entry("all_of_it").pin == OTHER
    assert layered.policy_digest != Edictum.from_yaml_string(above).policy_digest


@pytest.mark.parametrize("pin", ["", "sha256:", PIN.upper(), PIN + "a", 3])
def test_what_is_not_a_pin(pin: object) -> None:
    """A pin that could never fit is an error when it is stated."""
    with pytest.raises(EdictumConfigError, match="pin is"):
        Edictum(tools={"look": {"pin": pin}})


async def test_default_limits_are_lifted_and_stated_ones_stay() -> None:
    """Of a bundle and of Python, and after a reload."""
    stated = f"contracts: [{{id: x, type: session, limits: {{max_tool_calls: 3}}, {NO}}}]"
    guard = Edictum.from_yaml_string(HEAD + stated)
    assert guard._lift_default_limits() is False
    assert guard.policy.limits == OperationLimits(max_attempts=None, max_tool_calls=3)
    await guard.reload(HEAD + stated.replace("3", "4"))
    assert guard.policy.limits == OperationLimits(max_attempts=None, max_tool_calls=4)
    given = Edictum(limits=OperationLimits(max_tool_calls=5))
    assert given._lift_default_limits() is False
    assert given.policy.limits == OperationLimits(max_tool_calls=5)
    assert Edictum()._lift_default_limits() is True
