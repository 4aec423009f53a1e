"""Patterns: the whole text is searched, in time that grows with its length and not faster; they
mean what they mean in Python.
"""

from __future__ import annotations

import json
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum import Edictum, EdictumConfigError
from edictum.contracts._anchors import why_never_matches
from edictum.contracts._regex import PatternError, PatternSet, compile_pattern
from edictum.outcomes import ToolDenied
from support.effort import effort


def denies(when: dict[str, object], text: str) -> bool:
    contract = {
        "id": "p",
        "type": "pre",
        "tool": "*",
        "when": when,
        "then": {"effect": "deny", "message": "m"},
    }
    guard = Edictum.from_yaml_string(
        json.dumps(
            {
                "apiVersion": "edictum/v1",
                "kind": "ContractBundle",
                "metadata": {"name": "r"},
                "contracts": [contract],
            }
        )
    )
    return isinstance(guard.dispatch_sync("t", {"x": text}, lambda x: None), ToolDenied)


@pytest.mark.parametrize("padding", [0, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("padded_with", ["x", "é", " "])
def test_a_payload_is_found_however_far_behind_it_stands(padding: int, padded_with: str) -> None:
    text = padded_with * padding + " rm -rf /"
    assert denies({"args.x": {"matches": r"rm\s+-rf"}}, text)
    assert denies({"args.x": {"matches_any": [r"rm\s+-rf", r"mkfs\."]}}, text)
    assert denies({"args.x": {"contains": "rm -rf"}}, text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 100_000 + "!"),
        ("(a|a)*b", "a" * 100_000),
        (r"\s+$", " " * 100_000 + "x"),
        ("(x+x+)+y", "x" * 100_000),
        (r"^(\w+\s?)*$", "word " * 20_000 + "!"),
        ("(.*)(.*)(.*)(.*)z", "y" * 100_000),
    ],
)
def test_patterns_that_ruin_other_engines_end(pattern: str, text: str) -> None:
    """These take longer than the age of the universe, or minutes, with backtracking; that the test
    ends is the assertion.
    """
    assert not denies({"args.x": {"matches": pattern}}, text)


def test_two_hundred_patterns_are_searched_for_at_once() -> None:
    patterns = [rf"key{number}[a-z]+\d+" for number in range(200)]
    text = "x" * 1_000_000 + "key199abc7"
    assert denies({"args.x": {"matches_any": patterns}}, text)
    assert PatternSet(patterns).hits(text) == {0, 200}


def test_contracts_on_one_text_share_one_search_and_keep_their_answers() -> None:
    contracts = [
        {
            "id": f"c{n}",
            "type": "post",
            "tool": "*",
            "when": {"output.text": {"matches": rf"w{n}\b"}},
            "then": {"effect": "warn", "message": "m"},
        }
        for n in range(50)
    ]
    guard = Edictum.from_yaml_string(
        json.dumps(
            {
                "apiVersion": "edictum/v1",
                "kind": "ContractBundle",
                "metadata": {"name": "r"},
                "contracts": contracts,
            }
        )
    )
    outcome = guard.dispatch_sync("t", {}, lambda: "w7 and w41")
    assert [finding.contract_id for finding in outcome.findings] == ["c7", "c41"]  # type: ignore[union-attr]


SAME_AS_PYTHON = [
    r"a+b",
    r"^\d{2,3}$",
    r"[^\W\d_]+",
    r"(?i)straße",
    r"a{,2}b",
    r"x*?y",
    r"[\s\S]z",
    r"\S\s\S",
    r"(?P<n>a)b",
    r"a|bc|",
    r"[]x]",
    r"[a\-z]",
    r"\x41\u00e9",
    r"(?#note)ab",
    r"$",
    r"a$",
    r"\Aab\Z",
    r"(?m)^b$",
    r"(?s)a.b",
    r"[\d.]+",
    r"\.\*\+\?",
    r"[^a]b",
    r"a{2}",
    r"^a{,}$",
    r"xa{}|by",
    r"\t",
]


@pytest.mark.parametrize("pattern", SAME_AS_PYTHON)
@settings(max_examples=effort(20), deadline=None)
@given(text=st.text(alphabet=st.sampled_from("abcxyzAé1٣_ \n\t.*+?-]\u00a0ßzS"), max_size=12))
def test_patterns_mean_what_they_mean_in_python(pattern: str, text: str) -> None:
    assert compile_pattern(pattern).search(text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    ("members", "what"),
    [
        (r"\d", "digits"),
        (r"\s", "spaces"),
        (r"\D", "others"),
        (r"\S", "others"),
        (r"[^\W_]", "letters"),
    ],
)
def test_classes_hold_the_characters_that_python_puts_into_them(members: str, what: str) -> None:
    mine, theirs = compile_pattern(f"^{members}\\Z"), re.compile(f"^{members}\\Z")
    different = [
        char
        for char in map(chr, range(1, 0x3000))
        if mine.search(char) != (theirs.search(char) is not None)
    ]
    assert different == []


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(?=a)", "look-ahead"),
        ("(?!a)", "negative look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "negative look-behind"),
        (r"(a)\1", r"back-reference \1"),
        ("(?P<x>a)(?P=x)", "back-reference"),
        ("(?>a)", "atomic group"),
        ("a*+", "possessive"),
        ("(a)?(?(1)b|c)", "conditional"),
        ("a{2000}", "above 1,000"),
        ("(?L)a", "flag 'L'"),
        (r"\C", r"\C"),
        ("[z-a]", "z-a"),
        ("a**", "**"),
        (r"\p", "class name"),
        (r"\u12", "hexadecimal"),
        (r"\N{NO SUCH}", "name of a character"),
        ("[a", "not closed"),
        ("a\\", "backslash"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(pattern: str, construct: str) -> None:
    with pytest.raises(PatternError) as caught:
        compile_pattern(pattern)
    assert construct in str(caught.value)
    with pytest.raises(EdictumConfigError, match=r"<string>:1:\d+: the pattern"):
        denies({"args.x": {"matches": pattern}}, "")


def test_a_word_boundary_knows_ascii_letters_only() -> None:
    """Documented: next to another letter ``\\b`` is refused; before a class it looks at the ASCII
    letters that the class finds.
    """
    assert compile_pattern(r"\bpass\b").search("üpass")
    assert not compile_pattern(r"\w\b").search("ß")
    with pytest.raises(PatternError, match="ASCII letters only"):
        compile_pattern(r"\bübung")


def test_a_lone_surrogate_does_not_hide_the_rest_of_the_text() -> None:
    assert denies({"args.x": {"matches": r"rm\s+-rf"}}, "\ud800 rm -rf")


@pytest.mark.parametrize(
    "pattern",
    [
        "a$b",
        "a^b",
        "(a+)^",
        "a{2}^b",
        r"a\Zb",
        "(?:ab|c)(?:^d|^e)",
        "a$\n\n",
        r"\^a^b",
        "(?P<m>a)^b",
        r"\d$\d\d",
        "(?i)x^y",
    ],
)
def test_patterns_that_can_never_match_are_noticed(pattern: str) -> None:
    assert why_never_matches(pattern) is not None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(?i)^select", "SELECT 1"),
        (r"(?is)^\s*select", " Select"),
        ("(?-i:)^a", "a"),
        ("(?:^|,)x", "x"),
        ("(?P<x>^a)", "a"),
        ("(a|)^b", "b"),
        (r"\b^a", "a"),
        (r"foo$\s*", "foo"),
        (r"foo$\s", "foo\n"),
        ("a*^b", "b"),
        ("a{0}^b", "b"),
        ("a{,2}^b", "b"),
        ("(?#x)^a", "a"),
        ("(?m)a$\nb", "a\nb"),
        (r"\$x", "$x"),
        ("[$]x", "$x"),
        ("[]^]x", "^x"),
        ("a$$", "a"),
        ("(a$|b)c*", "a"),
    ],
)
def test_patterns_that_match_are_not_said_never_to_match(pattern: str, text: str) -> None:
    assert re.search(pattern, text)
    assert why_never_matches(pattern) is None


PIECES = [
    *["a", "b", "^", "$", r"\A", r"\Z", r"\b", r"\B", ".", r"\s", r"\S", r"\n", "\n", r"\x0a"],
    *["[^a]", "[a\n]", "(?:", "(", "(?P<x>", ")", "|", "*", "+?", "?", "{0,2}", "{2}", "(?#^)"],
]
PATTERN_TEXTS = st.lists(st.sampled_from(PIECES), min_size=2, max_size=9).map("".join)


@pytest.mark.soak
@settings(max_examples=effort(500, soak=30_000), deadline=None)
@given(pattern=PATTERN_TEXTS, text=st.text(alphabet="ab\n ", max_size=5))
def test_a_pattern_said_never_to_match_matches_no_text(pattern: str, text: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        try:
            compiled = re.compile(pattern)
        except re.error:
            return
    if why_never_matches(pattern) is not None:
        assert compiled.search(text) is None
