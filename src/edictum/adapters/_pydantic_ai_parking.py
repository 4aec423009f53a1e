"""Pydantic AI's own pause: a run ends with DeferredToolRequests, and another one continues with
DeferredToolResults.
"""

from __future__ import annotations

from typing import Any, get_args

from edictum.core.parking import Park, tell_once


def make_deferring_park(approval_required: type[BaseException], context: Any) -> Park:
    """Return the function that defers a call. A call that was approved in the results of a deferred
    run tells so once; a refusal does not come here, as the framework does not make the call then.
    """

    def defer(request: Any) -> Any:
        raise approval_required({"approval_id": request.approval_id, "message": request.message})

    return tell_once(context.tool_call_approved or None, _name_approver(context), defer)


def has_output(spec: Any, kind: Any) -> bool:
    """Return whether an agent may have an output of this kind."""
    parts = spec if isinstance(spec, (list, tuple)) else get_args(spec)
    return spec is kind or any(has_output(part, kind) for part in parts)


def _name_approver(context: Any) -> str:
    """Return who approved a deferred call, as far as its results say so."""
    about = context.tool_call_metadata
    name = about.get("approver") if isinstance(about, dict) else None
    return str(name or "Pydantic AI")
