"""Expanding words: what a word of a command line may become once variables and braces are filled in.

Values come from the assignments of the same line, then from the environment (the tool is usually a child of this process);
a variable that neither knows is empty, as in a shell, so that ``$UNSET/etc`` is judged as ``/etc``.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from edictum.contracts.sandbox.shell import Output, Part, Simple, Text, Unreadable, Variable, Word

MAX_VALUES = 256
MAX_BRACED = 8192
Values = Mapping[str, tuple[str, ...]]

_INNER_BRACES = re.compile(r"\{([^{},]*,[^{}]*)\}")
_SUBSTRING = re.compile(r":\s?(-?\d{1,9})(?::(-?\d{1,9}))?$")
_LIST_VALUE = re.compile(r"[^/]*/[^:]*:")
_DEFAULT_OPERATORS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
_TRIMMING_OPERATORS = ("%", "#", "^", ",", "[")
# Commands whose output is a directory that is known beforehand.
_KNOWN_OUTPUT = {"pwd": "PWD", "pwd -P": "PWD", "pwd -L": "PWD", "git rev-parse --show-toplevel": "PWD"}


def assigned(commands: Iterable[Simple], cwd: str) -> dict[str, tuple[str, ...]]:
    """Every value that the commands give to a variable, with what a shell always knows."""
    values: dict[str, tuple[str, ...]] = {"HOME": (os.path.expanduser("~"),), "PWD": (cwd,), "IFS": (" ",)}
    for simple in commands:
        for name, texts in _settings(simple, values):
            values[name] = (*values.get(name, ()), *texts)[:MAX_VALUES]
    return values


def _settings(simple: Simple, values: Values) -> Iterator[tuple[str, list[str]]]:
    for word in simple.words:
        if (name := word.assigns) is not None:
            yield name, [text.partition("=")[2] for text in texts_of(word, values)]
    sources = [word.source for word in simple.words[:3]]
    if len(sources) == 3 and sources[0] in ("for", "select") and sources[2] == "in":
        yield sources[1], [text for word in simple.words[3:] for text in texts_of(word, values)]


def texts_of(word: Word, values: Values) -> list[str]:
    """Every text that the word may stand for. More than can be judged is ``Unreadable``."""
    if (literal := word.literal) is not None:
        return list(braces(literal)) if word.expands else [literal]
    choices = [_part_texts(part, values) for part in word.parts]
    joined = itertools.islice(itertools.product(*choices), MAX_VALUES + 1)
    texts = list(dict.fromkeys("".join(pieces) for pieces in joined))
    if len(texts) > MAX_VALUES:
        raise Unreadable(f"'{word.source:.120}' can become more than {MAX_VALUES} different words")
    return [text for joined_text in texts for text in (braces(joined_text) if word.expands else (joined_text,))]


def _part_texts(part: Part, values: Values) -> tuple[str, ...]:
    match part:
        case Text(value=value):
            return (value,)
        case Output(commands=commands):
            return values.get(_KNOWN_OUTPUT.get(_line(commands), ""), ("",))
        case Variable():
            return tuple(dict.fromkeys(_variable_texts(part, values)))


def _line(commands: tuple[Simple, ...]) -> str:
    return " ".join(word.source for word in commands[0].words) if len(commands) == 1 else ""


def _variable_texts(variable: Variable, values: Values) -> Iterator[str]:
    if variable.sign == "#":
        yield "1"
        return
    if variable.sign == "!":
        raise Unreadable(f"${{!{variable.name}}} is known only when it runs")
    known = values.get(variable.name) or (os.environ.get(variable.name, ""),)
    operands = texts_of(Word(variable.operand, ""), values) if variable.operand else [""]
    for value in known:
        for operand in operands:
            yield from _applied(value, operand, variable.name)


def _applied(value: str, operand: str, name: str) -> Iterator[str]:
    """``${name<operand>}`` for one value. A value that is a list of directories (PATH) is no path itself."""
    if not operand or operand.startswith(_TRIMMING_OPERATORS):
        yield "" if _LIST_VALUE.match(value) else value
    elif found := _SUBSTRING.match(operand):
        start, length = int(found.group(1)), found.group(2)
        yield value[start:][: int(length)] if length else value[start:]
    elif operand.startswith(_DEFAULT_OPERATORS):
        yield value
        yield operand.lstrip(":").removeprefix(operand.lstrip(":")[:1])
    elif operand.startswith("/"):
        yield _replaced(value, operand, name)
    else:
        raise Unreadable(f"${{{name}{operand:.40}}} is known only when it runs")


def _replaced(value: str, operand: str, name: str) -> str:
    """``${name/old/new}`` and ``${name//old/new}`` with a plain ``old``."""
    everywhere = operand.startswith("//")
    old, _, new = operand[1 + everywhere :].lstrip("#%").partition("/")
    if not set("*?[").isdisjoint(old):
        raise Unreadable(f"${{{name}{operand:.40}}} is known only when it runs")
    return value.replace(old, new, -1 if everywhere else 1) if old else value


def braces(text: str) -> Iterator[str]:
    """``a{b,c}`` as ``ab`` and ``ac``; the innermost first, which finds the same set."""
    waiting, made = [text], 0
    while waiting:
        current = waiting.pop()
        found = _INNER_BRACES.search(current)
        if found is None:
            yield current
            continue
        choices = found.group(1).split(",")
        made += len(choices)
        if made > MAX_VALUES or len(text) > MAX_BRACED:
            raise Unreadable(f"the braces in '{text:.120}' make too many words")
        waiting += [current[: found.start()] + choice + current[found.end() :] for choice in choices]
