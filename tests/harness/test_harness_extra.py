"""The extra ``harness``: needed when it is used, named when it is missing, and never loaded by
``import edictum``.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from edictum import EdictumConfigError
from edictum.harness import BoundedToolExecutor, ToolSpec, tool
from edictum.harness._schemas import _compile


def test_without_pydantic_the_decorator_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(EdictumConfigError, match=r"\.\[harness\]"):
        tool(lambda: 1)
    assert tool(parameters={"type": "object"})(lambda: 1).name == "<lambda>"


def test_without_jsonschema_the_executor_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _compile.cache_clear()
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(EdictumConfigError, match=r"\.\[harness\]"):
        BoundedToolExecutor(
            [ToolSpec(name="t", parameters={"type": "object", "title": "never compiled before"})]
        )
    _compile.cache_clear()


@pytest.mark.parametrize(
    ("module", "loaded"),
    [
        ("edictum", "edictum.harness"),
        ("edictum.harness", "pydantic"),
        ("edictum.harness", "jsonschema_rs"),
    ],
)
def test_nothing_is_loaded_before_it_is_used(module: str, loaded: str) -> None:
    code = f"import sys, {module}; sys.exit({loaded!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
