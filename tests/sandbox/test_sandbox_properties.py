"""Properties: nothing raises, disguise does not help, and time is linear."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall
from support.effort import effort

BOX = Sandbox(
    within=["/tmp/edictum-box"], not_within=["/tmp/edictum-box/no"], cwd="/tmp/edictum-box"
)
EVERYTHING = Sandbox(
    within=["/tmp"],
    not_within=["/tmp/x"],
    commands=["ls", "cat"],
    domains=["*.good.com"],
    not_domains=["bad.good.com"],
    cwd="/tmp",
)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="$(){}[]<>|&;'\"`\\/.~%#=:@*?! \n\tab01", max_size=40),
    st.sampled_from(
        [
            "/etc/passwd",
            "..",
            "~",
            "http://",
            "file://",
            "$(ls)",
            "\0",
            "\ud800",
            "%00",
            "http://[",
            "<<EOF\n",
            "bash -c",
            "eval ",
        ]
    ),
)
VALUES = st.recursive(
    st.one_of(
        TEXTS,
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=True),
        st.binary(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3), st.tuples(inner)
    ),
    max_leaves=8,
)
KEYS = st.one_of(
    TEXTS,
    st.sampled_from(
        ["path", "files", "command", "cmd", "url", "host", "content", "cwd", "argv", "script"]
    ),
)


@pytest.mark.soak
@settings(max_examples=effort(43, soak=2_000), deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=3), st.sampled_from(["bash", "read_file", "x"]))
def test_any_arguments_get_an_answer(args: dict[str, Any], tool: str) -> None:
    answer = EVERYTHING.violation(ToolCall(tool, args))
    assert answer is None or (isinstance(answer, str) and answer.endswith("."))


@pytest.mark.soak
@settings(max_examples=effort(43, soak=2_000), deadline=None)
@given(st.lists(TEXTS, max_size=6))
def test_any_command_gets_an_answer(pieces: list[str]) -> None:
    answer = EVERYTHING.violation(ToolCall("bash", {"command": " ".join(pieces)}))
    assert answer is None or answer.endswith(".")


OUTSIDE = ["/etc/passwd", "../x", "a/../../x", "~/x", "$HOME/x", "no/x"]
FRAMES = [
    "cat {}",
    "cat < {}",
    "echo x > {}",
    "ls; cat {}",
    "echo $(cat {})",
    "true && cat {} | wc",
    "bash -c 'cat {}'",
    "env A=1 cat {}",
    "dd if={}",
]
BLANKS = st.text(alphabet=" \t", min_size=1, max_size=3)


def disguised(draw: st.DrawFn, path: str) -> str:
    """The same word for a shell: empty quotes and escapes between its characters, where they change
    nothing.
    """
    keep_first = 2 if path[0] in "~$" else 1
    head, rest = path[:keep_first], path[keep_first:]
    if path.startswith("$"):
        return draw(
            st.sampled_from(
                [path, f'"{path}"', path.replace("$HOME", "${HOME}"), f'""{path}', f'{path}""']
            )
        )
    return head + "".join(draw(st.sampled_from([c, f'""{c}', f'"{c}"', c])) for c in rest)


@pytest.mark.soak
@settings(max_examples=effort(33, soak=1_500), deadline=None)
@given(st.data())
def test_quotes_and_blanks_do_not_open_a_way_out(data: st.DataObject) -> None:
    word = disguised(data.draw, data.draw(st.sampled_from(OUTSIDE)))
    line = data.draw(st.sampled_from(FRAMES)).format(word)
    line = data.draw(BLANKS).join(line.split(" ")) + data.draw(
        st.sampled_from(["", " ", "\n", ";", " # x"])
    )
    assert BOX.violation(ToolCall("bash", {"command": line})) is not None, line


NESTED = st.recursive(
    st.sampled_from(OUTSIDE),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2),
        st.dictionaries(st.text(max_size=4), inner, min_size=1, max_size=2),
    ),
    max_leaves=4,
)


@pytest.mark.soak
@settings(max_examples=effort(23, soak=1_000), deadline=None)
@given(NESTED)
def test_no_depth_hides_a_path(value: Any) -> None:
    assert BOX.violation(ToolCall("tool", {"anything": value})) is not None


# Pieces that, repeated, make up the worst inputs found while this was written.
UNITS = [
    "a ",
    "/",
    "../",
    "a/",
    "(",
    "((a) )",
    "$(",
    "$((1)) ",
    "`",
    '"',
    "'",
    "\\",
    "$",
    "${a}",
    "{a,b}",
    "{a,",
    "<",
    "<<a\n",
    ";",
    "\n",
    "a=b ",
    "~",
    "%25",
    "\\x2f",
    "http://",
    "http:",
    "//",
    "@",
    "[",
    "\u0301",
    "*",
    ".?/",
    "eval ",
    "sudo ",
    "cd a && ",
    "x.com ",
    "1.",
    ":",
    " /tmp/a",
    "=@",
    "-a",
    "trap ';",
    "!",
    "alias a=b ",
    "$'\\x",
]


@pytest.mark.parametrize("unit", UNITS, ids=repr)
@pytest.mark.parametrize("key", ["command", "path", "url", "anything"])
def test_long_input_is_judged(unit: str, key: str) -> None:
    """100,000 characters of anything get an answer; quadratic work would take minutes, and be
    noticed.
    """
    answer = EVERYTHING.violation(
        ToolCall("bash" if key == "command" else "tool", {key: unit * (100_000 // len(unit))})
    )
    assert answer is None or isinstance(answer, str)
