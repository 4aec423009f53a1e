"""What ``guard.stats()`` costs: calls on the fast path as it is, and on one without the lines that
count, in turns.

The lines are taken out of the module's own source, so that nothing else differs.
"""

from __future__ import annotations

import ast
import asyncio
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from edictum import Edictum, OperationLimits
from edictum.runtime import fast_path

ARGS = {"path": "/tmp/notes.txt"}  # only a text here
COUNTING = {"add_sample", "add", "executed_at_once"}


class WithoutCounting(ast.NodeTransformer):
    """Leaves out every statement that only counts."""

    def __init__(self) -> None:
        self.left_out = 0

    def generic_visit(self, node: ast.AST) -> ast.AST | None:
        counts = [
            it.attr
            for it in ast.walk(node)
            if isinstance(it, ast.Attribute) and it.attr in COUNTING
        ]
        is_simple = isinstance(node, ast.Expr | ast.AugAssign | ast.Assign)
        if counts and (is_simple or (isinstance(node, ast.If) and _is_all_counting(node))):
            self.left_out += 1
            return None
        return super().generic_visit(node)


def _is_all_counting(node: ast.If) -> bool:
    return all(
        isinstance(it, ast.Expr | ast.AugAssign)
        and any(isinstance(part, ast.Attribute) and part.attr in COUNTING for part in ast.walk(it))
        for it in [*node.body, *node.orelse]
    )


def load_without_counting() -> ModuleType:
    """Return the module of the fast path without its counting."""
    path = Path(str(fast_path.__file__))
    strip = WithoutCounting()
    tree = ast.fix_missing_locations(strip.visit(ast.parse(path.read_text())))
    if strip.left_out < 2:  # else this would compare the same thing with itself
        sys.exit("bench_stats: the lines that count were not found in the fast path")
    module = ModuleType("fast_path_without_counting")
    exec(compile(tree, str(path), "exec"), module.__dict__)  # our own source
    return module


def make_guard(module: Any) -> Edictum:
    guard = Edictum(limits=OperationLimits(max_attempts=None, max_tool_calls=None))
    state = guard._state
    made = module.make_fast_path(state.config, state.handlers)
    type(state).fast_path.__set__(state, made)  # a slot of a frozen record
    return guard


def read_file(path: str) -> str:
    return path


async def time_calls(guard: Edictum, calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        await guard.run("read_file", ARGS, read_file)
    return (time.process_time() - started) / calls


async def measure(turns: int = 2_000, calls: int = 100) -> tuple[list[float], list[float]]:
    counting, bare = make_guard(fast_path), make_guard(load_without_counting())
    pairs = []
    for turn in range(turns):
        first, second = (counting, bare) if turn % 2 else (bare, counting)
        times = {id(guard): await time_calls(guard, calls) for guard in (first, second)}
        pairs.append((times[id(counting)], times[id(bare)]))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def main() -> None:
    with_counting, without = asyncio.run(measure())
    ratio = statistics.median(a / b for a, b in zip(with_counting, without, strict=True))
    best = min(with_counting) / min(without)
    print(
        f"guard.stats(): run in memory {min(with_counting) * 1e6:.2f} us, without counting"
        f" {min(without) * 1e6:.2f} us: {best:.3f}x of the best, {ratio:.3f}x in the median of"
        " pairs (bound: 1.03)"
    )


if __name__ == "__main__":
    main()
