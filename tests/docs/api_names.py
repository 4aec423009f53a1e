"""Which names docs/reference/api.md shows, and how much of each. A test holds this to the public
names of the packages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """A name with an entry of its own: where it is, and of a class the members that people use."""

    where: str
    members: str = ""
    whole: bool = False  # all of its docstring, and not the first paragraph alone
    given: bool = True  # False: nobody makes or calls it


@dataclass(frozen=True)
class Brief:
    """A name that one line says enough about."""

    where: str


@dataclass(frozen=True)
class Options:
    """The keys of a TypedDict that many functions take as ``**options``, without those of another
    one.
    """

    of: str
    title: str
    text: str
    besides: str = ""


COUNTERS = (
    "attempts executions successes failures consecutive_failures in_flight per_tool"
    " successes_per_tool"
)

SECTIONS: dict[str, tuple[Name | Brief | Options, ...]] = {
    "guard": (Name("edictum:Edictum", whole=True),),
    "making": (
        Name("edictum:Edictum.from_yaml", whole=True),
        Name("edictum:Edictum.from_yaml_string"),
        Name("edictum:Edictum.from_template"),
        Options(
            "BundleOptions",
            "Options of a bundle",
            "These, and all keywords of `Edictum(...)` but `policy_version`.",
            "GuardOptions",
        ),
        Brief("edictum:Edictum.list_templates"),
        Brief("edictum:Edictum.from_multiple"),
        Brief("edictum:TemplateInfo"),
        Brief("edictum:CompositionReport"),
        Brief("edictum:CompositionOverride"),
        Brief("edictum:ShadowContract"),
    ),
    "calling": (
        Name("edictum:Edictum.run", whole=True),
        Name("edictum:Edictum.dispatch", whole=True),
        Options(
            "CallOptions",
            "Options of a call",
            "Of `run`, `dispatch`, `begin` and their synchronous twins. None of them is needed.",
        ),
        Brief("edictum:Edictum.run_sync"),
        Brief("edictum:Edictum.dispatch_sync"),
    ),
    "looking": (
        Name("edictum:Edictum.evaluate", whole=True),
        Name("edictum:EvaluationResult"),
        Brief("edictum:Edictum.evaluate_batch"),
        Brief("edictum:Edictum.explain"),
        Brief("edictum:ContractResult"),
        Brief("edictum:Explanation"),
        Name("edictum:Edictum.check_tools", whole=True),
    ),
    "living": (
        Name("edictum:Edictum.reload", whole=True),
        Name("edictum:Edictum.watch", whole=True),
        Brief("edictum:Edictum.session"),
        Brief("edictum:Edictum.scope"),
        Brief("edictum:Edictum.new_session_id"),
        Brief("edictum:Edictum.set_principal"),
        Brief("edictum:Edictum.close"),
        Name("edictum:Edictum.check", whole=True),
        Brief("edictum:Edictum.check_sync"),
        Name("edictum:Health", given=False),
        Name("edictum:PartHealth", given=False),
        Name("edictum:Edictum.stats", whole=True),
        Name("edictum:Stats", "count to_dict", whole=True, given=False),
        Name("edictum:CallCount", given=False),
        Name("edictum:Histogram", "count percentile", given=False),
        Name("edictum:configure_otel", whole=True),
        Brief("edictum:has_otel"),
        Brief("edictum.otel:disable_otel"),
        Brief("edictum.prometheus:render_metrics"),
        Name("edictum.prometheus:serve_metrics", whole=True),
    ),
    "tickets": (
        Name("edictum:Edictum.begin"),
        Brief("edictum:Edictum.begin_sync"),
        Name(
            "edictum:Ticket",
            "allowed denied outcome args finish fail timed_out cancel pause decline refuse"
            " finish_otherwise",
            given=False,
        ),
    ),
    "contracts": (
        Name("edictum:precondition"),
        Name("edictum:postcondition"),
        Name("edictum:session_contract"),
        Name("edictum:Verdict", "pass_ fail"),
        Name("edictum:deny_sensitive_reads", whole=True),
        Name("edictum:Contract"),
    ),
    "shown": (
        Name("edictum:ToolCall", "effective_args session_id timestamp bash_command file_path"),
        Name("edictum.core.session:SessionView", COUNTERS, given=False),
        Name("edictum:Principal"),
        Name("edictum:SideEffect"),
        Name("edictum:Finding"),
        Name("edictum:PostCallResult"),
    ),
    "hooks": (
        Name("edictum:HookRegistration"),
        Name("edictum:HookDecision", "allow deny rewrite", given=False),
        Name("edictum:HookResult"),
    ),
    "limits": (
        Name("edictum:OperationLimits"),
        Name("edictum:ScopedLimits"),
        Name("edictum:Session", f"{COUNTERS} snapshot reset", given=False),
        Name("edictum.sessions:open", whole=True),
        Name("edictum.sessions:migrate", whole=True),
        Name("edictum.sessions:Migration", whole=True, given=False),
        Name("edictum.sessions:Ledger", "reserve settle renew snapshot reset", given=False),
        Name("edictum:StorageBackend", "get set delete increment", given=False),
        Brief("edictum:MemoryBackend"),
    ),
    "outcomes": (
        Brief("edictum:ToolExecutionResult"),
        Brief("edictum:ToolArtifactReference"),
        Brief("edictum:ToolFailure"),
        Brief("edictum:ToolTimeout"),
        Brief("edictum:ToolDenied"),
        Brief("edictum:outcome_to_model_content"),
        Brief("edictum:outcome_is_error"),
        Brief("edictum:outcome_is_retryable"),
        Brief("edictum:outcome_blocks_tool"),
        Brief("edictum.outcomes:outcome_to_dict"),
        Brief("edictum.outcomes:outcome_from_dict"),
    ),
    "success": (
        Brief("edictum.success:all_of"),
        Brief("edictum.success:any_of"),
        Brief("edictum.success:per_tool"),
        Brief("edictum.success:default_success_check"),
    ),
    "audit": (
        Name("edictum:CollectingAuditSink", "events last filter mark since_mark clear"),
        Name("edictum:FileAuditSink", "open", whole=True),
        Name("edictum.audit:SqliteAuditSink", whole=True),
        Name("edictum.audit:PostgresAuditSink", whole=True),
        Name("edictum.audit:StoreAuditSink", "check close", whole=True, given=False),
        Name("edictum.audit:open_audit", whole=True),
        Name("edictum.audit:migrate_audit", whole=True),
        Name("edictum:StdoutAuditSink"),
        Name("edictum:CompositeSink"),
        Name("edictum:AuditSink", "emit", given=False),
        Name("edictum.audit:query", whole=True),
        Name("edictum.audit:report", whole=True),
        Options(
            "FilterOptions",
            "Filters of a question",
            "Of `query` and `report`, and of `guard.audit.query` and `guard.audit.report`.",
        ),
        Name("edictum.audit:export", whole=True),
        Name("edictum.audit:Chain", whole=True),
        Name("edictum.audit:generate_key", whole=True),
        Name("edictum.audit:verify", whole=True),
        Name("edictum.audit:Verification", "ok to_dict", whole=True, given=False),
        Name("edictum.audit:ChainProblem", given=False),
        Name("edictum.audit:ChainReader", "read_heads read_records", given=False),
        Name("edictum.audit:write_evidence", whole=True),
        Name("edictum.audit:Evidence", whole=True, given=False),
        Name("edictum.audit:Report", "to_dict to_json to_csv to_text to_html", given=False),
        Name("edictum:RedactionPolicy", "redact_text redact_value redact_args"),
        Name("edictum.redaction:scan", whole=True),
        Name("edictum.redaction:detector"),
        Name("edictum.redaction:Detection"),
    ),
    "approval": (
        Name("edictum:LocalApprovalBackend"),
        Name("edictum:InMemoryApprovalBackend", "pending decide"),
        Name("edictum:ApprovalBackend", "request_approval wait_for_decision", given=False),
        Name("edictum:ApprovalRequest"),
        Name("edictum:ApprovalDecision"),
        Name("edictum:ApprovalStatus"),
        Name("edictum:Approvers"),
        Name("edictum.approval:open_approvals", whole=True),
        Name("edictum.approval:migrate_approvals", whole=True),
        Name(
            "edictum.approval:ApprovalQueue",
            "pending get answer answer_many revoke grants revoke_grant take park find check close",
            given=False,
        ),
        Name("edictum.approval:QueuedApproval"),
        Name("edictum.approval:GivenAnswer"),
        Name("edictum.approval:GrantTerms"),
        Name("edictum.approval:ApprovalGrant"),
        Name("edictum.approval:ApprovalLinks", "make_link make_token read_token"),
        Name("edictum.approval:Webhook", "notify close"),
        Brief("edictum.approval:verify_webhook"),
        Name("edictum.approval:Notifier", "notify", given=False),
        Name("edictum.approval.asgi:ApprovalApp"),
        Brief("edictum.approval:ApprovalPending"),
        Name("edictum.approval:HostAnswer"),
    ),
    "turns": (
        Name("edictum.harness:run_turn", whole=True),
        Brief("edictum.harness:run_turn_sync"),
        Brief("edictum.harness:stream_turn"),
        Name("edictum.harness:TurnResult"),
        Name("edictum.harness:ParkedTurn", "to_json from_json"),
        Brief("edictum.harness:messages_to_json"),
        Brief("edictum.harness:messages_from_json"),
        Name("edictum.harness:ModelCall"),
        Brief("edictum.harness:ToolCallMade"),
        Brief("edictum.harness:ToolCallEnded"),
        Brief("edictum.harness:TurnEnded"),
        Name("edictum.harness:TurnBudget.create"),
        Name(
            "edictum.harness:TurnBudget",
            "remaining_s is_expired used snapshot pause resume",
            given=False,
        ),
        Name("edictum.harness:BoundedToolExecutor", "execute aexecute turn", whole=True),
        Options(
            "CallerOptions",
            "Options of callers",
            "Who is calling, in a turn and in an adapter. A function gets the `ToolCallRequest` of"
            " the turn or the framework's own context, may be asynchronous, and is called for every"
            " call; if it fails, the call is denied.",
        ),
        Name("edictum.harness:TurnState", "late_completions close_writes add_tokens"),
        Name("edictum.harness:Turn"),
        Name("edictum.harness:ToolCallRequest"),
        Name("edictum.harness:ModelReply", "is_cut"),
        Brief("edictum.harness:Usage"),
        Name("edictum.harness:openai_model", whole=True),
        Name("edictum.harness:openai_responses_model", whole=True),
        Name("edictum.harness:anthropic_model", whole=True),
        Brief("edictum.harness:TextDelta"),
        Brief("edictum.harness:ReasoningDelta"),
        Brief("edictum.harness:RefusalDelta"),
        Brief("edictum.harness:ToolCallStarted"),
        Brief("edictum.harness:ToolCallDelta"),
        Brief("edictum.harness:Image"),
        Brief("edictum.harness:File"),
        Brief("edictum.harness:ToolTraceEntry"),
    ),
    "tools": (
        Name("edictum.harness:tool", whole=True, given=False),
        Name("edictum.harness:ToolSpec", "to_openai_schema to_anthropic_schema", whole=True),
        Name("edictum.harness:ToolRegistry", "register get names"),
        Name(
            "edictum.harness:DeadlineToken",
            "current remaining_s is_expired check cancel",
            whole=True,
            given=False,
        ),
        Name("edictum.harness:spec_from_mcp", whole=True),
        Brief("edictum.harness:ResourceKey"),
        Brief("edictum.harness:ToolScheduler"),
        Brief("edictum.harness:ToolWave"),
        Brief("edictum.harness:ToolArgValidator"),
        Brief("edictum.harness:ReplayControl"),
    ),
    "artifacts": (
        Name(
            "edictum.harness:ArtifactStore",
            "store retrieve get_ref cleanup_session cleanup_expired",
            whole=True,
        ),
        Name("edictum.harness:ArtifactRef", "is_expired to_model_hint", given=False),
    ),
    "adapters": (
        Name("edictum.adapters:LangChainAdapter", "session_id set_principal in_turn self_test"),
    ),
    "cases": (
        Name("edictum.testing:load_cases"),
        Brief("edictum.testing:run_cases"),
        Name("edictum.testing:Case", "check problems run"),
    ),
    "fakes": (
        Brief("edictum.testing:FakeClock"),
        Brief("edictum.testing:RecordingSink"),
        Brief("edictum.testing:FailingSink"),
        Brief("edictum.testing:FailingLedger"),
        Brief("edictum.testing:AsyncLedger"),
        Brief("edictum.testing:ScriptedApprovalBackend"),
        Brief("edictum.testing:FailingApprovalBackend"),
        Brief("edictum.testing:audit_trail"),
    ),
    "suites": (
        Brief("edictum.testing:LedgerConformance"),
        Brief("edictum.testing:AuditConformance"),
        Brief("edictum.testing:ApprovalConformance"),
        Brief("edictum.testing:ApprovalQueueConformance"),
        Brief("edictum.testing:AdapterConformance"),
    ),
    "older": (
        Name("edictum:create_envelope"),
        Name("edictum:ToolRegistry", "register classify"),
        Name("edictum:BashClassifier", "classify", given=False),
    ),
}
