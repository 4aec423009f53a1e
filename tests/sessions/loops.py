"""A ledger as coroutines of an event loop use it, for tests that are no coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from edictum.sessions._batching import OWN_CONNECTION_AFTER, LoopSender


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())  # as asyncio.run ends
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def run(self, work: Any, *arguments: Any) -> Any:
        """Call it in the loop, and await what it gives."""

        async def call() -> Any:
            answer = work(*arguments)
            return await answer if hasattr(answer, "__await__") else answer

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(60)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


class OnLoop:
    """A store's ledger asked from an event loop, over the connection of that loop."""

    def __init__(self, ledger: Any) -> None:
        self.ledger = ledger
        self.loop = Loop()
        for _ in range(OWN_CONNECTION_AFTER):
            self.loop.run(ledger.ping)
        assert isinstance(self.loop.run(ledger._pool._sender_here), LoopSender)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.ledger, name)
        return lambda *arguments: self.loop.run(verb, *arguments)

    def close(self) -> None:
        self.loop.run(self.ledger.close)
        self.loop.end()
