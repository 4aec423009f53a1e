"""Checks of the adapters' suite about arguments that a model leaves out."""

from __future__ import annotations

from edictum.guard import Edictum
from edictum.testing._adapter_driver import AdapterDriver, ScriptedCall, point
from edictum.testing._adapter_tools import SuiteTools, list_actions, not_too_much


class DefaultChecks(AdapterDriver):
    @point("defaults")
    def test_a_contract_is_not_bypassed_by_leaving_an_argument_out(self, tools: SuiteTools) -> None:
        """Fail if the adapter does not tell the guard the parameters of the tool."""
        guard = Edictum(contracts=[not_too_much])
        asked: tuple[dict[str, float], ...] = ({}, {"amount": 500.0}, {"amount": 5.0})
        script = [
            [ScriptedCall("pay", {"key": f"key_{number}", **args}, f"call_{number}")]
            for number, args in enumerate(asked)
        ]
        answers = self.ask(self.make_adapter(guard), [tools.make_paying("pay")], script)
        assert tools.ran == ["key_2"], tools.ran
        denied = ["500 is too much" in answer.text for answer in answers]
        assert denied == [True, True, False], answers
        assert "paid 5" in answers[2].text, answers
        assert list_actions(guard)[:2] == ["call_denied"] * 2, list_actions(guard)
