"""What goes to the model about a failure or a refusal is bounded as it is sent: escaped, one
character can take twelve.
"""

from __future__ import annotations

import json

import pytest

from edictum.outcomes import (
    TOOL_MESSAGE_MAX_CHARS,
    ToolDenied,
    ToolFailure,
    outcome_to_model_content,
)

TEXTS = [
    "\U0001f600" * 12_000,
    "\U0001f600" * 900 + "x" * 11_100,
    "x" * 11_100 + "\x00" * 900,
    "x" * 12_000,
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_failure_fits_a_message_and_keeps_its_warning(text: str) -> None:
    """The text is cut, and what is said about the effect stands behind it whole."""
    content = outcome_to_model_content(
        ToolFailure("c", "t", text, effect_unknown=True, verify_tool="v" * 256)
    )
    assert TOOL_MESSAGE_MAX_CHARS // 2 < len(content) <= TOOL_MESSAGE_MAX_CHARS
    error = json.loads(content)["error"]
    assert error.startswith(text[:500])
    assert f"... Whether it took effect is unknown: check with '{'v' * 256}'" in error


@pytest.mark.parametrize("reason", ["contract", "validation"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_refusal_fits_a_message(reason: str, text: str) -> None:
    """A contract may say anything, of any length."""
    assert (
        len(outcome_to_model_content(ToolDenied("c", "t", reason, text))) <= TOOL_MESSAGE_MAX_CHARS
    )


@pytest.mark.parametrize("text", ["short", "\U0001f600" * 900])
def test_what_fits_is_not_cut(text: str) -> None:
    """Also where it takes counting to know that it fits."""
    assert json.loads(outcome_to_model_content(ToolFailure("c", "t", text)))["error"] == text
