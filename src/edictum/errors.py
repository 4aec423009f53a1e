"""Everything Edictum raises.

::

    EdictumError                 every error below; has .code (stable) and .hint (what to do)
    ├── EdictumConfigError       the configuration is wrong: contracts, limits, tools, mode; raised
    before any call runs
    ├── EdictumInputError        one call was asked for wrongly: tool name, arguments, session id
    (also a ValueError)
    ├── EdictumDenied            guard.run only: the call was refused and its tool did not run;
    .outcome is the ToolDenied
    ├── EdictumToolError         guard.run only: the tool ran and failed, or ran out of time;
    .outcome says which
    ├── BackendError             a port failed: ledger, audit sink, approval backend; inside a call
    it becomes a denial
    ├── ModelError               a model's answer is empty, broken off, or an error of its provider
    └── TicketError              a before/after host finished a call twice, or one that is not known

Denials and failures of tools are *values* (``edictum.outcomes``); ``guard.run`` alone turns them
into exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edictum.outcomes import ToolDenied, ToolFailure, ToolTimeout


class EdictumError(Exception):
    """Base of all errors of the library."""

    code = "edictum_error"

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip() if hint else message)
        self.hint = hint


class EdictumConfigError(EdictumError):
    """The configuration is wrong; nothing was registered."""

    code = "config_error"


class EdictumInputError(EdictumError, ValueError):
    """One call was asked for in a way that cannot be governed; nothing was counted and nothing
    ran.
    """

    code = "input_error"
    is_for_model = True


class EdictumDenied(EdictumError):
    """The call was refused before its tool ran."""

    code = "denied"

    def __init__(
        self,
        reason: str,
        decision_source: str | None = None,
        decision_name: str | None = None,
        outcome: ToolDenied | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.decision_source = decision_source
        self.decision_name = decision_name
        self.outcome = outcome


class EdictumToolError(EdictumError):
    """The tool ran and its call counts as failed. ``result`` is what it returned, redacted; the
    tool's own exception is the cause.
    """

    code = "tool_error"

    def __init__(
        self, message: str, outcome: ToolFailure | ToolTimeout | None = None, result: Any = None
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.result = result


class BackendError(EdictumError):
    """A port (ledger, audit sink, approval backend) could not do its work."""

    code = "backend_error"


class ModelError(EdictumError):
    """A model answered with an error, with nothing, or with less than a whole reply."""

    code = "model_error"


class TicketError(EdictumError):
    """A host that runs tools itself used a ticket wrongly."""

    code = "ticket_error"
