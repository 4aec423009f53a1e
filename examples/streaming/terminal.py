"""An agent in a terminal that writes while it thinks. Ctrl-C stops the turn, not the conversation.

Run it with ``python examples/streaming/terminal.py``, say "Archive everything.", press Ctrl-C when
the first file is done, and ask "What did you do?".
"""

from __future__ import annotations

from typing import Any

from agent import archive, make_guard, write_reply

from edictum import outcome_to_model_content
from edictum.harness import (
    TextDelta,
    ToolCallEnded,
    ToolCallMade,
    TurnEnded,
    TurnEvent,
    TurnState,
    run_turn_sync,
)


def show(event: TurnEvent) -> None:
    match event:
        case TextDelta(text):
            print(text, end="", flush=True)
        case ToolCallMade(call):
            print(f"\n  {call.name} {call.arguments['name']} ...", end="", flush=True)
        case ToolCallEnded(_, outcome):
            print(f" {outcome_to_model_content(outcome)}", end="", flush=True)
        case TurnEnded(result):
            print(f"\n({result.stopped_by})", flush=True)


def main() -> None:
    guard = make_guard()
    conversation: list[dict[str, Any]] = []
    while True:
        try:
            said = input("> ")
        except (EOFError, KeyboardInterrupt):
            return
        conversation.append({"role": "user", "content": said})
        state = TurnState()
        try:
            run_turn_sync(write_reply, conversation, [archive], guard, state=state, on_event=show)
        except KeyboardInterrupt:
            print("\n(stopped)", flush=True)
        conversation = list(state.messages or conversation)  # with what ran, and what did not


if __name__ == "__main__":
    main()
