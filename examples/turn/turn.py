"""One turn of an agent, offline: a scripted model, five tools, a contract, an approval, and
everything that can go wrong.

Run it with ``python examples/turn/turn.py``. Each step prints what the model asked for and what it
read in return.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import Any

from edictum import (
    Edictum,
    InMemoryApprovalBackend,
    Verdict,
    outcome_to_model_content,
    precondition,
)
from edictum.harness import (
    ArtifactStore,
    ModelReply,
    ToolCallRequest,
    TurnBudget,
    TurnResult,
    run_turn,
    tool,
)
from edictum.outcomes import ToolOutcome

# --- The tools ------------------------------------------------------------------------------------

PRICES = {"apples": 3, "pears": 4}


@tool(side_effect="read", idempotent=True, resource_keys=["prices"])
async def get_price(fruit: str, amount: int = 1) -> dict[str, Any]:
    """The price of some fruit."""
    return {"fruit": fruit, "total": PRICES[fruit] * amount}


@tool(side_effect="write", resource_keys=["prices"])
async def set_price(fruit: str, price: int) -> str:
    """Change a price."""
    PRICES[fruit] = price
    return "changed"


@tool(side_effect="read", timeout_s=0.2)
def ask_supplier(fruit: str) -> str:
    """Ask the supplier, who never answers."""
    time.sleep(1)
    return "yes?"


@tool(side_effect="read")
async def read_log() -> str:
    """The shop's log: far too long for a message."""
    return "\n".join(f"day {day}: sold {day % 7} apples" for day in range(2_000))


@tool(side_effect="irreversible", window_s=86_400, identity=("order",), verify="get_price")
async def pay(order: str, amount: int) -> str:
    """Pay for an order. It happens once a day for each order, whatever the model asks for."""
    return f"paid {amount} for {order}"


TOOLS = [get_price, set_price, ask_supplier, read_log, pay]

# --- The rules ------------------------------------------------------------------------------------


@precondition("set_price")
def no_gifts(call: Any) -> Verdict:
    return Verdict.pass_() if call.args["price"] > 0 else Verdict.fail("Nothing is free here.")


@precondition("pay", effect="approve")
def a_person_agrees(call: Any) -> Verdict:
    return Verdict.fail(f"Pay {call.args['amount']} for {call.args['order']}?")


# --- The model: it says what it was told to say ---------------------------------------------------


def call(number: int, name: str, **arguments: Any) -> ToolCallRequest:
    return ToolCallRequest(f"call_{number}", name, arguments)


SCRIPT = [
    # Two reads run side by side; the amount is a text, and is repaired.
    [call(1, "get_price", fruit="apples"), call(2, "get_price", fruit="pears", amount="2")],
    # The same read again is pointless. A write is refused by a contract, another one goes through;
    # then the read is fresh again.
    [
        call(3, "get_price", fruit="apples"),
        call(4, "set_price", fruit="apples", price=0),
        call(5, "set_price", fruit="apples", price=5),
    ],
    [call(6, "get_price", fruit="apples"), call(7, "ask_supplier", fruit="apples")],
    # A wrong name, wrong arguments, an output that is too large.
    [
        call(8, "get_prize", fruit="apples"),
        call(9, "get_price", fruits="apples"),
        call(10, "read_log"),
    ],
    # A person is asked, then it is paid; the second payment of the same order is not made.
    [call(11, "pay", order="order-7", amount=5), call(12, "pay", order="order-7", amount=5)],
]


class ScriptedModel:
    """Works through the script, then answers."""

    def __init__(self) -> None:
        self._steps = list(SCRIPT)

    async def __call__(self, messages: list[dict[str, Any]], tools: Any) -> ModelReply | str:
        if not self._steps or not tools:
            return "Apples now cost 5. The order is paid."
        return ModelReply("", tuple(self._steps.pop(0)))


# --- The turn -------------------------------------------------------------------------------------


def show(request: ToolCallRequest, outcome: ToolOutcome) -> None:
    content = outcome_to_model_content(outcome)
    print(
        f"{request.id:>8}  {request.name:<13} {type(outcome).__name__:<22}"
        f" {content if len(content) < 110 else content[:107] + '...'}"
    )


async def main() -> TurnResult:
    guard = Edictum(
        contracts=[no_gifts, a_person_agrees], approval_backend=InMemoryApprovalBackend(answer=True)
    )
    question = [{"role": "user", "content": "Raise the price of apples to 5, and pay order 7."}]
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore(f"{folder}/artifacts")
        budget = TurnBudget.create(timeout_s=30, max_steps=8, max_tool_calls=14)
        result = await run_turn(
            ScriptedModel(), question, TOOLS, guard, budget, artifact_store=store, on_outcome=show
        )
    print("\nThe model was told:", *result.notes, sep="\n  ")
    print(
        f"\nAnswer: {result.text}  ({result.stopped_by}; {len(result.outcomes)} calls,"
        f" {len(guard.local_sink.events)} audit events)"
    )
    return result


if __name__ == "__main__":
    asyncio.run(main())
