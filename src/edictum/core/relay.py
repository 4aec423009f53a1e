"""relay: pass on the effects of a lifecycle, changed on the way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from edictum.core.effects import Effect

_T = TypeVar("_T")


def relay(
    flow: Generator[Effect, Any, _T],
    pass_on: Callable[[Effect], Effect],
    take_answer: Callable[[Any], Any] | None = None,
    finish: Callable[[_T], _T] | None = None,
) -> Generator[Effect, Any, _T]:
    """Yield what ``pass_on`` makes of each effect, and answer with what ``take_answer`` makes.

    Returns what ``flow`` returns, after ``finish``. What is thrown in here is thrown into ``flow``,
    which has a call to close.
    """
    advance: Any = flow.send
    answer: Any = None
    while True:
        try:
            effect = advance(answer)
            advance, answer = flow.send, (yield pass_on(effect))
            if take_answer is not None:
                answer = take_answer(answer)
        except StopIteration as end:
            return end.value if finish is None else finish(end.value)
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as exc:
            if exc is answer:  # thrown in already, and raised again when the call was closed
                raise
            advance, answer = flow.throw, exc
