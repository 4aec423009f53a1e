"""Reading a command line: text in, simple commands out. It judges nothing.

The reader is *flat on purpose*. It does not build a syntax tree; it finds every word and every redirection that a shell could see,
at every depth (``$(...)``, backticks, ``<(...)``, subshells, here-documents), and cuts them into simple commands at the control
operators. A structure that it misunderstands therefore costs precision, never a word. What it must get right is quoting,
because a wrong quote hides words: whatever leaves a quote or a bracket open is ``Unreadable``, and callers refuse it.

Every character is consumed once and nesting is bounded, so the time is linear in the text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass

CASE_ENDS = (";;", ";&", ";;&")
MAX_DEPTH = 24
MAX_PIECES = 20_000
MAX_ARITHMETIC = 1000

_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_PLAIN = re.compile(r"[^ \t\r\n'\"\\$`;&|<>()]+")
_QUOTED = re.compile(r'[^"\\$`]+')
_BRACED = re.compile(r"[^'\"\\$`}]+")
_BODY = re.compile(r"[^\\$`]+")
_REDIRECT = re.compile(r"(?:\d{1,9}|\{\w{1,64}\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||<|>|(?<!\d)&>>|(?<!\d)&>)")
_PROCESS = re.compile(r"[<>]\(")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACE_NAME = re.compile(r"\{([!#]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(\[[^\]}]*\])?")
_BACKTICK = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ARITHMETIC = frozenset(string.ascii_letters + string.digits + string.whitespace + "_+-*/%<>=!&|^~?:,.$[]{}#")
_ANSI = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL)
_BACKTICK_ESCAPE = re.compile(r"\\([$`\\])")
_ENDS_WORD = frozenset(" \t\r\n;&|<>()")
_BEFORE_BRACKET = frozenset("=@?*+!")
_ESCAPABLE = frozenset('$`"\\')
_ANSI_QUOTE = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ANSI_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}


def names(text: str) -> frozenset[str]:
    """A table of words, written as one text."""
    return frozenset(text.split())


class Unreadable(ValueError):
    """The text cannot be read as a command line with certainty."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal characters, quotes removed."""

    value: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """``$name`` or ``${name...}``; ``operand`` holds what follows the name inside the braces."""

    name: str
    sign: str = ""
    operand: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """``$(...)``, backticks or ``<(...)``: text that only exists once these commands have run."""

    commands: tuple[Simple, ...]


Part = Text | Variable | Output


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, as parts, with the text that it was read from."""

    parts: tuple[Part, ...]
    source: str

    @property
    def literal(self) -> str | None:
        """The word as the program receives it, or None when that is known only at run time."""
        if not all(isinstance(part, Text) for part in self.parts):
            return None
        return "".join(part.value for part in self.parts if isinstance(part, Text))

    @property
    def expands(self) -> bool:
        """Whether a shell may make other words of it: it has braces or wildcards outside quotes."""
        return any(isinstance(part, Text) and not part.quoted and not set("{*?[").isdisjoint(part.value) for part in self.parts)

    @property
    def assigns(self) -> str | None:
        """The name that ``NAME=value`` sets, when the word has that form."""
        first = self.parts[0] if self.parts else None
        found = _ASSIGNMENT.match(first.value) if isinstance(first, Text) and not first.quoted else None
        return _NAME.match(found.group()).group() if found else None  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Redirect:
    """``> target``; for a here-document or here-string ``body`` is the text that is fed in."""

    operator: str
    target: Word
    body: Word | None = None


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command: leading assignments and keywords included, control operators on both sides named."""

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    before: str = ""
    after: str = ""
    depth: int = 0


def split(line: str, depth: int = 0) -> list[Simple]:
    """Every simple command of the line, inner ones before the command that contains them."""
    if "\0" in line:
        raise Unreadable("it contains a NUL character")
    reader = _Reader(line, depth)
    reader.commands("")
    return reader.found


def literal_word(text: str) -> Word:
    """A word that no shell has touched, as in an argument list."""
    return Word((Text(text, quoted=True),), text)


def ansi_text(text: str) -> str:
    r"""The text with ``\x2f``, ``\057``, ``\n`` and the like decoded, as ``$'...'`` and ``printf`` do."""
    return _ANSI.sub(_ansi_character, text)


def _ansi_character(found: re.Match[str]) -> str:
    hex2, hex4, hex8, octal, control, other = found.groups()
    if digits := hex2 or hex4 or hex8:
        code = int(digits, 16)
        return chr(code) if code < 0x110000 else ""
    if octal:
        return chr(int(octal, 8) & 0xFF)
    if control:
        return chr(ord(control) & 0x1F)
    return _ANSI_LETTERS.get(other, other)


class _Reader:
    """A position in the text, the words of the command being read, and the commands found so far."""

    def __init__(self, text: str, depth: int, at: int = 0, count: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise Unreadable(f"it nests commands more than {MAX_DEPTH} levels deep")
        self.text = text
        self.depth = depth
        self.at = at
        self.count = count
        self.found: list[Simple] = []
        self.words: list[Word] = []
        self.redirects: list[Redirect] = []
        self.before = ""
        self.document_end = 0

    # -- commands ------------------------------------------------------------------------------------------------------

    def commands(self, closer: str) -> None:
        """Read commands up to ``closer`` (a bracket that someone else opened) or to the end of the text."""
        while self.skip_blanks() < len(self.text):
            if self.text[self.at] == "#":
                self.skip_comment()
            elif self.text[self.at] == closer and not self.in_pattern():
                self.at += 1
                return self.flush(closer)
            elif not (self.arithmetic() or self.redirect() or self.operator()):
                self.add_word()
        if closer:
            raise Unreadable(f"a {closer!r} is missing")
        return self.flush("")

    def skip_blanks(self) -> int:
        if found := _BLANK.match(self.text, self.at):
            self.at = found.end()
        return self.at

    def skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def arithmetic(self) -> bool:
        """``((...))`` where a command could start computes a number and names no word."""
        loop = len(self.words) == 1 and self.words[0].source == "for"
        return (loop or not self.words) and self.skip_arithmetic(";" if loop else "")

    def skip_arithmetic(self, more: str = "") -> bool:
        """Step over ``((...))`` when it can only be arithmetic: balanced to the end, and no command inside."""
        if not self.text.startswith("((", self.at):
            return False
        depth = 0
        for index in range(self.at + 2, min(len(self.text), self.at + MAX_ARITHMETIC)):
            character = self.text[index]
            if character == ")" and not depth:
                ends = self.text.startswith("))", index) and "$(" not in self.text[self.at : index]
                self.at = index + 2 if ends else self.at
                return ends
            if character not in _ARITHMETIC and character not in more and character not in "()":
                return False
            depth += (character == "(") - (character == ")")
        return False

    def operator(self) -> bool:
        found = _OPERATOR.match(self.text, self.at)
        if found is None:
            return False
        self.counted()
        self.at = found.end()
        if found.group() == "(":
            self.round_bracket()
        elif found.group() != "|" or not self.in_pattern():
            self.flush(found.group())
        if found.group() == "\n":
            self.at = max(self.at, self.document_end)
        return True

    def in_pattern(self) -> bool:
        """Whether the words being read are a pattern of ``case``, where ``|`` joins alternatives."""
        first = self.words[0].source if self.words else "esac"
        return first == "case" or (self.before in CASE_ENDS and first != "esac")

    def round_bracket(self) -> None:
        """``name()`` defines a function and runs nothing; any other bracket opens a subshell."""
        if len(self.words) == 1 and self.text.startswith(")", self.skip_blanks()):
            self.words.clear()
            self.at += 1
        else:
            self.flush("(")
            self.nested()

    def flush(self, after: str) -> None:
        """Close the simple command being read."""
        if after == "\n" and (self.in_pattern() or (self.before in CASE_ENDS and not self.words)):
            after = ";;"  # the next pattern stands on a line of its own
        if self.words or self.redirects:
            self.found.append(Simple(tuple(self.words), tuple(self.redirects), self.before, after, self.depth))
            self.words, self.redirects = [], []
        self.before = after

    def nested(self) -> tuple[Simple, ...]:
        """Read the commands of an inner shell in place, and go on behind its bracket."""
        inner = _Reader(self.text, self.depth + 1, self.at, self.count)
        inner.commands(")")
        self.at, self.count = inner.at, inner.count
        return self.include(inner.found)

    def apart(self, text: str) -> tuple[Simple, ...]:
        """Read the commands of an inner shell from a text of its own."""
        return self.include(split(text, self.depth + 1))

    def include(self, inner: list[Simple]) -> tuple[Simple, ...]:
        self.found.extend(inner)
        return tuple(inner)

    # -- redirections and here-documents -------------------------------------------------------------------------------

    def redirect(self) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if found is None or _PROCESS.match(self.text, self.at):
            return False
        self.counted()
        self.at = found.end()
        self.skip_blanks()
        # A redirection without a target is a syntax error in every shell: nothing runs. The words are judged all the same.
        target = self.word() or literal_word("")
        body = target if found.group(1) == "<<<" else None
        if found.group(1) in ("<<", "<<-"):
            body = self.document(target, indented=found.group(1) == "<<-")
        self.redirects.append(Redirect(found.group(1), target, body))
        return True

    def document(self, mark: Word, *, indented: bool) -> Word:
        """The body of a here-document: the lines after this one, up to the line that is the mark."""
        start = max(self.text.find("\n", self.at) + 1 or len(self.text), self.document_end)
        end, self.document_end = self.body_end(start, mark.literal or mark.source, indented=indented)
        body = self.text[start:end]
        if any(isinstance(part, Text) and part.quoted for part in mark.parts):
            return literal_word(body)
        inner = _Reader(body, self.depth + 1)
        parts = inner.parts(_BODY, "")
        self.include(inner.found)
        return Word(tuple(parts), body)

    def body_end(self, start: int, mark: str, *, indented: bool) -> tuple[int, int]:
        """Where the body ends and where the next command starts."""
        at = start
        while at < len(self.text):
            end = self.text.find("\n", at)
            end = len(self.text) if end < 0 else end
            line = self.text[at:end].rstrip("\r")
            if (line.lstrip("\t") if indented else line) == mark:
                return at, min(end + 1, len(self.text))
            at = end + 1
        return len(self.text), len(self.text)

    # -- words ---------------------------------------------------------------------------------------------------------

    def add_word(self) -> None:
        word = self.word()
        if word is None:
            raise Unreadable(f"of {self.text[self.at]!r} at position {self.at}")
        self.words.append(word)

    def word(self) -> Word | None:
        """The word that starts here, or None when none does."""
        start = self.at
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in _ENDS_WORD:
            parts += self.piece(_PLAIN, quoted=False)
            self.bracket_in_word(parts)
        if not parts and _PROCESS.match(self.text, self.at):
            self.at += 2
            parts.append(Output(self.nested()))
        return Word(tuple(parts), self.text[start : self.at]) if self.at > start else None

    def bracket_in_word(self, parts: list[Part]) -> None:
        """``name=(a b)`` and the wildcard ``@(a|b)`` continue a word: what stands in the bracket is words, not commands."""
        last = parts[-1] if parts else None
        opens = isinstance(last, Text) and not last.quoted and last.value != "!" and last.value[-1:] in _BEFORE_BRACKET
        if not opens or not self.text.startswith("(", self.at):
            return
        inner = _Reader(self.text, self.depth + 1, self.at + 1, self.count)
        inner.commands(")")
        self.at, self.count = inner.at, inner.count
        self.include([simple for simple in inner.found if simple.depth > inner.depth])
        for simple in inner.found:
            if simple.depth == inner.depth:
                parts.extend(part for word in simple.words for part in (*word.parts, Text(" ")))

    def parts(self, plain: re.Pattern[str], end: str) -> list[Part]:
        """Pieces up to ``end``, which is consumed."""
        parts: list[Part] = []
        while self.at < len(self.text):
            if self.text[self.at] == end:
                self.at += 1
                return parts
            parts += self.piece(plain, quoted=plain is not _BRACED)
        if end:
            raise Unreadable(f"a closing {end} is missing")
        return parts

    def piece(self, plain: re.Pattern[str], *, quoted: bool) -> list[Part]:
        """One run of plain characters, one quote, one escape or one expansion."""
        self.counted()
        if found := plain.match(self.text, self.at):
            self.at = found.end()
            return [Text(found.group(), quoted)]
        return _PIECES[self.text[self.at]](self, quoted)

    def counted(self) -> None:
        self.count += 1
        if self.count > MAX_PIECES:
            raise Unreadable(f"it has more than {MAX_PIECES} words, quotes and operators")

    def single_quote(self, _quoted: bool) -> list[Part]:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Unreadable("a closing ' is missing")
        text = self.text[self.at + 1 : end]
        self.at = end + 1
        return [Text(text, quoted=True)]

    def double_quote(self, _quoted: bool) -> list[Part]:
        self.at += 1
        return self.parts(_QUOTED, '"') or [Text("", quoted=True)]

    def escape(self, quoted: bool) -> list[Part]:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            return []
        if not following:
            raise Unreadable("it ends in a backslash, which shells keep or drop depending on what stands before it")
        return [Text(following if not quoted or following in _ESCAPABLE else "\\" + following, quoted=True)]

    def backtick(self, _quoted: bool) -> list[Part]:
        found = _BACKTICK.match(self.text, self.at)
        if found is None:
            raise Unreadable("a closing ` is missing")
        self.at = found.end()
        return [Output(self.apart(_BACKTICK_ESCAPE.sub(r"\1", found.group(1))))]

    def dollar(self, quoted: bool) -> list[Part]:
        if not quoted and (found := _ANSI_QUOTE.match(self.text, self.at)):
            self.at = found.end()
            return [Text(ansi_text(found.group(1)), quoted=True)]
        self.at += 1
        if self.text.startswith("\\\n", self.at):
            raise Unreadable("a line ends inside an expansion")
        if self.text.startswith('"', self.at) and not quoted:
            return []  # $"..." is a text to translate
        if self.skip_arithmetic():
            return [Text("1", quoted=True)]
        if self.text.startswith("(", self.at):
            self.at += 1
            return [Output(self.nested())]
        if self.text.startswith("{", self.at):
            return [self.braces(quoted)]
        if found := _NAME.match(self.text, self.at):
            self.at = found.end()
            return [Variable(found.group())]
        return [Text("$", quoted)]

    def braces(self, quoted: bool) -> Variable:
        found = _BRACE_NAME.match(self.text, self.at)
        if found is None:
            raise Unreadable(f"of the expansion at position {self.at - 1}")
        self.at = found.end()
        operand = self.parts(_BRACED, "}")
        if quoted and "'" in self.text[found.end() : self.at]:
            raise Unreadable("shells differ on a ' inside ${...} inside quotes")
        return Variable(found.group(2), found.group(1), tuple(operand))


_PIECES: dict[str, Callable[[_Reader, bool], list[Part]]] = {
    "'": _Reader.single_quote,
    '"': _Reader.double_quote,
    "\\": _Reader.escape,
    "`": _Reader.backtick,
    "$": _Reader.dollar,
}
