"""Guards from bundles: files, text, templates, layers, and everything that can be given beside
them.
"""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from edictum import (
    CompositionReport,
    Edictum,
    EdictumConfigError,
    EdictumDenied,
    EdictumToolError,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    TemplateInfo,
    Verdict,
    precondition,
)
from edictum._factories import BundleOptions
from edictum.audit import generate_key, verify
from edictum.testing import RecordingSink

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: files}
tools:
  read_file: {side_effect: read, idempotent: true, timeout_s: 5}
  "db_*": {side_effect: write, retry_on_failure: false}
contracts:
  - id: no-env
    type: pre
    tool: read_file
    when: {args.path: {contains: .env}}
    then: {effect: deny, message: "Not {args.path}.", tags: [secrets], metadata: {severity: high}}
"""


def read(path: str) -> str:
    return f"contents of {path}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "contracts.yaml"
    path.write_text(BUNDLE)
    return path


class TestFromYaml:
    def test_a_file_becomes_a_guard(self, file: Path) -> None:
        guard = Edictum.from_yaml(file)
        assert guard.run_sync("read_file", {"path": "a"}, read) == "contents of a"
        with pytest.raises(EdictumDenied) as denied:
            guard.run_sync("read_file", {"path": ".env"}, read)
        assert (denied.value.reason, denied.value.decision_source, denied.value.decision_name) == (
            "Not .env.",
            "yaml_precondition",
            "no-env",
        )

    def test_tags_and_metadata_reach_the_audit(self, file: Path) -> None:
        guard = Edictum.from_yaml(str(file))
        guard.dispatch_sync("read_file", {"path": ".env"}, read)
        (record,) = guard.local_sink.last().contracts_evaluated
        assert (record["tags"], record["metadata"]) == (
            ["secrets"],
            {"severity": "high", "tags": ["secrets"]},
        )

    def test_the_version_is_the_hash_of_the_bytes(self, file: Path) -> None:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert Edictum.from_yaml(file).policy_version == digest
        assert (
            Edictum.from_yaml_string(BUNDLE).policy_version
            == Edictum.from_yaml_string(BUNDLE.encode()).policy_version
            == digest
        )
        two = hashlib.sha256(f"{digest}:{digest}".encode()).hexdigest()
        assert Edictum.from_yaml(file, file).policy_version == two

    def test_without_a_path(self) -> None:
        with pytest.raises(EdictumConfigError, match="requires at least one path"):
            Edictum.from_yaml()

    def test_a_missing_file_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            Edictum.from_yaml(tmp_path / "nothing.yaml")

    def test_a_directory_is_not_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(EdictumConfigError, match="cannot be read"):
            Edictum.from_yaml(tmp_path)

    def test_a_report_on_request(self, file: Path) -> None:
        guard, report = Edictum.from_yaml(file, return_report=True)
        assert isinstance(guard, Edictum)
        assert report == CompositionReport()

    @pytest.mark.parametrize("defaults", ["", "defaults: {}\n"])
    def test_a_missing_mode_is_enforce_and_said(
        self, defaults: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        text = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: n}\ntools: {}\n"
        caplog.set_level("INFO", "edictum")
        assert Edictum.from_yaml_string(text + defaults).mode == "enforce"
        assert "'defaults.mode' is missing, enforce is assumed" in caplog.text
        caplog.clear()
        Edictum.from_yaml_string(text + defaults, mode="enforce")
        Edictum.from_yaml_string(text + "defaults: {mode: enforce}\n", text)
        assert not caplog.text

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(EdictumConfigError, match="A bundle is int"):
            Edictum.from_yaml_string(5)  # type: ignore[arg-type]


class TestOptions:
    def test_every_keyword_of_the_constructor_is_a_keyword_of_the_factories(self) -> None:
        constructor = set(inspect.signature(Edictum.__init__).parameters) - {
            "self",
            "policy_version",
        }
        assert constructor | {"custom_operators", "custom_selectors", "max_bytes"} == set(
            get_type_hints(BundleOptions)
        )

    def test_success_check_replaces_the_rules(self) -> None:
        bundle = BUNDLE + "success:\n  - tool: '*'\n    failure_when: {result.status: {gte: 400}}\n"
        ruled = Edictum.from_yaml_string(bundle)
        with pytest.raises(EdictumToolError):
            ruled.run_sync("t", {}, lambda: {"status": 500})
        checked = Edictum.from_yaml_string(bundle, success_check=lambda tool, result: True)
        assert checked.run_sync("t", {}, lambda: {"status": 500}) == {"status": 500}

    def test_hooks_limits_principal_sinks_and_callbacks(self) -> None:
        sink, told = RecordingSink(), []
        guard = Edictum.from_yaml_string(
            BUNDLE.replace("contains: .env", "contains: '{x}'")
            .replace("args.path:", "principal.role:")
            .replace("'{x}'", "intern"),
            hooks=[
                HookRegistration(
                    phase="before", tool="hooked", callback=lambda call: HookDecision.deny("hook")
                )
            ],
            limits=OperationLimits(max_tool_calls=1),
            principal=Principal(role="intern"),
            audit_sink=sink,
            on_deny=lambda call, reason, name: told.append(name),
            environment="staging",
        )
        guard.dispatch_sync("hooked", {}, lambda: None)
        guard.dispatch_sync("read_file", {"path": "x"}, read)
        guard.dispatch_sync("t", {}, lambda: None)
        guard.dispatch_sync("t", {}, lambda: None)
        assert told[1:] == ["no-env", "max_tool_calls"]
        assert {event.environment for event in sink.events} == {"staging"}

    def test_python_contracts_stand_beside_the_bundle(self) -> None:
        @precondition("read_file")
        def mine(call: Any) -> Verdict:
            return Verdict.fail("mine") if call.args["path"] == "mine" else Verdict.pass_()

        guard = Edictum.from_yaml_string(BUNDLE, contracts=[mine])
        assert guard.evaluate("read_file", {"path": "mine"}).deny_reasons == ["mine"]
        assert guard.evaluate("read_file", {"path": ".env"}).deny_reasons == ["Not .env."]

    def test_python_tool_entries_win(self) -> None:
        guard = Edictum.from_yaml_string(BUNDLE, tools={"read_file": {"side_effect": "pure"}})
        assert guard.policy.entry("read_file").side_effect == "pure"
        assert guard.policy.entry("db_write").retry_on_failure is False

    def test_limits_given_in_python_stay_beside_those_of_the_bundle(self) -> None:
        session = (
            "contracts:\n  - {id: s, type: session, limits: {max_tool_calls: 5}, then: {effect:"
            " deny, message: m}}\n"
        )
        bundle = BUNDLE.split("contracts:")[0] + session
        assert Edictum.from_yaml_string(bundle).limits.max_tool_calls == 5
        assert (
            Edictum.from_yaml_string(
                bundle, limits=OperationLimits(max_tool_calls=2)
            ).limits.max_tool_calls
            == 2
        )
        assert Edictum.from_yaml_string(bundle).limits.max_attempts == 500

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            (
                {"custom_operators": {"contains": max}},
                "Custom operator names clash with built-in operators",
            ),
            ({"custom_operators": {"near": 5}}, "Custom operator 'near' is not callable"),
            (
                {"custom_selectors": {"args": max}},
                "Custom selector names clash with built-in selectors",
            ),
            ({"custom_selectors": {"risk": 5}}, "Custom selector 'risk' is not callable"),
            ({"mode": "strict"}, "mode is 'strict'"),
            ({"success_check": 5}, "success_check is 5"),
        ],
    )
    def test_what_is_given_is_checked(self, options: dict[str, Any], what: str) -> None:
        with pytest.raises(EdictumConfigError, match=what):
            Edictum.from_yaml_string(BUNDLE, **options)

    def test_an_asynchronous_operator_is_an_error_and_not_always_true(self) -> None:
        async def near(field: Any, value: Any) -> bool:
            return False

        guard = Edictum.from_yaml_string(
            BUNDLE.replace("contains: .env", "near: 1"), custom_operators={"near": near}
        )
        assert guard.evaluate("read_file", {"path": "x"}).policy_error

    async def test_observability_makes_sinks_unless_some_are_given(self, tmp_path: Path) -> None:
        log = tmp_path / "audit.jsonl"
        bundle = BUNDLE + f"observability: {{file: {log}}}\n"
        Edictum.from_yaml_string(bundle, audit_sink=RecordingSink()).dispatch_sync(
            "t", {}, lambda: None
        )
        assert not log.exists()
        async with Edictum.from_yaml_string(bundle) as guard:
            await guard.dispatch("t", {}, lambda: None)
        assert len(log.read_text().splitlines()) == 2

    async def test_observability_makes_a_sink_in_the_database_of_the_sessions(
        self, tmp_path: Path
    ) -> None:
        url = f"sqlite:///{tmp_path}/edictum.db"
        bundle = f"{BUNDLE}session: {{store: {url}}}\n"
        bundle += f"observability: {{store: {{url: {url}, chain: true}}}}\n"
        async with Edictum.from_yaml_string(bundle) as guard:
            guard.dispatch_sync("t", {}, lambda: 1)
        found = verify(url, ledger=url)
        assert (found.ok, found.records) == (True, 2)
        with pytest.raises(EdictumConfigError, match="PostgreSQL cannot be chained"):
            Edictum.from_yaml_string(
                BUNDLE + "observability: {store: {url: 'postgresql://h/d', chain: true}}\n"
            )

    async def test_observability_makes_a_chained_file_that_is_retained(
        self, tmp_path: Path
    ) -> None:
        log, public = tmp_path / "audit.jsonl", generate_key(tmp_path / "key")
        file = f"{{path: {log}, key: {tmp_path}/key, retain: 180d, max_bytes: 1, keep: 1}}"
        async with Edictum.from_yaml_string(f"{BUNDLE}observability: {{file: {file}}}\n") as guard:
            for _ in range(3):
                await guard.dispatch("t", {}, lambda: None)
        found = verify(log, public_key=public)
        assert (found.ok, found.records, found.deleted) == (True, 6, 0)


class TestTemplates:
    def test_user_directories_come_first_and_shadow_the_builtin_ones(self, tmp_path: Path) -> None:
        (tmp_path / "file-agent.yaml").write_text(BUNDLE)
        (tmp_path / "own.yaml").write_text(BUNDLE)
        listed = {
            info.name: info for info in Edictum.list_templates([tmp_path, tmp_path / "nothing"])
        }
        assert listed["own"] == TemplateInfo("own", tmp_path / "own.yaml", False)
        assert listed["file-agent"].builtin is False
        guard = Edictum.from_template(
            "own", template_dirs=[tmp_path], success_check=lambda tool, result: False
        )
        with pytest.raises(EdictumToolError):
            guard.run_sync("t", {}, lambda: "x")

    @pytest.mark.parametrize("name", ["nothing", "../contracts", "/etc/passwd", ""])
    def test_a_name_leads_nowhere_else(self, name: str, file: Path) -> None:
        with pytest.raises(EdictumConfigError, match=r"not found\. Available: "):
            Edictum.from_template(name, template_dirs=[file.parent / "templates"])


class TestComposition:
    def test_the_report_says_what_was_replaced_and_what_only_observes(
        self, file: Path, tmp_path: Path
    ) -> None:
        over, beside = tmp_path / "over.yaml", tmp_path / "beside.yaml"
        over.write_text(BUNDLE.replace(".env", ".pem"))
        beside.write_text(BUNDLE.replace(".env", ".key") + "observe_alongside: true\n")
        guard, report = Edictum.from_yaml(file, over, beside, return_report=True)
        (override,), (shadow,) = report.overridden_contracts, report.shadow_contracts
        assert (override.contract_id, override.overridden_by, override.original_source) == (
            "no-env",
            str(over),
            str(file),
        )
        assert (shadow.contract_id, shadow.enforced_source, shadow.observed_source) == (
            "no-env",
            str(over),
            str(beside),
        )
        assert guard.evaluate("read_file", {"path": ".env"}).verdict == "allow"
        assert guard.evaluate("read_file", {"path": ".pem"}).verdict == "deny"

    def test_a_first_candidate_is_enforced_and_that_is_said(
        self, file: Path, tmp_path: Path
    ) -> None:
        candidate = tmp_path / "candidate.yaml"
        candidate.write_text(BUNDLE + "observe_alongside: true\n")
        warning = (
            f"{candidate}: the bundle is enforced: 'observe_alongside: true' has no effect in the"
            " first layer. Remove it, or put the bundle that it stands beside first."
        )
        for layers, is_said in (((candidate,), True), ((file, candidate), False)):
            guard, report = Edictum.from_yaml(*layers, return_report=True)
            assert (warning in report.warnings) is is_said
            assert [shadow.contract_id for shadow in report.shadow_contracts] == (
                [] if is_said else ["no-env"]
            )
            assert guard.evaluate("read_file", {"path": ".env"}).verdict == "deny"

    async def test_candidates_are_reported_by_every_way_of_driving(self) -> None:
        def trail(guard: Edictum) -> list[tuple[str, str | None]]:
            return [(str(event.action), event.decision_name) for event in guard.local_sink.events]

        def guards() -> Edictum:
            return Edictum.from_yaml_string(
                BUNDLE, BUNDLE.replace(".env", ".key") + "observe_alongside: true\n"
            )

        trails = []
        for args in ({"path": ".key"}, {"path": ".env.key"}):
            asynchronous, synchronous, hooked = guards(), guards(), guards()
            await asynchronous.dispatch("read_file", args, read)
            synchronous.dispatch_sync("read_file", args, read)
            ticket = await hooked.begin("read_file", args)
            if ticket.allowed:
                await ticket.finish("contents")
            trails.append(trail(asynchronous))
            assert trail(asynchronous) == trail(synchronous) == trail(hooked)
        assert trails[0] == [
            ("call_would_deny", "no-env:candidate"),
            ("call_allowed", None),
            ("call_executed", None),
        ]
        assert trails[1] == [("call_would_deny", "no-env:candidate"), ("call_denied", "no-env")]

    def test_a_merged_guard_keeps_unlisted_tools_out(self) -> None:
        strict = BUNDLE + "defaults: {unlisted_tools: deny}\n"
        merged = Edictum.from_multiple(
            [Edictum.from_yaml_string(BUNDLE), Edictum.from_yaml_string(strict)]
        )
        assert merged.evaluate("unknown", {}).verdict == "deny"


async def test_an_approval_asked_by_a_bundle() -> None:
    backend = InMemoryApprovalBackend()
    asking = BUNDLE.replace("effect: deny", "effect: approve").replace(
        "tags:", "timeout: 5, timeout_effect: deny, tags:"
    )
    guard = Edictum.from_yaml_string(asking, approval_backend=backend)
    assert guard.evaluate("read_file", {"path": ".env"}).needs_approval


def test_importing_edictum_imports_no_yaml_and_no_regex_engine() -> None:
    code = (
        "import edictum, sys; print([m for m in sys.modules if m in ('yaml', 're2') or"
        " m.startswith('edictum.contracts._load')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['re2'] = None\n"
        "import edictum\n"
        "try: edictum.Edictum.from_yaml_string('a: 1')\n"
        "except edictum.EdictumConfigError as exc: print(exc)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install '.[yaml]'" in said
    missing_yaml = subprocess.run(
        [sys.executable, "-c", code.replace("re2", "yaml")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "pip install '.[yaml]'" in missing_yaml


SESSION_SECTION = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: stored}}
session: {{store: "sqlite:///{path}", lease: 30s, ttl: 1h, on_store_error: deny}}
contracts:
  - id: budget
    type: session
    limits: {{max_cost: 1, max_amounts: {{tokens: 100}}}}
    then: {{effect: deny, message: The budget is spent.}}
"""


async def test_a_bundle_names_the_store_of_its_sessions(tmp_path: Path) -> None:
    """Two guards from the same bundle count in the same file, budgets included."""
    text = SESSION_SECTION.format(path=tmp_path / "sessions.db")
    async with Edictum.from_yaml_string(text) as first, Edictum.from_yaml_string(text) as second:
        one = await first.dispatch(
            "t", {}, lambda: 1, session_id="s", amounts={"cost": 0.6, "tokens": 10}
        )
        two = await second.dispatch("t", {}, lambda: 1, session_id="s", amounts={"cost": 0.6})
        assert (type(one).__name__, type(two).__name__) == ("ToolExecutionResult", "ToolDenied")
        assert two.details == "The budget is spent."
        assert second.session("s").executions == 1


async def test_a_backend_given_in_python_wins_over_the_bundle(tmp_path: Path) -> None:
    """What the program says is nearer than what the file says."""
    guard = Edictum.from_yaml_string(
        SESSION_SECTION.format(path=tmp_path / "sessions.db"), backend="memory:"
    )
    await guard.dispatch("t", {}, lambda: 1, session_id="s")
    assert not (tmp_path / "sessions.db").exists()
