"""The lifecycle: the one path that every governed call takes.

A call is admitted, run, and concluded:

* **admit** (``admission``): find out on whose behalf the call is made, ask the before-hooks, which
  may deny it or rewrite its arguments, and ask every contract. If one wants approval and none
  denies, a person is asked (``approval``), who may change the arguments: then every contract is
  asked about the changed ones. Then one atomic Reservation checks all limits of the
  session and takes the call's slots, session contracts judge the counters of that moment, and the
  event ``call_allowed`` is recorded. A denial is recorded as ``call_denied`` (**refuse**).
* **run** (``start``): the approval of a person, where there is one, is marked as used. The tool's
  body gets the arguments that were checked. They were copied when the call was made, so neither the
  caller nor a hook can change them in between.
* **conclude** (``conclusion``, ``verdict``): detect whether the call succeeded, ask postconditions
  and after-hooks, settle the reservation as a success or a failure, record the closing event and
  return the outcome.

The lifecycle is a generator. It yields what it needs as values (``core.effects``): a Reservation,
an Entry to record, the RunTool, an approval to Ask for. A driver (``runtime``) performs each effect
and sends back the answer, or ``Failed`` with the exception. Nothing in ``core`` awaits, reads a
clock, does I/O or calls a port, so the same path serves asynchronous callers, synchronous ones, and
frameworks that offer a hook before the tool and one after it.

Three rules hold everywhere:

1. Every path ends in one closing event and one ToolOutcome, even when a port fails or the caller is
   cancelled. An interruption such as KeyboardInterrupt closes the call first (**abort**).
2. Until RunTool any failure denies the call and releases its slots. From RunTool on the call is
   counted and its result is kept, even when the ledger or the audit fails.
3. Contracts, the person who approves, the tool and the audit see the same arguments.

A call of a turn (``lifecycle.turn``) passes the turn's gates first: deadline, blocked tools,
validation, duplicates, budget. Each attempt then takes this path, and everything it waits for is
bounded by the time that the turn has left.
"""

from __future__ import annotations

from edictum.core.config import FailureFlag, Flow, LifecycleConfig
from edictum.core.effects import Ran, RunTool
from edictum.core.lifecycle.admission import Admission, Admitting, admit
from edictum.core.lifecycle.conclusion import abort, conclude
from edictum.core.lifecycle.start import start_or_refuse
from edictum.core.policy import Plan
from edictum.core.turn import CallInTurn

NOT_REPORTED = Ran()  # the tool was started, and has not reported its end


def lifecycle(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    failure_flag: FailureFlag | None = None,
    turn: CallInTurn | None = None,
    admitting: Admitting | None = None,
) -> Flow:
    """Govern one call: admit it, run its tool, conclude it. Returns the outcome.

    ``failure_flag`` is a framework's own way to tell that a result is a failure. ``admitting``
    replaces ``admit`` for a caller that has already asked the contracts.
    """
    admission = ran = None
    try:
        admission = yield from admitting or admit(run, plan, config, turn)
        start = yield from start_or_refuse(admission, plan, config, turn)
        if not isinstance(start, RunTool):
            return start
        ran = NOT_REPORTED
        ran = yield start
        return (yield from conclude(admission, ran, run, plan, config, failure_flag, turn))
    except BaseException as exc:  # such as KeyboardInterrupt in a contract
        if type(exc) is not GeneratorExit:
            yield from abort(admission or Admission(run, plan.passed), exc, ran, plan, config)
        raise
