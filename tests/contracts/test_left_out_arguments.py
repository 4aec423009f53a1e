"""Arguments that a call leaves out: contracts judge what the tool will do, not only what was sent."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import json
import textwrap
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
)

import pydantic.dataclasses
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypeAliasType
from typing_extensions import TypedDict as NewTypedDict
from typing_extensions import TypeVar as NewTypeVar

from edictum import (
    Edictum,
    EdictumDenied,
    EdictumInputError,
    HookDecision,
    HookRegistration,
    ToolCall,
    ToolDenied,
    Verdict,
    outcome_to_model_content,
    precondition,
)
from edictum.adapters._base import Adapter
from edictum.builtins import deny_sensitive_reads
from edictum.contracts import _compile, _selectors
from edictum.harness import BoundedToolExecutor, ToolCallRequest, TurnBudget, TurnState, tool
from support.effort import effort

UNSET = object()


def bundle(*contracts: str, defaults: str = "{mode: enforce}") -> str:
    head = f"""\
        apiVersion: edictum/v1
        kind: ContractBundle
        metadata: {{name: left-out}}
        defaults: {defaults}
        contracts:
        """
    return textwrap.dedent(head) + "".join(f"  - {each}\n" for each in contracts)


def deny(when: str, message: str = "no", more: str = "") -> str:
    then = f'then: {{effect: deny, message: "{message}"}}'
    return f"{{id: big, type: pre, tool: refund, when: {when}, {more}{then}}}"


def guard_with(*contracts: str, **options: Any) -> Edictum:
    return Edictum.from_yaml_string(bundle(*contracts), **options)


BIG = deny("{args.amount: {gt: 100}}", "{args.amount} is too much")


@pytest.fixture(params=["generated", "interpreted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How conditions are judged: both ways decide alike."""
    if request.param == "interpreted":
        monkeypatch.setattr(_compile, "FAST_PATH", None)
    return str(request.param)


def refund(order_id: str, amount: float = 500.0) -> str:
    return f"refunded {amount}"


@pytest.mark.usefixtures("way")
def test_a_contract_is_not_bypassed_by_leaving_the_argument_out() -> None:
    guard = guard_with(BIG)
    for args in ({"order_id": "A1"}, {"order_id": "A1", "amount": 500.0}):
        with pytest.raises(EdictumDenied, match=r"^500.0 is too much$"):
            guard.run_sync("refund", args, refund)
    assert guard.run_sync("refund", {"order_id": "A1", "amount": 5}, refund) == "refunded 5"


@pytest.mark.usefixtures("way")
def test_the_tool_the_audit_and_the_digest_get_what_was_sent() -> None:
    asked: list[Any] = []
    guard = guard_with(deny("{args.amount: {gt: 1000}}"))

    def tool(order_id: str, **more: Any) -> Any:
        asked.append(more)

    guard.run_sync("refund", {"order_id": "A1"}, tool, parameters=refund)
    assert asked == [{}]
    assert [event.tool_args for event in guard.local_sink.events] == [{"order_id": "A1"}] * 2


@pytest.mark.usefixtures("way")
def test_exists_asks_what_was_sent_and_the_other_operators_what_the_tool_gets() -> None:
    not_sent = guard_with(deny("{args.amount: {exists: false}}", "state it"))
    assert not_sent.evaluate("refund", {}, parameters=refund).deny_reasons == ["state it"]
    sent = guard_with(deny("{args.amount: {exists: true}}"))
    assert sent.evaluate("refund", {}, parameters=refund).verdict == "allow"
    both = guard_with(deny("{all: [{args.amount: {exists: false}}, {args.amount: {gt: 100}}]}"))
    assert both.evaluate("refund", {}, parameters=refund).verdict == "deny"
    not_empty = guard_with(deny("{args.bcc: {empty: false}}"))
    assert not_empty.evaluate("refund", {}, parameters=lambda bcc="all@x": 0).verdict == "deny"
    assert not_empty.evaluate("refund", {}, parameters=lambda bcc="": 0).verdict == "allow"


@pytest.mark.usefixtures("way")
def test_a_null_that_was_sent_is_not_the_default() -> None:
    guard = guard_with(BIG)
    assert guard.evaluate("refund", {"amount": None}, parameters=refund).verdict == "allow"


def test_what_a_hook_leaves_out_is_judged_by_its_default() -> None:
    def drop(call: ToolCall) -> HookDecision:
        return HookDecision.rewrite({"order_id": "A1"})

    guard = guard_with(BIG, hooks=[HookRegistration("before", "refund", drop)])
    with pytest.raises(EdictumDenied, match=r"^500.0 is too much$"):
        guard.run_sync("refund", {"order_id": "A1", "amount": 5}, refund)


def test_a_python_contract_reads_effective_args() -> None:
    @precondition("refund")
    def small(call: ToolCall) -> Verdict:
        assert call.args.get("amount") is None
        return Verdict.fail("no") if call.effective_args["amount"] > 100 else Verdict.pass_()

    with pytest.raises(EdictumDenied):
        Edictum(contracts=[small]).run_sync("refund", {"order_id": "A1"}, refund)


def test_postconditions_see_defaults_too() -> None:
    guard = guard_with(
        "{id: p, type: post, tool: refund, when: {args.amount: {gt: 100}},"
        ' then: {effect: warn, message: "{args.amount}"}}'
    )
    result = guard.evaluate("refund", {}, output="x", parameters=refund)
    assert result.warn_reasons == ["500.0"]


def test_an_explanation_shows_the_default_or_that_it_is_not_known() -> None:
    guard = guard_with(BIG)
    assert "(value: 500.0)" in str(guard.explain("refund", {}, parameters=refund))
    assert "(value: missing)" in str(guard.explain("refund", {}, parameters=lambda amount=None: 0))
    assert "(value: not sent, its default is not known)" in str(guard.explain("refund", {}))


def test_a_sandbox_judges_the_path_that_a_tool_takes_by_default() -> None:
    guard = guard_with(
        '{id: s, type: sandbox, tool: read, within: [/srv/data], message: "{violation}"}'
    )

    def read(path: str = "/etc/passwd") -> str:
        raise AssertionError("it ran")

    with pytest.raises(EdictumDenied, match="/etc/passwd"):
        guard.run_sync("read", {}, read)
    result = guard.evaluate("read", {}, parameters=lambda path=Path("/srv/data/a"): 0)
    assert result.verdict == "allow"


def test_a_sandbox_reads_a_command_that_a_tool_runs_by_default() -> None:
    guard = guard_with(
        "{id: s, type: sandbox, tool: bash, allows: {commands: [ls]}, message: '{violation}'}"
    )
    assert guard.evaluate("bash", {}, parameters=lambda command="ls": 0).verdict == "allow"
    assert guard.evaluate("bash", {}, parameters=lambda command="rm x": 0).verdict == "deny"


def test_the_ready_made_contract_judges_defaults() -> None:
    guard = Edictum(contracts=[deny_sensitive_reads()])
    found = guard.evaluate("read", {}, parameters=lambda path="~/.ssh/id_rsa": 0)
    assert found.verdict == "deny"
    found = guard.evaluate("bash", {}, parameters=lambda command="printenv": 0)
    assert found.verdict == "deny"


# --- Forms of parameters --------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Missing(enum.Enum):
    TOKEN = 1


class Order(BaseModel):
    amount: int = 500
    note: str | None = None
    made: str = Field(default_factory=lambda: "now")
    tags: list[str] = Field(default_factory=list)


@dataclass
class Item:
    path: str = "/etc"
    price: Decimal = Decimal(500)
    more: list[str] = field(default_factory=list)
    made: str = field(default_factory=lambda: "now")


class Options(TypedDict, total=False):
    amount: int


def nested(order: Order, items: list[Item] = [Item()]) -> None: ...  # noqa: B006, B008 - a default


class Teller:
    def refund(self, amount: int = 500) -> int:
        return amount

    @classmethod
    def pay(cls, amount: int = 500) -> int:
        return amount

    @staticmethod
    def give(amount: int = 500) -> int:
        return amount

    def __call__(self, amount: int = 500) -> int:
        return amount


class SlotsOnly:
    __slots__ = ()

    def __call__(self, amount: int = 500) -> int:
        return amount


class Unhashable(Teller):
    __hash__ = None  # type: ignore[assignment]  # such callables exist


def keep_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


async def pay_later(amount: int = 500) -> int:
    return amount


def positional(amount: int = 500, /) -> int:
    return amount


def keyword(*, amount: int = 500) -> int:
    return amount


def plain(amount: int = 500, *rest: Any) -> int:
    return amount


FORMS: dict[str, Any] = {
    "function": plain,
    "lambda": lambda amount=500: amount,
    "coroutine function": pay_later,
    "positional-only": positional,
    "keyword-only": keyword,
    "bound method": Teller().refund,
    "class method": Teller.pay,
    "static method": Teller.give,
    "callable object": Teller(),
    "callable object without weak references": SlotsOnly(),
    "callable object that cannot be hashed": Unhashable(),
    "partial": functools.partial(lambda order, amount: amount, "A1", amount=500),
    "partial over a default": functools.partial(lambda amount=5: amount, amount=500),
    "decorated": keep_signature(plain),
    "with **kwargs": lambda amount=500, **rest: amount,
    "decimal": lambda amount=Decimal("500.5"): amount,
    "pydantic model": Order,
    "dataclass": dataclass(type("Made", (), {"__annotations__": {"amount": int}, "amount": 500})),
    "JSON Schema": {"properties": {"amount": {"type": "number", "default": 500}}},
    "strict JSON Schema": {
        "properties": {"amount": {"type": "number", "default": 500}},
        "required": ["amount"],
    },
    "JSON Schema with references": {
        "properties": {"amount": {"$ref": "#/$defs/a~1b"}},
        "$defs": {"a/b": {"allOf": [{"type": "number", "default": 500}]}},
    },
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_tells_the_default(form: str) -> None:
    guard = guard_with(BIG)
    for _ in range(2):  # the second time it is known
        assert guard.evaluate("refund", {}, parameters=FORMS[form]).verdict == "deny"
    assert guard.evaluate("refund", {"amount": 5}, parameters=FORMS[form]).verdict == "allow"


@pytest.mark.parametrize("form", [name for name, it in FORMS.items() if callable(it)])
def test_run_finds_the_default_of_every_function(form: str) -> None:
    with pytest.raises(EdictumDenied):
        guard_with(BIG).run_sync("refund", {}, FORMS[form])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("when", "args", "parameters"),
    [
        ("{args.order.amount: {gt: 100}}", {"order": {}}, nested),
        ("{args.order.amount: {gt: 100}}", {"order": {"note": "x"}}, nested),
        ("{'args.items[*].path': {equals: /etc}}", {"items": [{"path": "/srv"}, {}]}, nested),
        ("{'args.items[*].price': {gt: 100}}", {"items": [{}]}, nested),
        ("{args.items.0.price: {gt: 100}}", {"items": [{}]}, nested),
        ("{args.items.0.price: {gt: 100}}", {}, nested),
        ("{args.order.tags: {empty: true}}", {"order": {}}, nested),
        ("{args.items.0.more: {empty: true}}", {"items": [{}]}, nested),
        ("{args.colour: {equals: red}}", {}, lambda colour=Colour.RED: 0),
        ("{args.path: {starts_with: /etc}}", {}, lambda path=Path("/etc/x"): 0),
        ("{args.flags.deep: {equals: true}}", {}, lambda flags={"deep": True}: 0),
        (
            "{args.order.amount: {gt: 100}}",
            {"order": {}},
            {
                "properties": {"order": {"anyOf": [{"$ref": "#/$defs/Order"}, {"type": "null"}]}},
                "$defs": {"Order": Order.model_json_schema()},
            },
        ),
    ],
)
def test_defaults_are_found_inside_of_what_was_sent(when: str, args: Any, parameters: Any) -> None:
    guard = guard_with(deny(when))
    assert guard.evaluate("refund", args, parameters=parameters).verdict == "deny"


OPAQUE: dict[str, Any] = {
    "sentinel": lambda amount=UNSET: 0,
    "sentinel of an Enum": lambda amount=Missing.TOKEN: 0,
    "function": lambda amount=refund: 0,
    "class": lambda amount=Order: 0,
    "ellipsis": lambda amount=...: 0,
    "bytes": lambda amount=b"x": 0,
    "pydantic's Field": lambda amount=Field(500): 0,  # noqa: B008 - a default
    "something opaque inside": lambda amount={"deep": [UNSET]}: 0,
    "**kwargs": lambda **rest: 0,
    "builtin without a signature": max,
    "factory": type(
        "M",
        (BaseModel,),
        {"__annotations__": {"amount": int}, "amount": Field(default_factory=lambda: 500)},
    ),
    "optional in a schema": {"properties": {"amount": {"type": "number"}}},
    "two alternatives": {
        "anyOf": [
            {"properties": {"amount": {"default": 5}}},
            {"properties": {"amount": {"default": 500}}},
        ]
    },
    "circular schema": {"$ref": "#"},
    "schema that is not one": {"properties": 5, "required": 5},
    "reference to nothing": {"$ref": "#/$defs/none"},
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", OPAQUE)
def test_a_default_that_is_not_known_is_missing_and_warned_about_once(
    form: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_selectors, "_WARNED", set())
    guard = guard_with(deny("{args.amount: {not_equals: 7}}"))
    caplog.clear()
    for _ in range(2):
        found = guard.evaluate("refund", {}, parameters=OPAQUE[form])
        assert found.verdict == "allow"
        assert "amount" not in ToolCall("refund", {}, parameters=OPAQUE[form]).effective_args
    assert [record.getMessage() for record in caplog.records] == [
        "refund: a contract reads args.amount, which a call left out, and its default is not"
        " known. State the default in the tool's signature or schema, or refuse such calls with"
        " 'missing_args: deny'."
    ]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", OPAQUE)
def test_a_strict_contract_denies_a_call_whose_argument_is_not_known(form: str) -> None:
    sentence = "args.amount was not sent, and its default is not known."
    strict = deny("{args.amount: {gt: 100}}", more="missing_args: deny, ")
    by_default = bundle(BIG, defaults="{missing_args: deny}")
    for guard in (guard_with(strict), Edictum.from_yaml_string(by_default)):
        found = guard.evaluate("refund", {}, parameters=OPAQUE[form])
        assert found.deny_reasons == [f"{sentence} Call refund again and state it."]
        sent = guard.evaluate("refund", {"amount": 5}, parameters=OPAQUE[form])
        assert sent.verdict == "allow"


def test_a_contract_may_be_less_strict_than_its_bundle() -> None:
    lax = deny("{args.amount: {gt: 100}}", more="missing_args: allow, ")
    guard = Edictum.from_yaml_string(bundle(lax, defaults="{missing_args: deny}"))
    assert guard.evaluate("refund", {}, parameters=OPAQUE["sentinel"]).verdict == "allow"


@pytest.mark.parametrize(
    "parameters",
    [
        lambda amount: 0,
        lambda amount=5: 0,
        lambda amount=None: 0,
        lambda other: 0,
        {"properties": {"amount": {}}, "required": ["amount"]},
    ],
)
def test_a_strict_contract_lets_pass_what_is_known_to_be_missing(parameters: Any) -> None:
    guard = guard_with(deny("{args.amount: {gt: 100}}", more="missing_args: deny, "))
    assert guard.evaluate("refund", {}, parameters=parameters).verdict == "allow"


@pytest.mark.usefixtures("way")
def test_a_strict_contract_looks_inside_of_what_was_sent() -> None:
    strict = deny("{'args.items[*].made': {equals: x}}", more="missing_args: deny, ")
    guard = guard_with(strict)
    found = guard.evaluate("refund", {"items": [{"made": "y"}, {}]}, parameters=nested)
    assert found.deny_reasons[0].startswith("args.items[*].made was not sent, and its default is")
    for items in ([{"made": "y"}], [], 5, None):
        found = guard.evaluate("refund", {"items": items}, parameters=nested)
        assert found.policy_error is (items == 5)


def test_strict_needs_what_runs_even_for_approvals_and_without_a_function() -> None:
    ask = "{id: a, type: pre, tool: refund, when: {args.amount: {gt: 100}}, missing_args: deny,"
    guard = guard_with(f"{ask} then: {{effect: approve, message: sure}}}}")
    found = guard.evaluate("refund", {})
    assert (found.verdict, found.needs_approval) == ("deny", False)


def test_a_strict_sandbox_denies_calls_with_unknown_arguments() -> None:
    strict = "{id: s, type: sandbox, tool: read, within: [/srv], missing_args: deny, message: no}"
    guard = guard_with(strict)
    sentence = "args.path was not sent, and its default is not known. Call read again and state it."
    found = guard.evaluate("read", {}, parameters=lambda path=UNSET: 0)
    assert found.deny_reasons == [sentence]
    unknown = "The parameters of read are not known, so what was not sent cannot be judged."
    assert guard.evaluate("read", {}).deny_reasons == [unknown]
    for parameters in (lambda path="/srv/a": 0, lambda: 0, lambda path: 0):
        assert guard.evaluate("read", {}, parameters=parameters).verdict == "allow"
    sent = guard.evaluate("read", {"path": "/srv/a"}, parameters=lambda path=UNSET: 0)
    assert sent.verdict == "allow"


def test_parameters_that_tell_nothing_are_refused() -> None:
    with pytest.raises(EdictumInputError, match=r"^parameters is 5\."):
        Edictum().evaluate("refund", {}, parameters=5)


# --- What defaults do not do ----------------------------------------------------------------------


def test_a_default_that_the_function_has_changed_is_seen_as_it_is() -> None:
    def tool(items: list[int] = []) -> int:  # noqa: B006 - that is what is tested
        items.append(1)
        return len(items)

    guard = guard_with(deny("{args.items: {length_gt: 1}}"))
    assert guard.run_sync("refund", {}, tool) == 1
    assert guard.run_sync("refund", {}, tool) == 2
    with pytest.raises(EdictumDenied):
        guard.run_sync("refund", {}, tool)


def test_a_contract_cannot_change_a_default() -> None:
    def tool(items: list[int] = [1]) -> list[int]:  # noqa: B006 - that is what is tested
        return items

    call = ToolCall("refund", {}, parameters=tool)
    with pytest.raises(TypeError):
        call.effective_args["items"].append(2)
    assert tool() == [1]


def test_parameters_are_not_part_of_what_a_call_is() -> None:
    with_them, without = ToolCall("refund", {}, parameters=refund), ToolCall("refund", {})
    assert with_them == without
    assert hash(with_them) == hash(without)
    assert repr(with_them) == repr(without)


def test_the_audit_does_not_keep_functions_alive() -> None:
    def make() -> tuple[Any, Callable[..., Any]]:
        def tool(amount: int = 5) -> int:
            return amount

        return weakref.ref(tool), tool

    guard = guard_with(BIG)
    held, tool = make()
    guard.run_sync("refund", {}, tool)
    del tool
    gc.collect()
    assert len(guard.local_sink.events) == 2
    assert held() is None


def test_a_signature_is_read_only_when_an_argument_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(_selectors, "fill_argument", lambda *about: read.append(about) or {})
    guard = guard_with(BIG)
    guard.run_sync("refund", {"order_id": "A1", "amount": 5}, refund)
    assert read == []


# --- Against the functions themselves -------------------------------------------------------------

VALUES = st.one_of(
    st.integers(-3, 3),
    st.booleans(),
    st.none(),
    st.sampled_from(["", "a", "b"]),
    st.lists(st.integers(0, 2), max_size=2),
    st.dictionaries(st.sampled_from("xy"), st.integers(0, 2)),
    st.sampled_from([0.5, -1.5]),
)
NAMES = ("p", "q", "r", "s")


@st.composite
def signatures(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[str]]:
    """Return the text of parameters, the values of their defaults, and those that can be named."""
    drawn = draw(st.lists(st.sampled_from(["/", "", "*"]), min_size=4, max_size=4))
    kinds = sorted(drawn, key=["/", "", "*"].index)
    defaults: dict[str, Any] = {}
    parts: list[str] = []
    nameable: list[str] = []
    for name, kind, following in zip(NAMES, kinds, [*kinds[1:], None], strict=True):
        if kind == "*" and "*" not in parts:
            parts.append("*")
        # After one with a default every positional one must have one; those before "/" always do.
        has_default = kind == "/" or (kind == "" and bool(defaults)) or draw(st.booleans())
        if has_default:
            defaults[name] = draw(VALUES)
        parts.append(f"{name}=d[{name!r}]" if has_default else name)
        if kind == "/" and following != "/":
            parts.append("/")
        if kind != "/":
            nameable.append(name)
    if draw(st.booleans()):
        parts.append("**rest")
    return ", ".join(parts), defaults, nameable


def define(way: str, text: str, defaults: dict[str, Any]) -> Callable[..., Any]:
    """Return a tool that returns what it got, made in one of the ways in which tools are made."""
    names: dict[str, Any] = {"d": defaults}
    source = f"""\
def tool({text}): return locals()
class Holder:
    def tool(self, {text}): return {{k: v for k, v in locals().items() if k != "self"}}
    __call__ = tool
"""
    exec(source, names)
    made: dict[str, Callable[..., Any]] = {
        "plain": names["tool"],
        "partial": functools.partial(names["tool"]),
        "decorated": keep_signature(names["tool"]),
        "method": names["Holder"]().tool,
        "object": names["Holder"](),
    }
    return made[way]


@settings(max_examples=effort(100), deadline=None)
@given(data=st.data(), signature=signatures())
def test_a_condition_judges_what_the_function_gets(
    data: st.DataObject, signature: tuple[str, dict[str, Any], list[str]]
) -> None:
    text, defaults, nameable = signature
    ways = ("plain", "partial", "decorated", "method", "object")
    tool = define(data.draw(st.sampled_from(ways)), text, defaults)
    required = [name for name in nameable if name not in defaults]
    chosen = [name for name in nameable if name in required or data.draw(st.booleans())]
    sent = {name: data.draw(VALUES) for name in chosen}
    name = data.draw(st.sampled_from(NAMES))
    wanted = data.draw(VALUES.filter(lambda value: value is not None))
    received = tool(**sent)
    guard = guard_with(deny(f"{{args.{name}: {{equals: {json.dumps(wanted)}}}}}"))
    is_met = received.get(name) == wanted
    found = guard.evaluate("refund", sent, parameters=tool)
    assert found.verdict == ("deny" if is_met else "allow")
    if is_met:
        with pytest.raises(EdictumDenied):
            guard.run_sync("refund", sent, tool)
    else:
        assert guard.run_sync("refund", sent, tool) == received


# --- Fields with several names --------------------------------------------------------------------


class Chosen(BaseModel):
    amount: int = Field(5, validation_alias=AliasChoices("amount", "sum"))


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    amount: int = Field(5, alias="sum")


class Generated(BaseModel):
    model_config = ConfigDict(populate_by_name=True, alias_generator=lambda _: "sum")
    amount: int = 5


class Elsewhere(BaseModel):
    amount: int = Field(5, validation_alias=AliasChoices("amount", AliasPath("parts", 0)))


class OnlyElsewhere(BaseModel):
    amount: int = Field(5, validation_alias=AliasPath("parts", 0))


@pytest.mark.parametrize("model", [Chosen, Renamed, Generated])
@pytest.mark.parametrize("sent", ["amount", "sum"])
@pytest.mark.parametrize("read", ["amount", "sum"])
def test_a_field_is_judged_under_whichever_of_its_names_it_is_sent(
    model: type[BaseModel], sent: str, read: str
) -> None:
    """At the top and inside of an argument: it was judged by its default."""
    ran: list[Any] = []
    for path, args, parameters in (
        (f"args.{read}", {sent: 500}, model),
        (f"args.order.{read}", {"order": {sent: 500}}, takes(model)),
    ):
        guard = guard_with(deny(f"{{{path}: {{gt: 100}}}}"))
        call = ("refund", args, lambda **given: ran.append(given))
        assert guard.dispatch_sync(*call, parameters=parameters).details == "no"
    assert ran == []


def takes(model: type[BaseModel]) -> Callable[..., None]:
    def refund(order: Any) -> None: ...

    refund.__annotations__ = {"order": model}
    return refund


@pytest.mark.parametrize("model", [Chosen, Renamed, Generated])
def test_the_default_is_judged_of_a_field_that_is_sent_under_no_name(model: Any) -> None:
    low = guard_with(deny("{args.sum: {lt: 100}}", "{args.amount} is too little"))
    outcome = low.dispatch_sync("refund", {}, lambda: 1, parameters=model)
    assert outcome.details == "5 is too little"


@pytest.mark.parametrize("model", [Elsewhere, OnlyElsewhere])
def test_the_default_is_not_known_of_a_field_that_may_stand_inside_of_another(model: Any) -> None:
    text = bundle(BIG, defaults="{mode: enforce, missing_args: deny}")
    guard = Edictum.from_yaml_string(text)
    outcome = guard.dispatch_sync("refund", {"parts": []}, lambda parts: 1, parameters=model)
    assert "its default is not known" in outcome.details
    outcome = guard.dispatch_sync("refund", {"parts": [500]}, lambda parts: 1, parameters=model)
    assert outcome.details == "500 is too much", "what stands there is judged"
    outcome = guard.dispatch_sync("refund", {"parts": "500"}, lambda parts: 1, parameters=model)
    assert "its default is not known" in outcome.details, "a text has no elements"


# --- Fields that are sent under two names ---------------------------------------------------------


class ElsewhereFirst(BaseModel):
    amount: int = Field(5, validation_alias=AliasChoices(AliasPath("parts", 0), "amount"))


class Tree(BaseModel):
    order: Chosen | None = None
    children: list[Tree] = []


@pydantic.dataclasses.dataclass
class ChosenDataclass:
    amount: int = Field(5, validation_alias=AliasChoices("sum", "amount"))
    note: str = Field("", init=False, validation_alias=AliasChoices("text", "note"))


class Orders(RootModel[list[Chosen]]):
    pass


OrderOfUser = NewType("OrderOfUser", Chosen)
TWICE = {"amount": 1, "sum": 500}
SENT_TWICE: list[tuple[Any, Any]] = [
    (Chosen, TWICE),
    (Renamed, TWICE),
    (Generated, TWICE),
    (ChosenDataclass, TWICE),
    (ElsewhereFirst, {"amount": 1, "parts": [500]}),
    (Elsewhere, {"amount": 500, "parts": [1]}),
    (OrderOfUser, TWICE),
    (Chosen | None, TWICE),
    (Chosen | Elsewhere, TWICE),
    (Annotated[Chosen, "an order"], TWICE),
    (list[Chosen], [{"amount": 1}, TWICE]),
    (dict[str, Chosen], {"first": TWICE}),
    (tuple[Chosen, int], [TWICE, 1]),
    (tuple[Chosen, ...], [TWICE]),
    (Orders, [TWICE]),
    (Tree, {"order": TWICE}),
    (Tree, {"children": [{"children": [{"order": TWICE}]}]}),
]


@pytest.mark.parametrize(("kind", "order"), SENT_TWICE)
def test_a_call_that_sends_a_field_under_two_names_does_not_run(kind: Any, order: Any) -> None:
    """A contract would judge the one value, and the tool take the other."""
    ran: list[Any] = []
    guard = guard_with(deny("{args.order.amount: {gt: 100}}"))
    call = ("refund", {"order": order}, lambda **given: ran.append(given))
    outcome = guard.dispatch_sync(*call, parameters=takes(kind))
    assert isinstance(outcome, ToolDenied)
    assert outcome.decision_name == "field_sent_twice"
    assert "two names of one field" in outcome_to_model_content(outcome)
    assert guard.local_sink.last().decision_name == "field_sent_twice"
    assert (ran, guard.session().attempts) == ([], 1)


def test_arguments_themselves_may_not_be_sent_under_two_names() -> None:
    guard = guard_with(deny("{args.amount: {gt: 100}}"))
    for model in (Chosen, Renamed, Generated):
        outcome = guard.dispatch_sync("refund", TWICE, lambda **_: 1, parameters=model)
        assert isinstance(outcome, ToolDenied)


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        (Chosen, {"amount": 7, "sum": 7}),
        (Chosen, {"sum": 7}),
        (Elsewhere, {"amount": 7, "parts": []}),
        (Elsewhere, {"amount": 7, "parts": [7]}),
        (Elsewhere, {"parts": [7]}),
        (dict[str, Any], TWICE),
        (ChosenDataclass, {"sum": 7, "text": "a", "note": "b"}),
    ],
)
def test_the_same_value_under_two_names_runs(kind: Any, order: Any) -> None:
    guard = guard_with(deny("{args.order.amount: {gt: 100}}"))
    call = ("refund", {"order": order}, lambda **_: 1)
    assert guard.run_sync(*call, parameters=takes(kind)) == 1


# --- Fields with several names, in whatever container ---------------------------------------------

T = TypeVar("T")
AnyChosen = TypeVar("AnyChosen", bound=Chosen)
OneOf = TypeVar("OneOf", Chosen, int)
ByDefault = NewTypeVar("ByDefault", default=Chosen)
OrderAlias = TypeAliasType("OrderAlias", Chosen)
Listed = TypeAliasType("Listed", list[T], type_params=(T,))
Nested = TypeAliasType("Nested", "Chosen | dict[str, Nested]")


class Note(BaseModel):
    text: str = ""


class HasNote(BaseModel):
    k: Note = Note()


class OpenNote(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Chosen]


class Recursive(BaseModel):
    amount: int = Field(5, validation_alias=AliasChoices("amount", "sum"))
    k: Recursive | None = None


class Later(BaseModel):
    k: ChosenLater


class ChosenLater(Chosen):
    pass


class Typed(TypedDict):
    k: Annotated[Chosen, "an order"]


class Told(TypedDict):
    amount: Annotated[int, Field(validation_alias=AliasChoices("amount", "sum"))]


class ToldMaybe(TypedDict):
    amount: NotRequired[Annotated[int, Field(validation_alias=AliasChoices("amount", "sum"))]]


class Pair(NamedTuple):
    one: int
    two: Chosen


@dataclass
class Box:
    k: Chosen


@dataclass
class BoxOf(Generic[T]):
    k: T


class ModelOf(BaseModel, Generic[T]):
    k: T


@dataclass
class BoxWithUnknown:
    k: Chosen
    other: UnknownName  # type: ignore[name-defined]  # noqa: F821 - that is what is tested
    more: list[UnknownName]  # type: ignore[name-defined]  # noqa: F821


@pydantic.dataclasses.dataclass
class Initial:
    k: dataclasses.InitVar[Chosen]


FORTY: Any = tuple(pydantic.create_model(f"M{i}", **{f"f{i}": (int, 0)}) for i in range(40))

# A type, the path to an order in what is sent for it, and how the order is wrapped.
CONTAINERS: list[tuple[Any, str, Callable[[Any], Any]]] = [
    *(
        (kind, "", lambda order: order)
        for kind in (
            Chosen,
            Renamed,
            Elsewhere,
            OrderAlias,
            AnyChosen,
            OneOf,
            ByDefault,
            Nested,
            Recursive,
        )
    ),
    *((kind, "", lambda order: order) for kind in (Told, ToldMaybe, Chosen | None)),
    *(
        (kind, "", lambda order: order)
        for kind in (Note | dict[str, Any] | Chosen, Union[(*FORTY, Chosen)])
    ),
    *((kind, "", lambda order: order) for kind in (Annotated[Chosen, []], Chosen | Renamed)),
    *(
        (kind, ".k", lambda order: {"k": order})
        for kind in (
            *(dict[str, Chosen], Mapping[str, Chosen], defaultdict[str, Chosen], Nested),
            *(Recursive, Typed, OpenNote, Later, Box, BoxOf[Chosen], ModelOf[Chosen]),
            *(BoxWithUnknown, Initial, HasNote | dict[str, Chosen], HasNote | OpenNote),
        )
    ),
    *(
        (kind, "[*]", lambda order: [order])
        for kind in (
            *(list[Chosen], tuple[Chosen, ...], deque[Chosen], Sequence[Chosen], Listed[Chosen]),
            *(list[OrderAlias], list[AnyChosen], list[Note] | list[Chosen], Iterable[Chosen]),
            *(list[Note] | tuple[Chosen, ...], list[Chosen] | None),
        )
    ),
    (tuple[int, Chosen], "[1]", lambda order: [1, order]),
    (Pair, "[1]", lambda order: [1, order]),
    (Pair, ".two", lambda order: {"one": 1, "two": order}),
    (dict[str, list[tuple[OrderAlias, int]]], ".k[0][0]", lambda order: {"k": [[order, 1]]}),
]


@pytest.mark.parametrize(("kind", "path", "wrap"), CONTAINERS)
def test_a_field_is_known_by_each_of_its_names_in_whatever_container(
    kind: Any, path: str, wrap: Callable[[Any], Any]
) -> None:
    other, many, few = ("parts", [500], [1]) if kind is Elsewhere else ("sum", 500, 1)

    def ask(**order: Any) -> str:
        return judge_order(kind, path, wrap(order))

    assert ask(amount=500) == ask(**{other: many}) == "big"
    assert ask(amount=1) == ask(**{other: few}) == "ran"
    assert ask(amount=1, **{other: many}) == "field_sent_twice"
    assert ask(amount=500, **{other: few}) == "field_sent_twice"
    assert ask(amount=1, **{other: few}) == "ran", "the same value twice"


def judge_order(kind: Any, path: str, order: Any) -> str:
    """Return what denies an order, or "ran"."""
    guard = guard_with(deny(f"{{'args.order{path}.amount': {{gt: 100}}}}"))
    call = ("refund", {"order": order}, lambda **_: 1)
    outcome = guard.dispatch_sync(*call, parameters=takes(kind))
    return outcome.decision_name if isinstance(outcome, ToolDenied) else "ran"


def make_typed_dict(kind: Any) -> Any:
    made: Any = NewTypedDict
    return made("Made", {"k": kind})


def make_alias(kind: Any) -> Any:
    made: Any = TypeAliasType
    return made("Made", kind)


@settings(max_examples=effort(60), deadline=None)
@given(data=st.data())
def test_a_field_is_known_by_each_of_its_names_in_containers_in_containers(
    data: st.DataObject,
) -> None:
    """Any nesting of what can hold a type."""
    wrappers: list[tuple[Callable[[Any], Any], str, Callable[[Any], Any]]] = [
        (lambda kind: list[kind], "[*]", lambda it: [it]),
        (lambda kind: dict[str, kind], ".k", lambda it: {"k": it}),
        (lambda kind: tuple[int, kind], "[1]", lambda it: [1, it]),
        (lambda kind: deque[kind], "[0]", lambda it: [it]),
        (lambda kind: kind | None, "", lambda it: it),
        (lambda kind: HasNote | kind, "", lambda it: it),
        (lambda kind: BoxOf[kind], ".k", lambda it: {"k": it}),
        (lambda kind: ModelOf[kind], ".k", lambda it: {"k": it}),
        (lambda kind: Annotated[kind, "a note"], "", lambda it: it),
        (lambda kind: Listed[kind], "[*]", lambda it: [it]),
        (make_typed_dict, ".k", lambda it: {"k": it}),
        (make_alias, "", lambda it: it),
    ]
    kind: Any = Chosen
    path, wrapped = "", [lambda it: it]
    for make, step, wrap in data.draw(st.lists(st.sampled_from(wrappers), max_size=5)):
        kind, path = make(kind), step + path
        wrapped.append(wrap)

    def ask(**order: Any) -> str:
        return judge_order(kind, path, functools.reduce(lambda it, wrap: wrap(it), wrapped, order))

    assert ask(sum=500) == ask(amount=500) == "big", kind
    assert ask(sum=1) == ask(amount=1, sum=1) == "ran", kind
    assert ask(**TWICE) == "field_sent_twice", kind


class Other(BaseModel):
    amount: int = Field(5, validation_alias=AliasChoices("amount", "cost"))


class Person(BaseModel):
    first: str = Field("", validation_alias=AliasChoices("first", "name"))
    last: str = Field("", validation_alias=AliasChoices("last", "name"))


class Amounts(BaseModel):
    amount: int
    sum: int


@pytest.mark.parametrize("kind", [Chosen | Other, dict[str, Chosen | Other]])
def test_a_field_has_one_value_by_whichever_model_it_is(kind: Any) -> None:
    """It is not known of which model the value is: the order is refused that has both."""
    guard = guard_with(deny("{'args.order.k.amount': {gt: 100}}"))
    order = {"sum": 1, "cost": 500}
    args = {"order": order if kind == Chosen | Other else {"k": order}}
    outcome = guard.dispatch_sync("refund", args, lambda **_: 1, parameters=takes(kind))
    assert outcome.decision_name == "field_sent_twice"


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        (Any, TWICE),
        (dict[str, dict[str, int]], {"k": TWICE}),
        (Amounts, TWICE),
        (list[Amounts], [TWICE]),
        (dict[str, Person], {"k": {"first": "A", "last": "B"}}),
        (Person, {"first": "A", "name": "A"}),
        (Chosen | Amounts, {"amount": 7, "sum": 7}),
    ],
)
def test_values_under_names_of_different_fields_run(kind: Any, order: Any) -> None:
    guard = guard_with(deny("{'args.order.amount': {gt: 100}}"))
    parameters = takes(kind)
    assert guard.run_sync("refund", {"order": order}, lambda **_: 1, parameters=parameters) == 1


def test_models_without_such_fields_are_judged_by_their_own_beside_others() -> None:
    def refund(order: Chosen, exact: Amounts, more: list[Amounts]) -> int:
        return 3

    guard = guard_with(deny("{args.order.amount: {gt: 100}}"))
    sent = {"order": {"sum": 4}, "exact": TWICE, "more": [TWICE]}
    assert guard.run_sync("refund", sent, refund) == 3


def test_what_is_sent_beside_the_parameters_may_have_such_fields() -> None:
    def refund(**orders: Chosen) -> int:
        return 3

    guard = guard_with(deny("{args.first.amount: {gt: 100}}"))
    assert guard.run_sync("refund", {"first": {"sum": 4}}, refund) == 3
    assert guard.dispatch_sync("refund", {"first": {"sum": 400}}, refund).details == "no"
    assert isinstance(guard.dispatch_sync("refund", {"first": TWICE}, refund), ToolDenied)


def test_what_is_sent_deep_is_read_once() -> None:
    """A field was filled once for each of the ways to know of it, and so on inside of it."""
    order: Any = {"sum": 500}
    for _ in range(40):
        order = {"amount": order}
    for path in (".sum" * 41, ".amount" * 41, ".amount.sum" * 20 + ".amount"):
        guard = guard_with(deny(f"{{'args.order{path}': {{gt: 100}}}}"))
        judged = guard.evaluate("refund", {"order": order}, parameters=takes(dict[str, Chosen]))
        assert judged.verdict == "deny", path
    args = {"order": {"k": {"k": order}}, "amount": 1}
    filled = ToolCall("refund", args, parameters=takes(Nested)).effective_args
    assert filled["order"]["k"]["k"]["sum"] == order["amount"]


class Refund:
    def __call__(self, order: list[Chosen]) -> int:
        return 3


class RefundOf:
    def __init__(self, order: list[Chosen]) -> None: ...


@pytest.mark.parametrize("made", [Refund(), RefundOf, Refund().__call__])
def test_types_are_read_of_whatever_can_be_called(made: Any) -> None:
    guard = guard_with(deny("{'args.order[*].amount': {gt: 100}}"))
    assert guard.dispatch_sync("refund", {"order": [{"sum": 500}]}, made).details == "no"
    assert isinstance(guard.dispatch_sync("refund", {"order": [TWICE]}, made), ToolDenied)


class Unreadable:
    """An alias whose value cannot be worked out."""

    __module__ = "typing"

    @property
    def __value__(self) -> Any:
        raise NameError("no")


def test_a_type_that_cannot_be_read_hides_no_other() -> None:
    def refund(order: Any, other: Any) -> None: ...

    refund.__annotations__ = {"other": Unreadable(), "order": Chosen}
    guard = guard_with(deny("{args.order.amount: {gt: 100}}"))
    args = {"order": {"sum": 500}, "other": 1}
    call: Any = ("refund", args, lambda **_: 1)
    assert guard.dispatch_sync(*call, parameters=(None, refund)).details == "no"


def test_arguments_of_other_fields_may_have_these_names() -> None:
    def refund(amount: int, sum: int, order: Chosen) -> int:
        return amount + sum

    guard = guard_with(deny("{args.amount: {gt: 100}}"))
    sent = {"amount": 1, "sum": 2, "order": {"sum": 4}}
    assert guard.run_sync("refund", sent, refund) == 3


def test_what_a_hook_or_a_budget_reads_may_not_be_sent_under_two_names() -> None:
    """Also without a contract; what only observes reports it."""
    call: Any = ("refund", {"order": TWICE}, lambda **_: 1)
    budget = {"refund": {"amounts": {"cost": lambda call: 1}}}
    hook = HookRegistration("before", "*", lambda call: HookDecision.allow())
    for guard in (Edictum(tools=budget), Edictum(hooks=[hook])):
        outcome = guard.dispatch_sync(*call, parameters=takes(Chosen))
        assert isinstance(outcome, ToolDenied)
    observing = Edictum(hooks=[hook], mode="observe")
    assert observing.run_sync(*call, parameters=takes(Chosen)) == 1
    assert "call_would_deny" in [event.action for event in observing.local_sink.events]
    assert Edictum().run_sync(*call, parameters=takes(Chosen)) == 1, "nothing judges it"


def test_a_field_may_not_be_sent_under_two_names_in_a_turn() -> None:
    ran: list[Any] = []

    def refund(order: Chosen) -> int:
        """Refund an order."""
        ran.append(order)
        return 1

    guard = guard_with(deny("{args.order.amount: {gt: 100}}"))
    turn = BoundedToolExecutor([tool()(refund)], guard=guard)
    state = TurnState("s", TurnBudget.create(30))
    outcome = turn.execute(ToolCallRequest("c", "refund", {"order": TWICE}), state)
    assert isinstance(outcome, ToolDenied), outcome
    assert ran == []


def test_a_function_is_governed_as_its_type_hints_say() -> None:
    """Without parameters=: they are those of the function."""
    guard = guard_with(deny("{args.order.amount: {gt: 100}}"))
    outcome = guard.dispatch_sync("refund", {"order": TWICE}, takes(Chosen))
    assert isinstance(outcome, ToolDenied)


@pytest.mark.parametrize("kind", [Chosen, Renamed, ChosenDataclass])
def test_a_field_may_not_be_sent_under_two_names_to_a_tool_of_an_adapter(kind: Any) -> None:
    ran: list[Any] = []
    adapter = PlainAdapter(guard_with(deny("{args.order.amount: {gt: 100}}")))
    options: dict[str, Any] = {"parameters": takes(kind)}
    reply = adapter.call("refund", {"order": TWICE}, ran.append, **options)
    assert "two names of one field" in str(reply.text)
    assert adapter.call("refund", {"order": {"sum": 5}}, ran.append, **options).text is None
    assert len(ran) == 1


class PlainAdapter(Adapter):
    """An adapter whose framework tells the parameters of its tools."""


class Raising(type):
    """A metaclass that raises for every attribute its classes do not have."""

    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(name)


class OfSomeLibrary(metaclass=Raising):
    """A class that cannot be asked what it is."""


@pytest.mark.parametrize(
    "kind", [dict[str, OfSomeLibrary], BaseModel, list[BaseModel]], ids=["raises", "base", "list"]
)
def test_a_type_that_cannot_be_read_hides_no_other_default(kind: Any) -> None:
    """Frameworks pass objects of their own beside the arguments of a call."""

    def pay(runtime: Any, amount: float = 500.0) -> str:
        return "paid"

    pay.__annotations__["runtime"] = kind
    contract = deny("{args.amount: {gt: 100}}")
    outcome = guard_with(contract).dispatch_sync("refund", {"runtime": {}}, pay)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error is False
