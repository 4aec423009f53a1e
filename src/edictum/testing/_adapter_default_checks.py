"""Checks of the adapters' suite about arguments that a model leaves out, and unreadable ones."""

from __future__ import annotations

from edictum.guard import Edictum
from edictum.testing._adapter_driver import AdapterDriver, ScriptedCall, point
from edictum.testing._adapter_tools import SuiteTools, list_actions, not_too_much

UNREADABLE = ('["key_1"]', '"key_1"', '{"key":')


class DefaultChecks(AdapterDriver):
    @point("defaults")
    def test_a_contract_is_not_bypassed_by_leaving_an_argument_out(self, tools: SuiteTools) -> None:
        """Fail if the adapter does not pass the tool's parameters to the guard."""
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

    @point("defaults")
    def test_arguments_that_cannot_be_read_are_not_judged_by_defaults(
        self, tools: SuiteTools
    ) -> None:
        """Nothing runs. What was sent is denied by what is wrong with it, or never becomes a call
        because the framework refuses it.
        """
        for raw in UNREADABLE if self.takes_text_args else ():
            guard = Edictum(contracts=[not_too_much])
            script = [[ScriptedCall("pay", {}, "call_1", raw)]]
            agent = self.build(self.make_adapter(guard), [tools.make_paying("pay")], script)
            self.play(agent)
            read = [answer.text for answer in self.replies(agent)]
            assert tools.ran == [], raw
            assert not any("500" in text for text in read), read
            reasons = [event.reason or "" for event in guard.local_sink.events]
            assert list_actions(guard) in ([], ["call_denied"]), list_actions(guard)
            assert all("arguments are" in reason for reason in reasons), reasons
