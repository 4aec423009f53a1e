"""Every framework has an example that runs offline, and a page whose code is the example's."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@cache
def output_of(example: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class ExampleAndPage:
    """Subclass it with ``name`` set: ``examples/<name>/main.py`` and ``docs/adapters/<name>.md``
    are put to the test.
    """

    name: str

    def test_the_example_shows_what_was_denied_redacted_and_counted(self) -> None:
        output = output_of(ROOT / "examples" / self.name / "main.py")
        assert "self test: governed" in output, output
        assert "DENIED: " in output, output
        assert "[REDACTED]" in output, output
        assert "123-45-6789" not in output, output
        assert re.search(
            r"counted: [1-9]\d* attempts, [1-9]\d* executions, \d+ failures", output
        ), output

    def test_the_page_s_code_is_the_example_s(self) -> None:
        """Every line of a fence is a line of the example or of what it prints, so that nothing on
        the page goes stale.
        """
        example = ROOT / "examples" / self.name / "main.py"
        known = {
            line.strip()
            for line in (example.read_text(encoding="utf-8") + output_of(example)).splitlines()
        }
        fences = FENCE.findall(
            (ROOT / "docs" / "adapters" / f"{self.name}.md").read_text(encoding="utf-8")
        )
        assert fences, "the page shows no code"
        strange = [
            line
            for fence in fences
            for line in fence.splitlines()
            if line.strip() not in known | {""}
        ]
        assert strange == [], f"not in {example.relative_to(ROOT)}: {strange}"
