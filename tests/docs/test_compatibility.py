"""The claims of docs/compatibility.md about this library, one test each."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from edictum import (
    BashClassifier,
    CollectingAuditSink,
    CompositeSink,
    Edictum,
    EdictumConfigError,
    EdictumDenied,
    EdictumInputError,
    EdictumToolError,
    FileAuditSink,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    MemoryBackend,
    OperationLimits,
    Principal,
    RedactionPolicy,
    SideEffect,
    ToolCall,
    ToolDenied,
    ToolEnvelope,
    ToolExecutionResult,
    ToolFailure,
    ToolTimeout,
    Verdict,
    create_envelope,
    deny_sensitive_reads,
    postcondition,
    precondition,
    session_contract,
)
from edictum.findings import classify_finding
from support.waiting import wait_in_loop


def refuse(name, **options):
    return precondition("*", id=name, **options)(lambda call: Verdict.fail(f"{name} refuses"))


def tool(**args):
    return "ran"


# --- Names and deciding ---------------------------------------------------------------------------


def test_older_names_still_work():
    assert ToolEnvelope is ToolCall
    assert isinstance(create_envelope("t", {}), ToolCall)


@pytest.mark.parametrize("wrong", [{"contracts": [tool]}, {"hooks": [tool]}])
def test_unknown_items_are_an_error(wrong):
    with pytest.raises(EdictumConfigError):
        Edictum(**wrong)


def test_approval_skips_neither_contracts_nor_limits():
    people = InMemoryApprovalBackend(answer=True)
    guard = Edictum(
        contracts=[refuse("ask", effect="approve"), refuse("no")], approval_backend=people
    )
    assert guard.dispatch_sync("t", {}, tool).decision_name == "no"
    limited = Edictum(
        contracts=[refuse("ask", effect="approve")],
        approval_backend=people,
        limits=OperationLimits(max_tool_calls=1),
    )
    assert [type(limited.dispatch_sync("t", {}, tool)) for _ in range(2)] == [
        ToolExecutionResult,
        ToolDenied,
    ]
    assert len(people.requests) == 1


def test_tool_gets_what_was_checked():
    args = {"paths": ["/srv/a"]}

    @precondition("*")
    def changes_the_callers_list(call):
        args["paths"].append("/etc/shadow")
        return Verdict.pass_()

    assert Edictum(contracts=[changes_the_callers_list]).run_sync(
        "t", args, lambda paths: paths
    ) == ["/srv/a"]


@pytest.mark.parametrize(
    "broken",
    [
        {"contracts": [precondition("*", id="none")(lambda call: None)]},
        {
            "contracts": [
                precondition("*", when=lambda call: 1 / 0, id="when")(lambda call: Verdict.pass_())
            ]
        },
        {"hooks": [HookRegistration("before", "*", lambda call: None)]},
        {
            "hooks": [
                HookRegistration(
                    "before", "*", lambda call: HookDecision.allow(), when=lambda call: 1 / 0
                )
            ]
        },
        {"principal_resolver": lambda tool_name, args: 1 / 0},
    ],
)
def test_broken_parts_deny_with_an_event(broken):
    guard = Edictum(**broken)
    outcome = guard.dispatch_sync("t", {}, tool)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert [event.action for event in guard.local_sink.events] == ["call_denied"]
    assert guard.session().attempts == 1


def test_mode_is_checked():
    with pytest.raises(EdictumConfigError):
        Edictum(mode="enforced")


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "a\rb", "a\x1bb", "x" * 257])
def test_bad_tool_names(name):
    with pytest.raises(EdictumInputError):
        Edictum().run_sync(name, {}, tool)


def test_globs_in_the_tool_table_and_in_limits():
    guard = Edictum(
        tools={"mcp_*": {"side_effect": "read"}},
        limits=OperationLimits(max_calls_per_tool={"mcp_*": 1}),
    )
    guard.run_sync("mcp_a", {}, tool)
    assert guard.local_sink.last().side_effect == "read"
    with pytest.raises(EdictumDenied):
        guard.run_sync("mcp_b", {}, tool)


@pytest.mark.parametrize(
    "command",
    ["ls & rm -rf /", "find / -delete", "git branch -D main", "less x", "cat < x", "echo $HOME"],
)
def test_commands_that_do_more_than_read(command):
    assert BashClassifier.classify(command) is SideEffect.IRREVERSIBLE


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("bash", {"command": "cat .env"}),
        ("Bash", {"command": "/usr/bin/env"}),
        ("shell", {"command": "env | sort"}),
        ("open_document", {"files": ["/home/ada/.ssh/id_rsa"]}),
    ],
)
def test_sensitive_reads_of_any_tool(name, args):
    assert isinstance(
        Edictum(contracts=[deny_sensitive_reads()]).dispatch_sync(name, args, tool), ToolDenied
    )


def test_merging_keeps_everything(caplog):
    first = Edictum(limits=OperationLimits(max_tool_calls=5))
    second = Edictum(
        contracts=[refuse("no")],
        hooks=[HookRegistration("before", "hooked", lambda call: HookDecision.deny("hook"))],
        limits=OperationLimits(max_tool_calls=2),
        tools={"t": {"side_effect": "read"}},
    )
    merged = Edictum.from_multiple([first, second, Edictum(contracts=[refuse("no")])])
    assert merged.limits.max_tool_calls == 2
    assert merged.dispatch_sync("hooked", {}, tool).decision_source == "hook"
    assert len(merged.evaluate("t", {}).contracts) == 2
    assert "several contracts are called 'no'" in caplog.text
    assert first.local_sink.events == []


def test_evaluate_agrees_with_run():
    async def slow_no(call):
        await asyncio.sleep(0)
        return Verdict.fail("asynchronous no")

    guard = Edictum(contracts=[precondition("*", id="slow")(slow_no)])
    assert guard.evaluate("t", {}).deny_reasons == ["asynchronous no"]
    assert Edictum(contracts=[refuse("no")], mode="observe").evaluate("t", {}).verdict == "allow"
    hook = HookRegistration("before", "*", lambda call: HookDecision.deny("hook"))
    assert Edictum(hooks=[hook]).evaluate("t", {}).verdict == "deny"
    only_ada = precondition("*", id="ada")(
        lambda call: Verdict.pass_() if call.principal else Verdict.fail("who?")
    )
    assert (
        Edictum(contracts=[only_ada], principal=Principal(user_id="ada")).evaluate("t", {}).verdict
        == "allow"
    )


# --- Limits and sessions --------------------------------------------------------------------------


def test_attempts_are_not_off_by_one():
    guard = Edictum(limits=OperationLimits(max_attempts=3))
    assert (
        sum(isinstance(guard.dispatch_sync("t", {}, tool), ToolExecutionResult) for _ in range(5))
        == 3
    )


def test_cancelled_call_is_counted_and_closed():
    guard = Edictum()

    async def cancelled():
        task = asyncio.ensure_future(guard.run("t", {}, lambda: asyncio.sleep(60)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    assert (guard.session().executions, guard.session().failures) == (1, 1)
    assert guard.local_sink.last().success_source == "cancelled"


def test_session_contract_can_observe():
    observing = session_contract(mode="observe")(lambda session: Verdict.fail("too much"))
    guard = Edictum(contracts=[observing])
    assert guard.run_sync("t", {}, tool) == "ran"
    assert guard.local_sink.events[0].action == "call_would_deny"


def test_old_storage_from_many_threads_and_loops():
    guard = Edictum(backend=MemoryBackend(), limits=OperationLimits(max_tool_calls=3))
    ran, lock = [], threading.Lock()

    def body():
        with lock:
            ran.append(1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: guard.dispatch_sync("t", {}, body), range(24)))
    assert len(ran) == 3


# --- Success and results --------------------------------------------------------------------------


def test_checker_that_raises_loses_nothing():
    guard = Edictum(success_check=lambda tool_name, result: 1 / 0)
    outcome = guard.dispatch_sync("t", {}, lambda: "the result")
    assert isinstance(outcome, ToolFailure)
    assert (outcome.policy_error, outcome.value) == (True, "the result")
    assert guard.local_sink.last().result_summary == '"the result"'


def test_tool_error_is_redacted_and_has_its_cause():
    with pytest.raises(EdictumToolError) as raised:
        Edictum().run_sync("t", {}, lambda: "Error: password=lovelace")
    assert raised.value.result == "Error: password=[REDACTED]"

    def raises():
        raise KeyError("x")

    with pytest.raises(EdictumToolError) as raised:
        Edictum().run_sync("t", {}, raises)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("side_effect", list(SideEffect))
def test_redaction_is_done_for_every_tool_and_keeps_the_shape(side_effect):
    redacting = postcondition("*", effect="redact", id="redact")(
        lambda call, result: Verdict.fail("secret")
    )
    guard = Edictum(contracts=[redacting], tools={"t": {"side_effect": side_effect}})
    assert guard.run_sync("t", {}, lambda: {"rows": [{"password": "x", "n": 1}]}) == {
        "rows": [{"password": "[REDACTED]", "n": 1}]
    }


def test_redaction_that_changes_nothing_suppresses():
    redacting = postcondition("*", effect="redact", id="redact")(
        lambda call, result: Verdict.fail("an address")
    )
    assert (
        Edictum(contracts=[redacting]).run_sync("t", {}, lambda: "12 High Street")
        == "[OUTPUT SUPPRESSED] an address"
    )


def test_observing_guard_only_reports():
    parts = [
        refuse("ask", effect="approve"),
        postcondition("*", effect="deny", id="post")(lambda call, result: Verdict.fail("no")),
    ]
    assert Edictum(contracts=parts, mode="observe").run_sync("t", {}, tool) == "ran"


def test_findings_by_words():
    assert classify_finding("check", "the filename is odd") == "policy_violation"
    assert classify_finding("check", "an ssn was found") == "pii_detected"


def test_timeouts():
    guard = Edictum(tools={"t": {"timeout_s": 0.02}})
    assert isinstance(guard.dispatch_sync("t", {}, lambda: asyncio.sleep(60)), ToolTimeout)


# --- Audit ----------------------------------------------------------------------------------------


def test_fields_are_filled_in():
    guard = Edictum()
    guard.run_sync("t", {}, tool)
    guard.dispatch_sync("t", {}, lambda: "Error: no", parent_call_id="p1")
    event = guard.local_sink.last()
    assert (event.call_index, event.parent_call_id, event.error, event.result_summary) == (
        1,
        "p1",
        "Error: no",
        '"Error: no"',
    )


def test_composite_tries_all_sinks():
    class Broken:
        def emit(self, event):
            raise OSError("full")

    kept = CollectingAuditSink()
    guard = Edictum(audit_sink=CompositeSink([Broken(), kept]))
    assert isinstance(guard.dispatch_sync("t", {}, tool), ToolDenied)
    assert len(kept.events) == 2


def test_closing_reaches_sinks_inside_a_composite(tmp_path):
    file = FileAuditSink(tmp_path / "new" / "audit.jsonl")
    guard = Edictum(audit_sink=CompositeSink([file]))
    guard.run_sync("t", {}, tool)
    asyncio.run(guard.close())
    assert file._file is None
    assert len((tmp_path / "new" / "audit.jsonl").read_text().splitlines()) == 2


def test_redaction_of_keys_texts_principals_and_reasons():
    policy = RedactionPolicy()
    assert policy.redact_args({"monkey": "a", "max_tokens": 3, "api_key": "x"}) == {
        "monkey": "a",
        "max_tokens": 3,
        "api_key": "[REDACTED]",
    }
    assert policy.redact_args({"command": "export API_KEY=abc"}) == {
        "command": "export API_KEY=[REDACTED]"
    }
    guard = Edictum(
        principal=Principal(user_id="ada", claims={"token": "of-ada"}),
        contracts=[
            precondition("*", id="quotes")(lambda call: Verdict.fail("no password=lovelace here"))
        ],
    )
    guard.dispatch_sync("t", {}, tool)
    written = json.dumps(guard.local_sink.last().to_dict())
    assert "lovelace" not in written
    assert "of-ada" not in written


def test_large_payloads_stay_json():
    guard = Edictum()
    guard.run_sync("t", {f"k{n}": "x" * 2_000 for n in range(100)}, tool)
    event = guard.local_sink.last()
    assert "_omitted" in event.tool_args
    assert len(json.dumps(event.to_dict())) < 50_000


def test_approval_backend_is_told_when_the_caller_is_cancelled():
    people = InMemoryApprovalBackend()
    guard = Edictum(contracts=[refuse("ask", effect="approve")], approval_backend=people)

    async def cancelled():
        task = asyncio.ensure_future(guard.run("t", {}, tool))
        await wait_in_loop(lambda: people.pending)
        for _ in range(20):  # from the request to the wait for its answer
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    assert len(people.withdrawn) == 1
    assert guard.local_sink.last().action == "call_approval_withdrawn"


# --- YAML -----------------------------------------------------------------------------------------

HEAD = (
    "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: x}\ndefaults: {mode:"
    " enforce}\ncontracts:\n"
)


def rule(when: str, then: str = "{effect: deny, message: no}", name: str = "a") -> str:
    return f"  - {{id: {name}, type: pre, tool: t, when: {{{when}}}, then: {then}}}\n"


def bundle(*rules: str) -> Edictum:
    return Edictum.from_yaml_string(HEAD + "".join(rules))


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (
            [rule("arg.path: {equals: x}"), rule("args.path: {equal: x}", name="b")],
            [":6:40:", "'args.path'", ":7:52:", "'equals'"],
        ),
        (
            [
                "  - {id: a, id: b, type: pre, tool: t, when: {args.p: {equals: x}}, then: {effect:"
                " deny, message: m}}\n"
            ],
            ["'id' appears twice"],
        ),
        ([rule(r"args.path: {matches: '\\\\brm\\\\b'}")], ["backslash"]),
    ],
)
def test_mistakes_are_found_at_load(rules, says):
    with pytest.raises(EdictumConfigError) as error:
        bundle(*rules)
    assert all(part in str(error.value) for part in says)


def test_both_vocabularies_load():
    newer = HEAD.replace("ContractBundle", "Ruleset").replace("contracts:", "rules:") + rule(
        "args.p: {equals: 1}", "{action: block, message: no}"
    )
    assert Edictum.from_yaml_string(newer).evaluate("t", {"p": 1}).verdict == "deny"


def test_all_text_is_searched():
    guard = bundle(rule("args.text: {matches: 'needle$'}"))
    assert guard.evaluate("t", {"text": "x" * 1_000_000 + "needle"}).verdict == "deny"


def test_anonymous_caller_fails_a_role_check():
    assert bundle(rule("principal.role: {not_in: [admin]}")).evaluate("t", {}).verdict == "deny"


def test_list_elements_braces_and_metadata():
    guard = bundle(
        rule(
            "'args.items[*].path': {contains: evil}",
            "{effect: deny, message: '{{x}} {args.n}', metadata: {tags: 1, message: 2}}",
        )
    )
    assert guard.evaluate(
        "t", {"items": [{"path": "ok"}, {"path": "evil"}], "n": 3}
    ).deny_reasons == ["{x} 3"]


def test_session_contracts_keep_their_message_and_can_raise_the_defaults():
    session = (
        "  - {{id: {0}, type: session, limits: {{max_tool_calls: {1}}}, then: {{effect: deny,"
        " message: {2}}}}}\n"
    )
    guard = bundle(session.format("wide", 300, "wide"), session.format("narrow", 250, "enough"))
    outcomes = [guard.dispatch_sync("t", {}, tool) for _ in range(251)]
    assert isinstance(outcomes[249], ToolExecutionResult)
    assert (outcomes[250].decision_name, outcomes[250].details) == ("narrow", "enough")


def test_enforce_hardens_an_observing_bundle():
    text = HEAD.replace("enforce", "observe") + rule("args.p: {exists: true}")
    assert Edictum.from_yaml_string(text).evaluate("t", {"p": 1}).verdict == "allow"
    assert Edictum.from_yaml_string(text, mode="enforce").evaluate("t", {"p": 1}).verdict == "deny"


def test_reload_keeps_python_contracts_and_custom_operators():
    text = HEAD + rule("args.n: {is_odd: true}")
    operators = {"is_odd": lambda field, value: (field % 2 == 1) is value}
    guard = Edictum.from_yaml_string(
        text,
        custom_operators=operators,
        contracts=[precondition("u", id="u")(lambda call: Verdict.fail("u"))],
    )
    asyncio.run(guard.reload(text))
    assert guard.evaluate("t", {"n": 3}).verdict == "deny"
    assert guard.evaluate("u", {}).verdict == "deny"
    with pytest.raises(EdictumConfigError):
        asyncio.run(guard.reload("nonsense: true"))
    assert guard.evaluate("t", {"n": 3}).verdict == "deny"


def test_template_names_are_names():
    with pytest.raises(EdictumConfigError):
        Edictum.from_template("../../../../etc/passwd")


# --- YAML: patterns, operators, rates, candidates, reload, templates, sandbox ---------------------


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"(?=a)b", "look-ahead"),
        (r"(?<!a)b", "look-behind"),
        (r"(a)\1", "back-reference"),
        ("(?>a)", "atomic group"),
        ("(?x)a", "flag 'x'"),
    ],
)
def test_patterns_that_cannot_be_linear_are_refused_by_name(pattern, named):
    with pytest.raises(EdictumConfigError, match=named):
        bundle(rule(f"args.p: {{matches: '{pattern}'}}"))


def test_no_pattern_takes_exponential_time():
    """In a process of its own: a search that does not end could not be ended here."""
    code = """if True:
        import sys
        from edictum import Edictum
        guard = Edictum.from_yaml_string(sys.argv[1])
        print(guard.evaluate("t", {"text": "a" * 100_000 + "!"}).verdict)
    """
    command = [sys.executable, "-c", code, HEAD + rule("args.text: {matches: '^(a+)+$'}")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "allow"


@pytest.mark.parametrize(
    ("leaf", "holds", "does_not"),
    [
        ("empty: true", "", "x"),
        ("length_gt: 3", "abcd", "abc"),
        ("length_gte: 3", [1, 2, 3], [1]),
        ("length_lt: 3", "ab", "abc"),
        ("length_lte: 3", {"a": 1}, "abcd"),
        ("equals_ignore_case: Admin", "aDMIN", "user"),
        ("matches_none: ['^/srv/', '^/tmp/']", "/etc/x", "/tmp/x"),
        ("in_cidr: [10.0.0.0/8, '::1/128']", "10.1.2.3", "11.1.2.3"),
    ],
)
def test_new_operators(leaf, holds, does_not):
    guard = bundle(rule(f"args.p: {{{leaf}}}"))
    assert [guard.evaluate("t", {"p": value}).verdict for value in (holds, does_not)] == [
        "deny",
        "allow",
    ]


def test_fields_of_results_are_selected_and_redacted_in_place():
    post = rule("output.text: {matches: 'sk-[a-z]+'}", "{effect: redact, message: a key}").replace(
        "type: pre", "type: post"
    )
    assert bundle(post).run_sync("t", {}, lambda: {"rows": ["a sk-abc b", 1]}) == {
        "rows": ["a [REDACTED] b", 1]
    }


def session_limit(limits: str, options: str = "") -> str:
    return (
        f"  - {{id: s, type: session, {options}limits: {{{limits}}}, then: {{effect: deny, message:"
        " slow down}}\n"
    )


def test_rates():
    guard = bundle(session_limit("max_tool_calls: 2, per: 1s"))
    assert [type(guard.dispatch_sync("t", {}, tool)) for _ in range(3)] == [
        ToolExecutionResult,
        ToolExecutionResult,
        ToolDenied,
    ]
    time.sleep(1.05)
    assert guard.run_sync("t", {}, tool) == "ran"


def test_session_contract_of_a_bundle_can_observe():
    guard = bundle(session_limit("max_tool_calls: 1", "mode: observe, "))
    assert [guard.run_sync("t", {}, tool) for _ in range(2)] == ["ran", "ran"]
    assert [
        event.decision_name
        for event in guard.local_sink.events
        if event.action == "call_would_deny"
    ] == ["s"]


def test_unlisted_tools_can_be_denied():
    text = HEAD.replace("{mode: enforce}", "{mode: enforce, unlisted_tools: deny}").replace(
        "contracts:\n", "tools: {t: {side_effect: read}}\n"
    )
    guard = Edictum.from_yaml_string(text)
    assert [guard.evaluate(name, {}).verdict for name in ("t", "other")] == ["allow", "deny"]


def test_success_rules_of_a_bundle():
    guard = Edictum.from_yaml_string(
        HEAD.replace(
            "contracts:\n", "success: [{tool: t, failure_when: {result.error: {exists: true}}}]\n"
        )
    )
    outcomes = [
        guard.dispatch_sync("t", {"error": error}, lambda error: {"error": error})
        for error in (None, "no such user")
    ]
    assert [type(outcome) for outcome in outcomes] == [ToolExecutionResult, ToolFailure]


CANDIDATE = (
    HEAD.replace("contracts:", "observe_alongside: true\ncontracts:")
    + rule("args.p: {exists: true}", name="pre")
    + rule("output.text: {contains: ran}", "{effect: warn, message: w}", "post").replace(
        "type: pre", "type: post"
    )
    + session_limit("max_tool_calls: 1")
    + "  - {id: box, type: sandbox, tool: t, within: [/srv], message: out}\n"
)


@pytest.fixture
def with_candidate(tmp_path):
    for name, text in (("enforced", HEAD + rule("args.p: {equals: no}")), ("candidate", CANDIDATE)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return Edictum.from_yaml(tmp_path / "enforced.yaml", tmp_path / "candidate.yaml")


def would_deny(guard: Edictum, p: str) -> set[str | None]:
    mark = guard.local_sink.mark()
    guard.dispatch_sync("t", {"p": p, "path": "/etc/x"}, tool)
    return {
        event.decision_name
        for event in guard.local_sink.since_mark(mark)
        if event.action == "call_would_deny"
    }


def test_candidates_are_heard_with_their_own_numbers_also_about_denied_calls(with_candidate):
    assert would_deny(with_candidate, "yes") == {"pre:candidate", "box:candidate"}
    assert would_deny(with_candidate, "yes") == {"pre:candidate", "box:candidate", "s:candidate"}
    assert would_deny(with_candidate, "no") == {"pre:candidate", "box:candidate", "s:candidate"}
    assert "postcondition_warning" in {event.action for event in with_candidate.local_sink.events}
    assert with_candidate.session().executions == 2


def test_both_vocabularies_compose(tmp_path):
    newer = HEAD.replace("ContractBundle", "Ruleset").replace("contracts:", "rules:") + rule(
        "args.p: {equals: 2}", "{action: block, message: no}", "b"
    )
    (tmp_path / "older.yaml").write_text(HEAD + rule("args.p: {equals: 1}"))
    (tmp_path / "newer.yaml").write_text(newer)
    guard = Edictum.from_yaml(tmp_path / "older.yaml", tmp_path / "newer.yaml")
    assert [guard.evaluate("t", {"p": number}).verdict for number in (1, 2, 3)] == [
        "deny",
        "deny",
        "allow",
    ]


def test_reload_keeps_operators_selectors_and_python_contracts():
    guard = Edictum.from_yaml_string(
        HEAD + rule("args.p: {same: 1}"),
        contracts=[precondition("in_python", id="no")(lambda call: Verdict.fail("no"))],
        custom_operators={"same": lambda field, value: field == value},
        custom_selectors={"risk": lambda call: {"score": len(call.args)}},
    )
    asyncio.run(
        guard.reload(HEAD + rule("args.p: {same: 2}") + rule("risk.score: {gt: 1}", name="risky"))
    )
    with pytest.raises(EdictumConfigError):
        asyncio.run(guard.reload("nonsense"))
    calls = [("t", {"p": 1}), ("t", {"p": 2}), ("t", {"p": 3, "q": 3}), ("in_python", {})]
    assert [guard.evaluate(*call).verdict for call in calls] == ["allow", "deny", "deny", "deny"]


def test_templates_are_found_by_name_only():
    for template in Edictum.list_templates():
        assert (
            Edictum.from_template(template.name)
            .evaluate("read_file", {"path": "notes.txt"})
            .verdict
            == "allow"
        )
    with pytest.raises(EdictumConfigError, match="not found"):
        Edictum.from_template("../templates/file-agent")


BOXES = {
    "paths": "within: [/srv/work]",
    "domains": "allows: {domains: [example.com]}",
    "commands": "allows: {commands: [cat, grep]}",
}


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("paths", {"path": "/srv/work/../../etc/x"}),
        ("paths", {"path": "~/x"}),
        ("paths", {"path": "/srv/work/%2e%2e/%2e%2e/etc/x"}),
        ("paths", {"command": "grep --file=/etc/x a"}),
        ("paths", {"paths": ["/srv/work/a", "/etc/x"]}),
        ("paths", {"anything": {"deep": "/etc/x"}}),
        ("domains", {"url": "elsewhere.org/x"}),
        ("domains", {"url": "https://example.com@elsewhere.org"}),
        ("commands", {"command": "cat a & rm b"}),
        ("commands", {"command": "cat $(rm b)"}),
    ],
)
def test_sandbox_judges_what_used_to_pass(kind, args):
    guard = bundle(f"  - {{id: box, type: sandbox, tool: '*', {BOXES[kind]}, message: out}}\n")
    assert guard.evaluate("bash" if "command" in args else "t", args).verdict == "deny"


def test_sandbox_reads_pipes_between_allowed_programs():
    guard = bundle(
        f"  - {{id: box, type: sandbox, tool: '*', {BOXES['commands']}, message: out}}\n"
    )
    assert (
        guard.evaluate("bash", {"command": "cat a | grep -c 'x; y' && grep z $(cat names)"}).verdict
        == "allow"
    )


# --- Stores, budgets, sub-agents, engines ---------------------------------------------------------


def test_limits_hold_across_guards_on_one_store(tmp_path):
    limits, url = OperationLimits(max_tool_calls=2), f"sqlite:///{tmp_path}/sessions.db"
    guards = [Edictum(limits=limits, backend=url) for _ in range(3)]
    outcomes = [guard.dispatch_sync("t", {}, tool, session_id="s") for guard in guards]
    for guard in guards:
        asyncio.run(guard.close())
    assert [type(outcome) for outcome in outcomes] == [
        ToolExecutionResult,
        ToolExecutionResult,
        ToolDenied,
    ]


def test_amounts_are_reserved_and_counted_as_used():
    guard = Edictum(limits=OperationLimits(max_cost=1.0))
    used = [
        guard.dispatch_sync(
            "t", {}, tool, amounts={"cost": 0.6}, actual_amounts=lambda result: {"cost": 0.3}
        )
        for _ in range(3)
    ]
    assert [type(outcome) for outcome in used] == [
        ToolExecutionResult,
        ToolExecutionResult,
        ToolDenied,
    ]


def test_sub_agents_count_in_the_session_above():
    guard = Edictum(limits=OperationLimits(max_tool_calls=2))
    outcomes = [
        guard.dispatch_sync("t", {}, tool, session_id=f"child-{n}", parent_session_id="parent")
        for n in range(3)
    ]
    assert [type(outcome) for outcome in outcomes] == [
        ToolExecutionResult,
        ToolExecutionResult,
        ToolDenied,
    ]


def test_a_tool_can_run_in_a_process():
    assert Edictum().run_sync("parse", {"s": "[1]"}, json.loads, run_in="process") == [1]


# --- Moving ---------------------------------------------------------------------------------------


def test_claims_cannot_be_changed():
    with pytest.raises(TypeError):
        Principal(claims={"a": 1}).claims["a"] = 2


def test_evaluate_lists_candidates_without_being_changed_by_them():
    bundle = (
        "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: n}\ndefaults: {mode: enforce}\n"
        "contracts:\n  - id: a\n    type: pre\n    tool: t\n    when: {args.a: {equals: %d}}\n"
        '    then: {effect: deny, message: "No."}\n'
    )
    guard = Edictum.from_yaml_string(bundle % 1, bundle % 2 + "observe_alongside: true\n")
    result = guard.evaluate("t", {"a": 2})
    assert result.verdict == "allow"
    shown = [(it.contract_id, it.passed, it.observed) for it in result.contracts]
    assert shown == [("a", True, False), ("a:candidate", False, True)]


def test_the_condition_of_a_contract_can_be_read():
    contract = precondition("t", when=lambda call: call.args["n"] > 1)(lambda call: Verdict.pass_())
    assert contract.when(create_envelope("t", {"n": 2})) is True
