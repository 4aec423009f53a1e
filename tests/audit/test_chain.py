"""Canonical JSON, records and heads: the values that a chained log is made of."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edictum.audit import chain
from edictum.audit.chain import (
    GENESIS,
    MAX_LISTED_WRITERS,
    ChainPosition,
    ListedWriter,
    canonicalize,
    canonicalize_data,
    follow_head,
    read_head,
    read_record,
    write_canonical,
)

# --- Canonical JSON -------------------------------------------------------------------------------

NUMBERS = {  # RFC 8785, appendix B: the bits of a double and how it is written
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_rfc_8785_says(bits: str, text: str) -> None:
    """The samples of its appendix B."""
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert write_canonical(value) == text


def test_an_object_is_written_as_rfc_8785_says() -> None:
    """The examples of its sections 3.2.2 and 3.2.3."""
    mixed = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert write_canonical(mixed) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(write_canonical(dict.fromkeys(keys)))) == ordered


def test_a_number_that_not_every_reader_can_hold_becomes_text() -> None:
    """Unless the number that others read is written in the same way."""
    large = [2**53 - 1, 2**60, -(2**60) - 1, 10**16, 10**400]
    told = [9007199254740991, str(2**60), str(-(2**60) - 1), 10**16, str(10**400)]
    assert json.loads(write_canonical(large)) == told


def test_half_a_surrogate_pair_is_replaced() -> None:
    """It has no form in UTF-8."""
    assert write_canonical({"\ud800": "a\udfff"}) == '{"?":"a?"}'


TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
JSON_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS | st.sampled_from([2**53, 1e16, 1e21, -0.0, 1.0, "\ue000", "\U0001f600"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip # one kind of value after the other


@pytest.fixture(params=["msgspec", "the standard library"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort keys with the package that the extra brings, and without it."""
    if request.param != "msgspec":
        monkeypatch.setattr(chain, "find_codec", lambda: chain.PLAIN_CODEC)


@pytest.mark.usefixtures("codec")
@given(JSON_DATA)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_quick_way_writes_what_the_plain_way_writes(data: Any) -> None:
    """And what was written is written again as it is, after it was read by ``json``."""
    text = write_canonical(data)
    assert canonicalize(json.dumps(data)) == text
    assert write_canonical(json.loads(text)) == text
    assert canonicalize(text) == text
    text.encode()
    assert canonicalize_data({"data": data}) == write_canonical({"data": data})


# --- Records --------------------------------------------------------------------------------------


def test_a_record_says_who_wrote_it_and_what_came_before() -> None:
    """And it is canonical JSON itself."""
    first, behind = ChainPosition("w1").append('{"a":"é","b":1}')
    second, _ = behind.append('{"a":2}')
    one, two = read_record(first.encode() + b"\n"), read_record(second.encode())
    assert one is not None
    assert two is not None
    assert (one.writer, one.sequence, one.previous, one.is_intact) == ("w1", 1, GENESIS, True)
    assert (two.sequence, two.previous, two.is_intact) == (2, one.hash, True)
    assert first.endswith(',"a":"é","b":1}')
    assert write_canonical(json.loads(first)) == first


@given(st.data())
def test_no_byte_of_a_record_can_be_changed(data: st.DataObject) -> None:
    """Not of the event, and not of what the record says about itself."""
    line = bytearray(ChainPosition("writer", 7, "a" * 64).append('{"tool":"t"}')[0].encode())
    index = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda value: value != line[index]))
    line[index] = other
    record = read_record(bytes(line))
    assert record is None or not record.is_intact


def test_a_record_that_was_cut_still_says_which_it_is() -> None:
    """Its place in the chain stands at its start."""
    line, _ = ChainPosition("writer", 7, "a" * 64).append('{"tool":"t"}')
    record = read_record(line[:-2].encode())
    assert record is not None
    assert (record.writer, record.sequence, record.is_intact) == ("writer", 8, False)


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{}", b'{"action":"x"}', b"\xff\xfe", b'{"_chain":1}']
)
def test_other_lines_are_not_records(line: bytes) -> None:
    """Empty ones, other JSON, and no JSON at all."""
    assert read_record(line) is None


# --- Heads ----------------------------------------------------------------------------------------


def position(writer: str, sequence: int) -> ListedWriter:
    return ListedWriter(ChainPosition(writer, sequence, "b" * 64))


def test_a_head_lists_what_earlier_heads_list() -> None:
    """All writers but those that have ended, which are listed once."""
    first = follow_head(None, [position("a", 3)], log="l", at="t", retain_s=5)
    ended = ListedWriter(ChainPosition("a", 4, "c" * 64), is_closed=True)
    second = follow_head(first, [position("b", 1), ended], log="other", at="t")
    third = follow_head(second, [position("b", 2)], log="other", at="t")
    assert [(head.number, head.log, head.retain_s) for head in (first, second, third)] == [
        (1, "l", 5),
        (2, "l", 5),
        (3, "l", 5),
    ]
    assert [head.previous for head in (first, second, third)] == [GENESIS, first.hash, second.hash]
    assert [writer.position.sequence for writer in second.writers] == [1, 4]
    assert list(third.open_writers) == ["b"]


def test_the_list_of_writers_that_never_ended_is_bounded() -> None:
    """The oldest ones are left out; earlier heads list them."""
    head = None
    for number in range(MAX_LISTED_WRITERS + 5):
        head = follow_head(head, [position(f"w{number}", 1)], log="l", at="t")
    assert head is not None
    assert len(head.writers) == MAX_LISTED_WRITERS
    assert head.writers[-1].position.writer == f"w{MAX_LISTED_WRITERS + 4}"


def test_a_head_is_read_as_it_was_written() -> None:
    """As text, and as a line of bytes."""
    head = follow_head(None, [position("a", 3)], log="l", at="t", retain_s=0.5)
    assert read_head(head.to_json()) == head
    assert read_head(head.to_json().encode() + b"\n") == head


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"writers": 3}', "{", "[" * 100_000])
def test_other_lines_are_not_heads(text: str) -> None:
    """Whatever they are, reading them does not raise."""
    assert read_head(text) is None


def test_a_head_that_was_written_otherwise_is_none() -> None:
    """There is one text for a head: a member more, or a blank, is a change."""
    head = follow_head(None, [position("a", 3)], log="l", at="t").to_json()
    assert read_head(head.replace('"at":"t"', '"at": "t"')) is None
    assert read_head(head.replace('"at":"t"', '"also":1,"at":"t"')) is None
