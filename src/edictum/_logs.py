"""The log: one function writes it, and one table lists what it can say.

Every record has ``edictum_event``, a code that does not change between versions, and fields such as
``tool``, ``call_id``, ``session_id``, ``store``. The first word of a code names the logger below
``edictum``: records of ``ledger.unavailable`` are written by ``edictum.ledger``. The documentation
prints the table.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

from edictum.core._records import record
from edictum.core.decide import describe
from edictum.core.redaction import hide_secrets

ERROR, WARNING, INFO = logging.ERROR, logging.WARNING, logging.INFO
LOG_EVENTS: Final[dict[str, LogEvent]] = {}


@record
class LogEvent:
    """One kind of record: its code and level, what it means, and what an operator does."""

    code: str
    level: int
    meaning: str
    remedy: str

    @property
    def logger(self) -> str:
        return f"edictum.{self.code.partition('.')[0]}"


def log(
    event: LogEvent,
    message: str,
    *args: Any,
    exc_info: Any = None,
    redact: Callable[[str], str] = hide_secrets,
    **fields: Any,
) -> None:
    """Write a record of this kind, without secrets; the fields become attributes of it.

    An exception is passed on as it is, for handlers that group or report them. If its traceback
    holds a secret, its text without secrets is a part of the message instead.
    """
    shown = [_hide(it, redact) for it in args]
    error = sys.exception() if exc_info is True else exc_info
    if error is not None:
        trace = "".join(traceback.format_exception(error))
        if (hidden := redact(trace)) != trace:
            message, error = f"{message}\n%s", None
            shown.append(hidden)
    logging.getLogger(event.logger).log(
        event.level,
        message,
        *shown,
        exc_info=error,
        extra={"edictum_event": event.code, **fields},
        stacklevel=2,
    )


def _hide(value: Any, redact: Callable[[str], str]) -> Any:
    text = describe(value) if isinstance(value, BaseException) else value
    return redact(text) if isinstance(text, str) else text


def _event(code: str, level: int, meaning: str, remedy: str) -> LogEvent:
    LOG_EVENTS[code] = event = LogEvent(code, level, meaning, remedy)
    return event


# --- Ledger ---------------------------------------------------------------------------------------

LEDGER_UNAVAILABLE = _event(
    "ledger.unavailable",
    ERROR,
    "The session store does not answer, or refuses. All calls are denied until it answers again.",
    "Read the reason in the message: the server is down, slow, full or read-only, or the URL is"
    " wrong. Calls go on by themselves once it answers.",
)
LEDGER_ANSWERS = _event(
    "ledger.answers_again",
    WARNING,
    "The session store answers again; calls are no longer denied.",
    "Nothing. If it happens often, look at the server and the network.",
)
LEDGER_NOT_COUNTED = _event(
    "ledger.calls_not_counted",
    ERROR,
    "The process ended, or the store was closed, before calls that ran were counted.",
    "The counters of their sessions are too low by as many; correct them if they matter.",
)
LEDGER_SENDING_FAILED = _event(
    "ledger.sending_failed",
    ERROR,
    "The task that sends to the session store ended unexpectedly; it is started again.",
    "Report it, with the traceback.",
)
LEDGER_LOOP_CLOSED = _event(
    "ledger.loop_closed",
    WARNING,
    "An event loop was closed while calls waited for the store. Slots they got are given back.",
    "Await the calls before the loop ends.",
)
LEDGER_LATE = _event(
    "ledger.late_answer",
    ERROR,
    "A request to a store or a sink was answered with an error after its call had stopped waiting.",
    "As for `ledger.unavailable`.",
)
LEDGER_NOT_RELEASED = _event(
    "ledger.not_released",
    ERROR,
    "A slot that was granted too late could not be given back; its lease frees it.",
    "As for `ledger.unavailable`.",
)
LEDGER_LEASE = _event(
    "ledger.lease_not_renewed",
    WARNING,
    "The lease of a running call was not renewed. When it runs out, the call counts as ended.",
    "Look at the store. If calls run longer than their lease, raise `lease`.",
)
LEDGER_NOT_DURABLE = _event(
    "ledger.not_durable",
    WARNING,
    "The Redis server has no append-only file: a restart loses what was counted since it saved.",
    "Set `appendonly yes`, or accept it.",
)
LEDGER_REPLACED = _event(
    "ledger.replaced",
    ERROR,
    "What a server kept was deleted or replaced under a running program: limits begin anew.",
    "Find out who did it: `FLUSHALL`, a dropped schema, a restart without a file, another server.",
)
LEDGER_STORAGE = _event(
    "ledger.storage_failed",
    ERROR,
    "A StorageBackend failed where a call had to be counted or given back.",
    "Look at the backend; the counters of the session may be off by the calls that are named.",
)

# --- Audit ----------------------------------------------------------------------------------------

AUDIT_FAILED = _event(
    "audit.sink_failed",
    ERROR,
    "A sink did not take an event. Calls are denied while a required sink fails.",
    "Look at the file's path, rights and disk, or the sink's server.",
)
AUDIT_DROPPED = _event(
    "audit.events_dropped",
    ERROR,
    'A sink with `when_full = "drop"` has no room for an event, which is lost.',
    "Look at what the sink writes to; raise `max_waiting`, or let calls wait.",
)
AUDIT_WRITES_AGAIN = _event(
    "audit.sink_writes_again",
    WARNING,
    "A sink that had failed takes events again; calls are no longer denied.",
    "Nothing. What a sink that is not required did not take is lost.",
)
AUDIT_HEADS = _event(
    "audit.heads_not_written",
    ERROR,
    "A head of a chained log could not be written, or not copied. The next one says as much.",
    "Look at the file beside the log, or the place that heads are copied to.",
)

# --- Approvals ------------------------------------------------------------------------------------

APPROVAL_NOT_NOTIFIED = _event(
    "approval.not_notified",
    ERROR,
    "A webhook, or a notifier of the application, was not told of a request for approval. The call"
    " waits for its answer all the same.",
    "Read the reason in the message: the target is away, refuses, redirects, or is not in"
    " `allowed_hosts`.",
)
APPROVAL_REFUSED = _event(
    "approval.refused",
    WARNING,
    "A link or an answer for the approval pages was refused: forged, expired, used before, not"
    " allowed, too large or not readable. Nothing was changed.",
    "One is a mistake; many are a search for a way in. `reason` and `client` say which and from"
    " where.",
)
APPROVAL_FAILED = _event(
    "approval.page_failed",
    ERROR,
    "The approval pages could not use the store, or failed. Nothing was answered.",
    "Look at the store, and at the traceback.",
)

# --- Policy ---------------------------------------------------------------------------------------

POLICY_RELOADED = _event(
    "policy.reloaded",
    INFO,
    "Another policy is in force, of the `policy_version` in the record.",
    "Nothing. All workers should tell the same version.",
)
POLICY_NOT_RELOADED = _event(
    "policy.not_reloaded",
    ERROR,
    "A changed policy could not be loaded. The old one, `policy_version`, stays in force.",
    "Fix the file; the message names the line. It is loaded when it changes.",
)
POLICY_FILE_MISSING = _event(
    "policy.file_missing",
    ERROR,
    "A watched file is gone or cannot be read. The policy that was loaded stays in force.",
    "Put the file back.",
)
POLICY_NOT_WATCHED = _event(
    "policy.not_watched",
    ERROR,
    "No thread could be started for `watch` in a forked process: it will not reload.",
    "Raise the limit of threads, and restart the worker.",
)
POLICY_ERROR = _event(
    "policy.error",
    ERROR,
    "A contract, a hook, a checker or a part of the gate failed. The call was denied, or counted"
    " as failed.",
    "Fix what the message names: until then calls are denied, or count as failed, because of it.",
)
POLICY_TOOL_MISMATCH = _event(
    "policy.tool_mismatch",
    ERROR,
    "A contract names a tool and reads an argument that the tool does not have, or compares it"
    " with what it cannot be.",
    "Change the contract: as it is, it may never apply.",
)
POLICY_WARNING = _event(
    "policy.warning",
    WARNING,
    "A contract, a limit or an option may not mean what was intended.",
    "Change what the message names.",
)
POLICY_DEFAULT = _event(
    "policy.default_mode",
    INFO,
    "A bundle does not say `defaults.mode`; enforce is assumed.",
    "Write `defaults: {mode: enforce}`.",
)

# --- Calls ----------------------------------------------------------------------------------------

CALL_NOT_JUDGED = _event(
    "call.not_judged",
    WARNING,
    "A value of a call (an argument, an amount, a field of the principal) is missing or of a type"
    " that a contract or a limit cannot judge. The call was denied; where they only observe, this"
    " is only said.",
    "One is a mistake of the model, which reads what is wrong. If all calls of a tool are named,"
    " its contracts do not fit it: change them.",
)

# --- Callbacks and execution ----------------------------------------------------------------------

CALLBACK_FAILED = _event(
    "callback.failed",
    ERROR,
    "A callback (`on_allow`, `on_deny`, `on_reload`, an after-hook, a listener) raised. The call"
    " goes on.",
    "Fix the callback.",
)
EXECUTION_LATE = _event(
    "execution.late_answer",
    ERROR,
    "Handling an answer failed that came after its call had ended.",
    "Report it, with the traceback.",
)
EXECUTION_UNREADABLE = _event(
    "execution.unreadable_message",
    WARNING,
    "A Celery worker sent something that cannot be read; it is skipped.",
    "Run the same version of edictum on both sides; keep others from writing to this Redis.",
)
EXECUTION_NOT_STARTED = _event(
    "execution.not_started",
    ERROR,
    "An engine could not start a call, or raised. The call counts as failed.",
    "Read the reason in the message: the broker is away, or the tool cannot be sent there.",
)
ARTIFACT_AWAY = _event(
    "artifact.store_away",
    WARNING,
    "The artifact store could not be used when it was opened; it is tried again at each use.",
    "Look at the server that holds it.",
)
ARTIFACT_COUNTED_APART = _event(
    "artifact.counted_apart",
    WARNING,
    "Each process counts by itself what it stores in this place, so together they may store as many"
    " times the quota. Said when the store is made.",
    "Give the store an `index`: a file on a local disk that all processes share.",
)
ARTIFACT_NOT_STORED = _event(
    "artifact.not_stored",
    ERROR,
    "A large result could not be stored; it is shortened instead.",
    "Look at the artifact store: its disk, its server, its quota.",
)
ARTIFACT_DAMAGED = _event(
    "artifact.damaged",
    WARNING,
    "A stored artifact cannot be read, and is treated as missing.",
    "Look at the disk or the server that holds it.",
)
TURN_BUDGET = _event(
    "turn.left_out",
    WARNING,
    "Parts of a turn were left out because its budget has no room for them.",
    "Raise the budget, or offer less.",
)
ADAPTER_FAILED = _event(
    "adapter.gate_failed",
    ERROR,
    "The gate itself failed for a call of a framework; the call is denied.",
    "Report it, with the traceback.",
)
ADAPTER_RUN_STOPPED = _event(
    "adapter.run_stopped",
    ERROR,
    "A call ran with other arguments than those that were judged; the run was stopped.",
    "Look at `call_changed` in the audit; wrap the hook that changes calls.",
)
ADAPTER_WARNING = _event(
    "adapter.warning",
    WARNING,
    "An adapter is used in a way that may not be what was intended, such as all users sharing one"
    " session.",
    "Change what the message names.",
)
MCP_DROPPED = _event(
    "mcp.message_dropped",
    WARNING,
    "The MCP proxy could not pass a message on.",
    "Look at the server or the client that the message names.",
)
MCP_TOKEN_REFUSED = _event(
    "mcp.token_refused",
    WARNING,
    "A client of the MCP proxy has sent a token that is not valid.",
    "If it is a client of yours, look at its issuer, audience and expiry.",
)
MCP_TOOLS = _event(
    "mcp.tool_definition",
    WARNING,
    "A tool of an MCP server is described in another way than before, or cannot be used.",
    "Read what has changed; accept it with `edictum mcp-pins FILE --accept TOOL`.",
)
MCP_STOPPED = _event(
    "mcp.stopped",
    ERROR,
    "The MCP server behind the proxy ended, or a call could not be answered.",
    "Look at the server's own log.",
)
REDACTION_ENGINE = _event(
    "redaction.engine",
    INFO,
    "RE2 is not installed: secrets are searched for by Python's engine, which takes longer.",
    "Install the extra `yaml`.",
)
TELEMETRY_FAILED = _event(
    "telemetry.failed",
    WARNING,
    "OpenTelemetry, or a processor of the application, raised for a call; the call goes on. Said"
    " once.",
    "Look at the traceback: at the tracer provider and its processors.",
)
