"""What a tool of LangChain wrote: a message, a Command with messages and other state, or a list of
these.

All of it is read by somebody, so all of it is judged: by itself if it is one piece, else as a list
of the pieces in their order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from edictum.adapters._base import as_text

LEFT_OUT = object()
LABELS = {
    "type",
    "id",
    "name",
    "tool_call_id",
    "status",
}  # of a tool's message: LangChain's, not what the tool found out
Change = Callable[[Any], Any]


def each(result: Any, change: Change) -> Any:
    """The result with a change made to every piece of it; lists and Commands around the pieces stay
    what they are.
    """
    if isinstance(result, list):
        return _kept(each(item, change) for item in result)
    if not getattr(result, "__dataclass_fields__", {}).keys() >= {
        "update",
        "resume",
        "goto",
    }:  # a Command has these
        return change(result)
    return replace(result, update=_update(result.update, change), goto=_goto(result.goto, change))


def _update(update: Any, change: Change) -> Any:
    """LangGraph takes the new state as a dict, as pairs, as a list of messages, or as an object of
    the state's class.
    """
    if update is None or isinstance(update, dict):
        return update and dict(_pairs(update.items(), change))
    if isinstance(update, (list, tuple)) and all(
        isinstance(item, tuple) and len(item) == 2 for item in update
    ):
        return _pairs(update, change)
    new = each(list(update) if isinstance(update, tuple) else update, change)
    return None if new is LEFT_OUT else new


def _pairs(pairs: Iterable[tuple[str, Any]], change: Change) -> list[tuple[str, Any]]:
    return [(key, new) for key, value in pairs if (new := each(value, change)) is not LEFT_OUT]


def _goto(goto: Any, change: Change) -> Any:
    """Where to go next: names of nodes, or a Send, which brings something along."""
    return (
        goto
        if isinstance(goto, str)
        else _kept(
            _sent(item, change) for item in (goto if isinstance(goto, (list, tuple)) else [goto])
        )
    )


def _sent(item: Any, change: Change) -> Any:
    if isinstance(item, str):
        return item
    arg = change(item.arg)
    if arg is LEFT_OUT:
        return LEFT_OUT
    sent = copy.copy(item)
    sent.arg = arg
    return sent


def _kept(items: Iterable[Any]) -> list[Any]:
    return [item for item in items if item is not LEFT_OUT]


def pieces(result: Any) -> list[Any]:
    found: list[Any] = []
    each(result, found.append)
    return found


def written(piece: Any) -> Any:
    """A piece as the guard judges it. Of a message: its content, or all that it holds if there is
    more.
    """
    if not is_message(piece):
        return piece
    fields = {**vars(piece), **(piece.model_extra or {})}
    found = {
        name: value
        for name, value in fields.items()
        if value and (name not in LABELS or (name == "name" and piece.type != "tool"))
    }
    return piece.content if found.keys() <= {"content"} else {"content": piece.content, **found}


def rewritten(piece: Any, value: Any, **labels: Any) -> Any:
    """The piece with what the guard made of it. A message whose parts are not told apart any more
    keeps nothing but its labels.
    """
    if not is_message(piece):
        return value
    before = written(piece)
    parts = (
        value
        if isinstance(before, dict) and isinstance(value, dict) and value.keys() == before.keys()
        else {"content": value}
    )
    if isinstance(before, dict) and parts is not value:
        piece = type(piece)(
            **{
                name: getattr(piece, name)
                for name in type(piece).model_fields
                if name in LABELS | {"content"}
            }
        )
    blocks = isinstance(parts["content"], list) and isinstance(piece.content, list)
    return piece.model_copy(
        update={
            **parts,
            "content": parts["content"] if blocks else as_text(parts["content"]),
            **labels,
        }
    )


def is_message(piece: Any) -> bool:
    return getattr(type(piece), "model_fields", {}).keys() >= {"content", "additional_kwargs"}


def judged(result: Any) -> Any:
    """What the guard judges of a result that the tool put together itself."""
    found = [written(piece) for piece in pieces(result)]
    return found if len(found) > 1 else found[0] if found else result


def answered(result: Any, message: Any, value: Any, **labels: Any) -> Any:
    """The result with what the guard made of it. One value in place of several pieces goes into the
    message; the rest is left out.
    """
    count = len(pieces(result))
    if count == 1 or (isinstance(value, list) and len(value) == count):
        values = iter([value] if count == 1 else value)
        return each(
            result,
            lambda piece: rewritten(piece, next(values), **(labels if piece is message else {})),
        )
    return each(
        result, lambda piece: rewritten(piece, value, **labels) if piece is message else LEFT_OUT
    )
