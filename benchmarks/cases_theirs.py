"""The cases of the public package edictum 0.19.0, written against its documented API only. Runs in
a venv of its own.
"""

import asyncio
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
    tool,
)

from edictum import Decision, Edictum, EdictumDenied, OperationLimits, precondition

ROOMY = OperationLimits(max_attempts=10**9, max_tool_calls=10**9)


def rule(number, name):
    secret = f"/etc/secret-{number}"

    @precondition(name)
    def check(call):
        if secret in call.args["path"] and call.environment == "production":
            return Decision.fail("no")
        return Decision.pass_()

    return check


def python_guard(matching, others=0):
    rules = [rule(number, "read_file") for number in range(matching)]
    rules += [rule(number, f"other_tool_{number}") for number in range(others)]
    return Edictum(rules=rules, limits=ROOMY)


@cache
def yaml_guard(matching, others=0):
    return Edictum.from_yaml_string(bundle(matching, others))


def run_with(make, *counts):
    return lambda: governed(make(*counts).run)


def functions_alone():
    calls = []  # their call object, from where the documentation says that a rule gets it

    @precondition("read_file")
    def keep(call):
        calls.append(call)
        return Decision.pass_()

    asyncio.run(Edictum(rules=[keep]).run("read_file", ARGS, tool))
    return called_by_nobody([rule(number, "read_file") for number in range(100)], calls[0])


def evaluate_with(make, *counts):
    def case():
        guard = make(*counts)
        return every(lambda: guard.evaluate("read_file", ARGS))

    return case


def yaml_run(*counts):
    def case():
        guard, session = yaml_guard(*counts), [0]

        def run(*call):
            return guard.run(*call, session_id=f"session-{session[0]}")

        def new_session():
            session[0] += 1

        return governed_in_short_sessions(run, new_session)

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
    return parallel(Edictum(limits=OperationLimits(max_tool_calls=3)).run, EdictumDenied)


def attempts_limit():
    return parallel(Edictum(limits=OperationLimits(max_attempts=3)).run, EdictumDenied, calls=10)


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
    "nested 22": search(NESTED, letters(22)),  # the time doubles with each letter
    "patterns 10,000": search(
        TWO_HUNDRED, prose(10_000)
    ),  # it looks at no more than so many characters
}
FACTS = {"parallel": parallel_limit, "attempts": attempts_limit}
