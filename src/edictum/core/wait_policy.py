"""How the answer to an effect may be waited for. Every effect class says it, as ``wait``."""

from __future__ import annotations

from typing import Literal

from edictum.core._records import record


@record
class WaitPolicy:
    """One way of waiting.

    ``bound``: what bounds the wait in a turn. ``turn`` is the time that the turn has left; ``port``
    is that too, but never less than a moment, so that what happened is still counted and written;
    ``person`` stops the turn's clock; ``own`` has a bound of its own, or is answered at once.

    ``on_cancel``: what becomes of the request when its caller is cancelled or its time is over. It
    is stopped; or it is finished, because it cannot be known how far it came, and a cancelled
    caller waits for it; or the same, but the caller lingers only shortly.

    ``outlives_caller``: whether it is still sent when the caller's coroutine is closed.
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
