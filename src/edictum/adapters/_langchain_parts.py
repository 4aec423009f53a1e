"""Parts of a LangChain result: messages, Commands with other state, or a list of these.

All of it is read by a model or a program, so all of it is judged: by itself if it is one piece,
else as a list of the pieces in their order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from edictum.adapters._large_results import ResultLimit
from edictum.adapters._reply import to_text

LEFT_OUT = object()
COMMAND_FIELDS = {"update", "resume", "goto"}
# Of a tool's message: LangChain's, not what the tool found out.
LABELS = {"type", "id", "name", "tool_call_id", "status"}
PieceChange = Callable[[Any], Any]


def change_each(result: Any, change: PieceChange) -> Any:
    """Return the result with every piece changed; the lists and Commands around them stay."""
    if isinstance(result, list):
        return _keep(change_each(item, change) for item in result)
    if not getattr(result, "__dataclass_fields__", {}).keys() >= COMMAND_FIELDS:
        return change(result)
    update, goto = _change_update(result.update, change), _change_goto(result.goto, change)
    return replace(result, update=update, goto=goto)


def _change_update(update: Any, change: PieceChange) -> Any:
    """Change a dict, pairs, a list of messages, or an object of the state's class."""
    if update is None or isinstance(update, dict):
        return update and dict(_change_pairs(update.items(), change))
    is_list = isinstance(update, (list, tuple))
    if is_list and all(isinstance(item, tuple) and len(item) == 2 for item in update):
        return _change_pairs(update, change)
    new = change_each(list(update) if isinstance(update, tuple) else update, change)
    return None if new is LEFT_OUT else new


def _change_pairs(pairs: Iterable[tuple[str, Any]], change: PieceChange) -> list[tuple[str, Any]]:
    changed = [(key, change_each(value, change)) for key, value in pairs]
    return [(key, new) for key, new in changed if new is not LEFT_OUT]


def _change_goto(goto: Any, change: PieceChange) -> Any:
    """Change where to go next: names of nodes, or a Send, which carries data."""
    if isinstance(goto, str):
        return goto
    targets = goto if isinstance(goto, (list, tuple)) else [goto]
    return _keep(_change_send(item, change) for item in targets)


def _change_send(item: Any, change: PieceChange) -> Any:
    if isinstance(item, str):
        return item
    arg = change(item.arg)
    if arg is LEFT_OUT:
        return LEFT_OUT
    sent = copy.copy(item)
    sent.arg = arg
    return sent


def _keep(items: Iterable[Any]) -> list[Any]:
    return [item for item in items if item is not LEFT_OUT]


def list_pieces(result: Any) -> list[Any]:
    found: list[Any] = []
    change_each(result, found.append)
    return found


def is_message(piece: Any) -> bool:
    return getattr(type(piece), "model_fields", {}).keys() >= {"content", "additional_kwargs"}


def _read(piece: Any) -> Any:
    """Return what is judged: of a message its content, or all that it holds if there is more."""
    if not is_message(piece):
        return piece
    fields = {**vars(piece), **(piece.model_extra or {})}
    labels = LABELS if piece.type == "tool" else LABELS - {"name"}
    found = {name: value for name, value in fields.items() if value and name not in labels}
    return piece.content if found.keys() <= {"content"} else {"content": piece.content, **found}


def fit_message(piece: Any, limit: ResultLimit) -> Any:
    """Return a message with its content shortened for a model; other pieces stay."""
    if not is_message(piece):
        return piece
    content = piece.content
    fitted = limit.fit_blocks(content) if isinstance(content, list) else limit.fit(content)
    return piece if fitted is content else piece.model_copy(update={"content": fitted})


def to_judge(result: Any) -> Any:
    """Return what the guard judges of a result that the tool put together itself."""
    found = [_read(piece) for piece in list_pieces(result)]
    return found if len(found) > 1 else found[0] if found else result


def rewrite(piece: Any, value: Any, **labels: Any) -> Any:
    """Return the piece with a new value. A message that loses its parts keeps only its labels."""
    if not is_message(piece):
        return value
    before, parts = _read(piece), {"content": value}
    if isinstance(before, dict):
        if isinstance(value, dict) and value.keys() == before.keys():
            parts = value
        else:
            kept = type(piece).model_fields.keys() & (LABELS | {"content"})
            piece = type(piece)(**{name: getattr(piece, name) for name in kept})
    content = parts["content"]
    if not (isinstance(content, list) and isinstance(piece.content, list)):
        content = to_text(content)
    return piece.model_copy(update={**parts, "content": content, **labels})


def put_back(result: Any, message: Any, value: Any, **labels: Any) -> Any:
    """Return the result with a new value; one value for several pieces is left in the message."""
    count = len(list_pieces(result))
    if count != 1 and not (isinstance(value, list) and len(value) == count):
        return change_each(
            result, lambda piece: rewrite(piece, value, **labels) if piece is message else LEFT_OUT
        )
    values = iter([value] if count == 1 else value)
    return change_each(
        result, lambda piece: rewrite(piece, next(values), **(labels if piece is message else {}))
    )
