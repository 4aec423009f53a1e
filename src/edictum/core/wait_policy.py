"""Wait policies: how the answer to an effect may be waited for. Each effect class names its own, as
``wait``.
"""

from __future__ import annotations

from typing import Literal

from edictum.core._records import record


@record
class WaitPolicy:
    """One way of waiting.

    ``bound``: what bounds the wait in a turn. "turn": the time that the turn has left. "port": the
    same, but never less than a moment, so that what happened is still counted and written.
    "person": the turn's clock stands still. "own": the effect has a bound of its own, or is
    answered at once.

    ``on_cancel``: what becomes of the request when its caller is cancelled or its time is over.
    "stop": it is cancelled. "finish": it is completed, because it cannot be known how far it came,
    and a cancelled caller waits for it. "linger": the same, but a cancelled caller waits only
    shortly.

    ``outlives_caller``: whether the request is still sent when the caller's coroutine is being
    closed.
    """

    bound: Literal["own", "turn", "port", "person"]
    on_cancel: Literal["stop", "finish", "linger"] = "stop"
    outlives_caller: bool = False


OWN_BOUND = WaitPolicy("own")
USER_CODE = WaitPolicy("turn")
PERSON = WaitPolicy("person")
PORT = WaitPolicy("port")
# Not sent for a caller that is gone: what it is granted would not be given back.
RESERVE = WaitPolicy("port", "finish")
SETTLE = WaitPolicy("port", "finish", outlives_caller=True)
RECORD = WaitPolicy("port", "linger", outlives_caller=True)
