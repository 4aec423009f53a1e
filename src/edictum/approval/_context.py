"""Context of a request: what differs from the call that was approved last, and what a yes means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edictum.approval.queue import QueuedApproval
from edictum.core._records import record
from edictum.core.values import dumps

MAX_CHANGES = 200


@record
class ArgumentChange:
    """One argument, or a part of one, as it was approved last and as it is now; None if missing."""

    name: str
    before: str | None
    now: str | None


def list_differences(
    before: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> list[ArgumentChange]:
    """Return the arguments, each beside its value in the call approved last; without such a call,
    beside itself.
    """
    present = dict(_flatten("", now))
    past = present if before is None else dict(_flatten("", before))
    names = dict.fromkeys((*present, *past))
    changes = [ArgumentChange(name, past.get(name), present.get(name)) for name in names]
    return changes[:MAX_CHANGES]


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the parts of a value that are not mappings or lists, with their paths."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list | tuple) and value:
        for index, inner in enumerate(value):
            yield from _flatten(f"{name}[{index}]", inner)
    elif name:
        yield name, value if isinstance(value, str) else dumps(value)


def describe_yes(request: QueuedApproval) -> str:
    """Return a sentence about what a yes will do."""
    effect = {"irreversible": " This cannot be undone.", "write": " This changes something."}
    changes = effect.get(str(request.context.get("side_effect")), "")
    texts = [
        f"A yes lets {request.tool_name} run once, with these arguments.{changes}",
        _describe_count(request),
        "A no stops the call, and the agent is told your reason.",
    ]
    return " ".join(text for text in texts if text)


def _describe_count(request: QueuedApproval) -> str:
    """Return how many persons must say yes, if more than one, and who has said so already."""
    needed = max((terms["count"] for terms in request.approvers), default=1)
    if needed == 1:
        return ""
    said = ", ".join(answer.approver for answer in request.answers)
    return f"{needed} persons must say yes{f'; so far: {said}' if said else ''}."
