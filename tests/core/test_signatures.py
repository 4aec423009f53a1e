"""A function that cannot be called as it will be called is refused when it is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from edictum import (
    Contract,
    Edictum,
    EdictumConfigError,
    HookRegistration,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.core.contract import Kind


class Callable:
    """An object that can be called like a function of two arguments."""

    def __call__(self, first: Any, second: Any) -> Any:
        return Verdict.pass_()


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (
            lambda f: precondition("*", id="c")(f),
            "contract 'c': its function is called with (call), which it cannot take",
        ),
        (
            lambda f: postcondition("*", id="c")(f),
            "contract 'c': its function is called with (call, result)",
        ),
        (
            lambda f: session_contract(id="c")(f),
            "contract 'c': its function is called with (session)",
        ),
        (
            lambda f: Contract(id="c", kind=Kind.SANDBOX, check=f),
            "contract 'c': its function is called with (call)",
        ),
        (lambda f: HookRegistration("before", "*", f), "its callback is called with (call)"),
        (lambda f: HookRegistration("after", "*", f), "its callback is called with (call, result)"),
        (
            lambda f: HookRegistration("before", "*", lambda call: None, when=f),
            "`when` is called with (call)",
        ),
        (
            lambda f: Edictum(success_check=f),
            "Edictum: success_check is called with (tool_name, result)",
        ),
        (lambda f: Edictum(on_deny=f), "Edictum: on_deny is called with (call, reason, name)"),
        (lambda f: Edictum(on_allow=f), "Edictum: on_allow is called with (call)"),
        (
            lambda f: Edictum(principal_resolver=f),
            "Edictum: principal_resolver is called with (tool_name, args)",
        ),
    ],
)
def test_it_is_refused_with_what_it_would_have_to_take(give: Any, said: str) -> None:
    """None of these takes four arguments, or none at all, or one that must be named."""
    for function in (
        lambda: None,
        lambda a, b, c, d: None,
        lambda *, named: None,
        partial(lambda a: None, 1),
    ):
        with pytest.raises(EdictumConfigError) as raised:
            give(function)
        assert said in str(raised.value)
        assert "Write it as def" in str(raised.value)


def test_whatever_can_take_them_is_taken() -> None:
    """Defaults, stars, objects, partial functions; and builtins that do not tell what they take."""
    agree = Verdict.pass_()
    functions: list[Any] = [
        lambda call, result: agree,
        lambda *every: agree,
        lambda call, result, more=1: agree,
        Callable(),
        dict.get,
        max,
    ]
    functions += [partial(lambda x, call, result: agree, 1), lambda call, result, *, named=1: agree]
    for function in functions:
        assert postcondition("*", id="c")(function).check is function
