"""Judge whether one call stays inside the bounds of a sandbox contract.

Every argument is judged, at any depth and under any key, as are the keys of inner mappings. The key
says what a text is: a *command* is read as a shell would read it, a *path* is judged as a whole,
*prose* (the content of a file, a message) counts only when it is a single word, and anything else
is judged piece by piece. Whatever cannot be judged is a violation.

With a list of allowed programs, texts under ``script`` and the like are commands too, and so is
every text of a tool whose name says that it is a shell. ``args`` beside a command are its last
words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Literal

from edictum.contracts.sandbox._bases import follow_directories, goes_home, reach, with_bases
from edictum.contracts.sandbox._commands import (
    FOUND,
    PIPES,
    CommandBounds,
    is_case_pattern,
    programs_of,
    read_commands,
    scripts_of,
    with_scripts,
)
from edictum.contracts.sandbox._domains import URL_KEYS, DomainBounds, address_operands
from edictum.contracts.sandbox._expand import Values, texts_of
from edictum.contracts.sandbox._grammars import PathFinder, find_no_paths
from edictum.contracts.sandbox._operands import attaches_all, namings_of, text_operands
from edictum.contracts.sandbox._paths import Naming, PathBounds, PathChecker, TooMany
from edictum.contracts.sandbox._shell import (
    Output,
    Plain,
    Redirect,
    Simple,
    Unreadable,
    Word,
    literal_word,
    names,
    split,
)
from edictum.contracts.sandbox._wrappers import find_replaced_texts
from edictum.core.call import SHELL_TOOLS, ToolCall
from edictum.errors import EdictumConfigError

PATH_ARGUMENTS = names(
    "path paths file files file_path file_paths filepath filepaths filename filenames file_name"
    " file_names dir dirs directory directories folder folders target destination dest source src"
    " dst cwd workdir root location"
)
PATH_SUFFIXES = ("_path", "_paths", "_file", "_dir", "_directory", "_folder", "_filename")
COMMAND_KEYS = names(
    "command commands cmd cmds shell_command bash_command command_line cmdline argv"
)
PROSE_KEYS = names(
    "content contents text body message prompt description old_string new_string old_str new_str"
    " file_text insert_text title comment reason thought explanation summary note notes query"
    " question instructions task"
)
# The content of the file that the call names beside it: text, which opens nothing.
FILE_KEYS = names("path file file_path filepath filename file_name")
FILE_TEXT_KEYS = names(
    "content contents old_string new_string old_str new_str file_text insert_text"
)
SCRIPT_KEYS = names("script scripts shell_script bash_script")
SHELL_KEYS = names("shell bash exec execute cli")  # beside a command, they say what runs it
ARGUMENT_KEYS = names("args arguments")
INPUT_KEYS = names("stdin input")
SHELL_WORDS = names(
    "bash shell sh zsh terminal console exec command commands cmd powershell script subprocess"
)
SHELL_NAMES = names("execute run process")
CWD_KEYS = frozenset({"cwd", "workdir", "working_directory", "working_dir"})
CWD_TYPES = (str, os.PathLike, type(None))
_PROGRAM_NAME = re.compile(r"[\w.+-]*\w")  # found along PATH, not in the working directory
_NAME_WORDS = re.compile(r"[\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

Role = Literal["command", "path", "prose", "other"]
_TEXT_ROLES = ("path", "command")  # a value under these keys must be text


@dataclass(frozen=True, slots=True)
class Item:
    """One text among the arguments and its key, or the problem with a value that should be text."""

    key: str
    text: str
    role: Role
    problem: str | None = None


def role_of(key: str) -> Role:
    if key in COMMAND_KEYS:
        return "command"
    if key in PATH_ARGUMENTS or key.endswith(PATH_SUFFIXES):
        return "path"
    return "prose" if key in PROSE_KEYS else "other"


def plain_key(key: str) -> str:
    """Return ``filePath`` and ``File-Path`` as ``file_path``."""
    return _HUMP.sub("_", key).replace("-", "_").lower()


class NotText(ValueError):
    """A command that is not text."""


def items_in(key: str, value: Any, *, role: Role | None = None) -> Iterator[Item]:
    """Return every text below a key; inside a mapping, its own keys say what its values are."""
    own = role_of(key) if role is None else role
    match value:
        case str():
            yield Item(key, value, own)
        case Mapping():
            yield from _items_in_mapping(value)
        case list() | tuple() | AbstractSet():
            for item in value:
                yield from items_in(key, item, role=own)
        case os.PathLike():
            yield Item(key, os.fsdecode(value), "path")
        case None:
            pass
        case bytes() if own not in _TEXT_ROLES:
            yield Item(key, value.decode("latin-1"), own)
        case _ if _must_be_text(key, own):
            kind = type(value).__name__
            problem = f"Argument '{key:.80}' is {kind}, not text, so it cannot be judged."
            yield Item(key, "", own, problem)


def _items_in_mapping(mapping: Mapping[Any, Any]) -> Iterator[Item]:
    for name, item in mapping.items():
        yield Item("", str(name), "other")
        yield from items_in(plain_key(str(name)), item)


def _must_be_text(key: str, role: Role) -> bool:
    return role in _TEXT_ROLES or key in URL_KEYS


class Sandbox:
    """The directories, programs and domains that a call may name."""

    def __init__(
        self,
        within: Iterable[str] = (),
        not_within: Iterable[str] = (),
        commands: Iterable[str] = (),
        domains: Iterable[str] = (),
        not_domains: Iterable[str] = (),
        cwd: str | None = None,
    ) -> None:
        try:
            self.paths = PathBounds(tuple(within), tuple(not_within), cwd)
            self.commands = CommandBounds(commands)
            self.domains = DomainBounds(domains, not_domains)
        except (OSError, ValueError) as error:
            raise EdictumConfigError(
                f"A bound of the sandbox cannot be used: {error}.",
                hint="Give directories as paths, and domains as names such as '*.example.com'.",
            ) from error

    def violation(self, call: ToolCall) -> str | None:
        """Return one sentence that names what leaves the bounds; None when nothing does."""
        try:
            return next(self._find_violations(call), None)
        except (NotText, TooMany) as error:
            return str(error)
        except Unreadable as error:
            return f"The command cannot be judged: {error}."
        except (OSError, ValueError, RecursionError) as error:
            return f"The call cannot be judged: {type(error).__name__}."

    def _find_violations(self, call: ToolCall) -> Iterator[str]:
        args = call.effective_args
        commands, items = self._read_call(call.tool_name, args)
        bases = self._find_bases(args, items)
        values = follow_directories(commands, bases)
        if self.paths.given:
            yield from self._check_paths(commands, items, bases, values)
        yield from self.commands.find_violations(commands, values)
        if self.domains.given:
            yield from self._check_domains(commands, items, values)

    def _find_bases(self, args: Mapping[str, Any], items: list[Item]) -> list[str]:
        """Return where relative names start: in the directory that the call names, else in the
        contract's or the process'. One that is named deeper in the arguments is possible as well.
        """
        base = [self.paths.base()]
        named = [value for name, value in args.items() if plain_key(name) in CWD_KEYS]
        own = [os.fsdecode(each or "") for each in named if isinstance(each, CWD_TYPES)]
        deeper = [item.text for item in items if item.key in CWD_KEYS and item.text not in own]
        return [*(reach(base, own) if own else base), *reach(base, deeper)]

    def _read_call(
        self, tool_name: str, args: Mapping[str, Any]
    ) -> tuple[list[Simple], list[Item]]:
        """Return the commands that a call runs, and its other texts."""
        commands: list[Simple] = []
        items: list[Item] = []
        keys = self._command_keys(args)
        is_shell = keys.isdisjoint(map(plain_key, args)) and self._is_shell(tool_name)
        for name, value in args.items():
            key = plain_key(name)
            if is_argument_list(key, value):
                commands += with_scripts(Simple(tuple(map(literal_word, value))))
                continue
            for item in items_in(key, value):
                if _is_command(item, keys, is_shell=is_shell):
                    commands += read_commands(item.text)
                else:
                    items.append(item)
        if is_shell and not commands:
            for item in items:
                commands += read_commands(item.text) if item.role == "prose" else ()
        return [*commands, *_complete_command(commands, args)], items

    def _command_keys(self, args: Mapping[str, Any]) -> frozenset[str]:
        """Return the keys whose texts are commands."""
        if not self.commands.allowed:
            return COMMAND_KEYS
        known = COMMAND_KEYS | SCRIPT_KEYS
        return known | SHELL_KEYS if known.isdisjoint(map(plain_key, args)) else known

    def _is_shell(self, tool_name: str) -> bool:
        """Return whether a tool runs its texts: as its name suggests, if programs are listed."""
        if tool_name.lower() in SHELL_TOOLS or not self.commands.allowed:
            return tool_name.lower() in SHELL_TOOLS
        words = set(_NAME_WORDS.split(plain_key(tool_name)))
        return not words.isdisjoint(SHELL_WORDS) or tool_name.lower() in SHELL_NAMES

    def _check_paths(
        self, commands: list[Simple], items: list[Item], bases: list[str], values: Values
    ) -> Iterator[str]:
        checker = PathChecker(self.paths)
        has_file = any(item.key in FILE_KEYS for item in items)
        for item in items:
            if not (has_file and item.key in FILE_TEXT_KEYS):
                yield from _check_item_path(checker, item, bases)
        for simple, places in with_bases(commands, bases, values):
            if goes_home(simple) and len(commands) > 1:  # alone it does nothing
                yield from checker.check_path("~", places, "~")
            yield from _check_command_paths(checker, simple, places, values)

    def _check_domains(
        self, commands: list[Simple], items: list[Item], values: Values
    ) -> Iterator[str]:
        for item in items:
            named = item.key in URL_KEYS
            if named and item.problem:
                yield item.problem
            yield from self.domains.find_violations(item.text, sure=named)
        for simple in commands:
            addresses = _addresses(simple)
            for word in _path_words(simple):
                yield from self._check_word_domain(word, values, addresses.get(id(word)))

    def _check_word_domain(self, word: Word, values: Values, start: int | None) -> Iterator[str]:
        """Judge the hosts of a word; ``start`` is where an address begins, when it must be one."""
        sure = start is not None
        if not _is_host_known(word, values, sure=sure):
            domain = f"Domain in '{word.source:.120}'"
            yield f"{domain} is known only when it runs, so it cannot be judged."
        for text in texts_of(word, values):
            yield from self.domains.find_violations(text[start or 0 :], sure=sure)


def _is_command(item: Item, keys: frozenset[str], *, is_shell: bool) -> bool:
    if item.role == "command" and item.problem:
        raise NotText(item.problem)
    return item.key in keys or item.role == "command" or (is_shell and item.role == "other")


def _check_item_path(checker: PathChecker, item: Item, bases: list[str]) -> Iterator[str]:
    naming = Naming.PATH if item.role == "path" else Naming.WORD
    if item.role == "path" and item.problem:
        yield item.problem
    elif item.role == "path" or len(item.text.split(None, 1)) <= 1:
        yield from checker.check_whole(item.text, bases, naming)
    elif item.role != "prose":
        yield from checker.check_text(item.text, bases, naming=naming)


def _check_command_paths(
    checker: PathChecker, simple: Simple, bases: list[str], values: Values
) -> Iterator[str]:
    finders = _path_finders(simple)
    namings = _namings(simple) if any(map(checker.is_outside, bases)) else {}
    owners = {
        id(word): program.name for program in programs_of(simple) for word in program.operands
    }
    is_pattern = is_case_pattern(simple)
    for word in _path_words(simple):
        expands = word.expands and not is_pattern
        shown = None if word.literal is not None else word.source
        find = finders.get(id(word))
        naming = namings.get(id(word), Naming.WORD)
        for text in texts_of(word, values):
            clusters = not attaches_all(owners.get(id(word), ""), text)
            for piece in (text,) if find is None else find(text):
                yield from checker.check_text(
                    piece, bases, shown, naming=naming, expands=expands, clusters=clusters
                )


def _namings(simple: Simple) -> dict[int, Naming]:
    """Return what the words of a command are, by identity, as far as that is known. The innermost
    program says it: in ``sudo cat x`` that is ``cat``.
    """
    files = (redirect for redirect in simple.redirects if redirect.body is None)
    found = {id(redirect.target): Naming.PATH for redirect in files}
    is_read = simple.depth > 0 or simple.after in PIPES
    replaced = frozenset({FOUND})
    for program in programs_of(simple):
        found[id(program.word)] = Naming.PATH if "/" in program.word.source else Naming.TEXT
        namings = namings_of(program, is_read=is_read)
        for index, word in enumerate(program.operands):
            is_filled = any(mark in word.source for mark in replaced)
            found[id(word)] = Naming.WORD if is_filled else namings.get(index, Naming.WORD)
        replaced |= find_replaced_texts(program.name, program.operands)
    return found


def _path_finders(simple: Simple) -> dict[int, PathFinder]:
    """Return the words that are text, by identity, with a function that finds the paths in each."""
    found: dict[int, PathFinder] = {}
    for program in programs_of(simple):
        for index, finder in text_operands(program).items():
            found[id(program.operands[index])] = finder
        if _PROGRAM_NAME.fullmatch(program.word.source):
            found[id(program.word)] = find_no_paths
        scripts = scripts_of(program, simple)  # judged as commands
        found |= {id(word): find_no_paths for script in scripts for word in script}
    return found


def is_argument_list(key: str, value: object) -> bool:
    """Return whether a value is one program with its words, to be started without a shell."""
    if key not in ("command", "cmd", "argv") or not isinstance(value, (list, tuple)):
        return False
    return all(isinstance(item, str) for item in value)


def _complete_command(commands: list[Simple], args: Mapping[str, Any]) -> Iterator[Simple]:
    """Return the last command with the words and the input that stand beside it in the call."""
    plain = {plain_key(name): value for name, value in args.items()}
    last = next((simple for simple in reversed(commands) if not simple.depth), None)
    if last is None or plain.keys().isdisjoint(ARGUMENT_KEYS | INPUT_KEYS):
        return
    words = [word for key in sorted(ARGUMENT_KEYS) for word in _argument_words(plain.get(key))]
    inputs = [plain.get(key) for key in sorted(INPUT_KEYS)]
    bodies = [literal_word(text) for text in inputs if isinstance(text, str)]
    redirects = (Redirect("<<<", literal_word(""), body) for body in bodies)
    yield from with_scripts(
        replace(last, words=(*last.words, *words), redirects=(*last.redirects, *redirects))
    )


def _argument_words(value: object) -> list[Word]:
    """Return the words of ``args``: each element of a list, or those of a text."""
    if isinstance(value, str):
        return [word for simple in split(value) for word in simple.words]
    return [literal_word(str(item)) for item in value] if isinstance(value, (list, tuple)) else []


def _addresses(simple: Simple) -> dict[int, int]:
    """Return the words that must be addresses, by identity, and where in each one begins."""
    return {
        id(program.operands[index]): at
        for program in programs_of(simple)
        for index, at in address_operands(program).items()
    }


def _path_words(simple: Simple) -> Iterator[Word]:
    """Return every word of a command: its own, its redirections, and the text fed to it."""
    yield from simple.words
    for redirect in simple.redirects:
        if redirect.is_copy:
            continue
        if redirect.body is None:
            yield redirect.target
        elif not all(program.name in ("cat", "tee") for program in programs_of(simple)):
            yield redirect.body  # not only copied, as in `cat > file <<EOF`


def _is_host_known(word: Word, values: Values, *, sure: bool) -> bool:
    """Return whether the host of an address is known before it runs; the rest need not be."""
    known = ""
    for part in word.parts:
        if isinstance(part, Plain):
            known += part.value
        elif isinstance(part, Output) or (part.name not in values and part.name not in os.environ):
            scheme, slashes, rest = known.partition("//")
            return "/" in rest if slashes else not sure or "/" in scheme
    return True
