"""Who may answer a request: pure rules over its row. Identities were verified by the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from edictum.approval._rows import RequestRow
from edictum.core._records import record
from edictum.core.approvers import identify, roles_of
from edictum.core.call import Principal
from edictum.errors import EdictumInputError


@record
class Person:
    """Who answers: a name to show, and what is verified. A plain name has no identities."""

    name: str
    identities: Sequence[str] = ()
    roles: Sequence[str] = ()


def read_person(approver: object) -> Person:
    """Return the person who answers; raise EdictumInputError for anything that does not name
    one.
    """
    if isinstance(approver, Principal) and identify(approver):
        name = approver.user_id or approver.service_id or ""
        return Person(name, identify(approver), roles_of(approver))
    if isinstance(approver, str) and approver:
        return Person(approver)
    raise EdictumInputError(
        "approver does not name a person.",
        hint='Use approver="ann", or Principal(user_id="ann", role="sre") where it is verified.',
    )


def refuse_person(row: RequestRow, person: Person, now: float) -> str | None:
    """Return why a person may not answer a request, or None."""
    if not row.approvers:
        return None
    if not person.identities:
        return (
            f"Only some may answer it, and {person.name!r:.80} is a plain name. Pass the verified"
            " person: approver=Principal(user_id=..., role=...)."
        )
    is_excluded = any(terms["not_requester"] for terms in row.approvers)
    if is_excluded and set(person.identities) & set(row.requester):
        return f"{person.name!r:.80} has asked for it: the requester may not answer."
    if any(_may_answer(terms, person.roles, row.asked_at, now) for terms in row.approvers):
        return None
    return f"{person.name!r:.80} may not answer it: {_describe(row)}."


def _may_answer(
    terms: Mapping[str, Any], roles: Sequence[str], asked_at: float, now: float
) -> bool:
    """Return whether a person with these roles may answer at a time."""
    if not terms["roles"] or set(terms["roles"]) & set(roles):
        return True
    after_s = terms["escalate_after_s"]
    is_escalated = after_s is not None and now >= asked_at + after_s
    return is_escalated and bool(set(terms["escalate_to"]) & set(roles))


def _describe(row: RequestRow) -> str:
    """Return who may answer, as text."""
    texts = []
    for terms in row.approvers:
        text = f"the roles {', '.join(terms['roles'])}"
        if terms["escalate_after_s"] is not None:
            at = datetime.fromtimestamp(row.asked_at + terms["escalate_after_s"], UTC)
            text += f" (from {at:%H:%M:%S} UTC on {', '.join(terms['escalate_to'])} too)"
        texts.append(text)
    return f"it is for {'; '.join(texts)}"


def has_enough(row: RequestRow, answers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether these yeses, each of another person, approve a request.

    A yes counts towards the terms of each asker under which its person could answer when it was
    given.
    """
    return bool(answers) and all(
        sum(_may_answer(terms, it["roles"], row.asked_at, it["at"]) for it in answers)
        >= terms["count"]
        for terms in row.approvers
    )


def replace_answer(
    answers: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the yeses with one more, which replaces an earlier one of the same person."""
    said_by = set(answer["identities"])
    others = [it for it in answers if not said_by & set(it["identities"])]
    return [*others, answer]
