"""The reader of command lines: words, operators and nesting as a shell sees them; checked against a
real one where it is installed.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum.contracts.sandbox._commands import programs_of, read_commands
from edictum.contracts.sandbox._shell import Output, Unreadable, Variable, split
from support.effort import effort

BASH = shutil.which("bash")

WORDS = {
    "a b": ["a", "b"],
    "  a\t b  ": ["a", "b"],
    "a\\ b": ["a b"],
    "'a b' \"c d\"": ["a b", "c d"],
    "a'b'\"c\"d": ["abcd"],
    "''": [""],
    '"a\\"b\\\\c\\d"': ['a"b\\c\\d'],
    "'a\\'": ["a\\"],
    "a\\\nb": ["ab"],
    "$'a\\tb\\x41\\101\\u0041'": ["a\tbAAA"],
    "a#b #c": ["a#b"],
    "a=b": ["a=b"],
    "{ a": ["{", "a"],
    "\u00a0a": ["\u00a0a"],
}


@pytest.mark.parametrize("line", WORDS)
def test_words(line: str) -> None:
    assert [word.literal for simple in split(line) for word in simple.words] == WORDS[line]


OPERATORS = {
    "a; b": [("", ";"), (";", "")],
    "a && b || c": [("", "&&"), ("&&", "||"), ("||", "")],
    "a | b |& c": [("", "|"), ("|", "|&"), ("|&", "")],
    "a & b": [("", "&"), ("&", "")],
    "a\n\nb": [("", "\n"), ("\n", "")],
    "(a)": [("", ")")],
}


@pytest.mark.parametrize("line", OPERATORS)
def test_operators(line: str) -> None:
    assert [(simple.before, simple.after) for simple in split(line)] == OPERATORS[line]


def test_redirections_are_no_words() -> None:
    [simple] = split("a <b >>c 2>&1 {fd}>d &>e")
    assert [word.source for word in simple.words] == ["a"]
    assert [(redirect.operator, redirect.target.source) for redirect in simple.redirects] == [
        ("<", "b"),
        (">>", "c"),
        (">&", "1"),
        (">", "d"),
        ("&>", "e"),
    ]


def test_inner_commands_come_before_the_one_that_contains_them() -> None:
    simples = split('a "$(b $(c))" `d`')
    assert [simple.words[0].source for simple in simples] == ["c", "b", "d", "a"]
    assert [simple.depth for simple in simples] == [2, 1, 1, 0]
    assert isinstance(simples[-1].words[1].parts[0], Output)


def test_here_documents() -> None:
    first, second = split("cat <<A <<-'B' > x\nfoo $v\nA\n\tbar $v\n\tB\nls")
    live, quoted = (redirect.body for redirect in first.redirects[:2])
    assert live is not None
    assert quoted is not None
    assert live.source == "foo $v\n"
    assert Variable("v") in live.parts
    assert quoted.literal == "\tbar $v\n"
    assert second.words[0].source == "ls"


def test_expansions_are_parts() -> None:
    [simple] = split("a ${b:-c}d")
    assert simple.words[1].literal is None
    assert isinstance(simple.words[1].parts[0], Variable)


def test_programs_behind_wrappers_in_order() -> None:
    [simple] = split("sudo -u ann env A=1 timeout 5 ls -l")
    assert [program.name for program in programs_of(simple)] == ["sudo", "env", "timeout", "ls"]


def test_scripts_are_read_as_commands() -> None:
    assert [simple.words[0].source for simple in read_commands("bash -c 'a; b' && c")] == [
        "bash",
        "a",
        "b",
        "c",
    ]


@pytest.mark.parametrize(
    "line", ["'", '"', "`", "$(", "(", "${", "$(a", "a 'b", "<(", "a=(", "a\\", "'\n'\\"]
)
def test_open_ends_are_unreadable(line: str) -> None:
    with pytest.raises(Unreadable):
        split(line)


@pytest.mark.skipif(BASH is None, reason="there is no bash here to compare with")
@pytest.mark.soak
@settings(max_examples=effort(50, soak=1_000), deadline=None)
@given(st.text(alphabet="ab '\"\\\n#-", max_size=14))
def test_words_are_those_of_a_real_shell(text: str) -> None:
    """Whatever quoting does in bash it does here; what bash cannot read, neither can this."""
    assert BASH is not None
    line = f"printf '%s\\0' x {text}"
    real = subprocess.run(
        [BASH, "-c", line],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/nonexistent"},
    )
    try:
        first = split(line)[0]
    except Unreadable:
        assert real.returncode != 0 or line.endswith("\\")  # which bash reads in two ways
        return
    if "unexpected EOF" not in real.stderr:
        assert [word.literal for word in first.words[2:]] == real.stdout.split("\0")[:-1]
