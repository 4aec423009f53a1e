"""Checks of the adapters' suite about users: who share an agent and must not share a session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from edictum.core.limits import OperationLimits
from edictum.guard import Edictum
from edictum.testing._adapter_driver import (
    AdapterDriver,
    ModelScript,
    ScriptedCall,
    get_conversation,
    point,
)
from edictum.testing._adapter_tools import SuiteTools

USERS = {"alice": "bob", "bob": "alice"}  # and whom their models claim to be
LIMIT, CALLS = 3, 5


class UserChecks(AdapterDriver):
    @point("users")
    def test_users_who_take_turns_with_one_agent_are_counted_apart(self, tools: SuiteTools) -> None:
        """Fail if calls are counted by adapter, by run, or by what a model says."""
        scripts = {
            user: [*([call] for call in calls[:2]), [], *([call] for call in calls[2:])]
            for user, calls in _make_calls().items()
        }
        guard, agent = self._build_shared_agent(tools, scripts)
        for user in [*USERS, *USERS]:
            self._play_as(agent, user)
        self._check_users(guard, tools)

    @point("users")
    def test_users_who_run_one_agent_at_once_are_counted_apart(self, tools: SuiteTools) -> None:
        """Fail if the adapter keeps the current user in a place that runs share."""
        guard, agent = self._build_shared_agent(
            tools, {user: [calls] for user, calls in _make_calls().items()}
        )
        if self.way == "async":
            asyncio.run(self._arun_all(agent))
        else:
            with ThreadPoolExecutor(len(USERS)) as pool:
                list(pool.map(lambda user: self.run_as(agent, user), USERS))
        self._check_users(guard, tools)

    def _build_shared_agent(
        self, tools: SuiteTools, scripts: Mapping[str, ModelScript]
    ) -> tuple[Edictum, Any]:
        guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
        adapter = self.make_adapter(guard, **self.get_user_options())
        return guard, self.build(adapter, [tools.make_personal("look")], scripts)

    def _play_as(self, agent: Any, user: str) -> None:
        if self.way == "async":
            asyncio.run(self.arun_as(agent, user))
        else:
            self.run_as(agent, user)

    async def _arun_all(self, agent: Any) -> None:
        await asyncio.gather(*(self.arun_as(agent, user) for user in USERS))

    def _check_users(self, guard: Edictum, tools: SuiteTools) -> None:
        for user in USERS:
            own = [event for event in guard.local_sink.events if _get_user(event.tool_args) == user]
            session = self.get_session_of(user)
            found = {(event.session_id, (event.principal or {}).get("user_id")) for event in own}
            assert found == {(session, user)}, f"{user}: {found}"
            ends = [str(event.action) for event in own if event.action != "call_allowed"]
            wanted = ["call_denied"] * (CALLS - LIMIT) + ["call_executed"] * LIMIT
            assert sorted(ends) == wanted, f"{user}: {ends}"
            ran = [key for key in tools.ran if key.startswith(user)]
            assert len(ran) == LIMIT, f"{user}: these bodies ran: {ran}"
            assert guard.session(session).executions == LIMIT, guard.session(session).executions


def _make_calls() -> dict[str, list[ScriptedCall]]:
    """Return the calls that a model makes for each user, under the name of another user."""
    return {
        user: [
            ScriptedCall(
                "look",
                {
                    "key": f"{user} {number}",
                    "user_id": other,
                    "session_id": get_conversation(other),
                },
                f"{user}_{number}",
            )
            for number in range(CALLS)
        ]
        for user, other in USERS.items()
    }


def _get_user(args: Mapping[str, Any]) -> str:
    return str(args["key"]).split()[0]
