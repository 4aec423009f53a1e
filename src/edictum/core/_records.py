"""Two cheap ways to make values that are nevertheless frozen.

A call makes about ten small values. ``@dataclass(frozen=True)`` pays ``object.__setattr__`` for
every field (1.7 us for 14 fields on the machine where this was measured, against 0.2 us for plain
slots), which would be most of a call's cost.

* ``record`` is for values that never leave the library: frozen to the type checker, plain slots to
  the interpreter. It does only the part of ``dataclass`` that is needed, because ``import edictum``
  pays for every class that is made.
* ``frozen_maker`` is for public values, which must be frozen at run time too: it fills in a mutable
  class that has the same slots, then sets the object's ``__class__`` to the frozen class.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, dataclass_transform

_T = TypeVar("_T")
P = ParamSpec("P")

if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True, kw_only_default=False)
    def record(cls: type[_T]) -> type[_T]: ...

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
    text = f"def __init__(self, {_parameters(names, defaults)}):\n{lines}"
    exec(text, namespace)  # noqa: S102  # as dataclasses does, from field names only
    return namespace["__init__"]


def maker(cls: Callable[P, _T]) -> Callable[P, _T]:
    """Return the constructor of a record as a plain function, which takes half the time of the
    class.
    """
    names: tuple[str, ...] = cls.__slots__  # type: ignore[attr-defined]  # a record has them
    defaults = cls.__init__.__globals__["_defaults"]
    lines = "\n".join(f"    self.{name} = {name}" for name in names)
    namespace: dict[str, Any] = {"_defaults": defaults, "_new": object.__new__, "_cls": cls}
    text = f"def make({_parameters(names, defaults)}):\n    self = _new(_cls)\n{lines}\n"
    exec(f"{text}    return self", namespace)  # noqa: S102  # built from field names only
    return namespace["make"]  # type: ignore[no-any-return]  # made by exec


def _show(self: Any) -> str:
    fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__name__}({fields})"


def replace(value: _T, /, **changes: Any) -> _T:
    """Return a copy of a record or dataclass with some fields changed."""
    if hasattr(value, "__dataclass_fields__"):
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]  # it is one
    slots: tuple[str, ...] = value.__slots__  # type: ignore[attr-defined]  # a record has them
    return type(value)(**{name: getattr(value, name) for name in slots} | changes)


def frozen_maker(cls: Callable[P, _T]) -> Callable[P, _T]:
    """Return a function that makes a frozen dataclass of values that are already checked.

    It takes a fifth of the time of the constructor, and does not call ``__post_init__``. Every
    field with a default factory must be given.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # a dataclass, which P cannot say
    names = tuple(item.name for item in fields)
    missing = dataclasses.MISSING
    defaults = {item.name: item.default for item in fields if item.default is not missing}
    draft = type("Draft", (), {"__slots__": names})
    lines = "\n".join(f"    self.{name} = {name}" for name in names)
    namespace: dict[str, Any] = {"_defaults": defaults, "_draft": draft, "_cls": cls}
    text = f"def make({_parameters(names, defaults)}):\n    self = _draft()\n{lines}\n"
    text = f"{text}    self.__class__ = _cls\n    return self"
    exec(text, namespace)  # noqa: S102  # built from field names only
    return namespace["make"]  # type: ignore[no-any-return]  # made by exec
