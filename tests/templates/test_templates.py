"""The built-in templates: every contract fires, and ordinary work goes through. The cases are data,
beside this file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edictum import Edictum
from edictum.approval import InMemoryApprovalBackend
from edictum.contracts._load import load_yaml
from edictum.contracts._tree import to_plain
from edictum.testing.cases import Case, load_cases

HERE = Path(__file__).parent
NAMES = ("coding-assistant-base", "devops-agent", "file-agent", "nanobot-agent", "research-agent")
SOURCES = Path(__file__).parents[2] / "src/edictum/contracts/templates"
CASES = {name: load_cases(HERE / f"{name}.cases.yaml") for name in NAMES}
CASES["nanobot-agent"] += load_cases(
    HERE / "nanobot-agent.approved.yaml", approval_backend=InMemoryApprovalBackend(True)
)


def content(name: str) -> dict:
    return to_plain(load_yaml((SOURCES / f"{name}.yaml").read_bytes(), name)[0])


@pytest.mark.parametrize("case", [case for cases in CASES.values() for case in cases], ids=str)
def test_case(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", NAMES)
def test_template_is_found_by_name_and_is_what_the_cases_load(name: str) -> None:
    guard = Edictum.from_template(name)
    assert guard.policy_version == CASES[name][0].guard().policy_version


def test_every_template_file_has_cases() -> None:
    assert sorted(path.stem for path in SOURCES.glob("*.yaml")) == sorted(NAMES)
    assert {info.name for info in Edictum.list_templates()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_contract_fires_in_some_case(name: str) -> None:
    wanted = [case.data["want"] for case in CASES[name]]
    fired = {want["contract"] for want in wanted if "contract" in want}
    fired |= {
        found
        for want in wanted
        for found in (*want.get("findings", ()), *want.get("would_deny", ()))
    }
    ids = {contract["id"] for contract in content(name)["contracts"]}
    assert len(ids) >= 4
    assert ids - fired == set()


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_work_is_in_the_cases(name: str) -> None:
    assert sum("/work/" in case.note for case in CASES[name]) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_template_loads_without_a_warning(
    name: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    Edictum.from_template(name)
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", NAMES)
def test_no_pattern_has_doubled_backslashes(name: str) -> None:
    assert not re.search(r"\\\\[a-zA-Z.]", (SOURCES / f"{name}.yaml").read_text())
