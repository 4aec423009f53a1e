"""The example with a hundred calls: fewer prompts, and the same denials."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "approvals" / "fewer_prompts.py"


def test_grants_and_read_only_tools_cut_the_prompts():
    """From 25 to at most 5, and what was denied is denied."""
    command = [sys.executable, str(EXAMPLE)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert printed.stderr == ""
    text = printed.stdout
    assert text.startswith("100 calls\n")
    before, after = map(int, re.findall(r"(\d+) prompts", text))
    assert before == 25
    assert after <= 5
    assert "the same calls were denied: True" in text
    assert text.count("\n  ") == 3
