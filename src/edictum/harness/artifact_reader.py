"""``read_artifact``: the tool with which a model reads parts of a stored output.

Every answer fits a message, so reading never makes another artifact. Unknown ids, invalid patterns
and pointers to nothing are answered, not raised. A reader sees only the artifacts of its session.
Patterns run in linear time (RE2); without RE2 they are plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from edictum.core.redaction import shorten
from edictum.core.values import dumps, show
from edictum.errors import EdictumConfigError
from edictum.harness.artifact_store import ArtifactStore
from edictum.outcomes import TOOL_MESSAGE_MAX_CHARS

ANSWER_CHARS = TOOL_MESSAGE_MAX_CHARS * 2 // 3
DEFAULT_LIMIT = 4_000
MAX_MATCHES = 50
MATCH_CHARS = 300
ERROR_CHARS = 600  # fits ANSWER_CHARS even if every character is escaped, as up to twelve
KEYS_CHARS = ANSWER_CHARS // 4

Matcher = Callable[[str], bool]
_INDEX = re.compile(r"[0-9]{1,18}")
READER = "read_artifact"  # the name of the tool, as the model knows it


def make_reader(
    store: ArtifactStore, session: str | Callable[[], str | None]
) -> Callable[..., dict[str, Any]]:
    """Return the tool ``read_artifact`` for one session, or for the one that a function returns
    when the tool is called; with None it reads nothing.
    """

    def read_artifact(
        artifact_id: str,
        offset: int = 0,
        limit: int = DEFAULT_LIMIT,
        head: int | None = None,
        tail: int | None = None,
        grep: str | None = None,
        pointer: str | None = None,
    ) -> dict[str, Any]:
        """Read part of a stored output.

        Give one of: offset and limit (characters), head or tail (lines), grep (a pattern; lines
        that match), or pointer (a JSON pointer such as /items/0/name).
        """
        session_id = session() if callable(session) else session
        if session_id is None:
            return _error("read_artifact is not governed: its session is not known.")
        text = store.retrieve(artifact_id, session_id) if isinstance(artifact_id, str) else None
        if text is None:
            missing = f"No artifact {_brief(artifact_id)} in this session"
            return _error(f"{missing}; it may have expired. Call the tool again.")
        if pointer is not None:
            return _read_pointer(text, pointer)
        if grep is not None:
            return _grep(text, grep)
        if head is not None:
            return _read_lines(text, head, from_end=False)
        if tail is not None:
            return _read_lines(text, tail, from_end=True)
        return _read_slice(text, min(max(0, offset), len(text)), max(0, limit))

    return read_artifact


def _error(text: str) -> dict[str, Any]:
    return {"error": shorten(text, ERROR_CHARS)}


def _brief(value: Any) -> str:
    """Return the start of what a model sent, which may be of any length."""
    return shorten(show(value), 80)


def _fit(
    text: str, answer: Callable[[str], dict[str, Any]], from_end: bool = False
) -> dict[str, Any]:
    """Return the answer with as much of the text as a message takes, in its escaped form."""
    part = text[-ANSWER_CHARS:] if from_end else text[:ANSWER_CHARS]
    while part and len(dumps(answer(part))) > ANSWER_CHARS:
        keep = len(part) * 3 // 4
        part = part[-keep:] if from_end and keep else part[:keep]
    return answer(part)


def _read_slice(text: str, offset: int, limit: int) -> dict[str, Any]:
    def answer(part: str) -> dict[str, Any]:
        end = offset + len(part)
        more = {"next_offset": end} if end < len(text) else {}
        return {"content": part, "offset": offset, "total_chars": len(text), **more}

    return _fit(text[offset : offset + limit], answer)


def _read_lines(text: str, count: int, *, from_end: bool) -> dict[str, Any]:
    lines = text.splitlines()
    skipped = max(0, len(lines) - max(0, count)) if from_end else 0
    chosen = "\n".join(lines[skipped : skipped + max(0, count)])

    def answer(part: str) -> dict[str, Any]:
        cut = {"truncated": True} if len(part) < len(chosen) else {}
        return {"content": part, "total_lines": len(lines), "total_chars": len(text), **cut}

    return _fit(chosen, answer, from_end=from_end)


def _make_matcher(pattern: str) -> tuple[Matcher | None, str]:
    """Return a test for lines and its kind; None and the reason if the pattern is invalid."""
    from edictum.contracts._regex import PatternError, compile_pattern

    try:
        found = compile_pattern(pattern)
    except EdictumConfigError:  # RE2 is not installed
        return (lambda line: pattern in line), "plain text"
    except PatternError as exc:
        return None, f"{exc} {exc.hint}".strip()
    except UnicodeEncodeError:
        return None, "the pattern contains a lone surrogate"
    return (lambda line: bool(found.search(line))), "pattern"


def _grep(text: str, pattern: str) -> dict[str, Any]:
    matches, how = _make_matcher(pattern)
    if matches is None:
        return _error(f"grep: {how}")
    found: list[dict[str, Any]] = []
    total = offset = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if matches(line.rstrip("\r\n")):
            total += 1
            if len(found) < MAX_MATCHES:
                start = _find_window(line, matches)
                part = line[start : start + MATCH_CHARS].rstrip("\r\n")
                found.append({"line": number, "offset": offset + start, "text": part})
        offset += len(line)
    answer = {"matches": found, "total_matches": total, "matched_as": how}
    while found and len(dumps(answer)) > ANSWER_CHARS:
        found.pop()
    return answer


def _find_window(line: str, matches: Matcher) -> int:
    """Return where a part of the line begins that shows the match; 0 if no part does."""
    starts = range(0, max(1, len(line) - MATCH_CHARS // 2), MATCH_CHARS // 2)
    return next((start for start in starts if matches(line[start : start + MATCH_CHARS])), 0)


def _read_pointer(text: str, pointer: str) -> dict[str, Any]:
    try:
        return _show_value(resolve_pointer(json.loads(text), pointer), shorten(pointer, 200))
    except LookupError as exc:
        return _error(f"pointer {_brief(pointer)}: {exc.args[0]}")
    except (ValueError, RecursionError):
        other_ways = "offset and limit, head, tail or grep"
        return _error(
            f"This artifact is not JSON, or nested too deeply; read it with {other_ways}."
        )


def _show_value(value: Any, pointer: str) -> dict[str, Any]:
    answer = {"pointer": pointer, "value": value}
    if len(dumps(answer)) <= ANSWER_CHARS:
        return answer
    about = {"pointer": pointer, "truncated": True, **_describe_shape(value)}
    return _fit(json.dumps(value, ensure_ascii=False), lambda part: {**about, "content": part})


def _describe_shape(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        keys = [shorten(key, 60) for key in list(value)[:40]]
        while len(dumps(keys)) > KEYS_CHARS:
            keys.pop()
        return {"type": "object", "keys": keys, "total_keys": len(value)}
    if isinstance(value, list):
        return {"type": "list", "total_items": len(value)}
    return {"type": type(value).__name__}


def resolve_pointer(value: Any, pointer: str) -> Any:
    """Return what a JSON pointer (RFC 6901) names, or raise LookupError saying where it ends."""
    if pointer and not pointer.startswith("/"):
        raise LookupError("a JSON pointer begins with a slash, or is empty for the whole")
    for token in pointer.split("/")[1:]:
        value = _step(value, token.replace("~1", "/").replace("~0", "~"))
    return value


def _step(value: Any, token: str) -> Any:
    if isinstance(value, dict):
        if token not in value:
            message = f"there is no {_brief(token)}; there are: {shorten(', '.join(value), 300)}"
            raise LookupError(message)
        return value[token]
    if isinstance(value, list):
        if not _INDEX.fullmatch(token) or int(token) >= len(value):
            raise LookupError(f"{_brief(token)} is not an index of a list of {len(value)} items")
        return value[int(token)]
    raise LookupError(f"{_brief(token)} looks into a {type(value).__name__}")
