"""The published JSON Schema accepts exactly what has the shape of a bundle to the loader."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edictum.contracts import _grammar as grammar
from edictum.contracts._load import load_yaml
from edictum.contracts._parse import examine
from edictum.contracts._problems import BundleError
from edictum.contracts._tree import to_plain
from edictum.contracts.schema import bundle_schema
from edictum.core.tool_entry import ENTRY_SETTINGS
from edictum.testing.cases import HEAD, load_cases
from support.effort import effort

DATA = Path(__file__).parent.parent
VALIDATOR = jsonschema_rs.validator_for(bundle_schema())


def shape_is_right(document: Any) -> bool:
    """What the loader says about the shape alone; what words mean is not the schema's business."""
    try:
        _, problems = examine(json.dumps(document, ensure_ascii=False), "document")
    except BundleError as exc:
        return all(problem.level != "shape" for problem in exc.problems)
    return all(problem.level != "shape" for problem in problems.found)


def bundles() -> list[dict[str, Any]]:
    """Every bundle that is written out in a case."""
    found = []
    for case in load_cases(DATA / "cases"):
        layers = case.data.get("bundle", case.shared) or []
        found += [
            {**HEAD, **layer}
            for layer in (layers if isinstance(layers, list) else [layers])
            if isinstance(layer, dict)
        ]
    return found


BUNDLES = bundles()


def test_the_build_writes_the_schema_into_the_wheel(tmp_path: Path) -> None:
    """Editors find it there; it is not kept in the repository."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=DATA.parent, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        written = json.loads(archive.read("edictum/contracts/schema/bundle.schema.json"))
    assert written == bundle_schema()


def test_the_schema_needs_no_optional_package() -> None:
    """The build has nothing but hatchling."""
    code = (
        "import sys; sys.modules |= {'yaml': None, 're2': None}\n"
        "from edictum.contracts.schema import bundle_schema; print(len(bundle_schema()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(len(bundle_schema()))


def test_the_grammar_knows_every_setting_of_a_tool() -> None:
    assert set(grammar.TOOL_ENTRY.fields) == set(ENTRY_SETTINGS)


@pytest.mark.parametrize("number", range(len(BUNDLES)))
def test_bundles_of_the_cases(number: int) -> None:
    assert VALIDATOR.is_valid(BUNDLES[number]) == shape_is_right(BUNDLES[number])


@pytest.mark.parametrize(
    "path", sorted((DATA / "data" / "broken").glob("*.yaml")), ids=lambda path: path.stem
)
def test_broken_bundles(path: Path) -> None:
    try:
        document = to_plain(load_yaml(path.read_bytes(), path.name)[0])
    except BundleError:
        return  # not YAML, or not one tree: nothing that a schema could look at
    if "infinity" not in path.stem:
        assert VALIDATOR.is_valid(document) == shape_is_right(document)


# --- Any change to a good bundle ------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 1000),
    st.just(10**10),
    st.sampled_from([0.0, 0.5, 1.0, -1.5, 3.0]),
    st.sampled_from(
        [
            "",
            "x",
            "a.b",
            "deny",
            "block",
            "approve",
            "ask",
            "enforce",
            "observe",
            "pre",
            "60s",
            "0s",
            "5 m",
            "10.0.0.0/8",
            "A B",
            "a/b",
            "edictum/v1",
            "Ruleset",
            "read",
            "thread",
            "args.x",
            "x" * 501,
            "é",
        ]
    ),
)
NAMES = st.sampled_from(
    [
        *grammar.DOCUMENTS["ContractBundle"].fields,
        "rules",
        "action",
        "effect",
        "timeout_effect",
        "timeout_action",
        "tool",
        "tools",
        "when",
        "then",
        "limits",
        "per",
        "max_failures",
        "max_calls_per_tool",
        "within",
        "not_within",
        "cwd",
        "allows",
        "not_allows",
        "outside",
        "message",
        "tags",
        "all",
        "any",
        "not",
        "equals",
        "in",
        "in_cidr",
        "matches",
        "exists",
        "gt",
        "length_gt",
        "args.x",
        "extra",
        "",
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    for key, item in (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    ):
        found += places(item, (*path, key))
    return found


@st.composite
def changed(draw: st.DrawFn) -> Any:
    """A good bundle with one to three changes: a value replaced, a key removed, renamed or
    added.
    """
    document = copy.deepcopy(draw(st.sampled_from(BUNDLES)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(document)))
        if not path:
            document[draw(NAMES)] = draw(VALUES)
            continue
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "remove", "rename"])):
            case "replace":
                holder[path[-1]] = draw(VALUES)
            case "remove":
                del holder[path[-1]]
            case "rename" if isinstance(holder, dict):
                holder[draw(NAMES)] = holder.pop(path[-1])
    return document


@pytest.mark.soak
@settings(
    max_examples=effort(66, soak=3_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(changed())
def test_schema_and_loader_agree_on_any_change(document: Any) -> None:
    assert VALIDATOR.is_valid(document) == shape_is_right(document)
