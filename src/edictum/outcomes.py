"""Typed outcomes: every tool call ends as exactly one of five frozen values.

``ToolOutcome`` is a closed union, so a ``match`` over it is checked for completeness by the type
checker::

    match outcome:
        case ToolExecutionResult(): ...    # it ran and succeeded
        case ToolArtifactReference(): ...  # it ran and succeeded; its large output was stored
        case ToolFailure(): ...            # it ran and counts as failed
        case ToolTimeout(): ...            # its time ran out
        case ToolDenied(): ...             # it did not run

Fields that the published design does not have are keyword-only, with defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias, assert_never

from edictum.core._records import frozen_maker
from edictum.core.values import dumps, to_json
from edictum.findings import Finding

TOOL_MESSAGE_MAX_CHARS: Final = 12_000
FAILURE_TEXT_CHARS: Final = TOOL_MESSAGE_MAX_CHARS - 1_000  # the rest is for the message around it
MAX_REASON_CHARS: Final = 500
SCHEMA_VERSION: Final = 1


class _Unset:
    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = _Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """Facts that a turn adds to the outcome of a call. ``replayed``: the body did not run for this
    call; the outcome is that of the same call, made before or at the same time. ``changes``:
    sentences about the arguments that a person has changed when approving the call; ``run_turn``
    passes them on to the model.
    """

    attempts: int = 1
    repairs: tuple[str, ...] = ()
    replayed: bool = False
    changes: tuple[str, ...] = ()


ONCE: Final = TurnFacts()


@dataclass(frozen=True, slots=True)
class ToolExecutionResult:
    """The tool ran and succeeded. ``output`` is what the model reads; ``value`` is what the tool
    returned, after redaction.
    """

    call_id: str
    tool_name: str
    output: dict[str, Any]
    elapsed_ms: int
    was_coerced: bool = False
    value: Any = field(default=UNSET, kw_only=True)
    findings: tuple[Finding, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    turn: TurnFacts = field(default=ONCE, kw_only=True)

    def __post_init__(self) -> None:
        if self.value is UNSET:
            object.__setattr__(self, "value", self.output)


@dataclass(frozen=True, slots=True)
class ToolTimeout:
    """The call's time ran out. ``deadline_s`` is on the process's monotonic clock.

    ``effect_unknown``: the tool changes the world, and whether it did is not known; ``verify_tool``
    is the tool that can find out.
    """

    call_id: str
    tool_name: str
    deadline_s: float
    elapsed_ms: int
    retryable: bool = True
    body_may_be_running: bool = field(default=False, kw_only=True)
    effect_unknown: bool = field(default=False, kw_only=True)
    verify_tool: str | None = field(default=None, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    turn: TurnFacts = field(default=ONCE, kw_only=True)


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """The tool ran and its call counts as failed: it raised, or its result was judged a failure.

    ``effect_unknown`` and ``verify_tool`` as for a timeout: the process or machine that ran it was
    lost, or its caller stopped it.
    """

    call_id: str
    tool_name: str
    error: str
    retryable: bool = True
    elapsed_ms: int = 0
    value: Any = field(default=None, kw_only=True)
    exception: BaseException | None = field(default=None, kw_only=True, compare=False, repr=False)
    success_source: str = field(default="", kw_only=True)
    success_reason: str = field(default="", kw_only=True)
    policy_error: bool = field(default=False, kw_only=True)
    effect_unknown: bool = field(default=False, kw_only=True)
    verify_tool: str | None = field(default=None, kw_only=True)
    findings: tuple[Finding, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    turn: TurnFacts = field(default=ONCE, kw_only=True)


@dataclass(frozen=True, slots=True)
class ToolDenied:
    """The call was refused; the tool's body did not run.

    ``reason`` names the gate: "contract", "limit", "pre_hook", "write_denied" (an approval was
    refused or never came), "policy_error" (a part of the gate itself failed), "capacity" (too many
    calls of the tool hang), "cancelled", "paused", "refused" (by the permissions of what runs the
    tool), or a gate of a turn: "deadline", "blocked", "web_off", "unknown_tool",
    "malformed_arguments", "validation", "duplicate", "budget", "incomplete_reply" (the reply that
    asks for the call was cut off), "interrupted" (it was started before its turn was killed).

    ``for_operators``: ``details`` may quote what was raised inside a contract, hook or limit; a
    model reads which of them it was.
    """

    call_id: str
    tool_name: str
    reason: str
    details: str = ""
    decision_source: str | None = field(default=None, kw_only=True)
    decision_name: str | None = field(default=None, kw_only=True)
    policy_error: bool = field(default=False, kw_only=True)
    for_operators: bool = field(default=False, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class ToolArtifactReference:
    """The tool ran and succeeded, but its output is too large for a message and was stored.

    ``reader``: the tool by which the model can read it, if the turn has one.
    """

    call_id: str
    tool_name: str
    artifact_id: str
    summary: str
    size_bytes: int = 0
    elapsed_ms: int = field(default=0, kw_only=True)
    was_coerced: bool = field(default=False, kw_only=True)
    findings: tuple[Finding, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    turn: TurnFacts = field(default=ONCE, kw_only=True)
    reader: str | None = field(default=None, kw_only=True)


ToolOutcome: TypeAlias = (
    ToolExecutionResult | ToolTimeout | ToolFailure | ToolDenied | ToolArtifactReference
)

OUTCOME_KINDS: Final[dict[type[Any], str]] = {
    ToolExecutionResult: "executed",
    ToolTimeout: "timeout",
    ToolFailure: "failed",
    ToolDenied: "denied",
    ToolArtifactReference: "artifact",
}

make_result = frozen_maker(ToolExecutionResult)
make_denied = frozen_maker(ToolDenied)
make_failure = frozen_maker(ToolFailure)


def outcome_kind(outcome: ToolOutcome) -> str:
    """Return one word for the type: executed, failed, timeout, denied, artifact."""
    return OUTCOME_KINDS[type(outcome)]


def outcome_to_model_content(outcome: ToolOutcome) -> str:
    """Return the JSON text of the tool-role message that the model reads; never raises."""
    match outcome:
        case ToolExecutionResult():
            return dumps(outcome.output)
        case ToolTimeout():
            content = {
                "status": "error",
                "error": timeout_for_model(outcome),
                "timed_out": True,
                "retryable": outcome.retryable,
            }
        case ToolFailure():
            content = _failure_content(outcome)
        case ToolDenied():
            content = _make_denied_content(outcome)
        case ToolArtifactReference():
            content = {
                "artifact_reference": outcome.artifact_id,
                "summary": outcome.summary,
                "hint": _artifact_hint(outcome.reader),
            }
        case _:
            assert_never(outcome)
    return dumps(content)


# Parts of the gate that can fail, by the source of the denial, in the words for a model.
PARTS: Final = {
    "ledger": "The session ledger",
    "audit": "The audit log",
    "approval_backend": "The approval service",
    "principal_resolver": "The identity service",
    "turn:caller": "The identity service",
    "turn:deadline": "The gate",
    "turn:blocked": "The gate",
    "turn:validation": "The check of the arguments",
    "turn:duplicate": "The session ledger",
    "turn:budget": "The gate",
    "turn:keep": "The store of this turn",
    "adapter": "The gate",
    "gate": "The gate",
}
# Rules other than contracts, by the source of the denial.
RULE_WORDS: Final = {
    "hook": "hook",
    "amounts": "rule for",
    "operation_limit": "limit",
    "attempt_limit": "limit",
}


def denial_for_model(outcome: ToolDenied) -> str:
    """Return why a call was denied, in the words for a model.

    Details of a failing part of the gate, and what a contract raised (hosts, paths, user names,
    driver messages), are for operators: they are in ``details``, in the audit and in the log.
    """
    source, name = outcome.decision_source or "", outcome.decision_name
    part = PARTS.get(source) or PARTS.get(f"{source}:{name}")
    if part is not None and (outcome.policy_error or outcome.for_operators):
        problem = f"{part} is not available"
    elif outcome.for_operators:
        rule = RULE_WORDS.get(source, "contract")
        problem = f"The {rule} {name!r} could not be applied because of an error"
    else:
        return outcome.details or outcome.reason
    return (
        f"{problem}, so the call was not made. This is not a denial by policy. Do not repeat it at"
        " once: try again later, or go on without it."
    )


NOT_JUDGED: Final = (
    "The tool {tool!r} ran, but whether it succeeded could not be found out because of an error in"
    " what judges its results. It counts as failed. Do not repeat it at once."
)


def failure_for_model(outcome: ToolFailure) -> str:
    """Return what went wrong, in the words for a model. What failed in the engine that should have
    run the tool, or in a success check, is in ``error``, in the audit and in the log only.
    """
    stated: str | None = getattr(outcome.exception, "text_for_model", None)
    if stated is None and outcome.policy_error:
        stated = NOT_JUDGED
    return outcome.error if stated is None else stated.format(tool=outcome.tool_name)


def timeout_for_model(outcome: ToolTimeout) -> str:
    """Return the model's text for a timeout, which says whether its effect is unknown."""
    text = f"Tool '{outcome.tool_name}' timed out after {outcome.elapsed_ms} ms."
    if outcome.body_may_be_running:
        text += " It may still be running."
    return text + effect_for_model(outcome)


def effect_for_model(outcome: ToolTimeout | ToolFailure) -> str:
    """Return the sentence, with a space before it, that says how to find out about an unknown
    effect; "" if the effect is known. Shortening an error keeps this sentence whole.
    """
    if not outcome.effect_unknown:
        return ""
    how = f"check with '{outcome.verify_tool}'" if outcome.verify_tool else "find out"
    return f" Whether it took effect is unknown: {how} before you call it again."


def failure_text(value: Any) -> str | None:
    """Return the error text of a failed result: the text itself, or that under "error" or
    "message".
    """
    said = [value.get("error"), value.get("message")] if type(value) is dict else [value]
    return next((text for text in said if isinstance(text, str) and text), None)


def _failure_content(outcome: ToolFailure) -> dict[str, Any]:
    """Return the content for a model: the error, why a rule judged the result a failure, and the
    result itself if it is data without an error text.
    """
    content = {
        "status": "error",
        "error": _fit(failure_for_model(outcome)) + effect_for_model(outcome),
        "retryable": outcome.retryable,
    }
    reason = outcome.success_reason
    is_ruled = outcome.success_source.startswith(("success_check", "success_rule:"))
    if is_ruled and reason and reason not in outcome.error and not outcome.policy_error:
        content["reason"] = _fit(reason, MAX_REASON_CHARS)
    value = outcome.value
    if value is not None and not isinstance(value, str) and failure_text(value) is None:
        room = FAILURE_TEXT_CHARS - len(dumps(content))
        text = dumps(value)
        content["output"] = value if len(text) <= room else _fit(text, max(room, 100))
    return content


def _fit(text: str, room: int = FAILURE_TEXT_CHARS) -> str:
    """Cut a text so that it fits a message as JSON, where one character can take up to twelve."""
    if len(text) * 12 <= room:
        return text
    while (size := len(dumps(text))) > room:
        text = text[: min(len(text) - 4, len(text) * room // size - 3)] + "..."
    return text


def _artifact_hint(reader: str | None) -> str:
    """Return a sentence that names the tool to use: the turn's, or else that of the published
    design.
    """
    use = "Use read_file with this reference to retrieve the full content."
    if reader is not None:
        use = f"Use {reader} with this reference to read it in parts."
    return f"The output is too large for a message. {use}"


def _make_denied_content(outcome: ToolDenied) -> dict[str, Any]:
    match outcome.reason:
        case "duplicate":
            return {"warning": "duplicate_tool_call", "skipped": True}
        case "blocked":
            return {"warning": "non_retryable_tool_failure", "skipped": True}
        case "validation":
            return {
                "error": "argument_validation_failed",
                "details": _fit(
                    denial_for_model(outcome) if outcome.for_operators else outcome.details
                ),
                "hint": VALIDATION_HINT,
            }
        case "deadline":
            return {"error": "Turn deadline expired; cannot execute tool.", "timed_out": True}
        case _:
            return {"error": f"Blocked: {_fit(denial_for_model(outcome))}", "blocked": True}


VALIDATION_HINT: Final = (
    "Correct the arguments so that they match the tool's parameters, then call it again."
)


def outcome_is_error(outcome: ToolOutcome) -> bool:
    """Return whether it is a timeout or a failure. A denial is not an error of the tool."""
    return isinstance(outcome, (ToolTimeout, ToolFailure))


def outcome_is_retryable(outcome: ToolOutcome) -> bool:
    """Return whether the outcome says that the same call may be tried again."""
    return isinstance(outcome, (ToolTimeout, ToolFailure)) and outcome.retryable


def outcome_blocks_tool(outcome: ToolOutcome) -> bool:
    """Return whether to block the tool for the rest of the turn: trying again will not help."""
    return isinstance(outcome, (ToolTimeout, ToolFailure)) and not outcome.retryable


NOT_ALWAYS_STORED: Final = ("exception", "for_operators")


def outcome_to_dict(outcome: ToolOutcome) -> dict[str, Any]:
    """Return the outcome as plain JSON data, with its kind and a schema version and without its
    exception.
    """
    names = [item.name for item in fields(outcome) if item.name not in NOT_ALWAYS_STORED]
    if isinstance(outcome, ToolDenied) and outcome.for_operators:
        names.append("for_operators")
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": outcome_kind(outcome),
        **{name: to_json(getattr(outcome, name)) for name in names},
    }


def outcome_from_dict(data: dict[str, Any]) -> ToolOutcome:
    """Return the outcome that ``outcome_to_dict`` wrote; unknown fields are ignored."""
    version, kind = data.get("schema_version"), data.get("kind")
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"outcome_from_dict: schema_version is {version!r}; this version of edictum reads"
            f" {SCHEMA_VERSION}"
        )
    by_kind = {name: cls for cls, name in OUTCOME_KINDS.items()}
    if kind not in by_kind:
        raise ValueError(
            f"outcome_from_dict: kind is {kind!r}; expected one of {', '.join(by_kind)}"
        )
    cls = by_kind[kind]
    body = _keep_known_fields(cls, data)
    if "findings" in body:
        body["findings"] = tuple(
            Finding(**_keep_known_fields(Finding, finding)) for finding in body["findings"]
        )
    if "notes" in body:
        body["notes"] = tuple(body["notes"])
    if "turn" in body:
        facts = _keep_known_fields(TurnFacts, body["turn"])
        texts = {name: tuple(facts.get(name, ())) for name in ("repairs", "changes")}
        body["turn"] = TurnFacts(**{**facts, **texts})
    outcome: ToolOutcome = cls(**body)
    return outcome


def _keep_known_fields(cls: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    return {item.name: data[item.name] for item in fields(cls) if item.name in data}
