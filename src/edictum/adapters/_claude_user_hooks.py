"""The user's own tool hooks, asked before the guard in the way that the CLI would ask them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from edictum._logs import CALLBACK_FAILED, log
from edictum.adapters._canary import CANARY

HookOutput = dict[str, Any]

HOOK_TIMEOUT_S = 60.0  # the CLI's own, where a matcher has none
OTHER_NAMES = {"Agent": "Task"}  # a tool that matchers may call by its earlier name
NAMES_ONLY = re.compile(r"[\w|, -]*", re.ASCII)
RANKS = (None, "allow", "ask", "defer", "deny")  # which decision of several hooks counts
OUTPUT_KEYS = ("updatedToolOutput", "updatedMCPToolOutput")  # the first one counts
JOINED = ("additionalContext", "systemMessage")


def is_matching(matcher: str | None, name: str) -> bool:
    """Return whether the CLI would ask the hooks of a matcher about a tool."""
    if matcher in (None, "", "*"):
        return True
    names = {name, OTHER_NAMES.get(name, name)}
    if NAMES_ONLY.fullmatch(matcher):
        return not names.isdisjoint(part.strip() for part in re.split(r"[|,]", matcher))
    try:
        return any(map(re.compile(matcher).search, names))
    except re.error:  # JavaScript may understand it: better asked once too often
        return True


class UserHooks:
    """Hooks with their matchers, in their order."""

    def __init__(self, matchers: Sequence[Any] = ()) -> None:
        self._matchers = matchers

    def add_time(self, timeout_s: float | None) -> float | None:
        """Return how long the CLI must wait for these hooks and then for the guard."""
        if not self._matchers:
            return timeout_s
        longest = max(matcher.timeout or HOOK_TIMEOUT_S for matcher in self._matchers)
        return longest + (timeout_s or HOOK_TIMEOUT_S)

    async def ask(self, asked: Mapping[str, Any], *told: Any) -> HookOutput:
        """Return the merged output of the hooks for a call; {} if there is none."""
        name = str(asked.get("tool_name"))
        if name == CANARY:  # a self test asks the guard alone
            return {}
        found = [
            _ask_hook(matcher, hook, asked, told)
            for matcher in self._matchers
            if is_matching(matcher.matcher, name)
            for hook in matcher.hooks
        ]
        return merge_outputs(await asyncio.gather(*found))


async def _ask_hook(
    matcher: Any, hook: Any, asked: Mapping[str, Any], told: tuple[Any, ...]
) -> HookOutput:
    """Return the output of one hook. A hook that fails has none, unless it is wired to block."""
    try:
        waited = hook(deepcopy(asked), *told)
        said = await asyncio.wait_for(waited, matcher.timeout or HOOK_TIMEOUT_S)
        return dict(said)
    except Exception as exc:
        log(CALLBACK_FAILED, "a hook of %s failed", asked.get("hook_event_name"), exc_info=exc)
        if matcher.on_failure != "block":
            return {}
        return {
            "decision": "block",
            "reason": "A hook of the application failed. This is not a denial by policy.",
        }


def merge_outputs(outputs: Iterable[HookOutput]) -> HookOutput:
    """Return one output: the strictest decision, the last new input, all texts for the model."""
    merged: HookOutput = {}
    specific: HookOutput = {}
    for output in outputs:
        own = dict(output.get("hookSpecificOutput") or {})
        if _get_rank(own) < _get_rank(specific):
            own.pop("permissionDecision", None)
            own.pop("permissionDecisionReason", None)
        specific |= _join(specific, own)
        rest = {key: value for key, value in output.items() if key != "hookSpecificOutput"}
        if find_refusal(merged) is None:  # the first refusal stands
            merged |= _join(merged, rest)
    if specific:
        merged["hookSpecificOutput"] = specific
    return merged


def _get_rank(specific: HookOutput) -> int:
    decision = specific.get("permissionDecision")
    return RANKS.index(decision) if decision in RANKS else RANKS.index("deny")


def _join(known: HookOutput, new: HookOutput) -> HookOutput:
    both = (key for key in JOINED if key in known and key in new)
    return {**new, **{key: f"{known[key]}\n{new[key]}" for key in both}}


def find_refusal(output: HookOutput) -> str | None:
    """Return why hooks refuse a call, in their own words; None if they do not."""
    specific = output.get("hookSpecificOutput") or {}
    if _get_rank(specific) == RANKS.index("deny"):
        return str(specific.get("permissionDecisionReason") or "A hook refused the call.")
    if output.get("decision") == "block":
        return str(output.get("reason") or "A hook blocked the call.")
    if output.get("continue_", output.get("continue")) is False:
        return str(output.get("stopReason") or "A hook stopped the run.")
    return None


def has_deferred(output: HookOutput) -> bool:
    return (output.get("hookSpecificOutput") or {}).get("permissionDecision") == "defer"


def take_output(said: HookOutput) -> list[Any]:
    """Remove and return the replacement of a tool's output from what hooks answered, if there is
    one.
    """
    specific = said.get("hookSpecificOutput") or {}
    return [specific.pop(key) for key in OUTPUT_KEYS if key in specific]
