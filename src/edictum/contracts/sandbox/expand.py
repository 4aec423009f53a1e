"""Expanding words: what a word of a command line may become once variables and braces are filled
in.

Values come from the assignments of the same line, then from the environment (the tool is usually a
child of this process); a variable that neither knows is empty, as in a shell, so that
``$UNSET/etc`` is judged as ``/etc``.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from edictum.contracts.sandbox.shell import Output, Part, Simple, Text, Unreadable, Variable, Word

MAX_VALUES = 256
MAX_BRACED = 8192
MAX_TRIMMED = 1024
MAX_CHARACTERS = 1_000_000  # of all values together: `b=$a$a; c=$b$b; ...` doubles at each step
# how often a loop or a function is followed: two steps make ".." of dots, the third one shows
ROUNDS = 3
Values = Mapping[str, tuple[str, ...]]

_INNER_BRACES = re.compile(r"\{([^{},]*,[^{}]*)\}")
_SUBSTRING = re.compile(r":\s?(0|-?[1-9]\d{0,8})(?::(0|-?[1-9]\d{0,8}))?$")
_GIVES_DEFAULT = re.compile(r":?=")
_CHANGING = ("#", "%", "/", "[")
_EVERY_ELEMENT = ("[@]:", "[*]:")
_LIST_VALUE = re.compile(r"[^/]*/[^:]*:")
_DEFAULT_OPERATORS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
_REPEATING = frozenset({"for", "while", "until", "select", "function", "do", "{"})
# What paths are cut at anyway, so that it does no harm when a shell splits words there as well.
_HARMLESS_SEPARATORS = frozenset(" \t\n,:;=|&@!#")
_SEPARATORS = (
    "IFS makes a shell split words at characters that belong to them; write 'IFS=, read' or leave"
    " it out"
)
# Programs of the shell that set the variables they are given by name.
SETTERS = frozenset(
    {"read", "mapfile", "readarray", "printf", "getopts", "declare", "typeset", "local", "let"}
)
_SUBSCRIPT_SIGN = re.compile(r"\w\[|[\[\]`]|\$\(")
# Commands whose output is a directory that is known beforehand.
_KNOWN_OUTPUT = {
    "pwd": "PWD",
    "pwd -P": "PWD",
    "pwd -L": "PWD",
    "git rev-parse --show-toplevel": "PWD",
}


def assigned(commands: Iterable[Simple], cwd: str) -> dict[str, tuple[str, ...]]:
    """Every value that the commands give to a variable, with what a shell always knows."""
    values: dict[str, tuple[str, ...]] = {
        "HOME": (os.path.expanduser("~"),),
        "PWD": (cwd,),
        "IFS": (" ",),
    }
    every = list(commands)
    repeats = any(word.source in _REPEATING for simple in every for word in simple.words)
    for simple in itertools.chain.from_iterable([every] * (ROUNDS if repeats else 1)):
        _refuse_hidden_commands(word.literal for word in simple.words)
        if any(word.literal == "IFS" for word in simple.words) and any(
            word.source in SETTERS for word in simple.words
        ):
            raise Unreadable(_SEPARATORS)
        for name, texts in _settings(simple, values):
            _refuse_hidden_commands(texts)
            values[name] = _with(values.get(name, ()), texts, name)
        if sum(map(len, itertools.chain.from_iterable(values.values()))) > MAX_CHARACTERS:
            raise Unreadable("its variables hold too much text")
    return values


def _with(old: tuple[str, ...], new: Iterable[str], name: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys((*old, *new)))
    if len(found) > MAX_VALUES:
        raise Unreadable(f"'{name:.80}' is given more than {MAX_VALUES} values")
    return found


def _refuse_hidden_commands(texts: Iterable[str | None]) -> None:
    for text in texts:
        if text and _runs_in_subscript(text):
            raise Unreadable(
                f"bash runs the command in '{text:.80}' where it computes with that text"
            )


def _runs_in_subscript(text: str) -> bool:
    """Whether it holds ``a[$(...)]``, which bash runs where it computes: in $((x)), [[ x -eq 0 ]],
    printf -v x, ${a[x]}.
    """
    depth = 0
    for sign in _SUBSCRIPT_SIGN.findall(text):
        if sign in ("`", "$("):
            if depth:
                return True
        elif depth or sign != "[":
            depth = max(0, depth + (-1 if sign == "]" else 1))
    return False


def _settings(simple: Simple, values: Values) -> Iterator[tuple[str, list[str]]]:
    for word in simple.words:
        if (name := word.assigns) is not None:
            texts = [text.partition("=") for text in texts_of(word, values)]
            before = values.get(name) or (os.environ.get(name, ""),)
            found = [
                old + new
                for left, _, new in texts
                for old in (before if left.endswith("+") else ("",))
            ]
            if "=(" in word.source:
                found += [element for text in found for element in text.split()]
            _refuse_separators(name, found, word, simple)
            yield name, found
        for part in word.parts:
            if isinstance(part, Variable) and gives_default(part):
                yield part.name, [text for text in _part_texts(part, values) if text]
    sources = [word.source for word in simple.words[:3]]
    if len(sources) == 3 and sources[0] in ("for", "select") and sources[2] == "in":
        found = [text for word in simple.words[3:] for text in texts_of(word, values)]
        for word in simple.words[3:]:
            _refuse_separators(sources[1], found, word, simple)
        yield sources[1], found


def gives_default(variable: Variable) -> bool:
    """``${name:=value}`` sets the variable when it is empty."""
    first = variable.operand[0] if variable.operand else None
    return isinstance(first, Text) and bool(_GIVES_DEFAULT.match(first.value))


def _refuse_separators(name: str, texts: Iterable[str], word: Word, simple: Simple) -> None:
    """Only ``IFS=x read`` may split at any character: it splits what it reads, not the words of the
    line.
    """
    if name != "IFS" or any(inner.source == "read" for inner in simple.words):
        return
    if any(isinstance(part, Output) for part in word.parts) or not _HARMLESS_SEPARATORS.issuperset(
        "".join(texts)
    ):
        raise Unreadable(_SEPARATORS)


def texts_of(word: Word, values: Values) -> list[str]:
    """Every text that the word may stand for. More than can be judged is ``Unreadable``."""
    if (literal := word.literal) is not None:
        return list(braces(literal)) if word.expands else [literal]
    choices = [_part_texts(part, values) for part in word.parts]
    if (
        math.prod(map(len, choices)) * sum(max(map(len, texts)) for texts in choices)
        > MAX_CHARACTERS
    ):
        raise Unreadable(f"'{word.source:.120}' can become too much text")
    joined = itertools.islice(itertools.product(*choices), MAX_VALUES + 1)
    texts = list(dict.fromkeys("".join(pieces) for pieces in joined))
    if len(texts) > MAX_VALUES:
        raise Unreadable(f"'{word.source:.120}' can become more than {MAX_VALUES} different words")
    return [
        text
        for joined_text in texts
        for text in (braces(joined_text) if word.expands else (joined_text,))
    ]


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
    known = values.get(variable.name) or (_of_environment(variable),)
    operands = texts_of(Word(variable.operand, ""), values) if variable.operand else [""]
    for value in known:
        for operand in operands:
            if value:
                _refuse_unknown_pattern(variable, operand)
            yield from _applied(value, operand, variable.name)


def _of_environment(variable: Variable) -> str:
    """A value that is a list of directories (PATH) is no path itself."""
    value = os.environ.get(variable.name, "")
    return "" if _LIST_VALUE.match(value) and not variable.operand else value


def _refuse_unknown_pattern(variable: Variable, operand: str) -> None:
    """A pattern must be known as it is written: an output is not, and a quote or a variable changes
    what its characters mean.
    """
    if operand[:1] not in _CHANGING or (operand[0] == "[" and operand.endswith("]")):
        return
    if all(isinstance(part, Text) and not part.quoted for part in variable.operand):
        return
    output = any(isinstance(part, Output) for part in variable.operand)
    if output or operand[0] in "/[" or not set("*?[\\").isdisjoint(operand):
        raise Unreadable(f"${{{variable.name}{operand:.40}}} is known only when it runs")


def _applied(value: str, operand: str, name: str) -> Iterator[str]:
    """``${name<operand>}`` for one value."""
    if operand.startswith(_EVERY_ELEMENT):
        operand = ""
    if operand.startswith("["):
        operand = _behind_subscript(operand, name)
    if not operand:
        yield value
    elif operand[0] in "#%":
        yield _trimmed(value, operand, name)
    elif operand in ("^", "^^", ",", ",,"):
        yield from (value, value.upper(), value.lower(), value[:1].swapcase() + value[1:])
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


def _behind_subscript(operand: str, name: str) -> str:
    """What follows ``[...]`` in ``${name[...]...}``."""
    subscript, _, rest = operand[1:].partition("]")
    if "[" in subscript or "]" in rest:
        raise Unreadable(f"${{{name}{operand:.40}}} is known only when it runs")
    return rest


def _trimmed(value: str, operand: str, name: str) -> str:
    """``${name#start}`` and ``${name%end}``; the sign twice takes off as much as possible."""
    sign, longest = operand[0], operand[1:2] == operand[0]
    pattern = operand[1 + longest :]
    if not set("[\\(").isdisjoint(pattern) or len(value) > MAX_TRIMMED:
        raise Unreadable(f"${{{name}{operand:.40}}} is known only when it runs")
    cuts = range(len(value) + 1) if (sign == "#") is not longest else range(len(value), -1, -1)
    for cut in cuts:
        taken, left = (value[:cut], value[cut:]) if sign == "#" else (value[cut:], value[:cut])
        if fnmatchcase(taken, pattern):
            return left
    return value


def _replaced(value: str, operand: str, name: str) -> str:
    """``${name/old/new}`` and ``${name//old/new}`` with a plain ``old``."""
    everywhere = operand.startswith("//")
    old, _, new = operand[1 + everywhere :].partition("/")
    if not set("*?[\\(").isdisjoint(old) or "&" in new or old[:1] in ("#", "%"):
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
        waiting += [
            current[: found.start()] + choice + current[found.end() :] for choice in choices
        ]
