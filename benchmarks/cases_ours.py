"""This library's cases."""

import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from texts import NESTED, TWO_HUNDRED, another_bundle, bundle, letters, pattern_bundle, prose
from timing import (
    ARGS,
    called_by_nobody,
    every,
    governed,
    governed_in_short_sessions,
    parallel,
    plain_call,
)

from edictum import Edictum, EdictumDenied, OperationLimits, ToolCall, Verdict, precondition
from edictum.sessions.memory import MemoryLedger

ROOMY = OperationLimits(max_attempts=None, max_tool_calls=None)


def contract(number, name):
    secret = f"/etc/secret-{number}"

    @precondition(name, id=f"contract-{number}")
    def check(call):
        if secret in call.args["path"] and call.environment == "production":
            return Verdict.fail("no")
        return Verdict.pass_()

    return check


def python_guard(matching, others=0):
    contracts = [contract(number, "read_file") for number in range(matching)]
    contracts += [contract(number, f"other_tool_{number}") for number in range(others)]
    return Edictum(contracts=contracts, limits=ROOMY)


@cache
def yaml_guard(matching, others=0):
    return Edictum.from_yaml_string(bundle(matching, others))


def run_with(make, *counts):
    return lambda: governed(make(*counts).run)


def functions_alone():
    return called_by_nobody(
        [contract(number, "read_file").check for number in range(100)], ToolCall("read_file", ARGS)
    )


def evaluate_with(make, *counts):
    def case():
        guard = make(*counts)
        return every(lambda: guard.evaluate("read_file", ARGS))

    return case


def yaml_run(*counts):
    def case():
        guard = yaml_guard(*counts)
        return governed_in_short_sessions(guard.run, lambda: guard.session().reset())

    return case


def load_1000():
    text = bundle(1_000)
    return every(lambda: Edictum.from_yaml_string(another_bundle(text)))


def search(patterns, text):
    def case():
        guard = Edictum.from_yaml_string(pattern_bundle(patterns))
        return every(lambda: guard.evaluate("read_file", {"path": text}))

    return case


def parallel_limit():
    guard = Edictum(limits=OperationLimits(max_tool_calls=3), backend=MemoryLedger())
    return parallel(guard.run, EdictumDenied)


def attempts_limit():
    guard = Edictum(limits=OperationLimits(max_attempts=3))
    return parallel(guard.run, EdictumDenied, calls=10)


CASES = {
    "call": plain_call,
    "run 0": run_with(python_guard, 0),
    "run 1": run_with(python_guard, 1),
    "run 100": run_with(python_guard, 100),
    "functions 100": functions_alone,
    "run 1 + 10,000 other": run_with(python_guard, 1, 10_000),
    "evaluate 1": evaluate_with(python_guard, 1),
    "evaluate 100": evaluate_with(python_guard, 100),
    "run yaml 1": yaml_run(1),
    "run yaml 10": yaml_run(10),
    "run yaml 100": yaml_run(100),
    "run yaml 1 + 10,000 other": yaml_run(1, 10_000),
    "evaluate yaml 1": evaluate_with(yaml_guard, 1),
    "evaluate yaml 10": evaluate_with(yaml_guard, 10),
    "evaluate yaml 100": evaluate_with(yaml_guard, 100),
    "evaluate yaml 1 + 10,000 other": evaluate_with(yaml_guard, 1, 10_000),
    "load 1,000": load_1000,
    "nested 22": search(NESTED, letters(22)),
    "nested 100,000": search(NESTED, letters(100_000)),
    "patterns 10,000": search(TWO_HUNDRED, prose(10_000)),
    "patterns 1,000,000": search(TWO_HUNDRED, prose(1_000_000)),
}
FACTS = {"parallel": parallel_limit, "attempts": attempts_limit}
