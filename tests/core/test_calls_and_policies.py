"""The small parts of the core: calls, contracts, policies, limits, findings, and the ready-made
contracts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import (
    BashClassifier,
    Contract,
    Edictum,
    EdictumConfigError,
    Finding,
    OperationLimits,
    PostCallResult,
    Principal,
    SideEffect,
    ToolCall,
    ToolDenied,
    ToolEnvelope,
    ToolExecutionResult,
    ToolFailure,
    ToolRegistry,
    ToolTimeout,
    Verdict,
    create_envelope,
    deny_sensitive_reads,
    outcome_to_model_content,
    postcondition,
    precondition,
    session_contract,
)
from edictum.core.contract import Kind
from edictum.core.effects import Ran
from edictum.core.limits import Limit, Metric, compile_together, millionths, windows_of
from edictum.core.policy import MAX_CACHED_PLANS, Policy, SuccessRule
from edictum.core.session import SessionReading
from edictum.core.tool_entry import ToolEntry, tool_entry
from edictum.findings import classify_finding
from edictum.success import all_of

# --- Calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["Bash", "bash", "shell", "run_command"])
def test_a_shell_tools_command_is_found(tool: str) -> None:
    """Whatever the spelling of its name."""
    assert ToolCall(tool, {"command": "ls"}).bash_command == "ls"
    assert ToolCall(tool, {"command": ["ls", "-l"]}).bash_command == "['ls', '-l']"
    assert ToolCall(tool).bash_command == ""
    assert ToolCall("read", {"command": "ls"}).bash_command is None


@pytest.mark.parametrize("key", ["file_path", "filePath", "path", "notebook_path"])
def test_the_file_a_call_names_is_found(key: str) -> None:
    """Under the usual keys, for any tool."""
    assert ToolCall("anything", {key: "/x"}).file_path == "/x"
    assert ToolCall("anything", {key: 5}).file_path == "5"
    assert ToolCall("anything", {key: None}).file_path is None
    assert ToolCall("anything", {}).file_path is None


def test_a_call_made_by_hand_is_frozen_and_knows_its_time() -> None:
    """As contracts get it."""
    call = ToolCall("t", {"a": [1]}, run_id="s", started_at=0.0, metadata={"k": [1]})
    assert (call.session_id, call.timestamp) == ("s", datetime(1970, 1, 1, tzinfo=UTC))
    with pytest.raises(AttributeError):
        call.tool_name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        call.args["a"].append(2)


def test_an_envelope_is_a_call_as_a_guard_would_make_it() -> None:
    """The older library's way to test contracts."""
    registry = ToolRegistry()
    registry.register("read", SideEffect.READ, idempotent=True)
    registry.register("mcp_*", "pure")
    call = create_envelope(
        "read", {"x": 1}, run_id="s", call_index=2, registry=registry, principal=Principal(role="r")
    )
    assert isinstance(call, ToolEnvelope)
    assert (
        call.side_effect,
        call.idempotent,
        call.run_id,
        call.call_index,
        call.principal.role,
    ) == (SideEffect.READ, True, "s", 2, "r")
    assert call.call_id
    assert create_envelope("read", {}).side_effect is SideEffect.IRREVERSIBLE
    assert create_envelope("mcp_x", {}, registry=registry).side_effect is SideEffect.PURE
    assert create_envelope("Bash", {"command": "ls"}).side_effect is SideEffect.READ
    assert (
        create_envelope("Bash", {"command": "rm x"}, registry=registry).side_effect
        is SideEffect.IRREVERSIBLE
    )
    when = datetime(2024, 2, 29, tzinfo=UTC)
    assert create_envelope("t", {}, timestamp=when).timestamp == when
    assert registry.classify("unknown") == (SideEffect.IRREVERSIBLE, False)


READS = [
    "",
    "  ",
    "ls",
    "ls -la",
    "cat x",
    "git status",
    "git log -3",
    "git remote -v",
    "git remote",
    "git tag -l",
    "date",
    "date +%s",
    "find . -name x",
    "echo hi",
    "git branch",
    "git branch -a",
    "git branch -vv",
    "git branch --list",
    "git branch --list 'feature/*'",
    "git branch --show-current",
    "git branch -r --contains abc123",
    "git branch -avv --sort=-committerdate",
    "git branch --merged main",
    "git remote show origin",
    "git remote get-url origin",
    "git tag --list 'v*'",
    "git tag -n3",
    "git tag --sort=version:refname -l v1.*",
]
CHANGES = [
    "rm x",
    "ls ; rm x",
    "ls & rm -rf /",
    "ls && rm x",
    "ls | sh",
    "ls > x",
    "cat < x",
    "echo $HOME",
    "echo `id`",
    "ls\nrm x",
    "lsof",
    "find . -delete",
    "find . -exec rm {} +",
    "git branch -D main",
    "git branch new",
    "git branch -v new",
    "git branch --list -D main",
    "git branch --list '-D' main",
    "git branch --list {-D,main}",
    "git branch -m old new --list",
    "git remote -v add x y",
    "git remote show -x origin",
    "git remote remove x",
    "git tag -l -d v1",
    "git tag --list '' -d v1",
    "git remote add x y",
    "git tag v1",
    "date -s x",
    "date 01010000",
    "git diff --output=x",
    "rg --pre cmd x",
    "tree -o x",
    "less x",
    "git push",
    None,
    5,
]


@pytest.mark.parametrize("command", READS)
def test_a_command_that_only_reads(command: str) -> None:
    """Plainly."""
    assert BashClassifier.classify(command) is SideEffect.READ


@pytest.mark.parametrize("command", CHANGES)
def test_a_command_that_may_do_more(command: Any) -> None:
    """Whatever is not plainly reading is irreversible."""
    assert BashClassifier.classify(command) is SideEffect.IRREVERSIBLE


SENSITIVE: list[tuple[str, dict[str, Any]]] = [
    ("Read", {"file_path": "/home/u/.ssh/id_rsa"}),
    ("read_file", {"path": "/app/.env"}),
    ("anything", {"options": {"files": ["a", "/root/.aws/credentials"]}}),
    ("Bash", {"command": "cat .env"}),
    ("Bash", {"command": "cat ~/.ssh/config"}),
    ("Bash", {"command": "printenv"}),
    ("Bash", {"command": "env | sort"}),
    ("Bash", {"command": "/usr/bin/env"}),
    ("bash", {"command": "ls; printenv HOME"}),
    ("Bash", {"command": "echo $(printenv)"}),
    ("tool", {"names": {"/x/id_ed25519"}}),
]
ORDINARY: list[tuple[str, dict[str, Any]]] = [
    ("Read", {"file_path": "/srv/environment.md"}),
    ("Bash", {"command": "ls -la"}),
    ("Bash", {"command": "env FOO=bar make"}),
    ("Bash", {"command": ""}),
    ("tool", {"number": 5, "nothing": None}),
]


@pytest.mark.parametrize(("tool", "args"), SENSITIVE)
def test_sensitive_reads_are_denied(tool: str, args: dict[str, Any]) -> None:
    """Every text of the arguments is looked at, whatever tool and argument are called."""
    outcome = Edictum(contracts=[deny_sensitive_reads()]).dispatch_sync(
        tool, args, lambda **given: 1
    )
    assert isinstance(outcome, ToolDenied)
    assert outcome.decision_name == "deny_sensitive_reads"


@pytest.mark.parametrize(("tool", "args"), ORDINARY)
def test_ordinary_reads_are_not(tool: str, args: dict[str, Any]) -> None:
    """A guard that denies everything is switched off."""
    assert isinstance(
        Edictum(contracts=[deny_sensitive_reads()]).dispatch_sync(tool, args, lambda **given: 1),
        ToolExecutionResult,
    )


def test_what_is_sensitive_can_be_said() -> None:
    """It replaces the defaults."""
    contract = deny_sensitive_reads(sensitive_paths=["/vault/"], sensitive_commands=["whoami"])
    guard = Edictum(contracts=[contract])
    assert isinstance(guard.dispatch_sync("r", {"p": "/vault/x"}, lambda p: 1), ToolDenied)
    assert isinstance(
        guard.dispatch_sync("Bash", {"command": "whoami"}, lambda command: 1), ToolDenied
    )
    assert isinstance(guard.dispatch_sync("r", {"p": "/x/.env"}, lambda p: 1), ToolExecutionResult)


@pytest.mark.parametrize(
    ("command", "is_denied"),
    [
        ("vault read secret/data", True),
        ("/usr/bin/vault read secret/data", True),
        ("ls && vault read -field=x secret", True),
        ("vault -tls-skip-verify read secret", True),
        ("gcloud auth print-access-token", True),
        ("vault status", False),
        ("vault", False),
        ("read vault", False),
        ("gcloud auth list", False),
    ],
)
def test_a_sensitive_command_of_several_words(command: str, is_denied: bool) -> None:
    """All of its words are compared, and options between them are left out."""
    commands = ["vault read", "gcloud auth print-access-token"]
    guard = Edictum(contracts=[deny_sensitive_reads(sensitive_commands=commands)])
    outcome = guard.dispatch_sync("Bash", {"command": command}, lambda command: 1)
    assert isinstance(outcome, ToolDenied) is is_denied


# --- Contracts and policies -----------------------------------------------------------------------


def test_a_contract_needs_a_function() -> None:
    """Made by hand, too."""
    with pytest.raises(EdictumConfigError, match="check is not callable"):
        Contract(id="x", kind=Kind.PRE, check=None)  # type: ignore[arg-type]
    assert (
        Contract(id="x", kind=Kind.PRE, check=print, source="yaml_precondition").source
        == "yaml_precondition"
    )
    assert session_contract(mode="observe")(lambda session: Verdict.pass_()).mode == "observe"


def test_a_shadow_contract_only_observes() -> None:
    """Beside the ones that enforce."""
    shadow = Contract(
        id="x:candidate", kind=Kind.PRE, check=lambda call: Verdict.fail("no"), shadow=True
    )
    guard = Edictum(contracts=[shadow])
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolExecutionResult)
    assert guard.local_sink.events[0].action == "call_would_deny"


@pytest.mark.parametrize("kind", [Kind.PRE, Kind.POST])
def test_neighbours_that_can_be_fused_are_asked_in_one_go(kind: Kind) -> None:
    """By the function that their compiler gives; the others one by one, and the order is kept."""
    asked: list[Any] = []

    def fuse(contracts: tuple[Contract, ...]) -> Any:
        def ask(*subject: Any) -> list[tuple[Contract, Any]]:
            asked.append([contract.id for contract in contracts])
            return [
                (contract, Verdict.fail(f"{contract.id} says no"))
                for contract in contracts
                if contract.id == "b"
            ]

        return ask

    effect: Any = "deny" if kind is Kind.PRE else "warn"

    def fused(name: str) -> Contract:
        return Contract(id=name, kind=kind, check=print, fuse=fuse, effect=effect)

    def plain(name: str) -> Contract:
        return Contract(
            id=name,
            kind=kind,
            check=lambda *subject: asked.append(name) or Verdict.pass_(),
            effect=effect,
        )

    guard = Edictum(contracts=[fused("a"), fused("b"), plain("c"), fused("d")])
    guard.dispatch_sync("t", {}, lambda: 1)
    assert asked == [["a", "b"], "c", ["d"]]
    assert [
        (record["name"], record["passed"]) for record in guard.local_sink.last().contracts_evaluated
    ] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("d", True),
    ]


@given(st.lists(st.sampled_from(["pass", "fail", "raise", "exit", "stop"]), max_size=8))
def test_every_contract_is_asked_once_whatever_the_others_do(plans: list[str]) -> None:
    """And the record names the ones that objected, in order; StopIteration is an error as any
    other.
    """
    asked: list[int] = []

    def contract(number: int, plan: str) -> Contract:
        def check(call: Any) -> Verdict:
            asked.append(number)
            if plan == "fail":
                return Verdict.fail(f"{number} says no")
            if plan != "pass":
                raise {"raise": ValueError, "exit": SystemExit, "stop": StopIteration}[plan](
                    f"{number} broke"
                )
            return Verdict.pass_()

        return Contract(id=f"c{number}", kind=Kind.PRE, check=check)

    guard = Edictum(contracts=[contract(number, plan) for number, plan in enumerate(plans)])
    outcome = guard.dispatch_sync("t", {}, lambda: 1)
    assert asked == [*range(len(plans))]
    records = guard.local_sink.last().contracts_evaluated
    assert [(record["name"], record["passed"]) for record in records] == [
        (f"c{n}", plan == "pass") for n, plan in enumerate(plans)
    ]
    assert isinstance(outcome, ToolExecutionResult) is all(plan == "pass" for plan in plans)


def test_a_policy_says_whether_a_bundle_is_part_of_it() -> None:
    """Even when it is changed afterwards."""
    assert not Policy(version="7").has_bundle
    assert Policy(bundle_digest=lambda: "d").with_tool("t", ToolEntry()).has_bundle


def test_invented_tool_names_do_not_use_up_memory() -> None:
    """The cache of plans is bounded."""
    policy = Policy(contracts=[precondition("*")(lambda call: Verdict.pass_())])
    for number in range(MAX_CACHED_PLANS * 3):
        policy.plan(f"tool-{number}")
    assert len(policy._plans) <= MAX_CACHED_PLANS
    assert policy.plan("tool-1") is policy.plan("tool-1")


def test_contracts_for_other_tools_are_not_even_looked_at() -> None:
    """A plan has only what can apply, in the order of registration."""
    contracts = [
        precondition(f"other-{number}")(lambda call: Verdict.pass_()) for number in range(1_000)
    ]
    policy = Policy(
        contracts=[
            precondition("t*", id="glob")(lambda call: Verdict.pass_()),
            *contracts,
            precondition("t", id="exact")(lambda call: Verdict.pass_()),
        ]
    )
    assert [contract.id for contract in policy.plan("t").before] == ["glob", "exact"]


def test_a_tools_own_entry_comes_before_a_globs() -> None:
    """And what nobody described is the worst case."""
    policy = Policy(
        tools={
            "mcp_*": ToolEntry(side_effect=SideEffect.READ),
            "mcp_rm": ToolEntry(side_effect=SideEffect.WRITE),
        }
    )
    assert [policy.entry(name).side_effect.value for name in ("mcp_ls", "mcp_rm", "other")] == [
        "read",
        "write",
        "irreversible",
    ]
    assert policy.is_listed("mcp_ls")
    assert not policy.is_listed("other")
    entry = ToolEntry(timeout_s=5)
    assert tool_entry("t", entry) is entry  # type: ignore[arg-type]


def test_a_contract_for_tools_that_nobody_listed_comes_first() -> None:
    """A policy may deny what it does not know."""
    unlisted = precondition("*", id="unlisted")(lambda call: Verdict.fail("unknown tool"))
    other = precondition("*", id="other")(lambda call: Verdict.pass_())
    policy = Policy(contracts=[other], tools={"known": ToolEntry()}, unlisted=unlisted)
    assert [contract.id for contract in policy.plan("known").before] == ["other"]
    assert [contract.id for contract in policy.plan("stranger").before] == ["unlisted", "other"]


@pytest.mark.parametrize("verify", ["", 5])
def test_a_tool_that_verifies_is_named(verify: Any) -> None:
    """By its name."""
    with pytest.raises(EdictumConfigError, match="verify is"):
        tool_entry("t", {"verify": verify})
    assert tool_entry("t", {"verify": "lookup", "timeout_s": None}).verify == "lookup"


def test_success_rules_of_a_policy_come_before_the_heuristic() -> None:
    """Each says why, or has no opinion; one that raises makes a failure."""
    from edictum.core.lifecycle.verdict import find_verdict

    def verdict(judge: Any, value: Any) -> Any:
        from edictum.core.effects import Ran

        plan = Policy(success_rules=[SuccessRule(("t",), judge, "rows")]).plan("t")
        return find_verdict(ToolCall("t"), plan, Ran(value), None, None)

    assert (
        verdict(lambda call, value: "no rows", 1).source,
        verdict(lambda call, value: "no rows", 1).reason,
    ) == (
        "success_rule:rows",
        "no rows",
    )
    assert verdict(lambda call, value: None, "Error: x").source == "default"
    assert verdict(lambda call, value: 1 / 0, 1).policy_error


# --- Limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "used", "held", "said"),
    [
        (
            Limit(name="x", metric=Metric.EXECUTIONS, maximum=3),
            2,
            1,
            "Execution limit reached (3 calls; 1 still running). Summarize progress and stop.",
        ),
        (
            Limit(name="x", metric=Metric.EXECUTIONS, maximum=3, window_s=60),
            3,
            0,
            "Execution limit reached (3 calls within 60 s). Summarize progress and stop.",
        ),
        (
            Limit(name="x", metric=Metric.SUCCESSES, maximum=3),
            3,
            0,
            "Limit reached: 3 successes (limit: 3). Summarize progress and stop.",
        ),
        (
            Limit(name="x", metric=Metric.CONSECUTIVE_FAILURES, maximum=3),
            3,
            1,
            "Limit reached: 3 consecutive failures (limit: 3). Summarize progress and stop.",
        ),
        (
            Limit(name="x", metric=Metric.EXECUTIONS, maximum=3, tool="send"),
            3,
            0,
            "Per-tool limit: send has 3 executions (limit: 3).",
        ),
        (
            Limit(name="x", metric=Metric.EXECUTIONS, maximum=1, tool="send"),
            1,
            0,
            "Per-tool limit: send has 1 execution (limit: 1).",
        ),
        (
            Limit(name="x", metric=Metric.SUCCESSES, maximum=2, tool="send"),
            1,
            1,
            "Per-tool limit: send has 1 success (limit: 2; 1 still running).",
        ),
        (
            Limit(name="x", metric=Metric.FAILURES, maximum=1, window_s=60),
            1,
            0,
            "Limit reached: 1 failure within 60 s (limit: 1). Summarize progress and stop.",
        ),
        (
            Limit(name="x", metric=Metric.CONSECUTIVE_FAILURES, maximum=1),
            1,
            0,
            "Limit reached: 1 consecutive failure (limit: 1). Summarize progress and stop.",
        ),
        (
            Limit(name="x", metric=Metric.ATTEMPTS, maximum=3),
            4,
            0,
            "Attempt limit reached (3). Agent may be stuck in a retry loop. Stop and reassess.",
        ),
        (Limit(name="x", metric=Metric.EXECUTIONS, maximum=3, message="enough"), 3, 0, "enough"),
        (
            Limit(name="x", metric=Metric.AMOUNT, maximum=2_500_000, amount="cost"),
            2_000_000,
            1_000_000,
            "Budget reached: cost is 2 (limit: 2.5; 1 reserved by running calls).",
        ),
        (
            Limit(
                name="x",
                metric=Metric.AMOUNT,
                maximum=1_000_000,
                amount="cost",
                tool="send",
                window_s=60,
            ),
            1_000_000,
            0,
            "Budget reached: cost of send is 1 within 60 s (limit: 1).",
        ),
    ],
)
def test_the_reason_of_a_full_limit_has_the_numbers(
    limit: Limit, used: int, held: int, said: str
) -> None:
    """For a model that has to change its plan."""
    assert limit.reason(used, held) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metric": Metric.AMOUNT}, "a budget names its amount"),
        ({"metric": Metric.EXECUTIONS, "amount": "cost"}, "a budget names its amount"),
        ({"metric": Metric.CONSECUTIVE_FAILURES, "window_s": -1}, "the window is -1 s"),
        ({"metric": Metric.EXECUTIONS, "window_s": 0}, "the window is 0 s"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    """Where it is made."""
    with pytest.raises(EdictumConfigError, match=said):
        Limit(name="x", maximum=1, **options)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_cost": -1},
        {"max_cost": "1"},
        {"max_cost": True},
        {"max_amounts": [1]},
        {"max_amounts": {"": 1}},
        {"max_amounts": {"x": -1}},
    ],
)
def test_a_budget_that_means_nothing_is_refused(bad: dict[str, Any]) -> None:
    """With the number."""
    with pytest.raises(EdictumConfigError, match="OperationLimits"):
        OperationLimits(**bad)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0, 0, 0),
        (0.0000004, 1, 0),
        (0.0000015, 2, 1),
        (1e-15, 1, 0),
        (0.1 + 0.2, 300_000, 300_000),
        (0.29, 290_000, 290_000),
        (1.1 * 3, 3_300_000, 3_300_000),
        (10**12, 10**18, 10**18),
    ],
)
def test_what_is_less_than_a_millionth_counts(value: float, up: int, down: int) -> None:
    """If this fails, any number of small amounts fit into a budget, or what floats cannot hold
    exactly costs a millionth.
    """
    assert (millionths("cost", value), millionths("cost", value, down=True)) == (up, down)


def test_a_budget_holds_for_amounts_that_are_less_than_a_millionth() -> None:
    """What is used is rounded up and the budget down: the sum never exceeds it."""
    guard = Edictum(limits=OperationLimits(max_cost=0.0000015))
    outcomes = [
        guard.dispatch_sync("work", {}, lambda: 1, amounts={"cost": 0.0000008}) for _ in range(3)
    ]
    assert [type(it).__name__ for it in outcomes] == [
        "ToolExecutionResult",
        "ToolDenied",
        "ToolDenied",
    ]


def test_the_tighter_budget_applies() -> None:
    """``max_cost`` is the amount called cost."""
    merged = OperationLimits(max_cost=2, max_amounts={"cost": 3, "tokens": 5}).tighter(
        OperationLimits(max_cost=1)
    )
    assert merged.budgets() == {"cost": 1, "tokens": 5}
    assert OperationLimits(max_cost=1).compile()[-1].amount == "cost"


def test_a_session_contract_at_least_as_strict_speaks_for_a_plain_limit() -> None:
    """In its own words."""
    strict = Limit(name="mine", metric=Metric.EXECUTIONS, maximum=2, message="enough")
    loose = Limit(name="loose", metric=Metric.EXECUTIONS, maximum=500)
    names = [
        limit.name
        for limit in compile_together(
            OperationLimits(max_tool_calls=3), (strict, loose), enforce=True
        )
    ]
    assert names == ["max_attempts", "mine", "loose"]
    assert not any(
        limit.enforce for limit in compile_together(OperationLimits(), (), enforce=False)
    )


def test_windows_are_remembered_once_for_all_limits_that_look_at_them() -> None:
    """As long as the longest, as many as the largest."""
    limits = (
        Limit(name="a", metric=Metric.EXECUTIONS, maximum=5, window_s=10),
        Limit(name="b", metric=Metric.EXECUTIONS, maximum=2, window_s=60),
        Limit(name="c", metric=Metric.EXECUTIONS, maximum=2),
    )
    assert [(window.counter, window.keep, window.span_s) for window in windows_of(limits)] == [
        ("executions", 6, 60)
    ]


def test_a_reading_without_a_source_says_so() -> None:
    """A subclass says where the numbers come from."""
    with pytest.raises(NotImplementedError):
        _ = SessionReading().attempts
    with pytest.raises(NotImplementedError):
        _ = SessionReading().per_tool


# --- Amounts and sessions above -------------------------------------------------------------------


def test_amounts_are_reserved_and_settled_with_what_was_used() -> None:
    """The estimate before, the truth after; where it cannot be told, the estimate."""
    guard = Edictum(limits=OperationLimits(max_cost=1.0))
    first = guard.dispatch_sync(
        "t",
        {},
        lambda: {"cost": 0.2},
        amounts={"cost": 0.9},
        actual_amounts=lambda result: {"cost": result["cost"]},
    )
    assert isinstance(first, ToolExecutionResult)
    odd = guard.dispatch_sync(
        "t", {}, dict, amounts={"cost": 0.5}, actual_amounts=lambda result: {"cost": result["cost"]}
    )
    assert "actual_amounts failed" in odd.notes[0]
    failed = guard.dispatch_sync(
        "t", {}, lambda: 1 / 0, amounts={"cost": 0.2}, actual_amounts=lambda result: {"cost": 0}
    )
    assert isinstance(failed, ToolFailure)
    refused = guard.dispatch_sync("t", {}, lambda: 1, amounts={"cost": 0.5})
    assert isinstance(refused, ToolDenied)
    assert (
        refused.details == "Budget reached: the call asks for 0.5 of cost, 0.9 is used (limit: 1)."
    )
    with_silence = guard.dispatch_sync("t", {}, lambda: 1, amounts={"tokens": 5})
    assert isinstance(
        with_silence, ToolExecutionResult
    )  # who does not say what it will cost may go on while anything is left


def test_a_call_counts_in_the_sessions_above_its_own() -> None:
    """A sub-agent does not reset the limits of the agent that made it."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=2))
    for number in range(2):
        assert isinstance(
            guard.dispatch_sync(
                "t", {}, lambda: 1, session_id=f"child-{number}", parent_session_id="root"
            ),
            ToolExecutionResult,
        )
    assert isinstance(
        guard.dispatch_sync("t", {}, lambda: 1, session_id="child-9", parent_session_id="root"),
        ToolDenied,
    )
    assert guard.session("root").executions == 2


# --- Findings, outcomes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contract_id", "message", "kind"),
    [
        ("no-pii", "x", "pii_detected"),
        ("x", "contains a patient record", "pii_detected"),
        ("x", "found a token", "secret_detected"),
        ("x", "the session limit", "limit_exceeded"),
        ("x", "the filename is odd", "policy_violation"),
        ("keyboard", "monkey", "policy_violation"),
    ],
)
def test_findings_are_classified_by_words(contract_id: str, message: str, kind: str) -> None:
    """Not by parts of words."""
    assert classify_finding(contract_id, message) == kind


def test_a_finding_can_say_its_type_itself() -> None:
    """In the contract's metadata."""
    contract = postcondition("*", id="x", metadata={"finding_type": "licence"})(
        lambda call, result: Verdict.fail("odd")
    )
    outcome = Edictum(contracts=[contract]).dispatch_sync("t", {}, lambda: 1)
    assert outcome.findings[0].type == "licence"
    assert Finding("a", "b", "c", "d", {"x": 1}).as_dict() == {
        "type": "a",
        "contract_id": "b",
        "field": "c",
        "message": "d",
        "metadata": {"x": 1},
    }
    assert PostCallResult(1).findings == []


def test_an_outcome_whose_effect_is_unknown_says_how_to_find_out() -> None:
    """Before the model calls again."""
    assert "check with 'lookup' before" in outcome_to_model_content(
        ToolFailure("c", "t", "lost", effect_unknown=True, verify_tool="lookup")
    )
    assert "find out before" in outcome_to_model_content(
        ToolTimeout("c", "t", 1.0, 5, effect_unknown=True)
    )


def test_a_call_whose_worker_died_is_lost() -> None:
    """A failure with a source of its own; nobody knows whether it took effect."""

    class DeadEngine:
        def run_sync(self, effect: Any) -> Ran:
            return Ran(None, RuntimeError("the worker died"), lost="the worker died")

        async def run(self, effect: Any) -> Ran:
            return self.run_sync(effect)

    guard = Edictum()
    outcome = guard.dispatch_sync("t", {}, lambda: 1, run_in=DeadEngine())
    assert isinstance(outcome, ToolFailure)
    assert (outcome.success_source, outcome.effect_unknown) == ("lost", True)
    assert guard.session().failures == 1


@pytest.mark.parametrize("value", [{"rows": [1]}, [1], "text", 5])
def test_a_suppressed_output_keeps_its_type(value: Any) -> None:
    """Programs that read a dict must not be handed a text."""
    guard = Edictum(
        contracts=[postcondition("*", effect="deny")(lambda call, result: Verdict.fail("hidden"))]
    )
    shown = guard.run_sync("t", {}, lambda: value)
    assert type(shown) is (type(value) if isinstance(value, (dict, list)) else str)
    assert "[OUTPUT SUPPRESSED] hidden" in str(shown)


def test_an_awaitable_without_close_is_a_mistake_in_a_combination_too() -> None:
    """Whatever kind of awaitable."""

    class Promise:
        def __await__(self) -> Any:
            yield

    outcome = Edictum(success_check=all_of(lambda tool, result: Promise())).dispatch_sync(
        "t", {}, lambda: 1
    )
    assert isinstance(outcome, ToolFailure)
    assert outcome.policy_error
