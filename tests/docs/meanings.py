"""What keywords mean, for docs/reference/api.md: a signature tells their names, types and defaults,
and not this.

By the name under which the page shows the function or the class; ``<class> has`` is for members
whose docstring is missing.
"""

from __future__ import annotations

MEANINGS: dict[str, dict[str, str]] = {
    "configure_otel": {
        "service_name": "the program's name in traces",
        "endpoint": (
            "the address of the collector; None: `http://localhost:4317`, for `http`"
            " `http://localhost:4318`"
        ),
        "protocol": '`"grpc"` or `"http"`',
        "resource_attributes": "more that all spans and metrics say of this program",
        "edictum_version": "what stands under `edictum.version`, in place of the real one",
        "force": "send these spans by providers of their own, even where the application has some",
        "insecure": "gRPC without TLS",
        "tracer_provider": "makes the spans, in place of the application's",
        "meter_provider": "makes the metrics, in place of the application's",
        "record_content": "put arguments and results into spans, redacted",
    },
    "serve_metrics": {
        "*guards": "their figures are added up",
        "port": "0: any that is free; `server.port` tells which",
        "host": "the address to listen at",
    },
    "Edictum": {
        "contracts": "the rules, made with the decorators below; all that match a call are asked",
        "hooks": "functions before and after tools: `HookRegistration`",
        "limits": (
            "how much one session may use; None: `OperationLimits()`, that is 500 attempts and 200"
            " calls. A list may hold `ScopedLimits` as well"
        ),
        "tools": (
            "what is known about tools, by name or glob (of several globs, the one that spells out"
            " most of the name): a dict of dicts with `side_effect`, `idempotent`, `timeout_s`,"
            " `run_in`, `retry_on_timeout`, `retry_on_failure`, `verify`,"
            " `amounts`, `actual`, `pin`"
        ),
        "success_check": (
            "`function(tool_name, result) -> bool`: whether a call that returned has succeeded;"
            " replaces the default"
        ),
        "on_deny": (
            "told of every refusal: `function(call, reason, name)`; what it raises is logged"
        ),
        "on_allow": "told of every call that may run: `function(call)`; what it raises is logged",
        "principal": "on whose behalf calls are made, unless a call or the resolver says otherwise",
        "principal_resolver": (
            "`function(tool_name, args) -> Principal or None`, asked for every call that does not"
            " name its principal"
        ),
        "approval_backend": (
            "where a person is asked: a backend, or the URL of a queue; without one, calls that"
            " need approval are refused"
        ),
        "audit_sink": "where events go besides memory: a sink, the URL of a database, or several of these",
        "redaction": (
            "what is taken out of everything that is written down, and by `redact` postconditions"
            " without a function of their own"
        ),
        "mode": '`"observe"`: nothing is refused or changed, what would have been is reported',
        "environment": "a word that contracts can ask about, such as `staging`",
        "backend": (
            "where sessions are counted: a ledger, a URL such as `sqlite:///sessions.db`, or an"
            " older storage; None: in memory"
        ),
        "policy_version": "written into every event; a guard from a bundle has the bundle's own",
        "clock": "where time and ids come from; for tests `edictum.testing.FakeClock()`",
        "execution": (
            'where tools run that say nothing themselves: `"inline"`, `"thread"`, `"process"`, or'
            " an engine"
        ),
        "local_events": "how many events `local_sink` keeps; 0: none",
        "max_hung_threads": (
            "how many calls of one tool may still run in threads after their deadline before"
            " further ones are denied"
        ),
        "require_store": (
            "raise EdictumConfigError if the session store does not answer now; else calls are"
            " denied until it does"
        ),
    },
    "BundleOptions": {
        "mode": (
            'replaces the default mode of the bundle; `"observe"` makes everything only observe'
        ),
        "custom_operators": "operators by name: `function(field, value) -> bool`",
        "custom_selectors": "selectors by prefix: `function(call) -> dict`",
        "max_bytes": "how large a file or text may be; 1 MiB",
    },
    "CallOptions": {
        "session_id": "the session in which the call counts; without it the guard's own",
        "parent_session_id": (
            "a session, or several from the nearest to the root, in which the call counts as well"
        ),
        "environment": "in place of the guard's",
        "metadata": (
            "anything that contracts may ask about (`metadata.<path>`), besides the arguments"
        ),
        "principal": "on whose behalf; the resolver is then not asked",
        "amounts": (
            'what the call is expected to use, such as `{"cost": 0.12}`, or a function of the call'
            " that tells it"
        ),
        "parameters": (
            "what tells the defaults of arguments that are left out, if the function does not: a"
            " function, a ToolSpec, a pydantic model or a JSON Schema"
        ),
        "call_id": "the framework's own id of the call; in every event of it",
        "parent_call_id": "the call that caused this one; for the audit",
        "tool_use_id": (
            "a second id of the host, such as a provider's id of a tool use; the library does not"
            " use it, Python contracts and hooks read it as `call.tool_use_id`"
        ),
        "call_index": "the call's number in the audit; without it the guard counts from 0",
        "caller": (
            "who asks, as text, such as the name of an agent; the library does not use it, Python"
            " contracts and hooks read it as `call.caller`"
        ),
        "timestamp": "when the call was asked for, with a time zone; without it now",
        "principal_resolver": "in place of the guard's",
        "control_flow": (
            "exceptions by which the host defers calls: when an approval backend raises one, the"
            " call is closed as paused and it is raised again"
        ),
        "park": (
            "True: `ApprovalPending` is raised in place of waiting for a person, if the approval"
            " backend is a queue; or a function of the `ApprovalRequest` that raises one of"
            " `control_flow`"
        ),
        "actual_amounts": "a function of the result that tells what it has used",
        "timeout_s": "seconds until the call ends as a timeout; None: no bound",
        "run_in": 'where it runs: `"inline"`, `"thread"`, `"process"`, or an engine',
    },
    "precondition": {
        "tool": "a name, a glob, or several",
        "when": "a function of the call; when it gives false, the contract is not asked",
        "id": "the contract's name in refusals and in the audit; without it the function's",
        "mode": '`"observe"`: it only reports',
        "tags": "words for the audit",
        "metadata": "data for the audit",
        "effect": (
            'what an objection does: `"deny"` (the default), or `"approve"`: a person is asked'
        ),
        "timeout": "for approval: how many seconds the person has; 300",
        "timeout_effect": 'for approval: what silence means; `"deny"`',
        "approvers": "for approval: who may answer, as `Approvers`; None: the first who does",
    },
    "postcondition": {
        "tool": "a name, a glob, or several",
        "when": "a function of the call; when it gives false, the contract is not asked",
        "id": "the contract's name in findings and in the audit; without it the function's",
        "mode": '`"observe"`: it only reports',
        "tags": "words for the audit",
        "metadata": "data for the audit",
        "effect": (
            'what an objection does: `"warn"` (the default) reports it, `"redact"` takes something'
            ' out of the result, `"deny"` suppresses the result'
        ),
        "redact": (
            "for `redact`: the function that takes it out, from the result to the result that may"
            " be shown. Without it, what looks like a secret is taken out. When nothing was"
            " changed, or the function raises, the result is suppressed"
        ),
    },
    "session_contract": {
        "function": "used bare: the function below it",
        "id": "the contract's name in refusals and in the audit; without it the function's",
        "mode": '`"observe"`: it only reports',
        "tags": "words for the audit",
        "metadata": "data for the audit",
        "effect": '`"deny"`, and nothing else',
    },
    "run_turn": {
        "model": (
            "a function of the messages and the tools; `openai_model`, `openai_responses_model` and"
            " `anthropic_model` make one from a client"
        ),
        "messages": "the conversation so far",
        "tools": "a `ToolRegistry`, or a list of specs and typed functions",
        "guard": (
            "what judges the calls; without one they are bounded and recorded, and nothing refuses"
            " them"
        ),
        "budget": (
            "time, steps, calls, tokens, money; None: that which the state was given, or 600 s, 100"
            " steps and 200 calls"
        ),
        "session_id": (
            "where calls are counted, or a function of the `ToolCallRequest`; without it in the"
            " guard's own session"
        ),
        "state": (
            "a new one for each turn, if you want to keep it: after a turn that was cancelled,"
            " `state.messages` is the conversation"
        ),
        "artifact_store": (
            "where large outputs go; the model then also gets the tool `read_artifact`"
        ),
        "scheduler": "which calls may run side by side",
        "parallel_enabled": "False: one call after the other",
        "web_mode": '`"off"`: tools with `metadata={"web": True}` are refused',
        "on_outcome": "told of every call and its outcome",
        "on_model_call": "told of every call of the model: a `ModelCall`",
        "on_event": "told of everything that happens: each `TurnEvent`, as `stream_turn` yields them",
        "park": "True: the turn [ends while a person thinks](../guides/approvals-resume.md)",
        "keep": (
            "a function that [stores the turn as it goes](../guides/approvals-resume.md#a-turn-that-is-killed)"
        ),
        "**executor_options": (
            "those of `BoundedToolExecutor`, among them [who is calling](#options-of-callers)"
        ),
    },
    "ModelReply": {
        "text": "what the model said",
        "tool_calls": "the calls it asks for",
        "usage": "what it cost in tokens",
        "stop_reason": "why it ended",
        "refusal": "the text by which the model declined",
        "content": "the reply in the shape of its API; sent back unchanged",
        "api": '`"openai"`, `"openai_responses"`, `"anthropic"`, or a name of your own',
        "source": "the host of the provider: what only it knows goes back there alone",
        "model": "the model that answered",
        "response_id": "the provider's id of the reply",
        "parsed": "the answer as the type that was asked for",
        "parse_error": "why the answer is not of that type",
    },
    "openai_model": {
        "client": "any with `chat.completions.create`",
        "model": "the name of the model",
        "response_format": "the type of the final answer, or the provider's own option as a dict",
        "stream": "True: answers come as a stream even when nothing listens to it",
        "system_first": "True: system messages behind the first ones are sent as the user's",
        "**settings": "passed to the client as they are; `tools` stand beside those of the turn",
    },
    "openai_responses_model": {
        "client": "any with `responses.create`",
        "model": "the name of the model",
        "response_format": "the type of the final answer, or the provider's own option as a dict",
        "stream": "True: answers come as a stream even when nothing listens to it",
        "**settings": "passed to the client as they are; `tools` stand beside those of the turn",
    },
    "anthropic_model": {
        "client": "any with `messages.create`",
        "model": "the name of the model",
        "max_tokens": "the longest answer; more than 8192 come as a stream",
        "system": "instructions, before the system messages",
        "response_format": "the type of the final answer, or the provider's own option as a dict",
        "stream": "True: answers come as a stream even when nothing listens to it",
        "**settings": "passed to the client as they are; `tools` stand beside those of the turn",
    },
    "TurnResult": {
        "text": "the model's last answer",
        "messages": "the whole conversation, the new messages included, for the next turn",
        "outcomes": "of all calls, in order",
        "stopped_by": "[why it ended](../guides/turns.md#why-a-turn-ends)",
        "timed_out": "whether time ran out",
        "state": "everything the turn knows",
        "error": "what the model raised",
        "loops": "what the model was told when it went in circles",
        "notes": "all that the turn itself told the model; not part of the messages",
        "stop_reason": "what the model's last reply said about its end",
        "model_calls": "each call of the model: usage, stop reason, duration, cost",
        "parsed": "the answer as the type that the model was asked for",
        "parse_error": "why the answer is not of that type",
        "parked": "the turn as data, if a person is asked: `run_turn` goes on with it",
    },
    "ModelCall": {
        "step": "counted from 1",
        "duration_s": "seconds until the reply was there",
        "usage": "its tokens by kind; `input_tokens` without those of a cache",
        "tokens": "all of them, read and written",
        "stop_reason": "None: it failed",
        "model": "as the provider names it",
        "response_id": "as the provider names it",
        "cost": "by the `price` of the budget",
        "error": "what was raised, or that time ran out",
    },
    "TurnBudget.create": {
        "timeout_s": "seconds for the whole turn",
        "max_steps": "how often the model is asked",
        "max_tool_calls": "None: as many as steps",
        "max_reflections": "how often `claim_reflection` says yes; for loops of your own",
        "max_context_tokens": (
            "the turn ends when a model call has read and written that many; None: no bound"
        ),
        "max_tokens": "of all model calls, read and written; None: no bound",
        "max_cost": "of all model calls, by `price`; None: no bound",
        "price": "a function of a `ModelCall`, or prices of a million tokens by their kind",
        "reserve_s": "what is kept for the final answer; None: a tenth of the time, at most 5 s",
        "timer": "the clock, in seconds",
    },
    "BoundedToolExecutor": {
        "tools": "a `ToolRegistry`, or a list of specs and typed functions",
        "guard": "what judges the calls",
        "artifact_store": "where large outputs go; without one they are cut",
        "validator": "how arguments are checked and repaired",
        "on_duplicate": (
            "what becomes of a pointless repetition: refused, or the earlier answer once more"
        ),
        "tool_timeout_cap_s": "the longest that one call may take",
        "execution": "where tools run; only without a guard, which has its own",
        "**caller": "who is calling: values, or functions of the `ToolCallRequest`",
    },
    "CallerOptions": {
        "session_id": (
            "where calls are counted; without it, or if the function returns None: the session of"
            " the framework's conversation"
        ),
        "parent_session_id": "sessions in which they count as well",
        "principal": (
            "on whose behalf; without it the guard's, or the framework's user. A function that"
            " returns None means: no principal"
        ),
        "metadata": "anything that contracts may ask about, besides the arguments",
        "amounts": (
            "what each call is expected to use; a function may take the call as well:"
            " `function(context, call)`"
        ),
        "actual_amounts": "a function of the result that tells what it has used",
    },
    "ToolSpec": {
        "name": "as the model knows it",
        "description": "as the model reads it",
        "parameters": "JSON Schema of the arguments",
        "returns": "JSON Schema of the result; a result that does not fit is a failure",
        "function": "what runs",
        "side_effect": ("what it does to the world; None: what the policy says, or else the worst"),
        "idempotent": "calling it again changes nothing more: it is safe to repeat",
        "cacheable": "calling it again is pointless; None: if it is idempotent or pure",
        "cache_ttl_s": "for how long its answer is good",
        "on_duplicate": "None: as the turn says",
        "identity": "the arguments that make two calls the same; None: all",
        "window_s": "within it a call with the same identity runs once, also after a restart",
        "timeout_s": "seconds for one call",
        "min_useful_s": "with less time left the call is not started",
        "retry_on_timeout": (
            "whether the model may try again; None: if it is safe to repeat, or has certainly not"
            " begun"
        ),
        "retry_on_failure": "False: a failure blocks the tool for the rest of the turn",
        "max_retries": "how often the harness itself tries again; only reads and idempotent tools",
        "non_retryable": "exceptions after which it does not",
        "resource_keys": "what calls may not use at the same time; see above",
        "isolation": (
            "where it runs; None: where the guard says, else coroutines as tasks and functions in"
            " threads"
        ),
        "max_output_chars": "more than that becomes an artifact",
        "store_output": "False: too large an output is cut, never stored",
        "coerce": 'whether `"2"` may become `2`; None: unless it is irreversible',
        "verify": "the tool that tells whether a lost call of this one took effect",
        "token_parameter": "the parameter that receives the `DeadlineToken`; `@tool` finds it",
        "amounts": (
            "what a call uses, by name: a number, a selector (`args.amount`), or a function of the"
            " call"
        ),
        "actual": "what its result says it used: a selector (`result.cost`), or a function of it",
        "typed": "how arguments become what the hints name; `@tool` works it out",
        "open_world": "whether it reaches beyond this system, as in MCP",
        "metadata": 'anything; `{"web": True}` marks a tool of the web',
    },
    "FileAuditSink": {
        "path": "the file; its directory is made",
        "redaction": "on top of the guard's",
        "max_bytes": "when to rotate; None: never",
        "keep": "how many old files",
        "fsync": (
            'every event is on the disk before its call goes on; "batch": with one `fsync` for all'
            " calls that wait"
        ),
        "chain": "make changed, removed and added records show; a `Chain` says how heads are made",
        "retain": "for how long nothing is deleted, whatever `keep` says; needs a chain",
        "compress": 'of rotated files: "gzip", "zstd", or True for zstd if it is installed',
    },
    "SqliteAuditSink": {
        "path": "the file, which may be that of the sessions; its directory must be there",
        "chain": "make changed, removed and added events show; a `Chain` says how heads are made",
        "wait_s": "how long a call waits for the database before it is denied",
        "when_full": '"block": calls wait for room; "drop": they never wait, and events are dropped',
        "max_waiting": "how many events may wait",
    },
    "PostgresAuditSink": {
        "url": "the database, with `?schema=` and `?pooler=` as for a session store",
        "wait_s": "how long a call waits for the database before it is denied",
        "credentials": "a function that returns a password, or a user and a password",
        "when_full": '"block": calls wait for room; "drop": they never wait, and events are dropped',
        "max_waiting": "how many events may wait",
    },
    "open_audit": {
        "url": "of the database",
        "chain": "as for `SqliteAuditSink`",
        "when_full": "as for `SqliteAuditSink`",
    },
    "Chain": {
        "key": "the private key that signs heads; None: they are not signed",
        "head_events": "a head after so many events",
        "head_seconds": "a head so many seconds after an event, at the latest",
        "copy_to": "where heads go as well: paths, or functions that are given a line",
    },
    "OperationLimits": {
        "max_attempts": "calls that are asked for, refused ones included",
        "max_tool_calls": "calls that run",
        "max_calls_per_tool": "calls that run, for each tool or glob",
        "max_successes": "calls that run and succeed",
        "max_failures": "calls that run and fail",
        "max_consecutive_failures": "failures since the last success",
        "max_successes_per_tool": "calls that run and succeed, for each tool or glob",
        "max_attempts_per_tool": "calls that are asked for, for each tool or glob",
        "max_failures_per_tool": "calls that run and fail, for each tool or glob",
        "max_consecutive_failures_per_tool": "failures since the last success of each tool or glob",
        "max_cost": "of what calls cost in all: short for `cost` in `max_amounts`",
        "max_amounts": "of anything that calls use up, by its name",
    },
    "LangChainAdapter": {
        "guard": "what judges the calls",
        "session_id": (
            "where they are counted, or a function of the framework's context; None: the session"
            " of its conversation, or else one of the adapter's own"
        ),
        "principal": (
            "on whose behalf, or a function; None: the guard's, or else the framework's user"
        ),
        "principal_resolver": "`function(tool_name, args)`, in place of the guard's",
        "parent_session_id": "sessions in which they count as well, or a function",
        "metadata": "anything that contracts may ask about, or a function",
        "amounts": "what each call is expected to use, or a function",
        "actual_amounts": "a function of the result that tells what it has used",
        "max_result_chars": (
            "how much of a result the model reads; the rest is left out with a notice; None: all"
        ),
        "artifact_store": "an `ArtifactStore` that keeps what is larger, for `read_artifact`",
        "park": (
            "False: calls wait for a person even where the framework"
            " [could pause](../guides/approvals-resume.md)"
        ),
    },
    "Ticket has": {
        "denied": "The denial, or None.",
        "outcome": "How the call ended; None while it is open.",
    },
    "Verdict has": {
        "pass_": "The contract agrees.",
        "fail": (
            "It objects: the message is what the model reads, the metadata goes into the audit."
        ),
    },
    "HookDecision has": {
        "allow": "The call goes on.",
        "deny": "The call is refused.",
    },
    "ToolCall has": {
        "session_id": "The session in which the call counts; also `run_id`.",
        "timestamp": "When it was asked for, in UTC.",
    },
    "SessionView has": {
        "attempts": "Calls that were asked for.",
        "successes": "Calls that succeeded.",
        "failures": "Calls that failed.",
        "consecutive_failures": "Failures since the last success.",
        "in_flight": "Calls that are running now.",
        "successes_per_tool": "Successes by tool.",
    },
    "Session has": {
        "attempts": "Calls that were asked for.",
        "executions": "Calls that ran and ended.",
        "successes": "Calls that succeeded.",
        "failures": "Calls that failed.",
        "consecutive_failures": "Failures since the last success.",
        "in_flight": "Calls that are running now.",
        "successes_per_tool": "Successes by tool.",
        "snapshot": "All counters at one moment.",
    },
    "Ledger has": {
        "reserve": "Count the attempt, check all limits and take the slots, all or none.",
        "settle": "How the call ended: its slots are counted or given back.",
        "renew": "The call still runs: its slots stay taken.",
        "snapshot": "All counters of a session at one moment.",
        "reset": "Forget a session.",
    },
    "StorageBackend has": {
        "get": "The text under a key, or None.",
        "set": "Keep a text.",
        "delete": "Forget it.",
        "increment": "Add to a number and give the sum, in one step.",
    },
    "FilterOptions": {
        "since": "events from then on: a datetime, ISO 8601, or a length of time before now",
        "until": "events before then",
        "session": "a session, or several; names may be globs, here and below",
        "principal": "on behalf of this user, service or organization",
        "tool": "of this tool",
        "action": "of this action, such as `call_denied`",
        "contract": "that this contract decided, or objected to",
        "outcome": "that ended a call so: executed, artifact, failed, timeout, denied",
        "text": "with this text in any value, in upper or lower case",
    },
    "query": {
        "source": "the path of a log, a sink that keeps events, or a list of these",
        "on_progress": "called every few thousand lines with a `LogReading`",
        "**wanted": "which events",
    },
    "report": {
        "source": "as in `query`",
        "contracts": "ids of the contracts that were in force",
        "ledger": "the ledger of the same calls, or its URL: what each session spent is read there",
        "on_progress": "as in `query`",
        "**wanted": "which events",
    },
    "export": {
        "events": "what `query` returns, or any events as dicts",
        "path": "the file; `.gz` and `.zst` compress it",
        "format": "how events are written",
    },
    "CollectingAuditSink has": {
        "events": "All that are kept, oldest first.",
        "since_mark": "The events after a mark.",
        "filter": "The events with one action.",
        "clear": "Forget all.",
    },
    "AuditSink has": {
        "emit": (
            "Write one event, now or awaited. What it raises before the tool has run refuses the"
            " call."
        ),
    },
    "Report has": {
        "to_json": "The same as a text.",
    },
    "InMemoryApprovalBackend has": {
        "pending": "Requests that nobody has answered.",
    },
    "ApprovalBackend has": {
        "request_approval": "Make the request known.",
        "wait_for_decision": "The answer, when there is one.",
    },
    "TurnBudget has": {
        "remaining_s": "Seconds that are left.",
        "is_expired": "Whether they are over.",
        "resume": "The person has decided.",
    },
    "TurnState has": {
        "add_tokens": "Count what a model call has used.",
    },
    "ToolSpec has": {
        "to_openai_schema": "The tool as OpenAI's API takes it.",
        "to_anthropic_schema": "The tool as Anthropic's API takes it.",
    },
    "ToolRegistry has": {
        "get": "A tool by its name, or None.",
        "names": "All names.",
        "classify": "Its side effect, and whether it is idempotent.",
    },
    "DeadlineToken has": {
        "remaining_s": "Seconds that are left.",
        "is_expired": "Whether they are over.",
    },
    "ArtifactStore has": {
        "get_ref": "What is known about an artifact; None if it is unknown or expired.",
    },
    "ArtifactRef has": {
        "is_expired": "Whether its time is over.",
    },
    "LangChainAdapter has": {
        "session_id": "Where the calls are counted.",
    },
    "Case has": {
        "check": "Raise CaseFailed unless it comes out as it says.",
    },
    "BashClassifier has": {
        "classify": "`read`, or `irreversible`.",
    },
}
_BOUNDS = dict(MEANINGS["OperationLimits"])
_FIRST = {name: _BOUNDS.pop(name) for name in ("max_attempts", "max_tool_calls")}
MEANINGS["ScopedLimits"] = {
    **_BOUNDS,
    **_FIRST,  # with another default than in OperationLimits, so behind its others
    "id": "the name of these limits in reasons and in the audit",
    "scope": (
        "whose calls count together: `session`, `principal`, `org`, `global`, or a selector"
        " such as `args.account_id`"
    ),
    "per_s": "how many seconds the limits look back; None: for as long as counters are kept",
    "when": "`function(call) -> bool`: only calls for which it is true are judged and counted",
    "effect": "what a full limit does: refuse the call, or ask a person to waive it",
    "message": "the reason of a refusal; None: one that names the numbers",
    "timeout": "how many seconds to wait for the person",
    "timeout_effect": "what happens when the person does not answer in time",
    "approvers": "who may waive a full limit, as `Approvers`; None: the first who answers",
}
