"""ToolEntry: what is known about a tool.

Each setting declares which values it may have and how two entries that both state it are merged.
The contract language, the harness and the merging of guards read the table here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any

from edictum.core._records import record, replace
from edictum.core.call import SideEffect
from edictum.core.charges import NO_CHARGES, AmountSource, Charges, charges_of_tool
from edictum.core.effects import RunIn
from edictum.core.freeze import EMPTY
from edictum.core.limits import MAX_AMOUNT
from edictum.core.signatures import check_takes
from edictum.errors import EdictumConfigError

PIN_PATTERN = r"^sha256:[0-9a-f]{64}$"
RUN_IN: tuple[RunIn, ...] = ("inline", "thread", "process")  # from the least to the most apart
AMOUNT_KEYS = {"amounts": "call", "actual": "result"}  # what their functions get

# --- What a setting may be ------------------------------------------------------------------------


@record
class SettingKind:
    """The values that a setting may have, and the name under which the contract language knows
    their shape.
    """

    shape: str
    is_valid: Callable[[Any], bool]
    hint: str


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_pin(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(PIN_PATTERN, value) is not None


def _is_amount(value: Any) -> bool:
    if callable(value) or isinstance(value, AmountSource):
        return True
    return is_number(value) and 0 <= value <= MAX_AMOUNT


def _are_amounts(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(_is_name(name) and _is_amount(amount) for name, amount in value.items())


def _one_of(shape: str, *choices: Any) -> SettingKind:
    def is_choice(value: Any) -> bool:
        return any(value is it or (isinstance(value, str) and value == it) for it in choices)

    return SettingKind(shape, is_choice, f"Use one of: {', '.join(map(str, choices))}.")


def _amounts(argument: str) -> SettingKind:
    hint = (
        "Use a dict of names and numbers of 0 or more, selectors (args.amount, or result.cost under"
        f" actual), or functions of the {argument}."
    )
    return SettingKind("amounts", _are_amounts, hint)


_SIDE_EFFECT = _one_of("side effect", *(effect.value for effect in SideEffect))
_RUN_IN = _one_of("run_in", *RUN_IN)
_FLAG = _one_of("boolean", True, False)
_SECONDS = SettingKind(
    "duration", lambda value: is_number(value) and value > 0, "Use seconds, more than 0."
)
_TOOL = SettingKind("tool", _is_name, "Use the name of a tool.")
_PREVIEW = SettingKind(
    "tool", lambda it: _is_name(it) or callable(it), "Use the name of a tool, or a function."
)
_PIN = SettingKind("pin", _is_pin, "Use sha256: and 64 hexadecimal digits.")


# --- How two entries become one -------------------------------------------------------------------


def _worse(first: SideEffect, second: SideEffect) -> SideEffect:
    return max(first, second, key=list(SideEffect).index)


def _shorter(first: float | None, second: float | None) -> float | None:
    return min((each for each in (first, second) if each is not None), default=None)


def _more_apart(first: RunIn | None, second: RunIn | None) -> RunIn | None:
    return max(first, second, key=(None, *RUN_IN).index)


def _both(first: bool | None, second: bool | None) -> bool | None:
    """Return False if one is False, else True if one is True, else None."""
    stated = [flag for flag in (first, second) if flag is not None]
    return all(stated) if stated else None


def _first(first: Any, second: Any) -> Any:
    return first or second


def _join(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**(second or {}), **(first or {})}


@record
class Setting:
    """One setting of a tool. ``merge`` makes one value of two, of which the first takes precedence.
    ``inherited``: an entry that replaces one of a lower layer keeps this setting of that entry
    unless it states its own. ``stated_by`` names the flag of entries that state the setting.
    """

    kind: SettingKind
    merge: Callable[[Any, Any], Any]
    inherited: bool = False
    stated_by: str | None = None


def _setting(
    default: Any,
    kind: SettingKind,
    merge: Callable[[Any, Any], Any],
    *,
    inherited: bool = False,
    stated_by: str | None = None,
    hash: bool | None = None,
) -> Any:
    setting = Setting(kind, merge, inherited, stated_by)
    return field(default=default, hash=hash, metadata={"setting": setting})


# --- The entry ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEntry:
    """What is known about a tool. The defaults assume the worst.

    ``run_in`` None: where the guard runs tools. ``retry_on_timeout`` None: unless it may have had
    an effect and cannot be repeated. ``verify`` names the tool that finds out whether a call of
    this one took effect, ``preview`` the tool (or is the function) that shows what it would change,
    for a person who is asked to approve it. ``amounts`` are what a call uses and ``actual`` what
    its result says it used, by name: numbers, or an ``AmountSource``. ``pin`` is the digest of how
    an MCP server describes the tool: another description is refused. ``describes`` False: the entry
    says nothing about the tool's effect; ``states_effect`` False: not which side effect it has.
    """

    side_effect: SideEffect = _setting(
        SideEffect.IRREVERSIBLE, _SIDE_EFFECT, _worse, stated_by="states_effect"
    )
    idempotent: bool = _setting(False, _FLAG, _both, stated_by="describes")
    timeout_s: float | None = _setting(None, _SECONDS, _shorter)
    run_in: RunIn | None = _setting(None, _RUN_IN, _more_apart)
    retry_on_timeout: bool | None = _setting(None, _FLAG, _both)
    retry_on_failure: bool = _setting(True, _FLAG, _both)
    verify: str | None = _setting(None, _TOOL, _first)
    preview: str | Callable[..., Any] | None = _setting(None, _PREVIEW, _first)
    amounts: Mapping[str, Any] = _setting(
        EMPTY, _amounts("call"), _join, inherited=True, hash=False
    )
    actual: Mapping[str, Any] = _setting(
        EMPTY, _amounts("result"), _join, inherited=True, hash=False
    )
    pin: str | None = _setting(None, _PIN, _first, inherited=True)
    describes: bool = field(default=True, repr=False, compare=False)
    states_effect: bool = field(default=True, repr=False, compare=False)
    # Derived: what each call of the tool states.
    charges: Charges = field(init=False, repr=False, compare=False, default=NO_CHARGES)

    def __post_init__(self) -> None:
        object.__setattr__(self, "charges", charges_of_tool(self.amounts, self.actual))


UNKNOWN_TOOL = ToolEntry()
ENTRY_SETTINGS: dict[str, Setting] = {
    item.name: item.metadata["setting"] for item in fields(ToolEntry) if item.metadata
}


def tool_entry(name: str, settings: Any) -> ToolEntry:
    """Return a ToolEntry from a user's dict; errors say what is wrong with which key."""
    if not isinstance(name, str) or not name:
        hint = "Use a name or a glob as the key."
        raise EdictumConfigError(f"tools: {name!r} is not a tool name.", hint=hint)
    if isinstance(settings, ToolEntry):
        return settings
    if not isinstance(settings, Mapping):
        hint = 'Use a dict such as {"side_effect": "read"}.'
        raise EdictumConfigError(f"tools[{name!r}] is {settings!r}.", hint=hint)
    values = _read_settings(name, settings)
    states_effect = "side_effect" in values
    describes = states_effect or "idempotent" in values
    return ToolEntry(**values, describes=describes, states_effect=states_effect)


def _read_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are given, as a ToolEntry takes them."""
    values = {key: value for key, value in settings.items() if value is not None}
    for key in settings:
        _check_setting(name, key, values.get(key))
    if "side_effect" in values:
        values["side_effect"] = SideEffect(values["side_effect"])
    for key in AMOUNT_KEYS:
        if key in values:
            values[key] = _read_amounts(f"tools[{name!r}]: {key}", values[key], AMOUNT_KEYS[key])
    return values


def _check_setting(name: str, key: str, value: Any) -> None:
    if key not in ENTRY_SETTINGS:
        hint = f"Known keys: {', '.join(ENTRY_SETTINGS)}."
        raise EdictumConfigError(f"tools[{name!r}]: unknown key {key!r}.", hint=hint)
    kind = ENTRY_SETTINGS[key].kind
    if value is not None and not kind.is_valid(value):
        raise EdictumConfigError(f"tools[{name!r}]: {key} is {value!r}.", hint=kind.hint)


def _read_amounts(where: str, amounts: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Return amounts in which each function has become an AmountSource."""
    read = dict(amounts)
    for name, value in amounts.items():
        if callable(value):
            check_takes(f"{where}[{name!r}]", value, argument)
            read[name] = AmountSource("what its function returned", value)
    return read


def inherit_settings(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an entry has from one of a lower layer, beside its own."""
    return {
        name: setting.merge(above.get(name), below[name])
        for name, setting in ENTRY_SETTINGS.items()
        if setting.inherited and below.get(name)
    }


def inherit_entry(entry: ToolEntry, below: ToolEntry) -> ToolEntry:
    """Return an entry with what it inherits from one of a lower layer."""
    inherited = inherit_settings(_settings_of(entry), _settings_of(below))
    return replace(entry, **inherited) if inherited else entry


def _settings_of(entry: ToolEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in ENTRY_SETTINGS}


def merge_entries(first: ToolEntry, second: ToolEntry) -> ToolEntry:
    """Return the more careful of two descriptions of one tool.

    An entry that says nothing about the tool's effect does not count for it. An amount or a pin
    that both state is the first one's.
    """
    merged = {
        name: _merge_setting(setting, name, first, second)
        for name, setting in ENTRY_SETTINGS.items()
    }
    return ToolEntry(
        **merged,
        describes=first.describes or second.describes,
        states_effect=first.states_effect or second.states_effect,
    )


def _merge_setting(setting: Setting, name: str, first: ToolEntry, second: ToolEntry) -> Any:
    flag = setting.stated_by
    stated = [entry for entry in (first, second) if flag is None or getattr(entry, flag)]
    return reduce(setting.merge, (getattr(entry, name) for entry in stated or [first]))
