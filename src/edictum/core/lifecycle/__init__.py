"""The lifecycle: the one path that every governed call takes.

A call is admitted, run, and concluded:

* **admit** (``admission``): resolve the principal on whose behalf the call is made; ask the
  before-hooks, which may deny the call or rewrite its arguments; ask every contract. If one wants
  approval and none denies, a person is asked (``approval``), who may change the arguments: then
  every contract is asked about the changed ones. One atomic Reservation checks all limits of the
  session and takes the call's slots, which are never held while a person decides; session contracts
  judge the counters of that moment; the event ``call_allowed`` is recorded.
* **run** (``start``): the approval of a person, where there is one, is marked as used. The tool's
  body gets the arguments that were checked. They were copied when the call was made, so neither the
  caller nor a hook can change them in between.
* **conclude** (``conclusion``, ``verdict``): detect whether the call succeeded, ask postconditions
  and after-hooks, settle the reservation as a success or a failure, record the closing event and
  return the outcome.

A call that is denied on the way is **refused** (``conclusion.refuse``): its slots are released,
``call_denied`` is recorded, and its outcome is a ToolDenied.

The values that are passed along:

* ``RunTool``: the call with its frozen arguments, its body, and where the body runs. It comes in as
  what the caller asks for; yielded, it is the effect that runs the tool.
* ``Plan``: what applies to this tool: its contracts, hooks, limits and success rules.
* ``LifecycleConfig``: what applies to all calls of the guard: mode, callbacks, audit context.
* ``Decision``: "allow", "deny" or "approve" (a person must be asked), with every answer that led to
  it. All contracts are asked; one denial denies. What only observes never denies: its objections
  are ``waived``, and recorded as ``call_would_deny``.
* ``Admission``: the decision, the counters that it was based on, and whether slots are held.
* ``Grant``: the ledger's answer to a Reservation: the counters, and the limits that are full.
* ``Ran``: how the body ended: a value, an exception, its deadline, or a cancellation. ``Failed`` in
  its place: the body was not started, or the framework deferred the call.

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

An event that reports a ledger step is sent with that step (``Reservation.events``,
``Settlement.events``): a ledger whose database holds the audit as well commits both at once. The
event is yielded in any case; then the sinks that do not have it yet get it.

A framework may defer a call, for example to ask a person in another run: the body or the approval
backend raises ``Pause``. The call ends as paused and gives its slots back. The framework makes it
anew later, and the gate finds what a person was asked about it before (``questions``).

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

    ``failure_flag`` is a framework's own check of a result: it returns why the result is a failure,
    or None. ``turn`` is the call as its turn sees it. ``admitting`` replaces ``admit`` for the fast
    path, which has already asked the contracts.
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
