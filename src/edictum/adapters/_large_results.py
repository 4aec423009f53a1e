"""Results that are too large for a model: shorten what it reads, or store it as an artifact.

A text is cut. A structure keeps its form where only some texts in it are long: those are cut. One
with too many parts becomes the beginning of its JSON text, unless its form must stay. Images and
other media are not text, and stay as they are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edictum._logs import ARTIFACT_NOT_STORED, log
from edictum.adapters._identity import find_outer_caller
from edictum.core._records import record
from edictum.core.values import SCALARS, TextChanger, dumps, to_json
from edictum.errors import EdictumConfigError
from edictum.outcomes import ToolArtifactReference, ToolExecutionResult

if TYPE_CHECKING:
    from edictum.harness.artifact_store import ArtifactRef, ArtifactStore

MAX_RESULT_CHARS = 50_000
LONG_CHARS = 1_000  # a text in a structure that may be cut
READER_NAME = "read_artifact"
NOTICE = "... [shortened: {:,} characters, the first {:,} are shown; ask for a smaller part]"
MEDIA = {
    *("image", "audio", "video", "file", "image_url", "media", "document", "blob", "resource"),
    *("input_image", "input_audio", "input_file"),
}


def cut_text(text: str, most: int) -> str:
    """Return the text, or its beginning with a notice that says how long it was."""
    if len(text) <= most or text.startswith("data:"):
        return text
    return text[:most] + NOTICE.format(len(text), most)


def is_media(value: Any) -> bool:
    """Return whether a part is an image, a recording or a file in the form of its framework."""
    if isinstance(value, Mapping):
        return isinstance(kind := value.get("type"), str) and kind in MEDIA
    if hasattr(value, "media_type") or hasattr(value, "mime_type"):
        return True
    return isinstance(kind := getattr(value, "type", None), str) and kind in MEDIA


class _LongTextChanger(TextChanger):
    """Change the texts in a structure, but neither its keys nor media in it."""

    __slots__ = ("has_media",)

    def __init__(self, change: Callable[[str], str]) -> None:
        super().__init__(change)
        self.has_media = False

    def key(self, key: Any) -> Any:
        return key

    def mapping(self, value: Any) -> Any:
        if is_media(value):
            self.has_media = True
            return value
        return super().mapping(value)

    def other(self, value: Any) -> Any:
        self.has_media = self.has_media or is_media(value)
        return super().other(value)


@record
class ResultLimit:
    """How many characters of a result a model is shown; None is all."""

    most: int | None = None

    def fit(self, value: Any, *, keep_form: bool = False) -> Any:
        """Return what a model may read of a value: the same object if that is all of it."""
        most = self.most
        if most is None or (type(value) is not str and type(value) in SCALARS):
            return value
        if isinstance(value, str):
            return value if len(value) <= most else cut_text(value, most)
        return value if len(dumps(value)) <= most else _fit_structure(value, most, keep_form)

    def fit_blocks(self, blocks: list[Any]) -> list[Any]:
        """Return the parts of a message, with the texts in them cut so that all fit together."""
        if (left := self.most) is None:
            return blocks
        fitted = []
        for block in blocks:
            text = _get_text(block)
            fitted.append(
                block if len(text) <= left else _replace_text(block, cut_text(text, left))
            )
            left = max(0, left - len(text))
        same = all(new is old for new, old in zip(fitted, blocks, strict=True))
        return blocks if same else fitted


NO_LIMIT = ResultLimit()


def _get_text(block: Any) -> str:
    found = block.get("text") if isinstance(block, Mapping) else block
    return found if isinstance(found, str) else ""


def _replace_text(block: Any, text: str) -> Any:
    return {**block, "text": text} if isinstance(block, Mapping) else text


def check_limit(owner: str, most: Any) -> ResultLimit:
    if most is not None and (type(most) is not int or most < 1):
        hint = "Pass a number of characters, or None to show the model all of a result."
        raise EdictumConfigError(f"{owner}: max_result_chars={most!r} is not a size.", hint=hint)
    return ResultLimit(most)


def _fit_structure(value: Any, most: int, keep_form: bool) -> Any:
    """Return the structure with its long texts cut, or else the beginning of its JSON text."""
    if is_media(value):
        return value
    text = _write(value)
    if len(text) <= most:
        return value
    long, found = min(LONG_CHARS, most // 2), list[int]()

    def leave_out(each: str) -> str:
        is_long = len(each) > long and not each.startswith("data:")
        if is_long:
            found.append(len(each))
        return "" if is_long else each

    walk = _LongTextChanger(leave_out)
    rest = len(_write(walk.visit(value)))
    if found and (rest <= most // 2 or keep_form or walk.has_media):
        part = max((most - rest) // len(found), long)
        return _LongTextChanger(lambda each: cut_text(each, part)).visit(value)
    return value if keep_form or walk.has_media else cut_text(text, most)


def _write(value: Any) -> str:
    return json.dumps(to_json(value), ensure_ascii=False)


# --- Storing --------------------------------------------------------------------------------------


def check_store(owner: str, store: Any, can_store: bool) -> Any:
    if store is None:
        return None
    if not can_store:
        raise EdictumConfigError(
            f"{owner} cannot store results: a reference may not stand in their place.",
            hint="Leave artifact_store out; results that are too large are shortened.",
        )
    if not callable(getattr(store, "store", None)):
        hint = "Pass an ArtifactStore of edictum.harness."
        raise EdictumConfigError(f"{owner}: {store!r} is not an artifact store.", hint=hint)
    return store


def store_result(
    store: ArtifactStore, session_id: str, outcome: ToolExecutionResult, value: Any
) -> ToolArtifactReference | None:
    """Store a value that is too large; return None if that failed, which is logged."""
    try:
        found: ArtifactRef = store.store(session_id, value, outcome.tool_name)
    except Exception:
        log(
            ARTIFACT_NOT_STORED,
            "a result of %r could not be stored; it is shortened",
            outcome.tool_name,
            exc_info=True,
            tool=outcome.tool_name,
            call_id=outcome.call_id,
        )
        return None
    return ToolArtifactReference(
        outcome.call_id,
        outcome.tool_name,
        found.artifact_id,
        found.summary,
        found.size_bytes,
        elapsed_ms=outcome.elapsed_ms,
        findings=outcome.findings,
        notes=outcome.notes,
        reader=READER_NAME,
    )


async def store_result_async(
    store: ArtifactStore, session_id: str, outcome: ToolExecutionResult, value: Any
) -> ToolArtifactReference | None:
    """Do as ``store_result`` does in a thread: a store may block."""
    return await asyncio.to_thread(store_result, store, session_id, outcome, value)


def make_session_reader(store: ArtifactStore, guard: Any) -> Callable[..., dict[str, Any]]:
    """Return the tool ``read_artifact``, which reads in the session of the call that it runs in."""
    from edictum.harness.artifact_reader import make_reader

    def find_session() -> str | None:
        caller = find_outer_caller(guard)
        return None if caller is None else caller.session_id

    return make_reader(store, find_session)
