"""AdapterConformance: what every adapter must do in its framework's real loop.

A driver says how an agent is made and run in one framework; the suite plays scripts through it and
looks at four things only: which tool bodies ran, what the model read next, what was written to the
audit, and what was raised. docs/adapters/writing-an-adapter.md shows one.

A point that a framework cannot do is declared in ``cannot`` with the reason, and is reported as a
dash. Deny, redact, failure and limit cannot be declared away, nor can the call id where the
framework has one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any
from unittest import SkipTest

from edictum.testing._adapter_change_checks import ChangeChecks
from edictum.testing._adapter_default_checks import DefaultChecks
from edictum.testing._adapter_driver import RESULTS as RESULTS
from edictum.testing._adapter_driver import AdapterDriver
from edictum.testing._adapter_driver import ControlFlow as ControlFlow
from edictum.testing._adapter_driver import ModelScript as ModelScript
from edictum.testing._adapter_driver import ScriptedCall as ScriptedCall
from edictum.testing._adapter_driver import ScriptPlayer as ScriptPlayer
from edictum.testing._adapter_driver import ToolAnswer as ToolAnswer
from edictum.testing._adapter_driver import get_conversation as get_conversation
from edictum.testing._adapter_large_checks import LargeResultChecks
from edictum.testing._adapter_pause_checks import PauseChecks
from edictum.testing._adapter_result_checks import ResultChecks
from edictum.testing._adapter_run_checks import RunChecks
from edictum.testing._adapter_tools import SECRET as SECRET
from edictum.testing._adapter_tools import BrokenGuard as BrokenGuard
from edictum.testing._adapter_tools import get_last_event as get_last_event
from edictum.testing._adapter_tools import leak as leak
from edictum.testing._adapter_tools import list_actions as list_actions
from edictum.testing._adapter_tools import no_forbidden as no_forbidden
from edictum.testing._adapter_tools import no_secret as no_secret
from edictum.testing._adapter_tools import without_secret as without_secret
from edictum.testing._adapter_user_checks import UserChecks

# The first names of these classes, for drivers that third parties have written.
Call, Answer, Script = ScriptedCall, ToolAnswer, ModelScript
ESSENTIAL = frozenset({"deny", "redact", "failure", "limit", "call id"})


class AdapterConformance(
    ResultChecks, RunChecks, PauseChecks, UserChecks, DefaultChecks, LargeResultChecks, ChangeChecks
):
    """Subclass it in a test module with the methods of a driver, and run it as tests."""

    def test_nothing_essential_is_declared_away(self) -> None:
        away = set(self.cannot) & ESSENTIAL
        allowed = set() if self.has_call_ids else {"call id"}
        assert away <= allowed, f"cannot be declared away: {away}"
        unknown = set(self.cannot) - set(list_points())
        assert not unknown, f"no such points: {unknown}"

    def test_no_subclass_replaces_a_test_of_the_suite(self) -> None:
        for name, test in _list_tests():
            replaced = f"{name} is replaced; declare in `cannot` what the framework cannot do"
            assert getattr(type(self), name) is test, replaced


def _list_tests() -> list[tuple[str, Callable[[Any], None]]]:
    checks = AdapterConformance.__bases__
    return [
        (name, test)
        for part in (*checks, AdapterConformance)
        for name, test in vars(part).items()
        if name.startswith("test_")
    ]


def list_points() -> list[str]:
    """Return the points of the suite in their order: the columns of the comparison table."""
    return list(dict.fromkeys(vars(test)["point"] for _, test in _list_tests() if vars(test)))


def find_failures(suite: AdapterDriver, only: Sequence[str] = ()) -> dict[str, str]:
    """Run the suite, or some of its points, and return what failed, by point."""
    found: dict[str, str] = {}
    for name, test in _list_tests():
        about = vars(test).get("point", name)
        if only and about not in only:
            continue
        try:
            test(suite)
        except SkipTest:
            continue
        except Exception:
            found[about] = traceback.format_exc()
    return found
