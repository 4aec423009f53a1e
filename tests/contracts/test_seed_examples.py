"""The factories and checkers of the seed text run as they are printed there, and the bundle can say
the same in YAML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum, EdictumToolError

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: seed}
success:
  - tool: "http_*"
    failure_when: {result.status: {gte: 400}}
  - tool: query_users
    failure_when: {result.rows: {empty: true}}
  - tool: "*"
    failure_when: {any: [{result.ok: {equals: false}}, {result.text: {contains: "Traceback (most recent call last)"}}]}
"""


def http_success_check(tool_name: str, result: Any) -> bool:
    if isinstance(result, dict) and result.get("status", 200) >= 400:  # noqa: SIM103 - as printed
        return False
    return True


def db_success_check(tool_name: str, result: Any) -> bool:
    if tool_name == "query_users" and isinstance(result, dict):  # noqa: SIM102 - as printed
        if not result.get("rows"):
            return False
    return True


def test_the_first_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("contracts.yaml").write_text(RULES)
    guard = Edictum.from_yaml(
        "contracts.yaml",
        success_check=lambda tool_name, result: (
            not (isinstance(result, dict) and result.get("status", 200) >= 400)
        ),
    )
    assert guard.run_sync("fetch", {}, lambda: {"status": 200}) == {"status": 200}
    with pytest.raises(EdictumToolError):
        guard.run_sync("fetch", {}, lambda: {"status": 500, "error": "..."})


def test_every_factory_takes_a_success_check(tmp_path: Path) -> None:
    path = tmp_path / "contracts.yaml"
    path.write_text(RULES)
    (tmp_path / "file-agent.yaml").write_text(RULES)
    checked = [
        Edictum(success_check=http_success_check),
        Edictum.from_yaml(path, success_check=http_success_check),
        Edictum.from_yaml_string(RULES, success_check=http_success_check),
        Edictum.from_template(
            "file-agent", template_dirs=[tmp_path], success_check=http_success_check
        ),
    ]
    checked.append(
        Edictum.from_multiple(
            [checked[0], Edictum.from_yaml_string(RULES, success_check=lambda tool, result: True)]
        )
    )
    for guard in checked:
        assert guard.success_check is http_success_check
        assert (
            guard.dispatch_sync("t", {}, lambda: {"status": 503}).success_source == "success_check"
        )  # type: ignore[union-attr]


RESULTS: list[Any] = [
    {"status": 200},
    {"status": 400},
    {"status": 503, "error": "x"},
    {},
    {"rows": []},
    {"rows": None},
    {"rows": [1]},
    "text",
    None,
    [],
]


# On a result that is not a dict db_success_check has no opinion, and the rule calls it empty.
BOTH = [("http_get", http_success_check, result) for result in RESULTS] + [
    ("query_users", db_success_check, result) for result in RESULTS if isinstance(result, dict)
]


@pytest.mark.parametrize(("tool", "check", "result"), BOTH)
def test_the_rules_say_what_the_functions_say(tool: str, check: Any, result: Any) -> None:
    ruled = Edictum.from_yaml_string(RULES)
    outcome = ruled.dispatch_sync(tool, {}, lambda: result)
    assert (getattr(outcome, "success_source", "") in ("", "framework")) is check(tool, result)
