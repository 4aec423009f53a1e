"""How much is done to search a text: bounded for each character, whatever stands in it.

What is counted are calls of functions, Python's and those written in C, and not seconds.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable

import pytest

from edictum.core.redaction import RedactionPolicy, hide_secrets
from edictum.core.secret_scan import Detector, WordFinder, secret_rows, use_finder
from edictum.redaction import scan
from edictum.redaction._engine import make_finder
from support.effort import effort

SIZE = 6_000
MOST = 4  # calls for each character; ordinary text has one in a thousand
MOST_PLAIN = 20  # without RE2 each literal is a place
MOST_RANDOM = 30
UNITS = (
    *("A", "M", "N", "O", "V", "f", "0", "%", "%41", "\\n", "@", "=", "QUFB", "AAAA", "AAAA+/"),
    *("sk-", "eyJ", "AKIA", "AIza", "xox", "ghp_", "-----BEGIN ", "eyJhbGciOiJ", "https://a:b@"),
    *("key", "key=", "token:", "pwd=/", "password=", "client_secret=", "a.key="),
    *("A" * 76 + "\n", "x" * 39 + " ", "MN" * 20 + " ", "Basic ", "QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
)
"""Each is repeated until the text is full."""
DENSE = ("api-key: ", "--password ", "token: ", "cookie=`", "mysql ", "datadog ", "<token>")
"""Between white space, quotes and brackets every place is looked at."""
PIECES = (
    *(
        "key",
        "token",
        "secret",
        "passw",
        "pwd",
        "auth",
        "=",
        ":",
        ">",
        '"',
        "'",
        "`",
        ".",
        "(",
        "[",
    ),
    *(
        "/",
        "-",
        "_",
        "\\",
        "\n",
        " ",
        "%3D",
        "%41",
        "&",
        "sk-",
        "ghp_",
        "AKIA",
        "eyJ",
        "A",
        "M",
        "0",
    ),
    *(
        "://",
        "@",
        "Bearer ",
        "basic ",
        "is ",
        "-p",
        "mysql ",
        "curl ",
        "datadog",
        "--",
        "<",
        "AzFu",
    ),
    *("Q~", "1//0", "&sig=", "machine ", "login ", "-----BEGIN ", "authorization:", "cookie="),
)


def fill(unit: str, size: int = SIZE) -> str:
    return (unit * (size // len(unit) + 1))[:size]


def count_calls(search: Callable[[str], object], text: str) -> float:
    """Return how many functions are called for each character of a text, in a second search: the
    first one makes what the others use.
    """
    search(text)
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        search(text)
    finally:
        sys.setprofile(before)
    return count / len(text)


def plain_scan() -> Callable[[str], object]:
    use_finder(WordFinder)
    try:
        return Detector(secret_rows(), carriers=True).scan
    finally:
        use_finder(make_finder)


@pytest.fixture(scope="module", params=["re2", "plain"])
def search(request: pytest.FixtureRequest) -> Callable[[str], object]:
    return scan if request.param == "re2" else plain_scan()


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_repetition_takes_little_work(search: Callable[[str], object], unit: str) -> None:
    """Calls of functions per character are counted, not time."""
    most = MOST if search is scan else MOST_PLAIN
    assert count_calls(search, fill(unit)) < most


def test_base64_takes_little_work(search: Callable[[str], object]) -> None:
    """Carriers are looked into once."""
    lot = random.Random(4)
    prose = b"hello world, this is ordinary text. " * (SIZE // 48)
    texts = (
        base64.b64encode(bytes(SIZE)).decode(),
        base64.b64encode(lot.randbytes(SIZE)).decode(),
        base64.b64encode(prose).decode(),
        base64.encodebytes(prose).decode(),
        lot.randbytes(SIZE).hex(),
    )
    assert [text[:20] for text in texts if count_calls(search, text) >= MOST] == []


@pytest.mark.parametrize("unit", DENSE, ids=repr)
def test_a_place_at_every_word_takes_bounded_work(unit: str) -> None:
    """Each place is really looked at here."""
    assert count_calls(scan, fill(unit)) * len(unit) < 150


@pytest.mark.soak
def test_no_random_unit_takes_much_work() -> None:
    """Units of pieces that secrets begin with."""
    lot = random.Random(effort(5, 6))
    for _ in range(effort(150, 5_000)):
        unit = "".join(lot.choice(PIECES) for _ in range(lot.randint(1, 4)))
        assert count_calls(scan, fill(unit, 3_000)) < MOST_RANDOM, unit


@pytest.mark.parametrize("unit", ["A", "key=", "token:", "sk-", "AAAA+/", "api-key: "], ids=repr)
def test_the_work_grows_with_the_length(search: Callable[[str], object], unit: str) -> None:
    """And not with its square."""
    once, often = (count_calls(search, fill(unit, size)) for size in (4_000, 32_000))
    assert often < 1.5 * once + 0.05


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("M" * 5_000 + " ghp_" + "a1B2" * 9, "github.token"),
        ("A" * 5_000 + "-AKIA" + "Q3EX" * 4, "aws.access_key_id"),
        ("key=" * 2_000 + "api_key=Xk29fPq0aZ7r", "assigned"),
        ("token:" * 2_000 + "x password=Xk29fPq0aZ7r", "assigned"),
        ("sk-" * 2_000 + "/services password=Xk29fPq0aZ7r", "assigned"),
        ("<key>Name</key>" * 300 + "<password>Xk29fPq0aZ7r</password>", "assigned"),
        ("key=a&" * 300 + "api_key=Xk29fPq0aZ7r&b=2", "assigned"),
    ],
)
def test_a_secret_behind_repetition_is_found(text: str, kind: str) -> None:
    """What is skipped holds none."""
    assert kind in {each.kind for each in scan(text)}


def test_personal_data_in_a_long_run_is_found_wherever_it_stands() -> None:
    """It may begin at every character, so nothing is said by how often it did not."""
    runs = ("a.b@c/" * 200, "12:34/" * 200)
    text = "".join(f"{run}ada@example.com/{run}" for run in runs)
    assert len(scan(text, "pii.email")) == len(runs)


# --- Arguments in events --------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [":<key ", "api-key: ", "A", "word "], ids=repr)
def test_of_a_long_argument_only_the_beginning_is_searched(unit: str) -> None:
    """An event shows 1,000 characters of it."""
    redact = RedactionPolicy().redact_args
    shown = redact({"text": fill(unit, 300_000)})
    assert shown == {"text": fill(unit, 997) + "..."}
    assert count_calls(lambda text: redact({"text": text}), fill(unit, 300_000)) < 1


@pytest.mark.parametrize("before", [0, 950, 990, 1_000])
@pytest.mark.parametrize("hidden", [0, 40, 8_000, 9_160, 9_190, 20_000])
def test_no_part_of_a_secret_is_shown_of_a_long_argument(before: int, hidden: int) -> None:
    """Wherever the search ends, and however much in front of that was hidden."""
    key = f"-----BEGIN PRIVATE KEY-----\n{'MIIa1b2c' * (hidden // 8)}\n-----END PRIVATE KEY-----"
    token = "ghp_" + "a1B2" * 9
    text = f"{'x ' * (before // 2)}{key if hidden else ''} {token} {'y ' * 40_000}"
    shown = RedactionPolicy().redact_args({"text": text})["text"]
    assert shown == hide_secrets(text)[:997] + "..."
    assert "a1B2" not in shown and "MIIa" not in shown
