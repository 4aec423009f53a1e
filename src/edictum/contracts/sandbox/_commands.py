"""Find the programs that a command line runs, even behind wrappers and in scripts given as text.

``split`` turns a line into simple commands, and everything else here reads only what it returns.
``programs_of`` follows wrappers (``sudo env nice rm``) from one program to the next;
``read_commands`` also reads the scripts that a command carries as text (``bash -c '...'``,
``eval``, ``trap``). What is known only at run time (``$TOOL x``, ``eval "$(...)"``, ``... | sh``)
is ``Unreadable``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from edictum.contracts.sandbox._expand import SETTERS, Values, gives_default, texts_of
from edictum.contracts.sandbox._shell import (
    BEFORE_COMMANDS,
    CASE_ENDS,
    MAX_PIECES,
    MAX_SHELL_DEPTH,
    Plain,
    Redirect,
    Simple,
    Unreadable,
    Variable,
    Word,
    literal_word,
    names,
    split,
)
from edictum.contracts.sandbox._wrappers import (
    COMMAND_OPTIONS,
    FILLING,
    SCRIPT_OPERANDS,
    SCRIPT_OPTIONS,
    WRAPPERS,
    behind,
    find_replaced_texts,
    option_scripts,
)

SCRIPT_DEPTH = 4  # a script in a script is read again, so it counts for several levels
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish"})
SYSTEM_DIRECTORIES = ("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")
# Words of the shell's grammar after which the next word is again a command ...
OPENERS = BEFORE_COMMANDS | {"for", "select", "function"}
# ... which begin with a name of their own ...
NAMED_CLAUSES = frozenset({"for", "select"})
# ... and those whose line runs no program.
CLAUSES = frozenset({"case", "esac", "fi", "done", "}", "[["})
# Setting one of these changes what a listed program does or which file its name means.
STEERING_VARIABLES = names(
    "PATH IFS ENV BASH_ENV SHELLOPTS BASHOPTS PROMPT_COMMAND PS4 LD_PRELOAD LD_LIBRARY_PATH"
    " LD_AUDIT DYLD_INSERT_LIBRARIES DYLD_LIBRARY_PATH PAGER GIT_PAGER EDITOR VISUAL GIT_EDITOR"
    " GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF PYTHONPATH PYTHONSTARTUP PERL5LIB PERL5OPT RUBYOPT"
    " NODE_OPTIONS GIT_CONFIG GIT_CONFIG_COUNT GIT_CONFIG_PARAMETERS GIT_CONFIG_GLOBAL"
    " GIT_CONFIG_SYSTEM GIT_EXEC_PATH GIT_ASKPASS SSH_ASKPASS GIT_PROXY_COMMAND TAR_OPTIONS"
    " LESSOPEN LESSCLOSE MANPAGER BROWSER MAKEFLAGS RSYNC_RSH"
)
# Programs that start a shell on their input when they are given no command.
INPUT_SHELLS = frozenset(
    {"su", "runuser", "script", "chroot", "unshare", "nsenter", "nix-shell", "sudo", "doas"}
)
# Programs for which one more word can be a program or a script.
OPEN_ENDED = (
    SHELLS
    | frozenset(WRAPPERS)
    | SCRIPT_OPERANDS
    | frozenset(SCRIPT_OPTIONS)
    | frozenset(COMMAND_OPTIONS)
    | {"trap", "alias"}
)
PIPES = ("|", "|&")
# Programs that print names of files, and the placeholder for such a name in a script.
LISTING = frozenset({"find", "bfs", "fd", "fdfind", "ls"})
FOUND = "\uf8ff"
REDEFINING = frozenset({"alias", "eval", "source", ".", "enable", "hash", "builtin", "exec"})
_PRINTED = re.compile(r"[^\\%]*")  # printf and every echo print it as it is


@dataclass(frozen=True, slots=True)
class Program:
    """One program that a simple command runs, and its words."""

    word: Word
    operands: tuple[Word, ...]

    @property
    def name(self) -> str:
        """Return the name without the directory."""
        return (self.word.literal or "").rsplit("/", 1)[-1]

    @property
    def texts(self) -> list[str]:
        """Return the operands as text: as the program receives them, where that is known."""
        return [word.source if word.literal is None else word.literal for word in self.operands]


def read_commands(line: str, depth: int = 0) -> list[Simple]:
    """Return the simple commands of a line and of every script that one of them carries."""
    found = split(line, depth)
    fed = depth > 0 or any(_has_other_input(simple) for simple in found)
    is_certain = "|" in line and not _redefines(line, found)
    feeders = [None, *found] if is_certain else [None] * len(found)
    return [
        inner
        for simple, before in zip(found, feeders, strict=False)
        for inner in with_scripts(simple, fed=fed, feeder=_feeder(before, simple))
    ]


def _has_other_input(simple: Simple) -> bool:
    """Return whether the input of this command may not be the line's own."""
    if simple.depth > 0 or simple.before in PIPES or simple.after in PIPES:
        return True
    return any(_is_input(redirect) for redirect in simple.redirects)


def _redefines(line: str, commands: Iterable[Simple]) -> bool:
    """Return whether a line may give a program's name another meaning, as functions do."""
    programs = (program for simple in commands for program in programs_of(simple))
    return "(" in line or "function" in line or any(each.name in REDEFINING for each in programs)


def _feeder(before: Simple | None, simple: Simple) -> Simple | None:
    """Return the command before this one, if that alone is its input."""
    if before is None or before.depth != simple.depth or simple.before != "|":
        return None
    return before if before.after == "|" else None


def with_scripts(
    simple: Simple, *, fed: bool = False, feeder: Simple | None = None
) -> Iterator[Simple]:
    """Return the command and those of its scripts; ``fed``: its input may come from the line, and
    ``feeder`` is the command that it comes from, if that is certain.
    """
    yield simple
    programs = programs_of(simple)
    for index, program in enumerate(programs):
        for script in scripts_of(program, simple, fed=fed, feeder=feeder):
            text = _fill_in(_literal_script(script, program), programs[:index], feeder)
            inner = read_commands(text, simple.depth + SCRIPT_DEPTH)
            if inner and (program.name in FILLING or program.name == "alias"):
                _refuse_open_end(programs_of(inner[-1]), program.name)
            yield from inner


def _fill_in(script: str, outer: Sequence[Program], feeder: Simple | None) -> str:
    """Return the script with FOUND where a program around it puts the names of files, as in ``find
    -exec sh -c 'cat {}'``; raise Unreadable when it puts anything else there, or when the script
    climbs.
    """
    for program in outer:
        marks = [m for m in find_replaced_texts(program.name, program.operands) if m in script]
        if marks and (".." in script or not _puts_file_names(program, feeder)):
            message = f"{program.name} completes a script that is known only when it runs"
            raise Unreadable(f"{message}; write sh -c '... \"$1\"' _ {{}}")
        for mark in marks:
            script = script.replace(mark, FOUND)
    return script


def _puts_file_names(program: Program, feeder: Simple | None) -> bool:
    """Return whether a program replaces its placeholder by names of files: those that it finds
    itself, or that ``find`` and ``ls`` print for it.
    """
    listers = programs_of(feeder) if feeder is not None and program.name == "xargs" else [program]
    return len(listers) == 1 and listers[0].name in LISTING


def _literal_script(script: Sequence[Word], program: Program) -> str:
    texts = [word.literal for word in script]
    if None in texts:
        raise Unreadable(f"{program.name} gets a script that is known only when it runs")
    return " ".join(text for text in texts if text is not None)


def is_case_pattern(simple: Simple) -> bool:
    """Return whether the words are a pattern of ``case``, which is neither run nor opened."""
    opens = bool(simple.words) and simple.words[0].source == "case"
    return simple.after == ")" and (opens or simple.before in CASE_ENDS)


def command_words(simple: Simple) -> tuple[Word, ...]:
    """Return the words from the program on, without leading grammar and assignments."""
    if is_case_pattern(simple):
        return ()
    words, index = simple.words, 0
    while index < len(words):
        if words[index].source in CLAUSES:
            return ()
        if words[index].source == "coproc":
            raise Unreadable("'coproc' is not followed; run the command in the background with '&'")
        if words[index].source not in OPENERS and words[index].assigns is None:
            return words[index:]
        index += _grammar_length(words[index : index + 3])
    return ()


def _grammar_length(words: tuple[Word, ...]) -> int:
    """Return how many words of grammar stand first: ``function name``, ``for x`` before ``do``
    (else values follow), ``time -p``, or one.
    """
    first, second, third = (*(word.source for word in words), "", "")[:3]
    if first in NAMED_CLAUSES:
        return 2 if third in ("do", "{") else MAX_PIECES
    return 2 if first == "function" or (first, second) == ("time", "-p") else 1


def programs_of(simple: Simple) -> list[Program]:
    """Return the program of a simple command and, behind each wrapper, the next one."""
    found: list[Program] = []
    waiting = [command_words(simple)]
    while waiting:
        words = waiting.pop()
        if not words:
            continue
        program = Program(words[0], words[1:])
        found.append(program)
        if len(found) > MAX_SHELL_DEPTH:
            raise Unreadable("it wraps one program in another too often")
        waiting += inner_commands(program)
    for index, program in enumerate(found):
        if program.name in FILLING:
            _refuse_open_end(found[index + 1 :], program.name)
    return found


def _refuse_open_end(programs: Sequence[Program], filling: str) -> None:
    """Refuse ``xargs env``, which runs whatever it reads; a shell with its own script does not."""
    last = programs[-1] if programs else None
    if last is None or last.name not in OPEN_ENDED:
        return
    if not (last.name in SHELLS and shell_call(last).script):
        raise Unreadable(f"what {last.name} behind {filling} runs is known only when it runs")


def inner_commands(program: Program) -> Iterator[tuple[Word, ...]]:
    """Return the commands that a program is asked to run."""
    if program.name in WRAPPERS and program.name not in SCRIPT_OPERANDS:
        yield behind(program.name, program.operands)
    options = COMMAND_OPTIONS.get(program.name, frozenset())
    for index, word in enumerate(program.operands if options else ()):
        if word.literal in options:
            rest = program.operands[index + 1 :]
            yield tuple(itertools.takewhile(lambda each: each.literal not in (";", "+"), rest))


def scripts_of(
    program: Program, simple: Simple, *, fed: bool = False, feeder: Simple | None = None
) -> Iterator[Sequence[Word]]:
    """Return the texts that a program runs as shell commands, each as the words it is made of."""
    if program.name in SHELLS:
        yield from _shell_scripts(program, simple, fed=fed, feeder=feeder)
    if program.name in SCRIPT_OPERANDS:
        script = behind(program.name, program.operands)
        if not script and program.name in FILLING:
            raise Unreadable(f"{program.name} runs whatever it reads")
        yield script
    yield from _builtin_scripts(program)
    scripts = list(option_scripts(program.name, program.operands))
    yield from scripts
    if program.name in INPUT_SHELLS and fed and not scripts and not any(inner_commands(program)):
        raise Unreadable(f"{program.name} may run whatever comes out of a pipe")


def _builtin_scripts(program: Program) -> Iterator[Sequence[Word]]:
    """Return the scripts of the shell's own commands."""
    match program.name:
        case "trap":
            yield [word for word in program.operands if word.literal != "--"][:1]
        case "alias":
            for word in program.operands:
                yield [literal_word(_literal_script([word], program).partition("=")[2])]
        case "source" | ".":
            _refuse_unknown_file(program, program.operands)


@dataclass(frozen=True, slots=True)
class ShellCall:
    """What a shell runs: a script as text, else its input, else a file. The ``script`` of ``-c`` is
    empty when the text is missing, and None without ``-c``.
    """

    script: tuple[Word, ...] | None
    reads_input: bool


def shell_call(program: Program) -> ShellCall:
    """Return what a shell is asked to run; raise Unreadable when its options are not certain."""
    letters, index = _read_shell_options(program)
    rest = program.operands[index : index + 1]
    takes_script = "c" in letters
    more = len(program.operands) > index + 1
    if not takes_script and any(_may_be_option(word, more=more) for word in rest):
        message = f"{program.name} gets an option or a script that is known only when it runs"
        raise Unreadable(f'{message}; write sh -- "$file"')
    reads_input = not takes_script and ("s" in letters or not rest)
    return ShellCall(rest if takes_script else None, reads_input)


def _read_shell_options(program: Program) -> tuple[str, int]:
    """Return the letters of a shell's options, and the position of its first operand. ``-o`` and
    ``-O`` take a value each, even in a cluster and behind ``-c``.
    """
    letters, index = "", 0
    while index < len(program.operands):
        text = program.operands[index].literal or ""
        if text in ("-", "--") or text[:1] not in ("-", "+"):
            return letters, index + (text in ("-", "--"))
        if text.startswith(("--command", "--init-command")):
            raise Unreadable(f"the option '{text:.80}' of {program.name} is not known; write -c")
        short = "" if text.startswith("--") else text[1:]
        letters += short if text[0] == "-" else ""
        index += 1 + short.count("o") + short.count("O") + (text in ("--rcfile", "--init-file"))
    return letters, index


def _may_be_option(word: Word, *, more: bool) -> bool:
    """Return whether a word in the place of a file may be ``-c``, followed by a script."""
    if word.literal is not None:
        return False
    in_directory = any(isinstance(part, Plain) and "/" in part.value for part in word.parts)
    return word.splits or (more and not in_directory)


def _shell_scripts(
    program: Program, simple: Simple, *, fed: bool, feeder: Simple | None
) -> Iterator[Sequence[Word]]:
    """Return the script of ``bash -c``, of a here-document or of ``echo ... |``; none when the
    shell runs a file.
    """
    call = shell_call(program)
    if call.script is not None:
        if not call.script:
            raise Unreadable(f"{program.name} gets a script that is known only when it runs")
        yield call.script
        return
    _refuse_unknown_file(program, program.operands)
    inputs = [redirect for redirect in simple.redirects if _is_input(redirect)]
    yield from ([redirect.body] for redirect in inputs if redirect.body is not None)
    if not call.reads_input:
        return
    _refuse_unknown_file(program, [each.target for each in inputs if each.body is None])
    printed = _find_printed_text(feeder) if feeder is not None and not inputs else None
    if printed is not None:
        yield printed
    elif any(redirect.operator == "<&" for redirect in inputs) or (fed and not inputs):
        raise Unreadable(f"{program.name} runs whatever comes out of a pipe")


def _find_printed_text(simple: Simple) -> Sequence[Word] | None:
    """Return what ``echo words`` prints, or ``cat`` of a here-document; None when that is not
    certain, as with options, escapes and redirections.
    """
    programs = programs_of(simple)
    words = programs[0].operands if len(programs) == 1 else ()
    match programs[0].name if programs else "", simple.redirects:
        case "cat", (Redirect(body=Word() as body, number=""),) if not words:
            return [body]
        case "echo" | "printf", () if words and all(map(_is_printed, words)):
            is_option = (words[0].literal or "").startswith("-")
            printed = words if programs[0].name == "echo" else words[:1]
            return None if is_option else printed
    return None


def _is_printed(word: Word) -> bool:
    """Return whether echo and printf print a word as it is written, in every shell."""
    text = word.literal
    return text is not None and not word.expands and bool(_PRINTED.fullmatch(text))


def _is_input(redirect: Redirect) -> bool:
    return redirect.operator.startswith("<") and redirect.number in ("", "0")


def _refuse_unknown_file(program: Program, files: Iterable[Word]) -> None:
    """Refuse ``bash <(...)`` and ``sh /dev/stdin``, which run the output of another program."""
    for word in files:
        steps = (word.literal or "").split("/")
        is_device = "dev" in steps and not {"stdin", "fd"}.isdisjoint(steps)
        if word.source.startswith("<(") or is_device or ("proc" in steps and "fd" in steps):
            raise Unreadable(f"{program.name} runs whatever comes out of another program")


class CommandBounds:
    """The programs that may run, by name; with no list, any program whose name is known."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = frozenset(allowed)
        self.listed = ", ".join(sorted(self.allowed))

    def find_violations(self, commands: Iterable[Simple], values: Values) -> Iterator[str]:
        for simple in commands:
            if self.allowed and any(FOUND in word.source for word in simple.words):
                message = "the names of files become part of a script"
                raise Unreadable(f"{message}; write sh -c '... \"$1\"' _ {{}}")
            for program in programs_of(simple):
                _refuse_hidden_options(program, values)
                yield from self._check_program(program.word)
            for name in _variables_set_by(simple) if self.allowed else ():
                if name in STEERING_VARIABLES:
                    effect = f"Setting {name} changes which programs run"
                    yield f"{effect}; allowed commands: {self.listed}."

    def _check_program(self, word: Word) -> Iterator[str]:
        name = word.literal
        if name is None or "{}" in name or FOUND in name:
            command = f"Command '{word.source:.120}'"
            yield f"{command} is known only when it runs, so it cannot be judged."
        elif self.allowed and not self._allows(name):
            yield f"Command '{name:.120}' is not one of the allowed commands: {self.listed}."

    def _allows(self, name: str) -> bool:
        """Return whether a program is listed; ``./ls`` is not ``ls``, ``/bin/ls`` is."""
        directory, _, base = name.rpartition("/")
        if name in self.allowed or (name == "[" and "test" in self.allowed):
            return True
        return bool(directory) and f"{directory}/" in SYSTEM_DIRECTORIES and base in self.allowed


def _variables_set_by(simple: Simple) -> Iterator[str | None]:
    """Return every variable that a command may set, even in a loop, as a default or by ``read``."""
    sources = [word.source for word in simple.words]
    yield from (name for word, name in itertools.pairwise(sources) if word in NAMED_CLAUSES)
    for word in simple.words:
        yield word.assigns
        variables = (part for part in word.parts if isinstance(part, Variable))
        yield from (variable.name for variable in variables if gives_default(variable))
    for program in programs_of(simple):
        for word in program.operands if program.name in SETTERS else ():
            yield from (word.literal or "").split("=")


def _refuse_hidden_options(program: Program, values: Values) -> None:
    """Refuse an option given by variable, as in ``x='-exec rm {} ;'; find . $x``."""
    if program.name not in COMMAND_OPTIONS and program.name not in SCRIPT_OPTIONS:
        return
    for word in program.operands:
        pieces = " ".join(texts_of(word, values)).split() if word.splits else ()
        if any(piece.startswith("-") for piece in pieces):
            message = f"'{word.source:.80}' gives {program.name} an option by variable"
            raise Unreadable(f"{message}; write the option itself")
