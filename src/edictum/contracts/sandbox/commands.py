"""Commands: which programs a command line runs, also behind wrappers and inside scripts given as text.

``split`` is the seam: it turns a line into simple commands. Everything else here only reads what it returns, so a reader that
builds a real syntax tree can take its place. ``programs_of`` follows wrappers (``sudo env nice rm``) from one program to the next;
``read`` also reads the scripts that a command carries as text (``bash -c '...'``, ``eval``, ``trap``) as commands of their own.
What is known only at run time (``$TOOL x``, ``eval "$(...)"``, ``... | sh``) is ``Unreadable``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from edictum.contracts.sandbox.shell import CASE_ENDS, MAX_DEPTH, MAX_PIECES, Simple, Unreadable, Word, literal_word, names, split

__all__ = ["CommandBounds", "Program", "Unreadable", "programs_of", "read", "split"]

SCRIPT_DEPTH = 4  # a script in a script is read again, so it counts for several levels
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish"})
SYSTEM_DIRECTORIES = ("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")
# Words of the shell's grammar after which the next word is again a command ...
OPENERS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "{", "!", "time", "coproc", "for", "select", "function"})
# ... which begin with a name of their own ...
NAMED_CLAUSES = frozenset({"for", "select", "function"})
# ... and those whose line runs no program.
CLAUSES = frozenset({"case", "esac", "fi", "done", "}", "[["})
# Setting one of these changes what a listed program does or which file its name means.
STEERING_VARIABLES = names(
    "PATH IFS ENV BASH_ENV SHELLOPTS BASHOPTS PROMPT_COMMAND PS4 LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT DYLD_INSERT_LIBRARIES "
    "DYLD_LIBRARY_PATH PAGER GIT_PAGER EDITOR VISUAL GIT_EDITOR GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF PYTHONPATH PYTHONSTARTUP "
    "PERL5LIB PERL5OPT RUBYOPT NODE_OPTIONS"
)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a program that runs another one is called: options that take a value, operands before the inner command."""

    valued: frozenset[str] = frozenset()
    operands: int = 0
    assignments: bool = False


def _wrapper(valued: str = "", operands: int = 0, assignments: bool = False) -> Wrapper:
    return Wrapper(names(valued), operands, assignments)


WRAPPERS: dict[str, Wrapper] = {
    "env": _wrapper("-u --unset -C --chdir -S --split-string", assignments=True),
    "sudo": _wrapper("-u --user -g --group -h --host -p --prompt -C -r -t -T -U -D --chdir -R --chroot", assignments=True),
    "doas": _wrapper("-u -C"),
    "nohup": _wrapper(),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c --class -n --classdata"),
    "timeout": _wrapper("-k --kill-after -s --signal", operands=1),
    "time": _wrapper("-f --format -o --output"),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "setsid": _wrapper(),
    "chrt": _wrapper("-T -P -D", operands=1),
    "taskset": _wrapper(operands=1),
    "xargs": _wrapper("-I -n --max-args -P --max-procs -L --max-lines -d --delimiter -E -s --max-chars -a --arg-file"),
    "command": _wrapper(),
    "builtin": _wrapper(),
    "exec": _wrapper("-a"),
    "strace": _wrapper("-e -o -p -s -u -P -E -a -S -O"),
    "ltrace": _wrapper("-e -o -p -s -u -a -n -l -x"),
    "unbuffer": _wrapper(),
    "caffeinate": _wrapper("-t -w"),
    "flock": _wrapper("-w --timeout -E", operands=1),
    "chroot": _wrapper("--userspec --groups", operands=1),
    "unshare": _wrapper("-S -G -R -w"),
    "nsenter": _wrapper("-t -S -G"),
    "setpriv": _wrapper("--reuid --regid --groups"),
    "busybox": _wrapper(),
    "toybox": _wrapper(),
    "faketime": _wrapper("-f", operands=1),
    "rlwrap": _wrapper("-f -H -s"),
    "torsocks": _wrapper(),
    "proxychains": _wrapper("-f"),
    "proxychains4": _wrapper("-f"),
    "systemd-run": _wrapper("-p --property -u --unit -E --setenv --uid --gid --slice"),
    "systemd-inhibit": _wrapper("--what --who --why --mode"),
    "dbus-run-session": _wrapper(),
    "xvfb-run": _wrapper("-s -n -e -f"),
    "firejail": _wrapper(),
    "watch": _wrapper("-n --interval"),
    "parallel": _wrapper("-j --jobs -a --arg-file -I -n -N -L --colsep --delay --timeout"),
    "entr": _wrapper(),
}
# Programs whose operands, joined, are a script for a shell.
SCRIPT_OPERANDS = frozenset({"eval", "watch", "parallel"})
# Programs with an option whose value is a script for a shell.
SCRIPT_OPTIONS: dict[str, frozenset[str]] = {
    "su": frozenset({"-c", "--command"}),
    "runuser": frozenset({"-c", "--command"}),
    "script": frozenset({"-c", "--command"}),
    "flock": frozenset({"-c", "--command"}),
    "env": frozenset({"-S", "--split-string"}),
    "nix-shell": frozenset({"--run", "--command"}),
}
# Options after which a command follows, up to ";" or "+" or the end.
COMMAND_OPTIONS: dict[str, frozenset[str]] = {
    "find": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "bfs": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "fd": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
    "fdfind": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
    "nix": frozenset({"-c", "--command"}),
}


@dataclass(frozen=True, slots=True)
class Program:
    """One program that a simple command runs, and the words it is given."""

    word: Word
    operands: tuple[Word, ...]

    @property
    def name(self) -> str:
        """The name without the directory."""
        return (self.word.literal or "").rsplit("/", 1)[-1]


def read(line: str, depth: int = 0) -> list[Simple]:
    """The simple commands of a line and of every script that one of them carries as text."""
    return [inner for simple in split(line, depth) for inner in with_scripts(simple)]


def with_scripts(simple: Simple) -> Iterator[Simple]:
    """The command itself, then the commands of the scripts it carries."""
    yield simple
    for program in programs_of(simple):
        for script in scripts_of(program, simple):
            yield from read(_known(script, program), simple.depth + SCRIPT_DEPTH)


def _known(script: Sequence[Word], program: Program) -> str:
    texts = [word.literal for word in script]
    if None in texts:
        raise Unreadable(f"{program.name} gets a script that is known only when it runs")
    return " ".join(text for text in texts if text is not None)


def is_pattern(simple: Simple) -> bool:
    """Whether the words are a pattern of ``case``: they are compared, not run, and not looked up as files."""
    return simple.after == ")" and (simple.before in CASE_ENDS or (simple.words[:1] != () and simple.words[0].source == "case"))


def command_words(simple: Simple) -> tuple[Word, ...]:
    """The words without leading grammar and assignments: the program first. Empty when no program is named."""
    if is_pattern(simple):
        return ()
    words, index = simple.words, 0
    while index < len(words):
        if words[index].source in CLAUSES:
            return ()
        if words[index].source not in OPENERS and words[index].assigns is None:
            return words[index:]
        index += _grammar_length(words[index : index + 3])
    return ()


def _grammar_length(words: tuple[Word, ...]) -> int:
    """How many words of grammar stand first: ``function name``, ``for x`` before ``do`` (else values follow), ``time -p``, or one."""
    first, second, third = (*(word.source for word in words), "", "")[:3]
    if first in NAMED_CLAUSES:
        return 2 if third in ("do", "{") else MAX_PIECES
    return 2 if (first, second) == ("time", "-p") else 1


def programs_of(simple: Simple) -> list[Program]:
    """The program of a simple command and, behind each wrapper, the next one."""
    found: list[Program] = []
    waiting = [command_words(simple)]
    while waiting:
        words = waiting.pop()
        if not words:
            continue
        program = Program(words[0], words[1:])
        found.append(program)
        if len(found) > MAX_DEPTH:
            raise Unreadable("it wraps one program in another too often")
        waiting += inner_commands(program)
    return found


def inner_commands(program: Program) -> Iterator[tuple[Word, ...]]:
    """The commands that a program is asked to run."""
    wrapper = WRAPPERS.get(program.name)
    if wrapper is not None and program.name not in SCRIPT_OPERANDS:
        yield _behind(wrapper, program.operands)
    options = COMMAND_OPTIONS.get(program.name, frozenset())
    for index, word in enumerate(program.operands if options else ()):
        if word.literal in options:
            yield _up_to_end(program.operands[index + 1 :])


def _behind(wrapper: Wrapper, operands: tuple[Word, ...]) -> tuple[Word, ...]:
    """The operands from the inner command on."""
    index, left = 0, wrapper.operands
    while index < len(operands):
        text = operands[index].literal or ""
        if text == "--":
            return operands[index + 1 + left :]
        if text.startswith("-") and len(text) > 1:
            index += 2 if text in wrapper.valued else 1
        elif wrapper.assignments and operands[index].assigns is not None:
            index += 1
        else:
            return operands[index + left :]
    return ()


def _up_to_end(words: tuple[Word, ...]) -> tuple[Word, ...]:
    ends = (index for index, word in enumerate(words) if word.literal in (";", "+"))
    return words[: next(ends, len(words))]


def scripts_of(program: Program, simple: Simple) -> Iterator[Sequence[Word]]:
    """The texts that a program will run as shell commands, each as the words it is made of."""
    if program.name in SHELLS:
        yield from _shell_scripts(program, simple)
    if program.name in SCRIPT_OPERANDS:
        yield _behind(WRAPPERS.get(program.name, Wrapper()), program.operands)
    if program.name == "trap":
        yield program.operands[:1]
    if program.name == "alias":
        yield from ([literal_word(value)] for word in program.operands if (value := (word.literal or "").partition("=")[2]))
    yield from _option_scripts(SCRIPT_OPTIONS.get(program.name, ()), program.operands)


def _option_scripts(options: Iterable[str], operands: tuple[Word, ...]) -> Iterator[Sequence[Word]]:
    """The values of the options, given as the next word or attached (``--command=ls``, ``-Sls``)."""
    for option in options:
        for index, word in enumerate(operands):
            text = word.literal or ""
            if text == option:
                yield operands[index + 1 : index + 2]
            elif text.startswith(option) and (text[1] != "-" or text[len(option)] == "="):
                yield [literal_word(text[len(option) :].removeprefix("="))]


def _shell_scripts(program: Program, simple: Simple) -> Iterator[Sequence[Word]]:
    """The script of ``bash -c``, of a here-document, or none when the shell runs a file."""
    for index, word in enumerate(program.operands):
        text = word.literal or ""
        if not text.startswith("-") or text.startswith("--"):
            continue
        if "c" in text:
            yield [operand for operand in program.operands[index + 1 :] if not _is_option(operand)][:1]
            return
    bodies = [redirect.body for redirect in simple.redirects if redirect.body is not None]
    yield from ([body] for body in bodies)
    reads_input = not bodies and all(_is_option(word) for word in program.operands)
    if reads_input and simple.before in ("|", "|&"):
        raise Unreadable(f"{program.name} runs whatever comes out of a pipe")


def _is_option(word: Word) -> bool:
    return (word.literal or "").startswith(("-", "+"))


class CommandBounds:
    """The programs that may run, by name. No list means any program whose name is known."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = frozenset(allowed)
        self.listed = ", ".join(sorted(self.allowed))

    def violation(self, commands: Iterable[Simple]) -> str | None:
        for simple in commands:
            for program in programs_of(simple):
                if problem := self._program(program.word):
                    return problem
            if self.allowed and (problem := self._steering(simple)):
                return problem
        return None

    def _program(self, word: Word) -> str | None:
        name = word.literal
        if name is None:
            return f"Command '{word.source:.120}' is known only when it runs, so it cannot be judged."
        if not self.allowed or self._allows(name):
            return None
        return f"Command '{name:.120}' is not one of the allowed commands: {self.listed}."

    def _allows(self, name: str) -> bool:
        """By name; by path only as listed or from a system directory, because ``./ls`` can be any program."""
        directory, _, base = name.rpartition("/")
        if name in self.allowed or (name == "[" and "test" in self.allowed):
            return True
        return bool(directory) and f"{directory}/" in SYSTEM_DIRECTORIES and base in self.allowed

    def _steering(self, simple: Simple) -> str | None:
        for word in simple.words:
            name = word.assigns
            if name in STEERING_VARIABLES:
                return f"Setting {name} changes which programs run; allowed commands: {self.listed}."
        return None
