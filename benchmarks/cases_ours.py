"""This library's cases."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from texts import bundle, pattern_bundle
from timing import ARGS, every, governed, governed_in_short_sessions, parallel, plain_call

from edictum import Edictum, EdictumDenied, OperationLimits, Verdict, precondition
from edictum.sessions.memory import MemoryLedger

ROOMY = OperationLimits(max_attempts=None, max_tool_calls=None)
HAS_YAML = hasattr(Edictum, "from_yaml_string")


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


def yaml_guard(matching, others=0):
    return Edictum.from_yaml_string(bundle(matching, others))


def run_with(make, *counts):
    return lambda: governed(make(*counts).run)


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
    return every(lambda: Edictum.from_yaml_string(text))


def parallel_limit():
    guard = Edictum(limits=OperationLimits(max_tool_calls=3), backend=MemoryLedger())
    return parallel(guard.run, EdictumDenied)


def attempts_limit():
    guard = Edictum(limits=OperationLimits(max_attempts=3))
    return parallel(guard.run, EdictumDenied, calls=10)


def nested_pattern():
    """Seconds for one evaluation of ^(a+)+$ against the letters and a mark that spoils the match."""
    guard = Edictum.from_yaml_string(pattern_bundle())
    return every(lambda: guard.evaluate("read_file", {"path": "a" * 100_000 + "!"}))(1)


CASES = {
    "call": plain_call,
    "run 0": run_with(python_guard, 0),
    "run 1": run_with(python_guard, 1),
    "run 100": run_with(python_guard, 100),
    "run 1 + 10,000 other": run_with(python_guard, 1, 10_000),
    "evaluate 1": evaluate_with(python_guard, 1),
    "evaluate 100": evaluate_with(python_guard, 100),
}
FACTS = {"parallel": parallel_limit, "attempts": attempts_limit}
if HAS_YAML:
    CASES |= {
        "run yaml 1": yaml_run(1),
        "run yaml 100": yaml_run(100),
        "run yaml 1 + 10,000 other": yaml_run(1, 10_000),
        "evaluate yaml 1": evaluate_with(yaml_guard, 1),
        "evaluate yaml 100": evaluate_with(yaml_guard, 100),
        "load 1,000": load_1000,
    }
    FACTS["pattern"] = nested_pattern
