"""Secrets in the shapes of headers, connection strings and JSON inside of text; summaries that stay
small; options that are wrong.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from edictum import Edictum, EdictumConfigError, RedactionPolicy, Verdict, postcondition
from edictum.core.redaction import MAX_SUMMARY
from edictum.core.values import MAX_VALUE_DEPTH

POLICY = RedactionPolicy()

# --- Texts ----------------------------------------------------------------------------------------

HIDDEN = {
    "X-Api-Key: HUNTER2": "X-Api-Key: [REDACTED]",
    "curl -H 'X-API-Key: HUNTER2' http://x": "curl -H 'X-API-Key: [REDACTED]' http://x",
    "api-key: HUNTER2, n: 1": "api-key: [REDACTED], n: 1",
    "the API key: HUNTER2": "the API key: [REDACTED]",
    "private-key: HUNTER2": "private-key: [REDACTED]",
    "SECRET_KEY = 'HUNTER2 x'": "SECRET_KEY = '[REDACTED]'",
    "signing_key=HUNTER2": "signing_key=[REDACTED]",
    "Authorization: HUNTER2": "Authorization: [REDACTED]",
    "Authorization: Token HUNTER2": "Authorization: Token [REDACTED]",
    "Proxy-Authorization: Basic HUNTER2\nHost: x": "Proxy-Authorization: Basic [REDACTED]\nHost: x",
    '{"Authorization": "Token HUNTER2", "n": 1}': '{"Authorization": "Token [REDACTED]", "n": 1}',
    "authorization=Token HUNTER2 n=1": "authorization=Token [REDACTED] n=1",
    "get(authorization='Token HUNTER2', n=1)": "get(authorization='Token [REDACTED]', n=1)",
    "Cookie: a=HUNTER2; b=HUNTER2\nHost: x": "Cookie: [REDACTED]\nHost: x",
    "Set-Cookie: sid=HUNTER2; Path=/": "Set-Cookie: [REDACTED]",
    'curl -b x -H "Cookie: sid=HUNTER2" http://x': 'curl -b x -H "Cookie: [REDACTED]" http://x',
    "{'cookie': 'HUNTER2', 'n': 1}": "{'cookie': '[REDACTED]', 'n': 1}",
    "get(cookie=HUNTER2, n=1)": "get(cookie=[REDACTED], n=1)",
    "pwd=HUNTER2": "pwd=[REDACTED]",
    "db_pwd: HUNTER2": "db_pwd: [REDACTED]",
    "Server=x;Uid=u;Pwd=HUNTER2;Database=z": "Server=x;Uid=u;Pwd=[REDACTED];Database=z",
    "DB_PASS=HUNTER2 ./run": "DB_PASS=[REDACTED] ./run",
    "smtp-pass: HUNTER2": "smtp-pass: [REDACTED]",
    "AccountName=n;AccountKey=HUNTER2==;EndpointSuffix=x": (
        "AccountName=n;AccountKey=[REDACTED];EndpointSuffix=x"
    ),
    '{"auth": "HUNTER2", "n": 1}': '{"auth": "[REDACTED]", "n": 1}',
    "_auth=HUNTER2": "_auth=[REDACTED]",
    r'"{\"password\": \"HUNTER2\", \"n\": 1}"': r'"{\"password\": \"[REDACTED]\", \"n\": 1}"',
    r'"{\"auth\": \"HUNTER2\", \"n\": 1}"': r'"{\"auth\": \"[REDACTED]\", \"n\": 1}"',
    r'"{\"Cookie\": \"HUNTER2\", \"n\": 1}"': r'"{\"Cookie\": \"[REDACTED]\", \"n\": 1}"',
    "ya29.HUNTER2_a0AfH6SMBabcdef and more": "[REDACTED] and more",
    "https://hooks.slack.com/services/T000/B000/HUNTER2 x": (
        "https://hooks.slack.com/services/[REDACTED] x"
    ),
}
SHOWN = [
    "monkey=banana",
    "donkey: grey",
    "hotkey=F1",
    "max_tokens=100",
    "total_tokens: 9",
    "PWD=/home/me",
    "OLDPWD=/tmp",
    "auth: failed",
    "author=me",
    "Author: me",
    "oauth=2",
    "authority: x",
    "authorizations: 3",
    "cookies: 5",
    "cookie_count=3",
    "my cookie is good",
    "first_pass=1",
    "low-pass: 3000",
    "bypass: yes",
    "compass=north",
    "proxy_pass http://x",
    "passed=5",
    "keyboard: us",
    "public_key=x",
    "sort-key: name",
    "https://slack.com/services/x",
    "ya29 is a prefix",
    "no authorization needed",
    "{'cookie': [REDACTED], 'n': 1}",
    "Login(user='u', pwd=[REDACTED], auth=[REDACTED])",
    '{"Authorization": "Bearer [REDACTED]", "n": 1}',
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_is_hidden_and_the_rest_is_shown(text: str) -> None:
    """Also a second time, which must change nothing more."""
    assert POLICY.redact_text(text) == HIDDEN[text]
    assert POLICY.redact_text(HIDDEN[text]) == HIDDEN[text]


@pytest.mark.parametrize("text", SHOWN)
def test_what_only_looks_similar_is_shown(text: str) -> None:
    """A log full of [REDACTED] is no log."""
    assert POLICY.redact_text(text) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        "auth\\",
        "cookie:",
        "cookie:'",
        "cookie:   ",
        "cookie: \\",
        "authorization: token ",
        "pwd=/",
        'db_pass:"',
        "db_",
        "api-",
        "hooks.slack.com/services/",
        'token=\\"',
        "ya29.",
    ],
)
def test_texts_made_to_hurt_end(hostile: str) -> None:
    """Every repetition is bounded, or starts behind a fixed word."""
    assert POLICY.redact_text(hostile * 20_000 + "key")
    assert POLICY.redact_text("key " + hostile + hostile[-1] * 200_000)


# --- Summaries of results -------------------------------------------------------------------------


@dataclass
class Login:
    user: str
    pwd: str
    iban: str = "DE1"
    noise: str = field(default="quiet", repr=False)


@dataclass
class Discreet:
    pin: str

    def __repr__(self) -> str:
        return "Discreet(***)"


class Account(NamedTuple):
    user: str
    iban: str


def test_fields_with_sensitive_names_are_hidden_in_a_summary() -> None:
    """As keys are; a ``repr`` that says less is left to say less."""
    policy = RedactionPolicy(sensitive_keys=["iban"])
    assert (
        policy.redact_result(Login("u", "hunter2"))
        == '{"user": "u", "pwd": "[REDACTED]", "iban": "[REDACTED]"}'
    )
    assert policy.redact_result([Account("u", "DE1")]) == '[{"user": "u", "iban": "[REDACTED]"}]'
    assert policy.redact_result(Discreet("1234")) == '"Discreet(***)"'
    assert policy.redact_result({"all": {1}}) == '{"all": [1]}'


class Looked(list[Any]):
    """Counts how many of its items were looked at."""

    count = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.count += 1
            yield item


class LookedUp(dict[str, Any]):
    count = 0

    def items(self) -> Any:
        for pair in super().items():
            self.count += 1
            yield pair


@pytest.mark.parametrize(
    "value",
    [
        Looked([[]] * 100_000),
        Looked([{}] * 100_000),
        Looked([""] * 100_000),
        LookedUp({f"token_{number}": "x" for number in range(100_000)}),
        LookedUp({f"name_{number}": [] for number in range(100_000)}),
    ],
    ids=["empty lists", "empty dicts", "empty texts", "hidden values", "names"],
)
def test_a_summary_looks_at_no_more_than_it_shows(value: Any) -> None:
    """Whatever the value is full of."""
    assert len(POLICY.redact_result(value)) in range(MAX_SUMMARY - 20, MAX_SUMMARY + 1)
    assert value.count < 2_000


def test_a_huge_name_is_cut() -> None:
    """Also before it is judged by its words and remembered."""
    assert len(POLICY.summarize({"k" * 5_000_000: 1})) < 3_000
    assert POLICY.is_sensitive("x" * 5_000_000 + "_password")


def test_what_is_nested_too_deeply_is_not_shown() -> None:
    """It would be shown with all its secrets."""
    bottom: Any = {"iban": "DE1"}
    for _ in range(MAX_VALUE_DEPTH + 5):
        bottom = [bottom]
    shown = RedactionPolicy(sensitive_keys=["iban"]).redact_result(bottom)
    assert shown == "[" * MAX_VALUE_DEPTH + '"[nested too deeply]"' + "]" * MAX_VALUE_DEPTH


class Big:
    pass


def test_the_record_does_not_keep_results() -> None:
    """Only what it shows of them."""

    @postcondition("*")
    def fine(call: Any, result: Any) -> Verdict:
        return Verdict.pass_()

    guard, made = Edictum(contracts=[fine]), []

    def tool() -> Big:
        made.append(weakref.ref(big := Big()))
        return big

    guard.run_sync("t", {}, tool)
    gc.collect()
    assert made[0]() is None
    assert len(guard.local_sink.events) == 2


# --- Options --------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a group that is not there": (
        {"custom_patterns": [(r"\d{3}", r"\1")]},
        "invalid group reference 1",
    ),
    "a name that is not there": ({"custom_patterns": [(r"\d{3}", r"\g<year>")]}, "year"),
    "a bad escape": ({"custom_patterns": [(r"\d{3}", r"\q")]}, "bad escape"),
    "no regex": ({"custom_patterns": [("(", "x")]}, "is not a regex"),
    "a replacement that is a function": (
        {"custom_patterns": [("a", str)]},
        "the replacement is type, not text",
    ),
    "bytes": ({"custom_patterns": [(b"a", "x")]}, "both as text"),
    "no pair": ({"custom_patterns": ["abc"]}, "custom_patterns=[(regex, replacement)]"),
    "one name as text": ({"sensitive_keys": "ssn"}, 'Write sensitive_keys=["..."]'),
    "one safe name as text": ({"safe_keys": "ssn"}, 'Write safe_keys=["..."]'),
    "names that are no text": ({"sensitive_keys": [5]}, "sensitive_keys is [5]"),
}


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    """Not after a tool has run."""
    with pytest.raises(EdictumConfigError) as caught:
        RedactionPolicy(**options)
    assert said in str(caught.value)


def test_replacements_with_groups_work() -> None:
    """By number and by name."""
    policy = RedactionPolicy(
        custom_patterns=[(r"(\d)\d\d", r"\1xx"), (r"id=(?P<first>.)\w+", r"id=\g<first>..")]
    )
    assert policy.redact_text("123 id=abc") == "1xx id=a.."
    assert json.dumps(policy.redact_args({"a": "456"})) == '{"a": "4xx"}'
