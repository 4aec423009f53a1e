"""Checks of the adapters' suite about what else in a framework can change a call."""

from __future__ import annotations

from edictum.guard import Edictum
from edictum.testing._adapter_driver import AdapterDriver, make_script, point
from edictum.testing._adapter_tools import SuiteTools, look, no_forbidden


class ChangeChecks(AdapterDriver):
    @point("what runs")
    def test_a_tool_gets_only_what_was_judged_or_recorded_as_its_arguments(
        self, tools: SuiteTools
    ) -> None:
        """Fail if a tool runs with arguments that the audit does not have.

        A call that is changed after it was judged may be judged again, refused, or found out.
        """
        script, made = make_script("look", "a"), [tools.make("look", look)]
        self.play(self.build_changing(None, made, script))
        assert tools.ran == ["forbidden"], f"nothing changes the call: {tools.ran}"
        tools.ran.clear()
        guard = Edictum(contracts=[no_forbidden])
        self.play(self.build_changing(self.make_adapter(guard), made, script))
        events = guard.local_sink.events
        said = [(str(event.action), event.tool_args.get("key")) for event in events]
        assert said, "the call did not pass through the guard"
        judged = [key for action, key in said if action in ("call_allowed", "call_changed")]
        assert set(tools.ran) <= set(judged), f"{tools.ran} ran, {said}"
        ended = [key for action, key in said if action in ("call_executed", "call_failed")]
        assert ended == tools.ran, f"{tools.ran} ran, {said}"
