"""Two ways to make values cheaply without giving up that they are frozen.

A call makes about ten small values. ``@dataclass(frozen=True)`` pays ``object.__setattr__`` for
every field (1.7 us for 14 fields on the machine where this was measured, against 0.2 us for plain
slots), which would be most of a call's cost.

* ``record`` is for values that never leave the library: frozen to the type checker, plain slots to
  the interpreter. It does the part of ``dataclass`` that is needed and no more, since ``import
  edictum`` pays for every class that is made.
* ``draft_of`` is for public values, which must be frozen at run time too: fill in a mutable twin
  that has the same slots, then set its ``__class__`` to the frozen class. From there on it *is*
  one.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, dataclass_transform

T = TypeVar("T")
P = ParamSpec("P")

if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True, kw_only_default=False)
    def record(cls: type[T]) -> type[T]: ...

else:

    def record(cls):
        names = tuple(cls.__annotations__)
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
        dropped = {"__dict__", "__weakref__", *names}
        body = {key: value for key, value in cls.__dict__.items() if key not in dropped}
        body |= {
            "__slots__": names,
            "__match_args__": names,
            "__init__": _initializer(names, defaults),
            "__repr__": _show,
        }
        return type(cls.__name__, cls.__bases__, body)


def _parameters(names: tuple[str, ...], defaults: dict[str, Any]) -> str:
    return ", ".join(f"{name}=_defaults[{name!r}]" if name in defaults else name for name in names)


def _initializer(names: tuple[str, ...], defaults: dict[str, Any]) -> Any:
    lines = "\n".join(f"    self.{name} = {name}" for name in names)
    namespace: dict[str, Any] = {"_defaults": defaults}
    exec(f"def __init__(self, {_parameters(names, defaults)}):\n{lines}", namespace)  # noqa: S102 -- as dataclass does; the names are our own
    return namespace["__init__"]


def maker(cls: Callable[P, T]) -> Callable[P, T]:
    """The constructor of a record as a plain function, for those that every call makes: it takes
    half the time.
    """
    names: tuple[str, ...] = cls.__slots__  # type: ignore[attr-defined]
    defaults = cls.__init__.__globals__["_defaults"]
    lines = "\n".join(f"    self.{name} = {name}" for name in names)
    namespace: dict[str, Any] = {"_defaults": defaults, "_new": object.__new__, "_cls": cls}
    text = f"def make({_parameters(names, defaults)}):\n    self = _new(_cls)\n{lines}\n"
    exec(f"{text}    return self", namespace)  # noqa: S102  # built from field names only
    return namespace["make"]  # type: ignore[no-any-return]


def _show(self: Any) -> str:
    fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__name__}({fields})"


def replace(value: T, /, **changes: Any) -> T:
    """A copy of a record, or of a dataclass, with some fields changed."""
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]
    return type(value)(**{name: getattr(value, name) for name in value.__slots__} | changes)  # type: ignore[attr-defined]


def draft_of(frozen: type[Any]) -> type[Any]:
    """A mutable class with the slots of ``frozen``."""
    return type(
        f"{frozen.__name__}Draft",
        (),
        {"__slots__": frozen.__slots__, "__doc__": f"A {frozen.__name__} being filled in."},
    )
