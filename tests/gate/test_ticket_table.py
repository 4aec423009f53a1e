"""The table of open tickets, when ids repeat or tickets are left in it."""

from __future__ import annotations

import pytest

from edictum import Edictum, EdictumInputError
from edictum.runtime.ticket import TicketTable


def test_a_duplicate_id_is_declined_and_nothing_is_counted_as_run() -> None:
    """Its tool has not run: the attempt is all there was."""
    guard, table = Edictum(), TicketTable()
    table.put("1", guard.begin_sync("t", {}))
    with pytest.raises(EdictumInputError, match="already open"):
        table.put("1", guard.begin_sync("t", {}))
    counted = guard.session().snapshot().totals
    assert (counted.attempts, counted.executions, counted.in_flight) == (2, 0, 1)
    assert guard.local_sink.last().action == "call_denied"


def test_a_finished_ticket_that_was_left_in_the_table_disturbs_nobody() -> None:
    """The sweep skips it, and goes on with the next."""
    guard, table = Edictum(), TicketTable(max_open=1)
    finished = guard.begin_sync("a", {})
    table.put("a", finished)
    finished.finish_sync(1)
    table.put("b", guard.begin_sync("b", {}))
    table.put("c", guard.begin_sync("c", {}))
    counted = guard.session().snapshot().totals
    assert (counted.successes, counted.failures, counted.in_flight, len(table)) == (1, 1, 1, 1)
