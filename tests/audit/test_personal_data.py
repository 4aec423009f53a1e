"""Personal data is found if it is asked for, with check digits and ranges where there are some."""

from __future__ import annotations

import pytest

from edictum import Edictum, EdictumConfigError, RedactionPolicy
from edictum.redaction import PII_NAMES, detector, scan

FOUND = {
    "mail ada@example.com now": ("pii.email", "ada@example.com"),
    "<ada.lovelace+x@mail.example.co.uk>": ("pii.email", "ada.lovelace+x@mail.example.co.uk"),
    "card 4111 1111 1111 1111.": ("pii.card", "4111 1111 1111 1111"),
    "5555-5555-5555-4444": ("pii.card", "5555-5555-5555-4444"),
    "378282246310005": ("pii.card", "378282246310005"),
    "IBAN DE89 3704 0044 0532 0130 00 is it": ("pii.iban", "DE89 3704 0044 0532 0130 00"),
    "GB29NWBK60161331926819": ("pii.iban", "GB29NWBK60161331926819"),
    "from 203.0.113.9 to": ("pii.ip", "203.0.113.9"),
    "from 2001:db8::8a2e:370:7334 to": ("pii.ip", "2001:db8::8a2e:370:7334"),
    "eth0 aa:bb:cc:0d:ee:ff up": ("pii.mac", "aa:bb:cc:0d:ee:ff"),
    "ssn 123-45-6789": ("pii.us_ssn", "123-45-6789"),
    "NINO AB 12 34 56 C": ("pii.uk_nino", "AB 12 34 56 C"),
    "Steuer-ID: 86 095 742 719": ("pii.de_tax_id", "86 095 742 719"),
    "Date of birth: 1970-05-03": ("pii.birth_date", "1970-05-03"),
    "born on 3 May 1970": ("pii.birth_date", "3 May 1970"),
    "call +49 30 901820 today": ("pii.phone", "+49 30 901820"),
}
SHOWN = [
    "4111 1111 1111 1112",
    "1234567890123456",
    "DE89 3704 0044 0532 0130 01",
    "XX12 3456 7890 1234 56",
    "127.0.0.1 and ::1 and 0.0.0.0",
    "version 1.2.3.4.5 at 12:30:45",
    "std::vector a::b",
    "000-12-3456 666-12-3456 900-12-3456 123-00-4567 123-45-0000",
    "BG123456A",
    "tax id 86095742718",
    "86 095 742 719",
    "released on 1970-05-03",
    "git@github.com:edictum/edictum.git",
    "package@1.2.3",
    "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
]


@pytest.mark.parametrize("text", FOUND)
def test_it_is_found(text: str) -> None:
    """With its kind and its place."""
    assert [(each.kind, text[each.start : each.end]) for each in scan(text, "pii")] == [FOUND[text]]


@pytest.mark.parametrize("text", SHOWN)
def test_what_only_looks_like_it_is_not(text: str) -> None:
    """Wrong check digits, wrong ranges, versions, hashes."""
    assert [text[each.start : each.end] for each in scan(text, "pii")] == []


@pytest.mark.parametrize("text", FOUND)
def test_it_is_not_looked_for_unless_asked_for(text: str) -> None:
    """Not as a secret, and not with other kinds."""
    kind = FOUND[text][0]
    others = [name for name in PII_NAMES if name.count("_") and name != kind]
    assert kind not in {each.kind for each in (*scan(text), *scan(text, *others))}


def test_groups() -> None:
    """A country's kinds, or all."""
    text = "123-45-6789 AB123456C (212) 555-2368"
    assert {each.kind for each in scan(text, "pii.us")} == {"pii.us_ssn", "pii.us_phone"}
    assert {each.kind for each in scan(text, "pii.uk")} == {"pii.uk_nino"}
    assert len(scan(text, "pii")) == 3


def test_secrets_and_personal_data_together() -> None:
    """In the order of the text."""
    text = "ada@example.com has ghp_" + "a1B2" * 9
    assert [each.kind for each in scan(text, "pii.email", "secrets")] == [
        "pii.email",
        "github.token",
    ]


def test_an_unknown_name_is_refused() -> None:
    """With the names that are known."""
    with pytest.raises(EdictumConfigError, match=r"'pii.mail' is not a kind") as caught:
        scan("x", "pii.mail")
    assert "pii.email" in str(caught.value)


def test_the_audit_hides_it_if_asked_to() -> None:
    """In arguments, keys and results."""
    guard = Edictum(redaction=RedactionPolicy(detectors=[detector("pii.email")]))
    guard.dispatch_sync("t", {"to": "ada@example.com", "ada@example.com": 1}, lambda **_: "x@y.org")
    last = guard.local_sink.last()
    assert last.tool_args == {"to": "[REDACTED]", "[REDACTED]": 1}
    assert last.result_summary == '"[REDACTED]"'


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"detectors": ["pii.email"]}, "has no scan"),
        ({"hash_key": "short"}, "at least 16"),
        ({"hash_key": 7}, "at least 16"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    """When the policy is made."""
    with pytest.raises(EdictumConfigError, match=said):
        RedactionPolicy(**options)  # type: ignore[arg-type]  # that is what is tested


def test_password_and_host_of_a_url_are_not_an_email_address():
    """What stands before the host of a URL is its user and password, whatever is searched for."""
    text = "https://ada:l0velace@example.com/ and https://ada:l0ve!lace@example.com"
    assert [text[it.start : it.end] for it in scan(text, "pii.email")] == []
    found = scan(text, "secrets", "pii.email")
    assert [text[it.start : it.end] for it in found] == ["l0velace", "l0ve!lace"]
