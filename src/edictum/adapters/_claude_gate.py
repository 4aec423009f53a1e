"""What the adapter for the Claude Agent SDK asks the guard: before a call, again if its input
changes, and at its end.

The CLI reports a call when the model asks for it (PreToolUse), when a permission for it is needed,
and when it has ended. In between, permissions may refuse it, and other hooks may change its input.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Unpack, cast

from edictum._logs import ADAPTER_RUN_STOPPED, log
from edictum.adapters._asking_ahead import is_asked_about
from edictum.adapters._base import Adapter, AdapterOptions
from edictum.adapters._claude_calls import (
    UNKNOWN_CALL,
    ClaudeCall,
    OpenCalls,
    StoppedRuns,
    ToolOutput,
    make_hook_output,
)
from edictum.adapters._claude_deferring import (
    ANOTHER_WAITS,
    CLI_TOOLS_WAIT,
    NOT_DEFERRED,
    CallDeferred,
    DeferredCalls,
    defer_call,
)
from edictum.adapters._claude_user_hooks import (
    UserHooks,
    find_refusal,
    has_deferred,
    take_output,
)
from edictum.adapters._reply import OnWarn, ToolReply, deny_broken_gate, to_text
from edictum.core.decide import describe
from edictum.core.effects import ArgumentsChanged
from edictum.core.parking import WAIT, Park
from edictum.core.redaction import shorten
from edictum.core.values import is_same
from edictum.errors import EdictumToolError

MAX_REASON = 500  # characters
RUN_STOPPED = (
    "The run was stopped: a tool ran with other arguments than the guard had checked. They are in"
    " its audit. Wrap what changed them: adapter.wrap_can_use_tool(...), adapter.wrap_hooks(...)."
)
REPORT = (
    "A person must approve this call, and a sub-agent cannot wait for that. Report to the main"
    " agent what you wanted to do; it can make the call."
)
Hook = Callable[..., Awaitable[Any]]


class ClaudeGate(Adapter):
    """The calls of the CLI, and what the guard says about them."""

    def __init__(self, *args: Any, **options: Unpack[AdapterOptions]) -> None:
        super().__init__(*args, **options)
        self._open, self._stopped = OpenCalls(), StoppedRuns()
        self._schemas: dict[str, Any] = {}  # of the tools of this process, by name
        self._deferred = DeferredCalls()
        self._deferrable: set[str] = set()  # tools of this process, as the CLI names them

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return ArgumentsChanged, CallDeferred  # the first is begun again with other arguments

    def make_park(self, context: Mapping[str, Any] | None) -> Park | str:
        # a handler that was called without a hook has no context, and runs nothing
        can_defer = context is None or self._can_defer(context)
        return defer_call if can_defer else CLI_TOOLS_WAIT

    def _can_defer(self, asked: Mapping[str, Any]) -> bool:
        return str(asked.get("tool_name")) in self._deferrable

    # --- Before the tool --------------------------------------------------------------------------

    async def _open_call(
        self, asked: Mapping[str, Any], hooks: UserHooks, *told: Any
    ) -> dict[str, Any]:
        """Ask the user's hooks, then the guard about the input that they leave.

        Nothing is said about a call that may run: the permissions of the CLI still hold for it.
        """
        said = await hooks.ask(asked, *told)
        if has_deferred(said):
            return await self._judge_deferral(asked, said)
        specific = said.get("hookSpecificOutput") or {}
        given = specific.pop("updatedInput", None)
        final = asked if given is None else {**asked, "tool_input": given}
        if (refusal := self._stopped.find(asked) or find_refusal(said)) is not None:
            reply = await self._deny(final, refusal)
            return {**said, **_deny_hook(reply), **self._stopped.answer(asked)}
        if (obstacle := await self._find_obstacle(final)) is not None:
            return _deny_hook(await self._deny(final, obstacle))
        try:
            admitted = await self._admit(final)
        except CallDeferred:
            return make_hook_output("PreToolUse", permissionDecision="defer")
        self._deferred.release(asked)
        if isinstance(admitted, ToolReply):
            return _deny_hook(admitted)
        if is_same(admitted.args, asked["tool_input"]):
            return said
        admitted.is_handed_on = True
        return {**said, **make_hook_output("PreToolUse", **specific, updatedInput=admitted.args)}

    async def _judge_deferral(
        self, asked: Mapping[str, Any], said: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the output of hooks that defer a call; deny a call that would then run
        unjudged.
        """
        if self._can_defer(asked):
            return said
        return _deny_hook(await self._deny(asked, NOT_DEFERRED))

    async def _find_obstacle(self, asked: Mapping[str, Any]) -> str | None:
        """Return why a person cannot be asked about a call now, if a person would be asked."""
        is_sub_agent = bool(asked.get("agent_id"))
        if not is_sub_agent and not self._can_defer(asked):
            return None
        if not await self._would_ask(asked):
            return None
        if is_sub_agent:
            return REPORT
        return None if self._deferred.claim(asked) else ANOTHER_WAITS

    async def _would_ask(self, asked: Mapping[str, Any]) -> bool:
        """Return whether a person would be asked about a call, and may take their time."""
        name, args = str(asked.get("tool_name")), asked.get("tool_input")
        if not self.can_pause(name) or not isinstance(args, Mapping):
            return False
        details: dict[str, Any] = {"context": asked, "parameters": self._find_schema(name)}
        return await is_asked_about(await self._adescribe(name, args, cast("Any", details)))

    async def _admit(self, asked: Mapping[str, Any], **options: Any) -> ToolReply | ClaudeCall:
        """Return the denial of a call, or the call that is now open."""
        try:
            key, name, args = asked["tool_use_id"], asked["tool_name"], asked["tool_input"]
            call = ClaudeCall(asked)
            details: dict[str, Any] = {"call_id": key, "flag": call.flag, "context": asked}
            details["parameters"] = self._find_schema(str(name))
            ticket = await self.abefore(key, name, args, **details, **options)
        except CallDeferred:
            raise
        except Exception as exc:
            # without on_failure="block", the CLI would take an exception for consent
            return self.reply(deny_broken_gate(str(asked.get("tool_name")), exc))
        if isinstance(ticket, ToolReply):
            return ticket
        call.args = dict(ticket.args)
        self._open.add(key, call)
        return call

    def _find_schema(self, name: str) -> Any:
        """Return the schema of a tool of ours that the CLI knows as mcp__server__name, else
        None.
        """
        is_mcp, known = name.startswith("mcp__"), self._schemas.items()
        return next((it for own, it in known if is_mcp and name.endswith(f"__{own}")), None)

    async def _deny(self, asked: Mapping[str, Any], reason: str) -> ToolReply:
        """Deny a call without asking any rule."""
        name, args = str(asked.get("tool_name")), asked.get("tool_input")
        try:
            details: dict[str, Any] = {"call_id": asked.get("tool_use_id"), "context": asked}
            return await self.adeny(name, args or {}, reason, **details)
        except Exception as exc:
            return self.reply(deny_broken_gate(name, exc))

    # --- Between the guard and the tool -----------------------------------------------------------

    def _wrap_permission(self, can_use_tool: Hook) -> Hook:
        """Return the function with its answer judged: what it lets through, and what it refuses."""
        deny = self.load("claude_agent_sdk").PermissionResultDeny

        @wraps(can_use_tool)
        async def ask(name: str, args: dict[str, Any], context: Any) -> Any:
            key = context.tool_use_id
            try:
                answer = await can_use_tool(name, args, context)
            except Exception as exc:  # not a cancellation: a hook has answered in its place
                await self._refuse(key, f"can_use_tool failed: {describe(exc)}")
                raise
            if getattr(answer, "behavior", None) != "allow":
                await self._refuse(key, getattr(answer, "message", "") or "can_use_tool refused.")
                return answer
            given = args if answer.updated_input is None else answer.updated_input
            judged = await self._judge_again({"tool_name": name, "tool_use_id": key}, given)
            if isinstance(judged, ToolReply):
                return deny(message=to_text(judged.text))
            return answer if is_same(judged, given) else replace(answer, updated_input=judged)

        return ask

    def _wrap_permission_hook(self, hook: Hook) -> Hook:
        """Return a PermissionRequest hook whose new input is judged."""

        @wraps(hook)
        async def ask(asked: Mapping[str, Any], key: Any = None, context: Any = None) -> Any:
            said = await hook(asked, key, context)
            decision = ((said or {}).get("hookSpecificOutput") or {}).get("decision") or {}
            if decision.get("behavior") != "allow":
                return said  # what it refuses is told at the end of its batch
            given = decision.get("updatedInput") or asked["tool_input"]
            judged = await self._judge_again({**asked, "tool_use_id": key}, given)
            if isinstance(judged, ToolReply):
                decision = {"behavior": "deny", "message": to_text(judged.text)}
            else:
                decision = {**decision, "updatedInput": judged}
            return {**said, **make_hook_output("PermissionRequest", decision=decision)}

        return ask

    async def _judge_again(
        self, asked: Mapping[str, Any], args: dict[str, Any]
    ) -> ToolReply | dict[str, Any]:
        """Return the denial of an open call with these arguments, or those that it may run with."""
        key = asked["tool_use_id"]
        call = self._open.find_waiting(key)
        if call is None:
            return await self._deny({**asked, "tool_input": args}, UNKNOWN_CALL)
        if is_same(call.args, args):
            return call.args
        self._open.remove(key)
        await self.aafter(key, error=ArgumentsChanged())
        # by now the CLI cannot defer it
        admitted = await self._admit({**call.asked, "tool_input": args}, park=lambda _: WAIT)
        return admitted if isinstance(admitted, ToolReply) else admitted.args

    async def _refuse(self, key: str | None, reason: str) -> None:
        """Release the slot of a call that was allowed here and refused elsewhere."""
        if self._open.find_waiting(key) is not None:
            assert key is not None  # else it is not found
            self._open.remove(key)
            if (ticket := self._tickets.take(key)) is not None:
                await ticket.refuse(shorten(reason, MAX_REASON))

    # --- After the tool ---------------------------------------------------------------------------

    async def _finish(
        self, asked: Mapping[str, Any], on_warn: OnWarn, hooks: UserHooks, *told: Any
    ) -> dict[str, Any]:
        """Ask the user's hooks, then judge the output that they produced: the guard has the last
        word.
        """
        said = await hooks.ask(asked, *told)
        replaced = take_output(said)
        final = {**asked, "tool_response": replaced[0]} if replaced else asked
        output = ToolOutput(final.get("tool_response"))
        is_judged, reply = await self._end(final, on_warn, value=output.value)
        if reply is not None and isinstance(reply.error, ArgumentsChanged):
            return self._stop_run(asked)
        # what is judged already was so before these hooks saw it
        answer = {} if is_judged else output.answer(reply)
        if replaced and not answer:
            answer = make_hook_output("PostToolUse", updatedToolOutput=replaced[0])
        return {**self._join_texts(said, answer), **self._stopped.answer(asked)}

    def _join_texts(self, said: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer with what else hooks say, without secrets: they saw the raw output."""
        if not said:
            return answer
        kept: dict[str, Any] = self.guard.redaction.redact_value(said)
        specific = {**(kept.pop("hookSpecificOutput", None) or {})}
        specific |= answer.get("hookSpecificOutput", {})
        specific.pop("hookEventName", None)
        own = make_hook_output("PostToolUse", **specific) if specific else {}
        return {**kept, **answer, **own}

    async def _fail(self, asked: Mapping[str, Any], on_warn: OnWarn) -> dict[str, Any]:
        """Record the failure. The CLI lets no hook change its text."""
        error: BaseException = EdictumToolError(str(asked.get("error", "")))
        error = CancelledError() if asked.get("is_interrupt") else error
        _, reply = await self._end(asked, on_warn, error=error)
        if reply is not None and isinstance(reply.error, ArgumentsChanged):
            return self._stop_run(asked)
        return self._stopped.answer(asked)

    async def _end(
        self, asked: Mapping[str, Any], on_warn: OnWarn, **ended: Any
    ) -> tuple[bool, ToolReply | None]:
        """Close a call with its result. Returns whether that was judged, and the reply."""
        key, args = asked["tool_use_id"], asked.get("tool_input")
        call, state = self._open.find_waiting(key), self._open.end(key, args)
        if state == "refused" and (ticket := self._tickets.take(key)) is not None:
            await ticket.refuse(UNKNOWN_CALL)
        if state != "open" or call is None:
            return state in ("judged", "refused"), None
        is_completed = call.is_handed_on
        return False, await self.aafter(
            key, on_warn=on_warn, args=args, is_completed=is_completed, **ended
        )

    def _stop_run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        call = f"{asked.get('tool_name')} ({asked['tool_use_id']})"
        log(ADAPTER_RUN_STOPPED, "%s: %s", call, RUN_STOPPED, tool=asked.get("tool_name"))
        return self._stopped.stop(asked, RUN_STOPPED)

    async def _end_batch(self, asked: Mapping[str, Any], _: OnWarn) -> dict[str, Any]:
        """Release the slots of calls that did not run: the CLI reported no end of them."""
        for call in asked.get("tool_calls") or ():
            await self._refuse(call["tool_use_id"], to_text(call.get("tool_response")))
        return self._stopped.answer(asked)

    async def _stop(self, asked: Mapping[str, Any], _: OnWarn) -> dict[str, Any]:
        """Close the calls of an agent that has stopped; whether they ran is not known."""
        for key in self._open.give_up(ClaudeCall(asked).owner):
            await self.aafter(key, error=CancelledError())
        return {}


def _deny_hook(reply: ToolReply) -> dict[str, Any]:
    denial = {"permissionDecision": "deny", "permissionDecisionReason": reply.text}
    return make_hook_output("PreToolUse", **denial)
