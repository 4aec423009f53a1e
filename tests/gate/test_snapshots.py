"""What was checked is what runs: nobody can change a call's arguments once it has been asked
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    Principal,
    ToolCall,
    ToolExecutionResult,
    Verdict,
    precondition,
)
from edictum.core.freeze import FrozenDict, FrozenList, freeze, thaw
from support.guards import approval_contract
from support.waiting import wait_in_loop


@dataclass
class Target:
    host: str
    ports: list[int]


def arguments() -> dict[str, Any]:
    return {
        "path": "/srv/safe",
        "options": {"force": False, "tags": ["a"]},
        "rows": [{"id": 1}],
        "pair": (1, [2]),
        "names": {"x"},
        "target": Target("good", [80]),
        "ordered": OrderedDict(a=[1]),
        "raw": bytearray(b"ok"),
    }


def tamper(args: dict[str, Any]) -> None:
    """What a caller, or a bug of the caller, could do to its own dict."""
    args["path"] = "/etc/shadow"
    args["options"]["force"] = True
    args["options"]["tags"].append("b")
    args["rows"][0]["id"] = 2
    args["rows"].append({"id": 3})
    args["pair"][1].append(3)
    args["names"].add("y")
    args["target"].host = "evil"
    args["target"].ports.append(22)
    args["ordered"]["a"].append(2)
    args["raw"].extend(b"!")
    args["added"] = 1


class Recorder:
    def __init__(self) -> None:
        self.got: dict[str, Any] = {}

    def tool(self, **args: Any) -> str:
        self.got = copy.deepcopy(args)
        return "done"

    async def async_tool(self, **args: Any) -> str:
        return self.tool(**args)


def assert_untouched(guard: Edictum, recorder: Recorder) -> None:
    assert recorder.got == arguments()
    for event in guard.local_sink.events:
        assert event.tool_args["path"] == "/srv/safe"
        assert event.tool_args["options"] == {"force": False, "tags": ["a"]}
        assert event.tool_args["rows"] == [{"id": 1}]
        assert event.tool_args["target"] == {"host": "good", "ports": [80]}
        assert event.tool_args["ordered"] == {"a": [1]}
        assert event.tool_args["raw"] == "ok"
        assert "added" not in event.tool_args


async def test_the_caller_changes_its_arguments_while_a_contract_waits() -> None:
    """Nothing about what runs or is recorded changes."""
    args, recorder = arguments(), Recorder()
    reached, go_on = asyncio.Event(), asyncio.Event()

    @precondition("*")
    async def slow(call: ToolCall) -> Verdict:
        reached.set()
        await go_on.wait()
        return Verdict.pass_() if call.args["path"] == "/srv/safe" else Verdict.fail("outside")

    guard = Edictum(contracts=[slow])
    task = asyncio.ensure_future(guard.run("t", args, recorder.async_tool))
    await reached.wait()
    tamper(args)
    go_on.set()
    await task
    assert_untouched(guard, recorder)


async def test_the_caller_changes_its_arguments_while_a_person_thinks() -> None:
    """The approval is for what was asked, and that is what runs."""
    args, recorder = arguments(), Recorder()
    backend = InMemoryApprovalBackend()
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=backend,
    )
    task = asyncio.ensure_future(guard.run("t", args, recorder.tool))
    await wait_in_loop(lambda: backend.pending)
    tamper(args)
    request = backend.pending[0]
    assert request.tool_args["path"] == "/srv/safe"
    assert request.tool_args["options"] == {"force": False, "tags": ["a"]}
    backend.decide(request.approval_id, True)
    await task
    assert_untouched(guard, recorder)


def test_the_caller_changes_its_arguments_from_another_thread() -> None:
    """While the tool's turn has not come yet."""
    args, recorder = arguments(), Recorder()
    checked, changed = threading.Event(), threading.Event()

    def on_allow(call: ToolCall) -> None:
        checked.set()
        changed.wait(60)

    guard = Edictum(on_allow=on_allow)
    thread = threading.Thread(target=guard.run_sync, args=("t", args, recorder.tool))
    thread.start()
    checked.wait(60)
    tamper(args)
    changed.set()
    thread.join()
    assert_untouched(guard, recorder)


def test_the_tool_changes_its_arguments() -> None:
    """They are its own copy: neither the record nor the caller's dict notices."""
    args, recorder = arguments(), Recorder()

    def tool(**given: Any) -> None:
        recorder.tool(**given)
        tamper(given)

    guard = Edictum(
        hooks=[HookRegistration("after", "*", lambda call, result: seen.append(thaw(call.args)))]
    )
    seen: list[Any] = []
    guard.run_sync("t", args, tool)
    assert_untouched(guard, recorder)
    assert args == arguments()
    assert seen[0]["options"] == {"force": False, "tags": ["a"]}


CHANGES = {
    "a top-level value": lambda args: args.__setitem__("path", "/etc/shadow"),
    "a nested value": lambda args: args["options"].__setitem__("force", True),
    "a nested list": lambda args: args["rows"].append({"id": 3}),
    "update": lambda args: args.update(path="/etc/shadow"),
    "an object's attribute": lambda args: setattr(args["target"], "host", "evil"),
    "an ordered dict": lambda args: args["ordered"]["a"].append(2),
    "a bytearray": lambda args: args["raw"].extend(b"!"),
}


@pytest.mark.parametrize("where", ["contract", "hook", "resolver", "on_allow", "approval backend"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_part_of_the_gate_cannot_change_what_runs(change: str, where: str) -> None:
    """A contract, hook, resolver, callback or backend that tries is refused, or changes a copy of
    its own.
    """
    args, recorder = arguments(), Recorder()

    def attempt(given: Any) -> None:
        with contextlib.suppress(TypeError):
            CHANGES[change](given)

    options: dict[str, Any] = {
        "contract": {
            "contracts": [precondition("*")(lambda call: attempt(call.args) or Verdict.pass_())]
        },
        "hook": {
            "hooks": [
                HookRegistration(
                    "before", "*", lambda call: attempt(call.args) or HookDecision.allow()
                )
            ]
        },
        "resolver": {"principal_resolver": lambda tool, given: attempt(given)},
        "on_allow": {"on_allow": lambda call: attempt(call.args)},
        "approval backend": {
            "contracts": [approval_contract()],
            "approval_backend": InMemoryApprovalBackend(
                lambda request: attempt(request.tool_args) or True
            ),
        },
    }[where]
    guard = Edictum(**options)
    assert isinstance(guard.dispatch_sync("t", args, recorder.tool), ToolExecutionResult)
    assert_untouched(guard, recorder)


def test_a_tickets_arguments_are_a_fresh_copy_each_time() -> None:
    """The host runs the tool with what was checked."""
    args = arguments()
    ticket = Edictum().begin_sync("t", args)
    tamper(args)
    tamper(ticket.args)
    assert ticket.args == arguments()


def test_the_principal_is_a_snapshot_too() -> None:
    """Claims are judged and recorded as they were."""
    claims = {"groups": ["dev"]}
    principal = Principal(user_id="u", claims=claims)
    guard = Edictum(principal=principal)
    guard.dispatch_sync("t", {}, lambda: 1)
    claims["groups"].append("admin")
    assert principal.claims == {"groups": ["dev"]}
    assert guard.local_sink.last().principal["claims"] == {"groups": ["dev"]}


def test_metadata_is_a_snapshot_too() -> None:
    """It is what contracts judge by."""
    seen: list[Any] = []
    metadata = {"trace": ["a"]}

    @precondition("*")
    def look(call: ToolCall) -> Verdict:
        metadata["trace"].append("b")
        seen.append(call.metadata)
        return Verdict.pass_()

    Edictum(contracts=[look]).dispatch_sync("t", {}, lambda: 1, metadata=metadata)
    assert seen == [{"trace": ["a"]}]


def test_a_result_that_changes_later_changes_no_record() -> None:
    """The summary in the audit is of the moment in which the call ended."""
    rows = [1]
    guard = Edictum()
    guard.run_sync("t", {}, lambda: rows)
    rows.append(2)
    assert guard.local_sink.last().result_summary == "[1]"


def test_what_cannot_be_copied_is_passed_on() -> None:
    """A lock or a database handle is a capability, not data."""
    lock = threading.Lock()
    assert Edictum().run_sync("t", {"lock": lock}, lambda lock: lock) is lock


# --- Frozen values --------------------------------------------------------------------------------

DICT_CHANGES = [
    lambda d: d.__setitem__("a", 2),
    lambda d: d.__delitem__("a"),
    lambda d: d.clear(),
    lambda d: d.pop("a"),
    lambda d: d.popitem(),
    lambda d: d.setdefault("b", 1),
    lambda d: d.update(b=1),
    lambda d: d.__ior__({"b": 1}),
]
LIST_CHANGES = [
    lambda x: x.__setitem__(0, 2),
    lambda x: x.__delitem__(0),
    lambda x: x.append(1),
    lambda x: x.clear(),
    lambda x: x.extend([1]),
    lambda x: x.insert(0, 1),
    lambda x: x.pop(),
    lambda x: x.remove(1),
    lambda x: x.reverse(),
    lambda x: x.sort(),
    lambda x: x.__iadd__([1]),
    lambda x: x.__imul__(2),
]


@pytest.mark.parametrize("change", range(len(DICT_CHANGES)))
def test_a_frozen_dict_refuses_every_change(change: int) -> None:
    """And says how to get a copy."""
    frozen = freeze({"a": 1})
    with pytest.raises(
        TypeError, match="FrozenDict is a snapshot and cannot be changed; copy it first"
    ):
        DICT_CHANGES[change](frozen)
    assert frozen == {"a": 1}


@pytest.mark.parametrize("change", range(len(LIST_CHANGES)))
def test_a_frozen_list_refuses_every_change(change: int) -> None:
    """And says how to get a copy."""
    frozen = freeze([1])
    with pytest.raises(TypeError, match="FrozenList is a snapshot"):
        LIST_CHANGES[change](frozen)
    assert frozen == [1]


def test_frozen_values_are_still_dicts_and_lists() -> None:
    """Contracts and json need not know."""
    frozen = freeze({"a": [1, (2, {"b": {3}})]})
    assert isinstance(frozen, dict)
    assert frozen == {"a": [1, (2, {"b": {3}})]}
    assert type(frozen["a"]) is FrozenList
    assert isinstance(frozen["a"][1][1]["b"], frozenset)
    assert freeze(frozen) == frozen


def test_copies_of_frozen_values_are_ordinary() -> None:
    """copy, deepcopy and thaw; pickling keeps them frozen."""
    frozen = freeze({"a": [1, {"b": {2}}], "c": (1, [2]), "d": Target("h", [1])})
    for ordinary in (copy.copy(frozen), copy.deepcopy(frozen), thaw(frozen)):
        assert type(ordinary) is dict
    for ordinary in (copy.copy(frozen["a"]), copy.deepcopy(frozen["a"]), thaw(frozen["a"])):
        assert type(ordinary) is list
    assert thaw(frozen)["a"][1] == {"b": {2}}
    assert type(thaw({"x": [1]})) is dict
    again = pickle.loads(pickle.dumps(frozen))
    assert again == frozen
    assert type(again) is FrozenDict
    assert type(again["a"]) is FrozenList


def test_frozen_values_can_be_hashed() -> None:
    """As keys of a cache."""
    assert hash(freeze({"a": [1]})) == hash(freeze({"a": [1]}))
    assert {freeze([1, 2]): "x"}[freeze([1, 2])] == "x"
