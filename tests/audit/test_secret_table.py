"""The table of secrets: each form is found wherever it stands, and what is almost one is not."""

from __future__ import annotations

import base64
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum.core import secret_table
from edictum.core.redaction import hide_secrets
from edictum.core.secret_forms import (
    Form,
    NamedForm,
    has_crc32,
    read_form,
    read_forms,
    read_named_forms,
)
from edictum.core.secret_scan import Detector, WordFinder, secret_detector, secret_rows, use_finder
from edictum.redaction import scan
from edictum.redaction._engine import make_finder
from support.secret_samples import POSITIONS, make_checked, make_sample

FORMS = read_forms()
NAMED = read_named_forms()
NAMED_POSITIONS = {
    "assignment": lambda word, secret: f'{word}_api_key = "{secret}"',
    "env file": lambda word, secret: f"{word.upper()}_TOKEN={secret}",
    "yaml": lambda word, secret: f"{word}: {secret}",
    "json": lambda word, secret: '{"' + word + '": "' + secret + '"}',
    "sentence": lambda word, secret: f"The {word} secret: {secret}",
}


def lot_of(name: str) -> random.Random:
    return random.Random(name)  # the same samples each time


def core_of(form: Form, sample: str) -> str:
    """The part of a sample that must not be seen: a place such as ``/services/`` may be."""
    return sample.removeprefix(form.anchor) if form.anchor[-1] in "=/" else sample


def test_the_table_is_large() -> None:
    """Kinds, vendors, and vendors whose forms stand for themselves."""
    kinds = {form.kind for form in FORMS} | {form.kind for form in NAMED}
    assert len(kinds) >= 300
    assert len({kind.split(".")[0] for kind in kinds}) >= 200
    assert len({form.kind.split(".")[0] for form in FORMS}) >= 150


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind}-{form.text}")
def test_a_form_is_found_in_every_position(form: Form) -> None:
    """Whole, in a sentence, in JSON, YAML, a shell command and others."""
    lot = lot_of(form.text)
    for name, place in POSITIONS.items():
        sample = make_sample(form.text, lot)
        shown = hide_secrets(place(sample))
        assert core_of(form, sample) not in shown, name
        assert shown.startswith(place("|").split("|")[0][:4]), name


@pytest.mark.parametrize("form", NAMED, ids=lambda form: form.kind)
def test_a_form_behind_the_name_of_its_vendor_is_found(form: NamedForm) -> None:
    """Nearly always: one that has no digit or no letter by chance looks like a word."""
    lot = lot_of(form.kind)
    found = [
        sample not in hide_secrets(place(word, sample))
        for place in NAMED_POSITIONS.values()
        for word in form.words
        for text in form.forms
        if (sample := make_sample(text, lot)) and any(map(str.isalpha, sample))
    ]
    assert sum(found) >= 0.85 * len(found)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind}-{form.text}")
def test_what_is_too_short_or_inside_a_word_is_not_one(form: Form) -> None:
    """The false samples of the row: half of each part, and the whole behind letters."""
    lot = lot_of(form.text)
    parts = read_form(form.text)
    halved = "".join(
        part.literal or make_sample(f"<{part.alphabet} {max(1, part.least // 2)}>", lot)
        for part in parts
        if part.alphabet != "uuid"
    )
    kinds = {found.kind for found in scan(f"see {halved} here")}
    assert form.kind not in kinds or _is_of_another_form(form, halved)
    if not form.checks & {"anywhere", "crc32"} and not form.before and form.anchor[0].isalpha():
        inside = f"see abc{make_sample(form.text, lot)}"
        assert all(found.start != 7 for found in scan(inside))


def _is_of_another_form(form: Form, text: str) -> bool:
    others = (other for other in FORMS if other.kind == form.kind and other is not form)
    return any(
        other.match(text, text.find(other.anchor)) for other in others if other.anchor in text
    )


@pytest.mark.parametrize("form", NAMED, ids=lambda form: form.kind)
def test_without_the_name_of_its_vendor_it_is_not_one(form: NamedForm) -> None:
    """Hexadecimal digits alone say nothing."""
    lot = lot_of(form.kind)
    for text in form.forms:
        sample = make_sample(text, lot)
        assert form.kind not in {found.kind for found in scan(f"see {sample} here")}


def test_a_checksum_that_holds_needs_no_word_boundary() -> None:
    """It cannot hold by chance."""
    lot = lot_of("checksum")
    token = make_checked("ghp_", lot)
    assert has_crc32(token)
    assert [each.kind for each in scan(f"abc{token}")] == ["github.token"]
    assert scan(f"abc{make_sample('ghp_<b62 36>', lot)}") == []


# --- Other secrets --------------------------------------------------------------------------------

KINDS = {
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----": (
        "private_key"
    ),
    '{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEv\\n-----END PRIVATE KEY-----\\n"}': (
        "private_key"
    ),
    "postgresql://app:s3cr3t@db/x": "url.password",
    "mongodb+srv://app:s3cr3t@cluster0.example.net/test": "url.password",
    "amqps://app:s3cr3t@rabbit:5671/vhost": "url.password",
    "jdbc:postgresql://db/x?user=app&password=s3cr3t9": "assigned",
    "Server=db;User Id=sa;Password=s3cr3t9!;": "assigned",
    "https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/42": "url.token",
    "Authorization: Basic YWRhOmxvdmVsYWNl": "http.header",
    "machine example.com login ada password s3cr3t": "netrc.password",
    "//registry.npmjs.org/:_authToken=0a1b2c3d-0000-4000-8000-0123456789ab": "assigned",
    "PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=": "assigned",
    "<password>s3cr3t9</password>": "assigned",
    "token = a1B2c3D4e5F6g7H8": "assigned",
    "user=ada password=lovelace": "assigned",
    "GITHUB_TOKEN=ghp_" + "a1B2" * 9: "github.token",
}


@pytest.mark.parametrize("text", KINDS, ids=lambda text: text[:30])
def test_kinds(text: str) -> None:
    """What is found has the name that says most."""
    assert [found.kind for found in scan(text)] == [KINDS[text]]


CODE = [
    "token = self.token",
    "password: str",
    "def login(user, password, token=None):",
    "api_key=os.environ['API_KEY']",
    "secret = get_secret(name)",
    'password = "${DB_PASSWORD}"',
    "token: string;",
    'parser.add_argument("--password", help="the password to use")',
    "if token == other_token:",
    "const apiKey = process.env.API_KEY;",
    '{"type": "password", "label": "Password"}',
    "basic understanding of the bearer of news",
    "https://{user}:{password}@host/",
    "sk-fading-circle-and-more-of-it",
    "the pass key was used",
    "if api_key > a1b2c3d4e5:",
    "assert token == a1B2c3D4e5F6g7H8",
    "a two-token a1B2c3D4 word",
    "secret_ref: V1LocalObjectReference2",
    "api_key: arn:aws:kms:us-east-1:123456789012:key/abc1",
    "db_password_old = db_password",
    '"password": "Please enter it"',
    "token = a1b2c3",
    "50% of 20%zz",
    "git commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
    "id: 6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    '"integrity": "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="',
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "could not read /run/secrets/db_password: permission denied",
    'reconciling secret="default/db-password" uid="6ba7b810-9dad-11d1-80b4-00c04fd430c8"',
    "echo $API_KEY | sha256sum",
    "password=arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-a1b2c3",
    "API_KEY=<YOUR_API_KEY> ./run",
    "n.withCredentials=!!s.withCredentials",
    "on 6ba7b810 0f9272db key=cache:3579ee7a5f4d:1",
]


@pytest.mark.parametrize("text", CODE, ids=lambda text: text[:30])
def test_code_hashes_and_images_are_left_alone(text: str) -> None:
    """A log full of [REDACTED] is not a log."""
    assert scan(text) == []


# --- Carriers -------------------------------------------------------------------------------------


def test_base64_is_looked_into_one_level_deep() -> None:
    """And not two."""
    token = "ghp_" + "a1B2" * 9
    once = base64.b64encode(f"user:{token}".encode()).decode()
    twice = base64.b64encode(once.encode()).decode()
    assert [each.kind for each in scan(f"data: {once}")] == ["github.token"]
    assert hide_secrets(f"data: {once}") == "data: [REDACTED]"
    assert scan(f"x {twice}") == []


def test_percent_encoding_is_looked_into() -> None:
    """The places are those of the encoded text."""
    token = "ghp_" + "a1B2" * 9
    text = "https://example.com/?q=a%20b%26t%3D" + token.replace("_", "%5F") + "&x=1"
    shown = hide_secrets(text)
    assert shown == "https://example.com/?q=a%20b%26t%3D[REDACTED]&x=1"
    assert hide_secrets(f"https://example.com/a%20b?t={token}") == (
        "https://example.com/a%20b?t=[REDACTED]"
    )
    slashes = f"https://example.com/?v=fm2_{'a1B2%2F' * 20}%3D&x=1"
    assert hide_secrets(slashes) == "https://example.com/?v=[REDACTED]&x=1"
    two = "&".join(f"t%3D{token.replace('_', '%5F')}" for _ in range(2))
    assert [each.kind for each in scan(two)] == ["github.token"] * 2


@pytest.mark.parametrize("before", [0, 4_090, 65_530, 1_000_003])
def test_a_secret_is_found_wherever_it_stands_in_a_long_text(before: int) -> None:
    """Beside the edges of buffers, too."""
    token = "ghp_" + "a1B2" * 9
    text = "x " * (before // 2) + token + " y" * 5_000
    assert hide_secrets(text) == "x " * (before // 2) + "[REDACTED]" + " y" * 5_000


# --- Without RE2 ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> Detector:
    """The same table, searched with nothing but Python."""
    use_finder(WordFinder)
    try:
        return Detector(secret_rows(), carriers=True)
    finally:
        use_finder(make_finder)


def test_without_re2_the_same_is_found(plain: Detector) -> None:
    """Only slower."""
    lot = lot_of("plain")
    for form in FORMS:
        text = POSITIONS["json"](make_sample(form.text, lot))
        assert plain.scan(text) == secret_detector().scan(text)
    for text in (*KINDS, *CODE):
        assert plain.scan(text) == secret_detector().scan(text)


words = st.sampled_from(
    [
        *("password", "token: ", "key=", "ghp_", "sk-", "-----BEGIN PRIVATE KEY-----", "eyJ"),
        *("://", "@", "datadog", "a1B2c3D4e5F6", "=", '"', "\\n", "%3D", "Authorization: "),
        *(" ", "\n", "é", "x" * 40),
    ]
)


@pytest.mark.slow
@given(st.lists(st.one_of(words, st.text(max_size=6)), max_size=12).map("".join))
def test_both_engines_agree(plain: Detector, text: str) -> None:
    """On any text; findings lie inside of it and do not overlap."""
    found = secret_detector().scan(text)
    assert plain.scan(text) == found
    assert all(0 <= each.start < each.end <= len(text) for each in found)
    assert all(one.end <= other.start for one, other in pairwise(found))


def test_the_documentation_of_the_table_names_its_alphabets() -> None:
    """All that are used."""
    used = set(re.findall(r"<([A-Za-z0-9]+)[ >]", secret_table.TABLE))
    named = set(re.findall(r"``(\w+)``", secret_table.__doc__ or "")) | {"uuid"}
    assert used <= named
