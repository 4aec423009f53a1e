"""Snapshots: what was checked is what runs.

The arguments of a call are copied once, deeply, into values that nobody can change: not the caller
while the call waits for a person, not a contract, not a hook. ``freeze`` makes that copy; ``thaw``
makes a fresh ordinary copy for the tool. A frozen mapping is still a ``dict`` and a frozen list
still a ``list``, so contracts and ``json.dumps`` need not know.
"""

import copy
from collections import UserDict, UserList
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

SCALARS = frozenset({str, int, float, bool, type(None), bytes, complex})
DATA = (
    dict,
    list,
    UserDict,
    UserList,
    SimpleNamespace,
)  # and dataclasses: these hold values, whatever else they do
MAX_DEPTH = 200  # deeper than any honest argument, well within Python's recursion limit


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError(
        f"{type(self).__name__} is a snapshot and cannot be changed; copy it first, e.g. with"
        " dict() or list()"
    )


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


class FrozenSet(frozenset[Any]):
    """What a set becomes in a snapshot. Copies of it are ordinary sets; a frozenset stays what it
    is.
    """

    __slots__ = ()

    def __copy__(self) -> set[Any]:
        return set(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenSet, (list(self),))


class FlatDict(FrozenDict):
    """A snapshot of nothing but scalars, with names that are text: whatever is done with a copy of
    it cannot reach it, so one level of copying is enough.
    """

    __slots__ = ()


class KeptDict(FrozenDict):
    """A snapshot that contains objects which can be changed. Whoever reads one gets a copy of his
    own, made from ``kept``, as do the tool and the record: what a hook does to an object is not
    seen by the contracts, nor by the person who is asked, nor by the tool.
    """

    __slots__ = ("kept",)
    kept: dict[Any, Any]

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return value if _unchangeable(value) else freeze(self.kept[key])

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def __iter__(
        self,
    ) -> Iterator[Any]:  # with one of its own, dict(args) and f(**args) read by the methods above
        return super().__iter__()

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)


EMPTY: FrozenDict = FlatDict()
DICTS = frozenset({dict, FrozenDict, FlatDict, KeptDict})


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
    if kind in (FrozenList, tuple, FrozenSet, frozenset):
        return all(_unchangeable(item) for item in value)
    return kind in SCALARS


def freeze_args(args: Mapping[Any, Any]) -> FrozenDict:
    """A frozen deep copy of a call's arguments. Flat arguments, the usual case, cost one shallow
    copy.
    """
    for name, value in args.items():
        if type(value) not in SCALARS or type(name) is not str:
            return FrozenDict({key: freeze(value) for key, value in args.items()})
    return FlatDict(args)


def freeze(value: Any, depth: int = 0) -> Any:
    """A deep copy of ``value`` that cannot be changed, as far as its types allow.

    Dicts, lists, tuples and sets are rebuilt frozen. Any other object is copied, see
    ``copy_object``.
    """
    kind = type(value)
    if kind in SCALARS:
        return value
    if depth > MAX_DEPTH:
        raise ValueError(
            f"arguments are nested more than {MAX_DEPTH} levels deep, or refer to themselves"
        )
    if kind in DICTS:
        return FrozenDict({key: freeze(item, depth + 1) for key, item in value.items()})
    if kind is list or kind is FrozenList:
        return FrozenList([freeze(item, depth + 1) for item in value])
    if kind is tuple:
        return tuple([freeze(item, depth + 1) for item in value])
    if kind is set or kind is FrozenSet:
        return FrozenSet([freeze(item, depth + 1) for item in value])
    if kind is frozenset:
        return frozenset([freeze(item, depth + 1) for item in value])
    return copy_object(value)


def copy_object(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A deep copy. What cannot be copied (a lock, a socket, a database handle) is kept as it is: it
    is a capability that is passed on, not data that contracts judge. The data that holds it is
    copied nevertheless.
    """
    try:
        return copy.deepcopy(value)
    except Exception:
        return _copy_around(value, {} if memo is None else memo)


def _copy_around(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of data with something in it that cannot be copied, item by item. ``memo``: the copies
    so far, for data in circles.
    """
    if id(value) in memo:
        return memo[id(value)]
    try:
        if isinstance(value, tuple):
            return tuple.__new__(type(value), [copy_object(item, memo) for item in value])
        if isinstance(value, set | frozenset):
            return type(value)([copy_object(item, memo) for item in value])
        if isinstance(value, DATA) or (is_dataclass(value) and not isinstance(value, type)):
            return _copy_contents(value, memo)
        return value
    except Exception:
        return value


def _copy_contents(value: Any, memo: dict[int, Any]) -> Any:
    """A shallow copy, with copies in the place of what it shares with the original."""
    copied = copy.copy(value)
    if copied is value:
        return value
    memo[id(value)] = copied
    if isinstance(copied, dict):
        for key, item in list(dict.items(copied)):
            dict.__setitem__(copied, key, copy_object(item, memo))
    elif isinstance(copied, list):
        list.__setitem__(
            copied, slice(None), [copy_object(item, memo) for item in list.__iter__(copied)]
        )
    names = {
        *getattr(copied, "__dict__", ()),
        *(field.name for field in (fields(copied) if is_dataclass(copied) else ())),
    }
    for name in names:
        object.__setattr__(copied, name, copy_object(getattr(copied, name), memo))
    return copied


def thaw_args(args: Any) -> dict[Any, Any]:
    """Fresh, ordinary arguments for the tool: what it does to them changes no record."""
    return (
        dict(args)
        if type(args) is FlatDict
        else {key: thaw(item) for key, item in kept(args).items()}
    )


def thaw(value: Any) -> Any:
    """An ordinary deep copy of a frozen value."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind in DICTS:
        return {key: thaw(item) for key, item in kept(value).items()}
    if kind is FrozenList or kind is list:
        return [thaw(item) for item in value]
    if kind is tuple:
        return tuple([thaw(item) for item in value])
    if kind is FrozenSet or kind is set:
        return {_thaw_member(item) for item in value}
    if kind is frozenset:
        return frozenset([_thaw_member(item) for item in value])
    return copy_object(value)


def _thaw_member(item: Any) -> Any:
    """A member of a set has to stay hashable: what cannot be changed need not be copied."""
    return item if _unchangeable(item) else thaw(item)
