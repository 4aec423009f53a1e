"""Models, dataclasses, attrs classes and named tuples in results: redacted as what they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
import pandas as pd
import pydantic
import pytest

from edictum import Edictum, RedactionPolicy
from edictum.outcomes import ToolExecutionResult, outcome_to_model_content

TOKEN = "ghp_" + "a1B2" * 9
HIDDEN = "[REDACTED]"
BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: objects}}
tools: {{t: {{side_effect: read}}}}
contracts:
  - {{id: r, type: post, tool: t, when: {when}, then: {{effect: redact, message: m}}}}
"""
SUPPRESSED = "[OUTPUT SUPPRESSED] m"
CONDITIONS = {
    "secrets in the text": "{output.text: {contains_secret: true}}",
    "secrets in the value": "{output: {contains_secret: true}}",
    "a pattern": "{output.text: {matches: 'ghp_\\w+|hunter2'}}",
    "a text": f"{{output.text: {{contains_any: [{TOKEN}, hunter2]}}}}",
}


def dispatch(value: Any, when: str = CONDITIONS["secrets in the text"]) -> Any:
    guard = Edictum.from_yaml_string(BUNDLE.format(when=when))
    outcome = guard.dispatch_sync("t", {}, lambda: value)
    assert isinstance(outcome, ToolExecutionResult)
    assert [finding.contract_id for finding in outcome.findings] == ["r"]
    said = outcome_to_model_content(outcome) + repr([e.to_dict() for e in guard.local_sink.events])
    assert TOKEN not in said
    assert "hunter2" not in said
    return outcome.value


class Model(pydantic.BaseModel):
    note: str = "x"
    password: str = "hunter2"
    count: int = 3


class FrozenModel(pydantic.BaseModel, frozen=True):
    inner: Model
    many: list[Model]


class OpenModel(pydantic.BaseModel, extra="allow"):
    name: str = "n"


class SilentModel(pydantic.BaseModel):
    note: str = pydantic.Field("x", exclude=True, repr=False)


@dataclass
class Data:
    note: str
    password: str = "hunter2"
    count: int = 3


@dataclass(frozen=True, slots=True)
class FrozenData:
    inner: Data
    hidden: str = field(default="", repr=False)


@attrs.define
class Attrs:
    note: str
    password: str = "hunter2"
    count: int = 3


@attrs.frozen
class FrozenAttrs:
    inner: Attrs


class Named(NamedTuple):
    note: str
    password: str = "hunter2"
    count: int = 3


@dataclass
class Report:
    frame: Any


# note -> the object
OBJECTS: dict[str, Callable[[str, str], Any]] = {
    "model": lambda note, word: Model(note=note, password=word),
    "frozen model": lambda note, word: FrozenModel(
        inner=Model(note=note, password=word), many=[Model(password=word)]
    ),
    "model with other fields": lambda note, word: OpenModel(note=note, password=word),
    "dataclass": Data,
    "frozen dataclass": lambda note, word: FrozenData(Data(note, word), note),
    "attrs": Attrs,
    "frozen attrs": lambda note, word: FrozenAttrs(Attrs(note, word)),
    "named tuple": Named,
    "namespace": lambda note, word: SimpleNamespace(note=note, text=word),
    "in a dict": lambda note, word: {"a": [Data(note, word), Model(note=note, password=word)]},
}


@pytest.mark.parametrize("when", CONDITIONS.values(), ids=CONDITIONS)
@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_fields_are_redacted_and_types_kept(make: Callable[[str, str], Any], when: str) -> None:
    is_by_name = "contains_secret" in when
    given = make(f"it is {TOKEN}.", "hunter2")
    if is_by_name and isinstance(given, SimpleNamespace):
        given.text = HIDDEN  # its name is not that of a secret, nor does it look like one
    shown = dispatch(given, when)
    assert type(shown) is type(given)
    assert shown == make(f"it is {HIDDEN}.", HIDDEN)


@pytest.mark.parametrize("when", CONDITIONS.values(), ids=CONDITIONS)
def test_a_long_list_is_searched_item_by_item_where_it_must_be(when: str) -> None:
    """Texts of a list are searched together; objects, bytes and what is found one by one."""
    given = [*range(100), Data(TOKEN, HIDDEN), *"abc", TOKEN, None, b"x " + TOKEN.encode()]
    hidden = [*range(100), Data(HIDDEN, HIDDEN), *"abc", HIDDEN, None, b"x " + HIDDEN.encode()]
    assert dispatch(given * 2, when) == hidden * 2


def test_the_tools_own_object_is_not_changed() -> None:
    given = Model(note=TOKEN)
    assert dispatch(given) is not given
    assert given.note == TOKEN
    extra = OpenModel(note=TOKEN)
    dispatch(extra)
    assert extra.model_extra == {"note": TOKEN}


def test_an_object_without_a_secret_is_returned_itself() -> None:
    policy = RedactionPolicy()
    for make in OBJECTS.values():
        clean = make("fine", "")
        assert policy.redact_secrets(clean) == clean
    model = Model(password="")
    assert policy.redact_secrets(model) is model
    assert policy.redact_value(model) is model


def test_fields_that_are_left_out_when_a_model_is_written_are_searched() -> None:
    assert dispatch(SilentModel(note=TOKEN)).note == HIDDEN


def test_a_number_under_a_sensitive_name_is_replaced_without_a_warning() -> None:
    class Login(pydantic.BaseModel):
        pin_code: int = 4711
        password: int = 4711

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = dispatch(Login())
    assert type(shown) is Login
    assert shown.password == HIDDEN


def test_a_frame_in_a_field() -> None:
    frame = pd.DataFrame({"password": ["hunter2"], "n": [1]})
    shown = dispatch(Report(frame), CONDITIONS["secrets in the value"])
    assert type(shown) is Report
    assert shown.frame.to_dict("list") == {"password": [HIDDEN], "n": [1]}


class Derived(pydantic.BaseModel):
    """Shows more than its fields: a redacted copy would show it again."""

    user: str = "u"

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic's own docs write it
    @property
    def header(self) -> str:
        return "ghp_" + "a1B2" * 9


def test_a_model_that_computes_a_secret_becomes_its_redacted_fields() -> None:
    assert dispatch(Derived()) == {"user": "u", "header": HIDDEN}


@dataclass
class Single:
    note: str

    def __copy__(self) -> Single:
        return self


def test_an_object_that_cannot_be_copied_becomes_its_redacted_fields() -> None:
    only = Single(TOKEN)
    assert dispatch(only) == {"note": HIDDEN}
    assert only.note == TOKEN


class Written:
    """Not known what it holds; it has a text."""

    def __str__(self) -> str:
        return f"it is {TOKEN}"


def test_an_object_of_another_kind_becomes_its_redacted_text() -> None:
    assert dispatch(Written()) == f"it is {HIDDEN}"


class Mute(dict[str, str]):
    def items(self) -> Any:
        raise RuntimeError("no")


def test_a_dict_that_cannot_be_read_beside_a_secret_becomes_its_text() -> None:
    shown = dispatch([Mute(a="b"), TOKEN], CONDITIONS["secrets in the value"])
    assert shown == ["{'a': 'b'}", HIDDEN]


def test_long_lists_are_redacted_by_the_policy() -> None:
    policy = RedactionPolicy()
    given = [*["fine"] * 200, TOKEN, 3, {"password": "hunter2"}]
    assert policy.redact_value(given) == [*["fine"] * 200, HIDDEN, 3, {"password": HIDDEN}]
    assert policy.redact_secrets(given)[200] == HIDDEN


# --- One field ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Model, Data, Attrs, Named], ids=lambda kind: kind.__name__)
def test_the_field_that_a_condition_names_is_replaced(make: Any) -> None:
    given = make(note=TOKEN, password="x", count=7)
    shown = dispatch_quietly(given, "{result.count: {gt: 6}}")
    assert (type(shown), shown.count, shown.note) == (type(given), HIDDEN, TOKEN)
    inside = dispatch_quietly({"rows": [given]}, "{'result.rows[*].note': {matches: 'ghp_'}}")
    assert inside["rows"][0].note == TOKEN.replace("ghp_", HIDDEN)


def dispatch_quietly(value: Any, when: str) -> Any:
    outcome = Edictum.from_yaml_string(BUNDLE.format(when=when)).dispatch_sync(
        "t", {}, lambda: value
    )
    assert isinstance(outcome, ToolExecutionResult)
    return outcome.value


def test_a_field_of_an_object_of_another_kind_is_suppressed() -> None:
    class Response:
        def __init__(self) -> None:
            self.status = 503

    assert dispatch_quietly(Response(), "{result.status: {gt: 500}}") == SUPPRESSED
