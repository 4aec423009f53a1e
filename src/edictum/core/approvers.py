"""Approvers: who may answer when a contract asks, and how many of them must say yes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

from edictum.core.call import Principal
from edictum.errors import EdictumConfigError

MAX_COUNT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvers:
    """Who may answer: persons with one of these roles, or any verified person without roles.

    ``count`` different persons must say yes, and the no of one denies. With ``not_requester`` those
    on whose behalf the call is made may not answer. ``escalate_after_s`` seconds after the question
    was asked, persons with a role of ``escalate_to`` may answer too.
    """

    roles: tuple[str, ...] = ()
    count: int = 1
    not_requester: bool = False
    escalate_after_s: float | None = None
    escalate_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (is_valid, hint) in APPROVER_RULES.items():
            if not is_valid(value := getattr(self, name)):
                raise EdictumConfigError(f"Approvers: {name} is {value!r:.80}.", hint=hint)
        object.__setattr__(self, "roles", tuple(self.roles))
        object.__setattr__(self, "escalate_to", tuple(self.escalate_to))
        if bool(self.escalate_to) != (self.escalate_after_s is not None):
            raise EdictumConfigError(
                "Approvers: escalate_after_s and escalate_to belong together.",
                hint="Give both, or neither.",
            )
        if self.escalate_to and not self.roles:
            hint = "Name the roles that are asked first."
            raise EdictumConfigError(
                "Approvers: escalate_to has no effect without roles.", hint=hint
            )

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _are_names(value: Any) -> bool:
    is_list = isinstance(value, Iterable) and not isinstance(value, (str, Mapping))
    return is_list and all(isinstance(name, str) and name for name in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


APPROVER_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "roles": (_are_names, "Use a list of names."),
    "count": (lambda it: _is_whole(it) and 1 <= it <= MAX_COUNT, f"Use 1 to {MAX_COUNT}."),
    "not_requester": (lambda it: isinstance(it, bool), "Use True or False."),
    "escalate_after_s": (lambda it: it is None or _is_positive(it), "Use seconds, more than 0."),
    "escalate_to": (_are_names, "Use a list of names."),
}


def identify(principal: Principal | None) -> tuple[str, ...]:
    """Return what a person or service is known by; two principals that share one are the same.

    Names that differ only in case, or in forms that Unicode holds for equal, are one: a login may
    spell a name otherwise than the agent does.
    """
    if principal is None:
        return ()
    named = (("user", principal.user_id), ("service", principal.service_id))
    return tuple(f"{kind}:{_fold(name)}" for kind, name in named if name)


def _fold(name: str) -> str:
    return normalize("NFKC", name).strip().casefold()


def roles_of(principal: Principal) -> tuple[str, ...]:
    """Return the roles of a principal: its role, and those in its claim ``roles``."""
    claimed = principal.claims.get("roles", ())
    more = [claimed] if isinstance(claimed, str) else claimed
    listed = [role for role in more if isinstance(role, str)] if _is_list(more) else []
    return tuple(dict.fromkeys([*([principal.role] if principal.role else []), *listed]))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset))
