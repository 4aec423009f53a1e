"""Broken bundles: each file under tests/data/broken ends in comments that say what must be
reported, and where.

``# error 9:12 what is wrong | what to write instead`` — all problems of the file, in the order of
the text, no more and no fewer.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edictum import Edictum, EdictumConfigError
from edictum.contracts._problems import BundleError

FILES = sorted((Path(__file__).parent.parent / "data" / "broken").glob("*.yaml"))
WANT = re.compile(r"^# (error|warning) (\d+):(\d+) (.*) \| (.*)$", re.MULTILINE)


def wanted(path: Path, level: str) -> list[tuple[int, int, str, str]]:
    return [
        (int(line), int(column), what, hint)
        for kind, line, column, what, hint in WANT.findall(path.read_text())
        if kind == level
    ]


def test_there_are_as_many_files_as_promised() -> None:
    assert len(FILES) >= 60


@pytest.mark.parametrize(
    "path", [file for file in FILES if wanted(file, "error")], ids=lambda path: path.stem
)
def test_every_error_has_its_place_and_its_remedy(path: Path) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        Edictum.from_yaml(path)
    error = caught.value
    assert isinstance(error, BundleError)
    assert [
        (problem.line, problem.column, problem.message, problem.hint) for problem in error.problems
    ] == wanted(path, "error")
    lines = path.read_text().splitlines()
    for problem in error.problems:
        assert f"{path}:{problem.line}:{problem.column}: {problem.message}" in str(error)
        if problem.line <= len(lines):
            shown, caret = problem.excerpt.split("\n")
            assert shown.startswith(f"{problem.line:>5} | ")
            if len(lines[problem.line - 1]) <= 160:
                assert lines[problem.line - 1].replace("\t", " ") in shown
                assert caret.index("^") - len("      | ") + 1 == problem.column


@pytest.mark.parametrize(
    "path", [file for file in FILES if wanted(file, "warning")], ids=lambda path: path.stem
)
def test_a_suspicion_is_a_warning_and_the_bundle_loads(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard, report = Edictum.from_yaml(path, return_report=True)
    assert isinstance(guard, Edictum)
    for line, column, what, hint in wanted(path, "warning"):
        assert any(
            f"{path}:{line}:{column}: {what}" in warning and hint in warning
            for warning in report.warnings
        )
        assert what in caplog.text
    assert len(report.warnings) == len(wanted(path, "warning"))


def test_the_errors_of_all_layers_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Wrong\n")
    (tmp_path / "b.yaml").write_text("[]\n")
    with pytest.raises(BundleError) as caught:
        Edictum.from_yaml(tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert {Path(problem.file).name for problem in caught.value.problems} == {"a.yaml", "b.yaml"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"a: \xff\xfe", "f.yaml:1:4: byte 0xff is not UTF-8"),
        (
            b"apiVersion: edictum/v1\nkind: \x00",
            "2:7: the character '\\x00' is not allowed in YAML",
        ),
        (b"", "the document is empty"),
        (b"a" * 1_048_577, "the bundle is too large (1048577 bytes, at most 1048576)"),
    ],
)
def test_what_is_not_text_is_refused(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(EdictumConfigError) as caught:
        Edictum.from_yaml(path)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "path", ["contracts.yaml", "C:\\rules\\base.YML", "my rules.yaml", "~/rules", "./base.json"]
)
async def test_a_path_in_the_place_of_the_text_is_recognised(path: str) -> None:
    wanted = (
        f"This looks like a path. To read the file, call from_yaml({path!r}) or"
        f" reload(Path({path!r}))."
    )
    for content in (path, path.encode()):
        with pytest.raises(BundleError) as caught:
            Edictum.from_yaml_string(content)
        assert caught.value.hint == wanted
    with pytest.raises(BundleError) as caught:
        await Edictum().reload(path)
    assert caught.value.hint == wanted


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "see the rules in docs/rules please",
        "https://example.com/rules.yaml",
        "/" * 201,
        "'a\n\nb.yaml'",
        "5",
    ],
)
def test_other_text_is_not_taken_for_a_path(text: str) -> None:
    with pytest.raises(BundleError) as caught:
        Edictum.from_yaml_string(text)
    assert caught.value.hint == "Start with 'apiVersion: edictum/v1'."


def test_the_size_can_be_raised() -> None:
    padded = (
        "#"
        + "x" * 1_100_000
        + "\napiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: a}\ntools: {t:"
        " {side_effect: read}}\n"
    )
    with pytest.raises(EdictumConfigError, match="too large"):
        Edictum.from_yaml_string(padded)
    assert Edictum.from_yaml_string(padded, max_bytes=2_000_000).policy_version


def test_aliases_cannot_blow_a_document_up() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [
        f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 9)
    ]
    with pytest.raises(
        EdictumConfigError, match="aliases make the document larger than 200000 values"
    ):
        Edictum.from_yaml_string("\n".join(levels))
