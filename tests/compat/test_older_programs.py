"""Programs written for the older library: what they import, call and read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    AuditEvent,
    Edictum,
    EdictumConfigError,
    EdictumDenied,
    EdictumInputError,
    FileAuditSink,
    HookDecision,
    HookRegistration,
    OperationLimits,
    Principal,
    RedactionPolicy,
    SideEffect,
    StdoutAuditSink,
    ToolRegistry,
    Verdict,
    create_envelope,
    postcondition,
    precondition,
    session_contract,
)
from edictum.findings import build_findings
from edictum.pipeline import GovernancePipeline
from edictum.testing import RecordingSink

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: example}
defaults: {mode: enforce}
tools: {read_file: {side_effect: read, idempotent: true}}
contracts:
  - id: no-secrets
    type: pre
    tool: read_file
    when: {args.path: {contains: .env}}
    then: {effect: deny, message: "Not {args.path}", tags: [secrets]}
  - id: no-keys
    type: post
    tool: read_file
    when: {output.text: {matches: 'sk-[a-z]+'}}
    then: {effect: redact, message: A key.}
  - id: inside
    type: sandbox
    tools: [read_file, write_file]
    within: [/srv]
    message: "{violation}"
  - id: few
    type: session
    limits: {max_tool_calls: 2, max_calls_per_tool: {read_file: 1}}
    then: {effect: deny, message: Enough.}
"""


def only_big(call: Any) -> bool:
    return call.args.get("amount", 0) > 100


@precondition("pay", when=only_big, id="big")
def refuse_big(call: Any) -> Verdict:
    return Verdict.fail("too much")


# --- Calls ----------------------------------------------------------------------------------------


async def test_the_function_under_its_older_name() -> None:
    guard = Edictum()
    assert await guard.run("add", {"n": 1}, tool_callable=lambda n: n + 1) == 2  # type: ignore[call-arg]
    assert guard.run_sync("add", {"n": 1}, tool_callable=lambda n: n + 1) == 2  # type: ignore[call-arg]
    outcome = await guard.dispatch("add", {"n": 1}, tool_callable=lambda n: n + 1)  # type: ignore[call-arg]
    assert outcome.value == 2  # type: ignore[union-attr]
    assert guard.session().executions == 3


def test_one_function_is_needed_and_not_two() -> None:
    guard = Edictum()
    with pytest.raises(EdictumInputError, match="not a function"):
        guard.run_sync("add", {})
    with pytest.raises(TypeError, match="tool_callable"):
        guard.run_sync("add", {}, lambda: 1, tool_callable=lambda: 2)  # type: ignore[call-arg]
    assert guard.session().attempts == 0


# --- Sinks ----------------------------------------------------------------------------------------


class PassingOn:
    """A sink that awaits another one, as the older protocol had it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def emit(self, event: AuditEvent) -> None:
        await self.inner.emit(event)


@pytest.mark.parametrize("kind", ["file", "stdout"])
async def test_emit_may_be_awaited_and_need_not_be(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    sink: Any = FileAuditSink(path) if kind == "file" else StdoutAuditSink()
    guard = Edictum(audit_sink=PassingOn(sink))
    assert await guard.run("t", {}, lambda: 1) == 1
    sink.emit(guard.local_sink.last())
    getattr(sink, "close", lambda: None)()
    text = path.read_text() if kind == "file" else capsys.readouterr().out
    actions = [json.loads(line)["action"] for line in text.splitlines()]
    assert actions == ["call_allowed", "call_executed", "call_executed"]


def test_audit_sink_is_the_local_one_or_all_of_them() -> None:
    assert (alone := Edictum()).audit_sink is alone.local_sink
    sink = RecordingSink()
    both: Any = Edictum(audit_sink=sink).audit_sink
    assert sink in both.sinks
    assert len(both.sinks) == 2


def test_a_payload_that_is_too_large_is_cut() -> None:
    small = {"tool_args": {"a": 1}, "result_summary": "x"}
    assert RedactionPolicy().cap_payload(dict(small)) == small
    large = {"tool_args": {"a": "x" * 40_000}, "result_summary": "x", "tool_name": "t"}
    assert RedactionPolicy().cap_payload(large) == {
        "tool_name": "t",
        "_truncated": True,
        "tool_args": {"_redacted": "payload exceeded 32KB"},
    }


def test_tags_stand_among_the_metadata_as_well() -> None:
    guard = Edictum.from_yaml_string(BUNDLE)
    guard.dispatch_sync("read_file", {"path": "/srv/.env"}, lambda path: path)
    record = guard.local_sink.last().contracts_evaluated[0]
    assert (record["tags"], record["metadata"]["tags"]) == (["secrets"], ["secrets"])


# --- Contracts and tools --------------------------------------------------------------------------


def test_contracts_have_their_older_attributes() -> None:
    contract: Any = refuse_big
    assert contract.when is only_big
    call = create_envelope("pay", {"amount": 200})
    assert contract._edictum_when(call) is True
    assert (contract._edictum_type, contract._edictum_id) == ("precondition", "big")
    assert (contract._edictum_tool, contract._edictum_tools) == ("pay", ["pay"])
    assert (contract._edictum_effect, contract._edictum_shadow) == ("deny", False)
    assert precondition("t")(lambda call: Verdict.pass_()).when is None
    with pytest.raises(AttributeError, match="_edictum_other"):
        _ = contract._edictum_other


def test_the_contracts_of_a_call_can_be_listed() -> None:
    candidate = BUNDLE + "observe_alongside: true\n"
    before = HookRegistration("before", "read_*", lambda call: HookDecision.allow())
    after = HookRegistration("after", "*", lambda call, result: None, when=only_big)
    session = session_contract(lambda session: Verdict.pass_())
    guard = Edictum.from_yaml_string(
        BUNDLE, candidate, contracts=[refuse_big, session], hooks=[before, after]
    )
    call = create_envelope("read_file", {"path": "/srv/a"})
    assert [it.id for it in guard.get_preconditions(call)] == ["no-secrets"]
    assert [it.id for it in guard.get_postconditions(call)] == ["no-keys"]
    assert [it.id for it in guard.get_sandbox_contracts(call)] == ["inside"]
    assert guard.get_session_contracts() == [session]
    assert [it.id for it in guard.get_shadow_preconditions(call)] == ["no-secrets:candidate"]
    assert [it.id for it in guard.get_shadow_postconditions(call)] == ["no-keys:candidate"]
    assert [it.id for it in guard.get_shadow_sandbox_contracts(call)] == ["inside:candidate"]
    assert guard.get_shadow_session_contracts() == []
    assert guard.get_preconditions(create_envelope("pay", {"amount": 1})) == []
    assert guard.get_preconditions(create_envelope("pay", {"amount": 101})) == [refuse_big]
    assert (guard.get_hooks("before", call), guard.get_hooks("after", call)) == ([before], [])


async def test_tools_can_be_registered_with_a_guard() -> None:
    guard = Edictum.from_yaml_string(BUNDLE)
    registry = guard.tool_registry
    assert isinstance(registry, ToolRegistry)
    assert registry.classify("read_file", {}) == (SideEffect.READ, True)
    assert registry.classify("write_file") == (SideEffect.IRREVERSIBLE, False)
    registry.register("write_file", "write", idempotent=True)
    assert guard.tool_registry.classify("write_file") == (SideEffect.WRITE, True)
    assert len(guard.policy.contracts) == 3
    guard.dispatch_sync("write_file", {"path": "/srv/a"}, lambda path: 1)
    assert guard.local_sink.last().side_effect == "write"
    await guard.reload(BUNDLE)
    assert guard.tool_registry.classify("write_file") == (SideEffect.WRITE, True)


# --- Pipeline -------------------------------------------------------------------------------------


async def test_the_pipeline_reads_what_would_be_decided() -> None:
    ask = precondition("pay", id="ask", effect="approve", timeout=7)(
        lambda call: Verdict.fail("may I?")
    )
    guard = Edictum.from_yaml_string(BUNDLE, contracts=[ask])
    pipeline, session = GovernancePipeline(guard), guard.session("s")
    good = create_envelope("read_file", {"path": "/srv/a"}, principal=Principal(user_id="u"))
    allowed = await pipeline.pre_execute(good, session)
    assert (allowed.action, allowed.reason, allowed.observed) == ("allow", None, False)
    assert [it["name"] for it in allowed.contracts_evaluated] == ["no-secrets", "inside"]
    denied = await pipeline.pre_execute(
        create_envelope("read_file", {"path": "/srv/.env"}), session
    )
    assert (denied.action, denied.reason) == ("deny", "Not /srv/.env")
    assert (denied.decision_source, denied.decision_name) == ("yaml_precondition", "no-secrets")
    pending = await pipeline.pre_execute(create_envelope("pay", {}), session)
    assert (pending.action, pending.approval_message) == ("pending_approval", "may I?")
    assert pending.approval_timeout == 7
    assert (session.attempts, guard.local_sink.events) == (0, [])
    await session.record_execution("read_file", True)
    full = await pipeline.pre_execute(good, session)
    assert (full.action, full.decision_source) == ("deny", "yaml_session")


async def test_the_pipeline_asks_postconditions_and_hooks() -> None:
    seen: list[Any] = []

    async def note(call: Any, result: Any) -> None:
        seen.append(result)

    def fail(call: Any, result: Any) -> None:
        raise RuntimeError("hook")

    @postcondition("read_file")
    async def raising(call: Any, result: Any) -> Verdict:
        await asyncio.sleep(0)
        raise ValueError("odd")

    hooks = [HookRegistration("after", "*", fail), HookRegistration("after", "*", note)]
    guard = Edictum.from_yaml_string(BUNDLE, hooks=hooks)
    call = create_envelope("read_file", {"path": "/srv/a"}, registry=guard.tool_registry)
    post = await GovernancePipeline(guard).post_execute(call, "a sk-abc b", True)
    assert (post.tool_success, post.postconditions_passed) == (True, False)
    assert post.redacted_response == "a [REDACTED] b"
    assert (post.output_suppressed, seen) == (False, ["a sk-abc b"])
    (finding,) = build_findings(post)
    assert (finding.contract_id, finding.type, finding.field) == (
        "no-keys",
        "secret_detected",
        "output",
    )
    fine = await GovernancePipeline(guard).post_execute(call, "nothing", True)
    assert (fine.postconditions_passed, fine.redacted_response) == (True, None)
    assert build_findings(fine) == []
    odd = Edictum(contracts=[raising])
    error = await GovernancePipeline(odd).post_execute(call, "x", True)
    assert (error.policy_error, error.postconditions_passed) == (True, False)


def test_older_names_can_be_imported_where_they_were() -> None:
    from edictum import GovernancePipeline as by_package  # type: ignore[attr-defined]  # not offered
    from edictum import envelope, yaml_engine
    from edictum.compat import bundles
    from edictum.yaml_engine import compiler, composer, loader

    assert by_package is GovernancePipeline
    assert envelope.create_envelope is create_envelope
    assert yaml_engine.load_bundle is loader.load_bundle is bundles.read_bundle
    assert compiler.compile_contracts is bundles.compile_contracts
    assert composer.compose_bundles is bundles.compose_bundles


# --- Bundles as plain data ------------------------------------------------------------------------


def test_a_bundle_is_loaded_as_plain_data(tmp_path: Path) -> None:
    from edictum.yaml_engine import load_bundle, load_bundle_string

    path = tmp_path / "bundle.yaml"
    path.write_text(BUNDLE)
    data, digest = load_bundle(path)
    assert (data["kind"], data["contracts"][0]["id"]) == ("ContractBundle", "no-secrets")
    assert str(digest) == digest.hex == Edictum.from_yaml(path).policy_version
    assert load_bundle_string(BUNDLE.encode()) == (data, digest)
    with pytest.raises(FileNotFoundError):
        load_bundle(tmp_path / "nothing.yaml")
    with pytest.raises(EdictumConfigError, match="unknown key 'contract'"):
        load_bundle_string(BUNDLE.replace("contracts:", "contract:"))


def test_a_compiled_bundle_makes_the_same_guard_with_hooks() -> None:
    from edictum.yaml_engine import compile_contracts, load_bundle_string

    compiled = compile_contracts(load_bundle_string(BUNDLE)[0])
    assert (compiled.default_mode, compiled.tools["read_file"]["side_effect"]) == (
        "enforce",
        "read",
    )
    assert compiled.limits == OperationLimits(max_tool_calls=2, max_calls_per_tool={"read_file": 1})
    guard = Edictum(
        contracts=compiled.preconditions
        + compiled.postconditions
        + compiled.session_contracts
        + compiled.sandbox_contracts,
        limits=compiled.limits,
        tools=compiled.tools,
    )
    with pytest.raises(EdictumDenied, match=r"Not /srv/\.env"):
        guard.run_sync("read_file", {"path": "/srv/.env"}, lambda path: path)
    assert guard.run_sync("read_file", {"path": "/srv/a"}, lambda path: "sk-abc") == "[REDACTED]"
    with pytest.raises(EdictumDenied, match="Per-tool limit"):
        guard.run_sync("read_file", {"path": "/srv/a"}, lambda path: path)


def test_any_text_survives_as_plain_data() -> None:
    from edictum.yaml_engine import compile_contracts, load_bundle_string

    data, _ = load_bundle_string(BUNDLE)
    text = 'a "b" \\ud83d \u2028 \U0001f600 \x7f é: {args.path}\n'
    data["contracts"][0]["then"]["message"] = text
    (contract, *_) = compile_contracts(data).preconditions
    verdict = contract(create_envelope("read_file", {"path": ".env"}))
    assert verdict.message == text.replace("{args.path}", ".env")


@pytest.mark.parametrize(
    "more",
    [
        {"defaults": {"mode": "enforce", "unlisted_tools": "deny"}},
        {"success": [{"tool": "t", "failure_when": {"result": {"equals": 1}}}]},
        {"session": "per"},
        {"session": "max_cost"},
    ],
)
def test_what_a_compiled_bundle_cannot_carry_is_refused(more: dict[str, Any]) -> None:
    from edictum.yaml_engine import compile_contracts, load_bundle_string

    data, _ = load_bundle_string(BUNDLE)
    if "session" in more:
        data["contracts"][3]["limits"][more["session"]] = 60
    else:
        data |= more
    with pytest.raises(EdictumConfigError, match="cannot carry"):
        compile_contracts(data)


def test_layers_of_plain_data_compose() -> None:
    from edictum.yaml_engine import compile_contracts, compose_bundles, load_bundle_string

    base = load_bundle_string(BUNDLE)[0] | {"observe_alongside": True}
    stricter = json.loads(json.dumps(base["contracts"][0]))
    stricter["when"] = {"args.path": {"contains": "env"}}
    layer = {
        "defaults": {"mode": "observe"},
        "tools": {"t": {"side_effect": "pure"}},
        "observability": {"stdout": True},
        "contracts": [stricter, {**stricter, "id": "more"}],
    }
    candidate = {
        "observe_alongside": True,
        "tools": {"u": {"side_effect": "pure"}},
        "contracts": [stricter],
    }
    before = json.dumps([base, layer, candidate])
    composed = compose_bundles((base, "base"), (layer, "layer"), (candidate, "candidate"))
    assert json.dumps([base, layer, candidate]) == before
    bundle, report = composed.bundle, composed.report
    ids = ["no-secrets", "no-keys", "inside", "few", "more", "no-secrets:candidate"]
    assert [it["id"] for it in bundle["contracts"]] == ids
    assert bundle["contracts"][0]["when"] == stricter["when"]
    assert (bundle["defaults"]["mode"], set(bundle["tools"])) == (
        "observe",
        {"read_file", "t", "u"},
    )
    assert bundle["contracts"][-1]["_shadow"] is True
    assert bundle["observability"] == {"stdout": True}
    (override,) = report.overridden_contracts
    assert (override.overridden_by, override.original_source) == ("layer", "base")
    (shadow,) = report.shadow_contracts
    assert (shadow.enforced_source, shadow.observed_source) == ("layer", "candidate")
    compiled = compile_contracts(bundle)
    assert [(it.id, it.shadow) for it in compiled.preconditions] == [
        ("no-secrets", False),
        ("more", False),
        ("no-secrets:candidate", True),
    ]
    with pytest.raises(ValueError, match="at least one"):
        compose_bundles()
