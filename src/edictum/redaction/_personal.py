"""Personal data with a fixed format: addresses, cards, accounts, official identity numbers.

Each kind is searched for only on request. Check digits are verified where a number has them.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from edictum.core.secret_forms import is_boundary
from edictum.core.secret_scan import Detector, Match, Row
from edictum.redaction._phone import phone_row

PersonalCheck = Callable[[str], bool]

CARD_RANGES = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}"
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}"
)
# The countries with the lengths of their account numbers.
_IBANS = """
AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28
EE20 EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26
IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30
NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23
TN24 TR26 UA29 VA22 VG24 XK20
"""
IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}


def has_luhn_digit(digits: str) -> bool:
    """Return whether the last digit of a number is the check digit of the others (ISO/IEC 7812)."""
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(digits[::-1])]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


def _is_card(text: str) -> bool:
    digits = re.sub(r"[ -]", "", text)
    return CARD_RANGES.fullmatch(digits) is not None and has_luhn_digit(digits)


def _is_iban(text: str) -> bool:
    account = text.replace(" ", "")
    if len(account) != IBAN_LENGTHS.get(account[:2]):
        return False
    moved = account[4:] + account[:4]
    return int("".join(str(int(sign, 36)) for sign in moved)) % 97 == 1


def _is_address(text: str) -> bool:
    """Return whether a text is an IP address that can belong to one machine."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if not any(map(str.isdigit, text)):  # a::b is a name in C++
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)


def _is_ssn(text: str) -> bool:
    area, group, serial = text.split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _is_nino(text: str) -> bool:
    return text[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def _is_german_tax_id(text: str) -> bool:
    """Return whether eleven digits are a tax id: one of ten comes two or three times (ISO 7064)."""
    digits = re.sub(r"\D", "", text)
    counts = sorted(Counter(digits[:10]).values(), reverse=True)
    if digits[0] == "0" or counts[0] not in (2, 3) or counts[1] != 1:
        return False
    product = 10
    for digit in digits[:10]:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(digits[10])


def _is_email(text: str) -> bool:
    return ".." not in text and not text.startswith(("git@", "hg@"))


def _is_any(_text: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PersonalRow:
    """One kind: its head in the syntax that RE2 and ``re`` share, its pattern, its check.

    The group ``v`` of the pattern is what is found; without one, all of it.
    """

    kind: str
    head: str
    pattern: str
    check: PersonalCheck = _is_any
    description: str = ""
    not_after: re.Pattern[str] | None = None  # what may not end where it begins

    def row(self) -> Row:
        pattern = re.compile(self.pattern)

        def look(text: str, at: int) -> Match | None:
            found = pattern.match(text, at)
            if found is None or not is_boundary(text, at) or text[max(0, at - 1) : at] == ".":
                return None
            if self.not_after and self.not_after.search(text, max(0, at - MAX_BEFORE), at):
                return None
            span = found.span("v") if pattern.groups else found.span()
            return (self.kind, span) if self.check(text[span[0] : span[1]]) else None

        return Row((), self.head, look)


MAX_BEFORE = 300  # characters
# ``https://ada:l0velace`` before ``@example.com``: the password of a URL and its host
_URL_CREDENTIALS = re.compile(r"://[^\s/:@]{0,64}:[^\s/@]{0,200}\Z")
_DATE = (
    r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{1,2}(?:st|nd|rd|th|\.)? [A-Za-z]{3,9},? \d{4}"
    r"|[A-Za-z]{3,9} \d{1,2}(?:st|nd|rd|th)?,? \d{4}"
)
_BORN = r"(?i:date of birth|birth[ _-]?date|birthday|dob|born on|born|geburtsdatum|geboren am)"
_TAX = r"(?i:steuer|tax[ _-]?id|idnr|tin\b)[^\d\n]{0,40}"
_PERSONAL_ROWS = (
    PersonalRow(
        "pii.email",
        r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9]",
        r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"
        r"(?![A-Za-z0-9@])",
        _is_email,
        "e-mail addresses",
        _URL_CREDENTIALS,
    ),
    PersonalRow(
        "pii.card",
        r"\d(?:[ -]?\d){11}",
        r"\d(?:[ -]?\d){11,18}(?![ -]?\d|[A-Za-z_])",
        _is_card,
        "card numbers: ranges of the issuers and the Luhn digit",
    ),
    PersonalRow(
        "pii.iban",
        r"[A-Z]{2}\d\d[ ]?[A-Z0-9]{4}",
        r"[A-Z]{2}\d\d(?:[ ]?[A-Z0-9]){11,28}(?![A-Z0-9])",
        _is_iban,
        "bank accounts: length of the country and remainder 97",
    ),
    PersonalRow(
        "pii.ip",
        r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:",
        r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w.:]\w)",
        _is_address,
        "IP addresses, versions 4 and 6, but not those of the machine itself",
    ),
    PersonalRow(
        "pii.mac",
        r"[0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}",
        r"[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})(?![\w:-])",
        _is_any,
        "MAC addresses",
    ),
    PersonalRow(
        "pii.us_ssn",
        r"\d{3}-\d\d-\d{4}",
        r"\d{3}-\d\d-\d{4}(?![\w-])",
        _is_ssn,
        "social security numbers of the United States",
    ),
    PersonalRow(
        "pii.uk_nino",
        r"[A-Z]{2}[ ]?\d\d[ ]?\d\d[ ]?\d\d[ ]?[A-D]",
        r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d\d ?\d\d ?\d\d ?[A-D](?!\w)",
        _is_nino,
        "National Insurance numbers of the United Kingdom",
    ),
    PersonalRow(
        "pii.de_tax_id",
        rf"{_TAX}\d\d[ ]?\d",
        rf"{_TAX}(?P<v>\d\d ?\d{{3}} ?\d{{3}} ?\d{{3}})(?!\d)",
        _is_german_tax_id,
        "tax ids of Germany behind a word for them, with their check digit",
    ),
    PersonalRow(
        "pii.birth_date",
        rf"{_BORN}[\"' ]{{0,3}}[:=]?[\"' ]{{0,4}}[0-9A-Za-z]{{1,9}}[./ -]",
        rf"{_BORN}[\"' ]{{0,3}}[:=]?[\"' ]{{0,4}}(?P<v>{_DATE})(?!\d)",
        _is_any,
        "dates behind a word for birth",
    ),
)
_REGIONS = {"pii.phone": None, "pii.us_phone": "US", "pii.uk_phone": "GB", "pii.de_phone": "DE"}
_ROWS = {each.kind: each for each in _PERSONAL_ROWS}
PERSONAL_KINDS = (*_ROWS, *_REGIONS)
COUNTRIES = ("us", "uk", "de")


def describe_kind(kind: str) -> str:
    """Return a short description of a kind."""
    if kind in _ROWS:
        return _ROWS[kind].description
    region = _REGIONS[kind]
    return "phone numbers with a country code" if region is None else f"phone numbers of {region}"


def expand_kinds(names: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds that names select: ``pii`` all, ``pii.de`` those of a country.

    Raises KeyError for an unknown name.
    """
    kinds: dict[str, None] = {}
    for name in names:
        country = f"{name}_"
        members = [
            kind
            for kind in PERSONAL_KINDS
            if name == "pii" or kind == name or kind.startswith(country)
        ]
        if not members:
            raise KeyError(name)
        kinds |= dict.fromkeys(members)
    return tuple(kinds)


@lru_cache(maxsize=64)
def personal_detector(kinds: tuple[str, ...]) -> Detector:
    """Return the detector of some kinds of personal data."""
    return Detector(
        _ROWS[kind].row() if kind in _ROWS else phone_row(kind, _REGIONS[kind]) for kind in kinds
    )
