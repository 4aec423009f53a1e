"""Expand words: find what a word may become once variables and braces are filled in.

Values come from the assignments of the same line, then from the environment (the tool is usually a
child of this process). A variable that is set in neither is empty, as in a shell: ``$UNSET/etc`` is
judged as ``/etc``.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import assert_never

from edictum.contracts.sandbox._shell import Output, Part, Plain, Simple, Unreadable, Variable, Word

MAX_VALUES = 256
MAX_BRACED = 8192
MAX_TRIMMED = 1024
MAX_CHARACTERS = 1_000_000  # of all values together: `b=$a$a; c=$b$b; ...` doubles at each step
# How many rounds of a loop or function are followed: two can build ".." from dots, the third uses
# it.
ROUNDS = 3
Values = Mapping[str, tuple[str, ...]]

_INNER_BRACES = re.compile(r"\{([^{},]*,[^{}]*)\}")
_SUBSTRING = re.compile(r":\s?(0|-?[1-9]\d{0,8})(?::(0|-?[1-9]\d{0,8}))?$")
_GIVES_DEFAULT = re.compile(r":?=")
_CHANGING = ("#", "%", "/", "[")
_EVERY_ELEMENT = ("[@]:", "[*]:")
_LIST_VALUE = re.compile(r"[^/]*/[^:]*:")
_DEFAULT_OPERATORS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
REPEATING = frozenset({"for", "while", "until", "select", "function", "do", "{"})
# Characters at which paths are cut anyway: a shell that splits words there hides nothing.
_HARMLESS_SEPARATORS = frozenset(" \t\n,:;=|&@!#")
_SEPARATORS = "IFS makes a shell split words in other places; write 'IFS=, read' or leave it out"
# Shell commands that set the variables named in their operands.
SETTERS = frozenset(
    {"read", "mapfile", "readarray", "printf", "getopts", "declare", "typeset", "local", "let"}
)
_SUBSCRIPT_SIGN = re.compile(r"\w\[|[\[\]`]|\$\(")
# Commands whose output is the working directory, as far as is known beforehand.
_PRINTS_DIRECTORY = ("pwd", "pwd -P", "pwd -L", "git rev-parse --show-toplevel")


def collect_assigned_values(
    commands: Iterable[Simple], bases: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return every value that the commands give to a variable, and those that shells always set."""
    values: dict[str, tuple[str, ...]] = {
        "HOME": (os.path.expanduser("~"),),
        "PWD": tuple(bases),
        "OLDPWD": (os.environ.get("OLDPWD", ""), *bases),
        "IFS": (" ",),
    }
    every = list(commands)
    for simple in every * (ROUNDS if may_repeat(every) else 1):
        _refuse_hidden_commands(word.literal for word in simple.words)
        _refuse_new_separators(simple)
        for name, texts in _assignments(simple, values):
            _refuse_hidden_commands(texts)
            values[name] = tuple(dict.fromkeys((*values.get(name, ()), *texts)))
            if len(values[name]) > MAX_VALUES:
                raise Unreadable(f"'{name:.80}' is given more than {MAX_VALUES} values")
        if sum(map(len, itertools.chain.from_iterable(values.values()))) > MAX_CHARACTERS:
            raise Unreadable("its variables hold too much text")
    return values


def may_repeat(commands: Iterable[Simple]) -> bool:
    """Return whether a loop or a function may run a command again."""
    return any(word.source in REPEATING for simple in commands for word in simple.words)


def _refuse_new_separators(simple: Simple) -> None:
    """Refuse a command such as ``read IFS``, which changes where words are divided."""
    is_setter = any(word.source in SETTERS for word in simple.words)
    if is_setter and any(word.literal == "IFS" for word in simple.words):
        raise Unreadable(_SEPARATORS)


def _refuse_hidden_commands(texts: Iterable[str | None]) -> None:
    for text in texts:
        if text and _runs_in_subscript(text):
            message = f"bash runs the command in '{text:.80}' where it computes with that text"
            raise Unreadable(message)


def _runs_in_subscript(text: str) -> bool:
    """Return whether it holds ``a[$(...)]``, which bash runs where it computes: ``$((x))``."""
    depth = 0
    for sign in _SUBSCRIPT_SIGN.findall(text):
        if sign in ("`", "$("):
            if depth:
                return True
        elif depth or sign != "[":
            depth = max(0, depth + (-1 if sign == "]" else 1))
    return False


def _assignments(simple: Simple, values: Values) -> Iterator[tuple[str, list[str]]]:
    """Return the variables that a command sets, each with its possible values."""
    for word in simple.words:
        if word.assigns is not None:
            yield word.assigns, _list_assigned_texts(word, word.assigns, simple, values)
        for part in word.parts:
            if isinstance(part, Variable) and gives_default(part):
                yield part.name, [text for text in _part_texts(part, values) if text]
    match [word.source for word in simple.words[:3]]:
        case ["for" | "select", name, "in"]:
            yield name, _list_loop_texts(name, simple, values)


def _list_loop_texts(name: str, simple: Simple, values: Values) -> list[str]:
    """Return what ``for name in a b`` may set."""
    listed = simple.words[3:]
    found = [text for word in listed for text in texts_of(word, values)]
    for word in listed:
        _refuse_separators(name, found, word, simple)
    return found


def _list_assigned_texts(word: Word, name: str, simple: Simple, values: Values) -> list[str]:
    """Return what ``name=value``, ``name+=value`` or ``name=(a b)`` may set."""
    before = values.get(name) or (os.environ.get(name, ""),)
    found: list[str] = []
    for text in texts_of(word, values):
        left, _, new = text.partition("=")
        found += [old + new for old in before] if left.endswith("+") else [new]
    if "=(" in word.source:
        found += [element for text in found for element in text.split()]
    _refuse_separators(name, found, word, simple)
    return found


def gives_default(variable: Variable) -> bool:
    """Return whether it is ``${name:=value}``, which sets the variable when it is empty."""
    first = variable.operand[0] if variable.operand else None
    return isinstance(first, Plain) and bool(_GIVES_DEFAULT.match(first.value))


def _refuse_separators(name: str, texts: Iterable[str], word: Word, simple: Simple) -> None:
    """Refuse separators that split the words of the line; ``IFS=x read`` splits what it reads."""
    if name != "IFS" or any(inner.source == "read" for inner in simple.words):
        return
    is_output = any(isinstance(part, Output) for part in word.parts)
    if is_output or not _HARMLESS_SEPARATORS.issuperset("".join(texts)):
        raise Unreadable(_SEPARATORS)


def texts_of(word: Word, values: Values) -> list[str]:
    """Return every text that the word may expand to; raise Unreadable for too many."""
    if (literal := word.literal) is not None:
        return list(expand_braces(literal)) if word.expands else [literal]
    texts = _combine([_part_texts(part, values) for part in word.parts], word)
    if not word.expands:
        return texts
    return [text for braced in texts for text in expand_braces(braced)]


def _combine(choices: list[tuple[str, ...]], word: Word) -> list[str]:
    """Return the texts made by taking one choice of each part."""
    longest = sum(max(map(len, texts)) for texts in choices)
    if math.prod(map(len, choices)) * longest > MAX_CHARACTERS:
        raise Unreadable(f"'{word.source:.120}' can become too much text")
    joined = itertools.islice(itertools.product(*choices), MAX_VALUES + 1)
    texts = list(dict.fromkeys("".join(pieces) for pieces in joined))
    if len(texts) > MAX_VALUES:
        raise Unreadable(f"'{word.source:.120}' can become more than {MAX_VALUES} different words")
    return texts


def _part_texts(part: Part, values: Values) -> tuple[str, ...]:
    match part:
        case Plain(value=value):
            return (value,)
        case Output(commands=(command,)):
            line = " ".join(word.source for word in command.words)
            return values.get("PWD", ("",)) if line in _PRINTS_DIRECTORY else ("",)
        case Output():
            return ("",)
        case Variable():
            return tuple(dict.fromkeys(_variable_texts(part, values)))
        case _:
            assert_never(part)


def _variable_texts(variable: Variable, values: Values) -> Iterator[str]:
    if variable.sign == "#":
        yield "1"
        return
    if variable.sign == "!":
        raise Unreadable(f"${{!{variable.name}}} is known only when it runs")
    known = values.get(variable.name) or (_environment_value(variable),)
    operands = texts_of(Word(variable.operand, ""), values) if variable.operand else [""]
    for value in known:
        for operand in operands:
            if value:
                _refuse_unknown_pattern(variable, operand)
            yield from _apply_operand(value, operand, variable.name)


def _environment_value(variable: Variable) -> str:
    """Return a value of the environment; a list of directories (PATH) is not a path itself."""
    value = os.environ.get(variable.name, "")
    return "" if _LIST_VALUE.match(value) and not variable.operand else value


def _refuse_unknown_pattern(variable: Variable, operand: str) -> None:
    """Refuse a pattern that an output, a quote or a variable may change at run time."""
    is_subscript = operand.startswith("[") and operand.endswith("]")
    if is_subscript or not operand.startswith(_CHANGING) or _is_as_written(variable):
        return
    output = any(isinstance(part, Output) for part in variable.operand)
    if output or operand[0] in "/[" or not set("*?[\\").isdisjoint(operand):
        raise _refuse_expansion(variable.name, operand)


def _is_as_written(variable: Variable) -> bool:
    """Return whether the operand is nothing but text without quotes."""
    return all(isinstance(part, Plain) and not part.quoted for part in variable.operand)


def _refuse_expansion(name: str, operand: str) -> Unreadable:
    return Unreadable(f"${{{name}{operand:.40}}} is known only when it runs")


def _apply_operand(value: str, operand: str, name: str) -> Iterator[str]:
    """Return what ``${name<operand>}`` may expand to for one value."""
    if operand.startswith(_EVERY_ELEMENT):
        operand = ""
    if operand.startswith("["):
        operand = _behind_subscript(operand, name)
    if not operand:
        yield value
    elif operand[0] in "#%":
        yield _trim(value, operand, name)
    elif operand in ("^", "^^", ",", ",,"):
        yield from (value, value.upper(), value.lower(), value[:1].swapcase() + value[1:])
    elif found := _SUBSTRING.match(operand):
        start, length = int(found.group(1)), found.group(2)
        yield value[start:][: int(length)] if length else value[start:]
    elif operand.startswith(_DEFAULT_OPERATORS):
        yield value
        yield operand.lstrip(":").removeprefix(operand.lstrip(":")[:1])
    elif operand.startswith("/"):
        yield _substitute(value, operand, name)
    else:
        raise _refuse_expansion(name, operand)


def _behind_subscript(operand: str, name: str) -> str:
    """Return what follows ``[...]`` in ``${name[...]...}``."""
    subscript, _, rest = operand[1:].partition("]")
    if "[" in subscript or "]" in rest:
        raise _refuse_expansion(name, operand)
    return rest


def _trim(value: str, operand: str, name: str) -> str:
    """Return ``${name#start}`` or ``${name%end}``; a doubled sign removes as much as possible."""
    sign, longest = operand[0], operand[1:2] == operand[0]
    pattern = operand[1 + longest :]
    if not set("[\\(").isdisjoint(pattern) or len(value) > MAX_TRIMMED:
        raise _refuse_expansion(name, operand)
    cuts = range(len(value) + 1) if (sign == "#") is not longest else range(len(value), -1, -1)
    for cut in cuts:
        taken, left = (value[:cut], value[cut:]) if sign == "#" else (value[cut:], value[:cut])
        if fnmatchcase(taken, pattern):
            return left
    return value


def _substitute(value: str, operand: str, name: str) -> str:
    """Return ``${name/old/new}`` or ``${name//old/new}`` with a plain ``old``."""
    everywhere = operand.startswith("//")
    old, _, new = operand[1 + everywhere :].partition("/")
    if not set("*?[\\(").isdisjoint(old) or "&" in new or old[:1] in ("#", "%"):
        raise _refuse_expansion(name, operand)
    return value.replace(old, new, -1 if everywhere else 1) if old else value


def expand_braces(text: str) -> Iterator[str]:
    """Return ``a{b,c}`` as ``ab`` and ``ac``; the innermost first, which gives the same set."""
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
        waiting += [
            current[: found.start()] + choice + current[found.end() :] for choice in choices
        ]
