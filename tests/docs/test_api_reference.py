"""docs/reference/api.md has every public name, and every keyword there is explained."""

from __future__ import annotations

import re

import pytest
from api_names import SECTIONS, Name, Options
from api_reference import keys_of, look_up, rows_of
from fences import ROOT
from meanings import MEANINGS

import edictum
from edictum import harness, testing
from edictum._factories import BundleOptions
from edictum._options import CALL_OPTIONS
from edictum.contracts._report import CompositionReport

NAMES = [entry for entries in SECTIONS.values() for entry in entries if isinstance(entry, Name)]
SHOWN = {entry.where.partition(":")[2]: entry for entry in NAMES}


def pages_text() -> str:
    return "".join(
        (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        for name in ("api.md", "errors.md", "audit-events.md")
    )


@pytest.mark.parametrize("module", [edictum, harness, testing], ids=lambda module: module.__name__)
def test_every_public_name_is_there(module):
    text = pages_text()
    assert [
        name
        for name in module.__all__
        if name != "__version__" and not re.search(rf"\b{name}\b", text)
    ] == []


def test_every_method_of_the_guard_is_there():
    """Properties are read, and named where they matter."""
    methods = [
        name
        for name, member in vars(edictum.Edictum).items()
        if not name.startswith("_") and not isinstance(member, property)
    ]
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert len(methods) > 15
    assert [name for name in methods if not re.search(rf"(guard|Edictum)\.{name}\b", text)] == []


@pytest.mark.parametrize("path", [path for path in MEANINGS if path in SHOWN])
def test_exactly_the_keywords_that_there_are_have_a_meaning(path):
    assert list(MEANINGS[path]) == [row.name for row in rows_of(look_up(SHOWN[path].where))]


def test_exactly_the_options_that_there_are_have_a_meaning():
    for entry in (
        entry for entries in SECTIONS.values() for entry in entries if isinstance(entry, Options)
    ):
        besides = keys_of(entry.besides) if entry.besides else {}
        assert list(MEANINGS[entry.of]) == [key for key in keys_of(entry.of) if key not in besides]


def test_no_meaning_is_of_something_that_is_not_shown():
    options = {
        entry.of for entries in SECTIONS.values() for entry in entries if isinstance(entry, Options)
    }
    members = {f"{path} has" for path, entry in SHOWN.items() if entry.members}
    assert set(MEANINGS) - set(SHOWN) - options - members == set()


@pytest.mark.parametrize("path", [path for path in MEANINGS if path.endswith(" has")])
def test_meanings_of_members_are_of_members_that_are_shown(path):
    entries = [entry for entry in NAMES if entry.where.endswith(f":{path.removesuffix(' has')}")]
    assert set(MEANINGS[path]) <= {name for entry in entries for name in entry.members.split()}


def test_the_keys_of_a_typed_dict_are_read_from_the_source():
    """As Python has them, with those of its parents first; and what the guard takes is what is
    listed.
    """
    assert list(keys_of("BundleOptions")) == list(BundleOptions.__annotations__)
    assert set(keys_of("CallOptions")) == set(CALL_OPTIONS)


def test_defaults_are_shown_as_people_type_them():
    assert {row.name: row.default for row in rows_of(CompositionReport)} == {
        "overridden_contracts": "[]",
        "shadow_contracts": "[]",
        "warnings": "[]",
    }
    assert {row.name: row.default for row in rows_of(edictum.Edictum)}["clock"] == "SystemClock()"
