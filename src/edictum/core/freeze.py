"""Snapshots: what was checked is what runs.

The arguments of a call are copied once, deeply, into values that nobody can change: not the caller while the call waits
for a person, not a contract, not a hook. ``freeze`` makes that copy; ``thaw`` makes a fresh ordinary copy for the tool.
A frozen mapping is still a ``dict`` and a frozen list still a ``list``, so contracts and ``json.dumps`` need not know.
"""

import copy
from collections.abc import Mapping
from typing import Any, NoReturn

SCALARS = frozenset({str, int, float, bool, type(None), bytes, complex})
MAX_DEPTH = 200  # deeper than any honest argument, well within Python's recursion limit


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} is a snapshot and cannot be changed; copy it first, e.g. with dict() or list()")


class FrozenDict(dict[Any, Any]):
    """A dict that refuses changes. Copies of it are ordinary dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that refuses changes. Copies of it are ordinary lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = _refuse
    pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


class FlatDict(FrozenDict):
    """A snapshot of nothing but scalars: whatever is done with a copy of it cannot reach it, so one level of copying is enough."""

    __slots__ = ()


class KeptDict(FrozenDict):
    """A snapshot that contains objects which can be changed. The gate's parts are shown a copy of them; ``kept`` is another one,
    made at the same moment, from which the tool and the record are served: what was checked is what runs.
    """

    __slots__ = ("kept",)
    kept: dict[Any, Any]


EMPTY: FrozenDict = FlatDict()
PLAIN = SCALARS | {FrozenDict, FlatDict, FrozenList, tuple, frozenset}


def kept(args: Any) -> Any:
    """The arguments as they were when the call was made."""
    return args.kept if type(args) is KeptDict else args


def snapshot_dict(args: Mapping[Any, Any]) -> FrozenDict:
    """A frozen deep copy of arguments that are not flat."""
    frozen = FrozenDict({key: freeze(value) for key, value in args.items()})
    if all(_unchangeable(value) for value in frozen.values()):
        return frozen
    shown = KeptDict(frozen)
    shown.kept = thaw(frozen)
    return shown


def _unchangeable(value: Any) -> bool:
    kind = type(value)
    if kind is FrozenDict:
        return all(_unchangeable(item) for item in value.values())
    if kind is FrozenList or kind is tuple:
        return all(_unchangeable(item) for item in value)
    return kind in PLAIN


def freeze_args(args: Mapping[Any, Any]) -> FrozenDict:
    """A frozen deep copy of a call's arguments. Flat arguments, the usual case, cost one shallow copy."""
    for value in args.values():
        if type(value) not in SCALARS:
            return FrozenDict({key: freeze(value) for key, value in args.items()})
    return FlatDict(args)


def freeze(value: Any, depth: int = 0) -> Any:
    """A deep copy of ``value`` that cannot be changed, as far as its types allow.

    Dicts, lists, tuples and sets are rebuilt frozen. Any other object is deep-copied; one that cannot be copied (a lock, a
    socket, a database handle) is kept as it is: it is a capability that is passed on, not data that contracts judge.
    """
    kind = type(value)
    if kind in SCALARS:
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"arguments are nested more than {MAX_DEPTH} levels deep, or refer to themselves")
    if kind is dict or kind is FrozenDict or kind is FlatDict:
        return FrozenDict({key: freeze(item, depth + 1) for key, item in value.items()})
    if kind is list or kind is FrozenList:
        return FrozenList([freeze(item, depth + 1) for item in value])
    if kind is tuple:
        return tuple([freeze(item, depth + 1) for item in value])
    if kind is set:
        return frozenset(value)
    return copy_object(value)


def copy_object(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def thaw_args(args: Any) -> dict[Any, Any]:
    """Fresh, ordinary arguments for the tool: what it does to them changes no record."""
    return dict(args) if type(args) is FlatDict else {key: thaw(item) for key, item in kept(args).items()}


def thaw(value: Any) -> Any:
    """An ordinary deep copy of a frozen value."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is FrozenDict or kind is dict or kind is FlatDict:
        return {key: thaw(item) for key, item in value.items()}
    if kind is FrozenList or kind is list:
        return [thaw(item) for item in value]
    if kind is tuple:
        return tuple([thaw(item) for item in value])
    if kind is frozenset:
        return set(value)
    return copy_object(value)
