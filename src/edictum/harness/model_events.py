"""Model events: what is received of a reply while the model is still writing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text. Like those below, a ``ModelEvent``: what a model streams."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning, or of the provider's summary of it."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """More of the text by which the model refuses to answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model begins to ask for a call. ``index`` counts the calls of the reply from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the JSON text of a call's arguments."""

    index: int
    arguments: str


ModelEvent: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta | ToolCallStarted | ToolCallDelta
OnModelEvent: TypeAlias = Callable[[ModelEvent], Any]
