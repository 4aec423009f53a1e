"""Every bundle that is printed in the documentation loads, and the tables of the language are the
code's.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edictum import Edictum
from edictum.contracts import _grammar as grammar
from edictum.contracts._operators import OPERATORS
from edictum.contracts._selectors import COUNTERS, PRINCIPAL_FIELDS, ROOTS

ROOT = Path(__file__).parents[2]
LANGUAGE = ROOT / "docs" / "reference" / "language.md"
FENCE = re.compile(r"^( *)```(?:yaml|yml|python)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
IN_PYTHON = re.compile(r'"""\\?\n(apiVersion:.*?)"""', re.DOTALL)


def printed_bundles() -> list[tuple[str, str]]:
    """Fences that hold a bundle, in YAML or as text inside Python."""
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, (_, body) in enumerate(FENCE.findall(path.read_text())):
            texts = [body] if body.startswith("apiVersion:") else IN_PYTHON.findall(body)
            found += [(f"{path.relative_to(ROOT)}#{number}", text) for text in texts]
    return found


BUNDLES = printed_bundles()
CONTRACT_SHAPES = grammar.DOCUMENTS["ContractBundle"].fields["contracts"].shape.item


def test_bundles_are_found() -> None:
    assert len(BUNDLES) >= 4


@pytest.mark.parametrize(("where", "text"), BUNDLES, ids=[where for where, _ in BUNDLES])
def test_every_printed_bundle_loads_without_a_warning(
    where: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Edictum.from_yaml_string(text).policy_version
    assert caplog.text == ""


def test_every_operator_is_documented_in_its_own_words() -> None:
    table = LANGUAGE.read_text().split("<!-- operators -->")[1].split("<!-- /operators -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+?) \|$", table, re.MULTILINE)
    assert rows == [(operator.name, operator.summary) for operator in OPERATORS.values()]


@pytest.mark.parametrize(
    "word",
    [
        *ROOTS,
        *PRINCIPAL_FIELDS,
        *COUNTERS,
        *grammar.LIMITS.fields,
        *grammar.TOOL_ENTRY.fields,
        *(key for document in grammar.DOCUMENTS.values() for key in document.fields),
        *(key for record in CONTRACT_SHAPES.records.values() for key in record.fields),
    ],
)
def test_every_word_of_the_language_is_documented(word: str) -> None:
    assert re.search(rf"\b{word}\b", LANGUAGE.read_text())
