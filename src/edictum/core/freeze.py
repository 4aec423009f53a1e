"""Snapshots: what was checked is what runs.

The arguments of a call are copied once, deeply, into values that cannot be changed: not by the
caller while the call waits for a person, not by a contract, not by a hook. ``freeze`` makes that
copy; ``thaw`` makes a fresh ordinary copy for the tool. A frozen mapping is still a ``dict`` and a
frozen list still a ``list``, so contracts and ``json.dumps`` need not know.
"""

import copy
from collections import UserDict, UserList
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

from edictum.core.values import SCALARS, Rebuilder, get_field_names, held_fields

# Types that hold values, whatever else they do. Dataclasses do, too.
DATA = (dict, list, UserDict, UserList, SimpleNamespace)


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError(
        f"{type(self).__name__} is a snapshot and cannot be changed; copy it first, e.g. with"
        " dict() or list()"
    )


class _Snapshot:
    """How snapshots are copied: as ordinary values."""

    __slots__ = ()
    ordinary: ClassVar[type[Any]]

    def __copy__(self) -> Any:
        return self.ordinary(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a snapshot of the class that accepts any value."""
        kinds: dict[type[Any], type[Any]] = {dict: FrozenDict, list: FrozenList, set: FrozenSet}
        return (kinds[self.ordinary], (self.ordinary(self),))


class FrozenDict(_Snapshot, dict[Any, Any]):
    """A dict that refuses changes. Copies of it are ordinary dicts."""

    __slots__ = ()
    ordinary = dict
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none; this cannot change
        return hash(frozenset(self.items()))


class FrozenList(_Snapshot, list[Any]):
    """A list that refuses changes. Copies of it are ordinary lists."""

    __slots__ = ()
    ordinary = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = _refuse
    pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # a list has none; this cannot change
        return hash(tuple(self))


class FrozenSet(_Snapshot, frozenset[Any]):
    """What a set becomes in a snapshot. Copies of it are ordinary sets; a frozenset stays one."""

    __slots__ = ()
    ordinary = set


class FlatDict(FrozenDict):
    """A snapshot of a few scalars under text keys: a shallow copy of it is a full one. Only
    ``freeze_flat`` makes it, after checking that the arguments are such.
    """

    __slots__ = ()


class CopyOnReadDict(FrozenDict):
    """A snapshot that contains mutable objects. Each read returns a new copy, made from ``kept``,
    so that what a hook does to an object is not seen by the contracts, the approver or the tool.
    """

    __slots__ = ("kept",)
    kept: dict[Any, Any]

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return value if _is_unchangeable(value) else freeze(self.kept[key])

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def __iter__(self) -> Iterator[Any]:
        """Make ``dict(args)`` and ``f(**args)`` read by the methods above: they do so only for a
        subclass with its own ``__iter__``.
        """
        return super().__iter__()

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)


EMPTY: FrozenDict = FlatDict()
_DICTS = frozenset({dict, FrozenDict, FlatDict, CopyOnReadDict})


def get_original_args(args: Any) -> Any:
    """Return the arguments as they were when the call was made, without copying mutable objects."""
    return args.kept if type(args) is CopyOnReadDict else args


class _Copier(Rebuilder):
    __slots__ = ()

    def mapping(self, value: Any) -> Any:
        return super().mapping(get_original_args(value))

    def members(self, value: Any) -> Any:
        make = self.makers.get(type(value))
        return self.other(value) if make is None else make(map(self._member, value))

    def _member(self, item: Any) -> Any:
        """Return a set's member unchanged if it is immutable: members must stay hashable."""
        return item if _is_unchangeable(item) else self.visit(item)

    def other(self, value: Any) -> Any:
        return copy_object(value)


class _Freezer(_Copier):
    __slots__ = ()
    makers = (
        dict.fromkeys(_DICTS, FrozenDict)
        | dict.fromkeys((list, FrozenList), FrozenList)
        | dict.fromkeys((set, FrozenSet), FrozenSet)
        | {tuple: tuple, frozenset: frozenset}
    )


class _Thawer(_Copier):
    __slots__ = ()
    makers = (
        dict.fromkeys(_DICTS, dict)
        | dict.fromkeys((list, FrozenList), list)
        | dict.fromkeys((set, FrozenSet), set)
        | {tuple: tuple, frozenset: frozenset}
    )


def freeze(value: Any) -> Any:
    """Return a deep copy that cannot be changed, as far as its types allow; raises TooDeepError.

    Dicts, lists, tuples and sets are rebuilt frozen. Any other object is copied, see
    ``copy_object``.
    """
    return _Freezer().visit(value)


def thaw(value: Any) -> Any:
    """Return an ordinary deep copy of a frozen value."""
    return _Thawer().visit(value)


LARGE = 2_000  # characters, or as much in other values
FLAT_TEXT = LARGE // 4  # the longest text in a flat snapshot


_NUMBERS = frozenset({int, float, bool, type(None)})


def freeze_flat(args: Mapping[Any, Any]) -> FlatDict | None:
    """Return a frozen copy of a few short scalars under text keys, which is what most arguments
    are; None for anything else.
    """
    if len(args) >= 20:
        return None
    for name, value in args.items():
        kind = type(value)
        if kind is str:
            if len(value) > FLAT_TEXT:
                return None
        elif kind not in _NUMBERS:
            return None
        if type(name) is not str:
            return None
    return FlatDict(args)


def freeze_args(args: Mapping[Any, Any]) -> FrozenDict:
    """Return a frozen deep copy of a mapping of arguments. A flat one costs only a shallow copy."""
    frozen: FrozenDict | None = freeze_flat(args)
    return freeze(dict(args.items())) if frozen is None else frozen


def snapshot_dict(args: Mapping[Any, Any]) -> FrozenDict:
    """Return a frozen deep copy of arguments that are not flat."""
    frozen: FrozenDict = freeze(dict(args.items()))
    if all(_is_unchangeable(value) for value in frozen.values()):
        return frozen
    shown = CopyOnReadDict(frozen)
    shown.kept = thaw(frozen)
    return shown


def thaw_args(args: Any) -> dict[Any, Any]:
    """Return fresh, ordinary arguments for the tool: what it does to them changes no record."""
    if type(args) is FlatDict:
        return dict(args)
    ordinary: dict[Any, Any] = thaw(args)
    return ordinary


def is_large(args: Any) -> bool:
    """Return whether arguments hold more than is cheap to keep in memory, or objects of unknown
    size.
    """
    return type(args) is not FlatDict and _measure(args, LARGE) < 0


def _measure(value: Any, left: int) -> int:
    """Return what is left of a size budget after a snapshot is subtracted; stop below 0."""
    kind = type(value)
    if kind in (str, bytes):
        return left - len(value)
    if kind in (FlatDict, FrozenDict):
        parts: Any = (part for pair in value.items() for part in pair)
    elif kind in (FrozenList, tuple, FrozenSet, frozenset):
        parts = value
    else:
        return left - (20 if kind in SCALARS else LARGE + 1)
    left -= 20
    for part in parts:
        if left < 0:
            break
        left = _measure(part, left)
    return left


def _is_unchangeable(value: Any) -> bool:
    kind = type(value)
    if kind is FrozenDict:
        return all(map(_is_unchangeable, value.values()))
    if kind in (FrozenList, tuple, FrozenSet, frozenset):
        return all(map(_is_unchangeable, value))
    return kind in SCALARS


def copy_object(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a deep copy. What cannot be copied (a lock, a socket, a database handle) is returned
    itself: it is a capability that is passed on, not data that contracts judge. The data that
    holds it is copied nevertheless.
    """
    try:
        return copy.deepcopy(value)
    except Exception:
        return _copy_around(value, {} if memo is None else memo)


def _copy_around(value: Any, memo: dict[int, Any]) -> Any:
    """Copy data that contains something uncopyable, item by item. ``memo`` holds the copies so far,
    for cyclic data.
    """
    if id(value) in memo:
        return memo[id(value)]

    def copy_part(part: Any) -> Any:
        return copy_object(part, memo)

    try:
        if isinstance(value, tuple):
            return tuple.__new__(type(value), map(copy_part, value))
        if isinstance(value, (set, frozenset)):
            return type(value)(map(copy_part, value))
        if not isinstance(value, DATA) and (not is_dataclass(value) or isinstance(value, type)):
            return value
        copied = copy.copy(value)
        if copied is not value:
            memo[id(value)] = copied
            replace_contents(copied, lambda _, part: copy_part(part))
        return copied
    except Exception:
        return value


def copy_with(value: Any, replace: Callable[[Any, Any], Any]) -> Any:
    """Return a copy of an object with every part replaced, see ``replace_contents``; None if it
    cannot be copied, or it is not known what it holds.
    """
    if isinstance(value, tuple):
        names = getattr(value, "_fields", (None,) * len(value))
        return tuple.__new__(type(value), map(replace, names, value))
    if not isinstance(value, DATA) and held_fields(value) is None:
        return None
    copied = copy.copy(value)
    if copied is value:
        return None
    replace_contents(copied, replace)
    return copied


def replace_contents(copied: Any, replace: Callable[[Any, Any], Any]) -> None:
    """Replace every item and attribute of a shallow copy by ``replace(key, part)``, bypassing its
    methods. The items of a list have no key.
    """
    if isinstance(copied, dict):
        _replace_items(copied, replace)
    elif isinstance(copied, list):
        items = [replace(None, item) for item in list.__iter__(copied)]
        list.__setitem__(copied, slice(None), items)
    extra = getattr(copied, "__pydantic_extra__", None)
    if isinstance(extra, dict):
        _replace_items(extra, replace)
    for name in {*getattr(copied, "__dict__", ()), *(get_field_names(copied) or ())}:
        object.__setattr__(copied, name, replace(name, getattr(copied, name)))


def _replace_items(copied: dict[Any, Any], replace: Callable[[Any, Any], Any]) -> None:
    for key, item in list(dict.items(copied)):
        dict.__setitem__(copied, key, replace(key, item))
