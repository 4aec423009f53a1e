"""Arguments that are more than plain data: what was checked is what runs, also for objects, sets
and what cannot be copied.
"""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections import OrderedDict, UserDict, UserList
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    ToolCall,
    ToolDenied,
    Verdict,
    precondition,
)
from edictum.core.freeze import CopyOnReadDict, FrozenSet, copy_object, freeze, thaw

LOCK = threading.Lock()  # cannot be copied


class Place:
    def __init__(self, path: str) -> None:
        self.path = path


class Config(dict[str, Any]):
    note: Any = None


class Rows(list[Any]):
    pass


@dataclass
class Job:
    options: dict[str, str]
    lock: Any


@dataclass(frozen=True, slots=True)
class FrozenJob:
    options: dict[str, str]
    lock: Any


class Pair(NamedTuple):
    options: dict[str, str]
    lock: Any


def options() -> dict[str, str]:
    return {"path": "/safe"}


HOLDERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    # name: (data that holds something that cannot be copied, how to find the options in it)
    "ordered dict": (
        lambda: OrderedDict(options=options(), lock=LOCK),
        lambda held: held["options"],
    ),
    "dict subclass": (lambda: Config(options=options(), lock=LOCK), lambda held: held["options"]),
    "user dict": (lambda: UserDict(options=options(), lock=LOCK), lambda held: held["options"]),
    "list subclass": (lambda: Rows([options(), LOCK]), lambda held: held[0]),
    "user list": (lambda: UserList([options(), LOCK]), lambda held: held[0]),
    "dataclass": (lambda: Job(options(), LOCK), lambda held: held.options),
    "frozen dataclass": (lambda: FrozenJob(options(), LOCK), lambda held: held.options),
    "named tuple": (lambda: Pair(options(), LOCK), lambda held: held.options),
    "namespace": (lambda: SimpleNamespace(options=options(), lock=LOCK), lambda held: held.options),
    "nested": (
        lambda: Config(rows=[(Job(options(), LOCK),)]),
        lambda held: held["rows"][0][0].options,
    ),
}


@pytest.mark.parametrize(("make", "find"), HOLDERS.values(), ids=HOLDERS)
def test_data_around_something_that_cannot_be_copied_is_copied(make: Any, find: Any) -> None:
    """The caller changes it once it was checked, and what was checked runs."""
    held, seen = make(), []

    @precondition("t")
    def check(call: ToolCall) -> Verdict:
        seen.append(find(call.args["held"])["path"])
        find(held)["path"] = "/etc/shadow"
        return Verdict.pass_()

    guard = Edictum(contracts=[check])
    ran_with, kind = guard.run_sync(
        "t", {"held": held}, lambda held: (find(held)["path"], type(held))
    )
    assert (seen, ran_with, kind) == (["/safe"], "/safe", type(held))
    assert "/etc/shadow" not in json.dumps(guard.local_sink.last().tool_args)


def test_what_cannot_be_copied_is_passed_on() -> None:
    """A lock is the caller's own, wherever it stands."""
    guard = Edictum()
    given = {
        "lock": LOCK,
        "held": Config(lock=LOCK, all={LOCK}),
        "job": Job({}, LOCK),
        "all": {LOCK},
    }
    got = guard.run_sync("t", given, lambda **args: args)
    assert all(
        lock is LOCK
        for lock in (
            got["lock"],
            got["held"]["lock"],
            *got["held"]["all"],
            got["job"].lock,
            *got["all"],
        )
    )


def test_attributes_of_a_dict_subclass_are_copied_too() -> None:
    """They are as much a part of it as its items."""
    config = Config(lock=LOCK)
    config.note = ["checked"]
    copied = copy_object(config)
    config.note.append("changed")
    assert (type(copied), copied.note) == (Config, ["checked"])


def test_data_in_circles_around_a_lock_is_copied_once() -> None:
    """And still refers to itself."""
    first, second = Rows([LOCK]), Config(lock=LOCK)
    first += [second, second, first]
    second["back"] = first
    copied = copy_object(first)
    assert copied is not first
    assert copied[3] is copied
    assert copied[1] is copied[2] is not second
    assert copied[1]["back"] is copied


class OneOnly(dict[str, Any]):
    def __copy__(self) -> OneOnly:
        return self


class Stubborn(dict[str, Any]):
    def __copy__(self) -> OneOnly:
        raise TypeError("not to be copied")


@pytest.mark.parametrize("kind", [OneOnly, Stubborn])
def test_data_that_refuses_every_copy_is_left_as_it_is(kind: type[dict[str, Any]]) -> None:
    """It is not changed in the attempt."""
    value = kind(lock=LOCK, rows=[1])
    rows = value["rows"]
    assert copy_object(value) is value
    assert value["rows"] is rows


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_of_objects_is_copied_with_its_members(kind: Callable[[Any], Any]) -> None:
    """As a list of them is."""
    place, seen = Place("/safe"), []

    @precondition("t")
    def check(call: ToolCall) -> Verdict:
        seen.extend(found.path for found, _ in call.args["places"])
        place.path = "/etc/shadow"
        return Verdict.pass_()

    guard = Edictum(contracts=[check])
    assert guard.run_sync(
        "t", {"places": kind([(place, 1)])}, lambda places: [found.path for found, _ in places]
    ) == ["/safe"]
    assert seen == ["/safe"]


def test_a_set_stays_a_set_and_a_frozenset_a_frozenset() -> None:
    """On the way to the tool; contracts see both as a frozenset, which they cannot change."""
    given = {
        "s": {1, (2, frozenset({3}))},
        "f": frozenset({1}),
        "n": {"k": [frozenset({1}), {2}]},
        "d": {freeze({"a": [1]})},
    }
    assert all(
        isinstance(value, frozenset)
        for value in (ToolCall("t", given).args["s"], ToolCall("t", given).args["f"])
    )
    got = Edictum().run_sync("t", given, lambda **args: args)
    assert got == given
    assert [type(value) for value in (got["s"], got["f"], *got["n"]["k"])] == [
        set,
        frozenset,
        frozenset,
        set,
    ]


def test_copies_of_a_frozen_set_are_ordinary_sets() -> None:
    """As those of a frozen dict are ordinary dicts."""
    frozen = freeze({1, 2})
    assert frozen == {1, 2}
    assert [
        type(made) for made in (frozen, copy.copy(frozen), copy.deepcopy(frozen), thaw(frozen))
    ] == [FrozenSet, set, set, set]
    assert type(pickle.loads(pickle.dumps(frozen))) is FrozenSet
    assert freeze(frozen) == frozen


# --- Objects that can be changed: everybody reads a copy of his own -------------------------------


def test_what_a_hook_does_to_an_object_is_not_what_is_checked() -> None:
    """The contract sees what would run."""

    def pretend(call: ToolCall) -> HookDecision:
        call.args["place"].path = "/safe"
        return HookDecision.allow()

    @precondition("t")
    def check(call: ToolCall) -> Verdict:
        return Verdict.pass_() if call.args["place"].path == "/safe" else Verdict.fail("not there")

    guard = Edictum(contracts=[check], hooks=[HookRegistration("before", "*", pretend)])
    outcome = guard.dispatch_sync("t", {"place": Place("/etc/shadow")}, lambda place: place.path)
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "not there"


def test_what_a_contract_does_to_an_object_is_not_what_a_person_is_asked_about() -> None:
    """Neither the next contract, nor the person, nor the tool sees it."""
    seen = []

    @precondition("t")
    def pretend(call: ToolCall) -> Verdict:
        call.args["places"][0].path = "/safe"
        return Verdict.pass_()

    @precondition("t", effect="approve")
    def ask(call: ToolCall) -> Verdict:
        seen.append(call.args["places"][0].path)
        return Verdict.fail("sure?")

    backend = InMemoryApprovalBackend(answer=True)
    guard = Edictum(contracts=[pretend, ask], approval_backend=backend)
    ran_with = guard.run_sync(
        "t", {"places": [Place("/etc/shadow")]}, lambda places: places[0].path
    )
    assert [*seen, backend.requests[0].tool_args["places"][0].path, ran_with] == ["/etc/shadow"] * 3


READINGS: dict[str, Callable[[Any], Any]] = {
    "item": lambda args: args["place"],
    "get": lambda args: args.get("place"),
    "values": lambda args: next(iter(args.values())),
    "items": lambda args: dict(args.items())["place"],
    "dict": lambda args: dict(args)["place"],
    "stars": lambda args: (lambda place, plain: place)(**args),
    "display": lambda args: {**args}["place"],
    "copy method": lambda args: args.copy()["place"],
    "copy": lambda args: copy.copy(args)["place"],
    "deep copy": lambda args: copy.deepcopy(args)["place"],
    "or": lambda args: (args | {})["place"],
    "or from the right": lambda args: ({} | args)["place"],
    "thaw": lambda args: thaw(args)["place"],
    "freeze": lambda args: freeze(args)["place"],
    "pickle": lambda args: pickle.loads(pickle.dumps(args))["place"],
    "json": lambda args: (
        json.loads(
            json.dumps(args, default=vars), object_hook=lambda found: SimpleNamespace(**found)
        ).place
    ),
}


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_however_an_object_is_read_it_is_a_copy(read: Callable[[Any], Any]) -> None:
    """Changing it changes nothing that others read."""
    args = ToolCall("t", {"place": Place("/safe"), "plain": [1]}).args
    assert type(args) is CopyOnReadDict
    read(args).path = "/etc/shadow"
    assert [again(args).path for again in READINGS.values()] == ["/safe"] * len(READINGS)


def test_arguments_with_objects_are_still_a_dict_that_refuses_changes() -> None:
    """And what cannot be changed is not copied again."""
    args: Any = ToolCall("t", {"place": Place("/safe"), "plain": [1]}).args
    assert (list(args), len(args), "place" in args, args.get("other", 5), args["plain"]) == (
        ["place", "plain"],
        2,
        True,
        5,
        [1],
    )
    assert args["plain"] is args["plain"]
    with pytest.raises(TypeError):
        args["place"] = Place("/etc/shadow")
    with pytest.raises(KeyError):
        args["other"]
