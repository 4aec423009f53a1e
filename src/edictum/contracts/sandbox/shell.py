"""Reading a command line: text in, simple commands out. It judges nothing.

The reader is *flat on purpose*. It does not build a syntax tree; it finds every word and every
redirection that a shell could see, at every depth (``$(...)``, backticks, ``<(...)``, subshells,
here-documents), and cuts them into simple commands at the control operators. A structure that it
misunderstands therefore costs precision, never a word. What it must get right is quoting, because a
wrong quote hides words: whatever leaves a quote or a bracket open is ``Unreadable``, and callers
refuse it. So is what ``sh`` (dash) and ``bash`` read in different ways, because nothing here says
which of them will run the line.

Every character is consumed once and nesting is bounded, so the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

CASE_ENDS = (";;", ";&", ";;&")
# Words of the shell's grammar right behind which a command starts.
BEFORE_COMMANDS = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "{", "!", "time"}
)
MAX_DEPTH = 24
MAX_PIECES = 20_000

_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_CONTINUED_OPERATOR = re.compile(r"(?:\\\n)+[;&|<>(-]")
_PLAIN = re.compile(r"[^ \t\r\n'\"\\$`;&|<>()]+")
_QUOTED = re.compile(r'[^"\\$`]+')
_BRACED = re.compile(r"[^'\"\\$`}]+")
_BODY = re.compile(r"[^\\$`]+")
_REDIRECT = re.compile(
    r"(?P<number>\d{1,9}|\{\w{1,64}\})?(?P<operator><<<|<<-|<<|<>|<&|>>|>&|>\||<|>|(?<!\d)&>>|(?<!\d)&>)"
)
_PROCESS = re.compile(r"[<>]\(")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACE_NAME = re.compile(r"\{([!#]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])")
_BACKTICK = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ARITHMETIC = re.compile(
    r"""(?:[\w\s+*/%<>=!&|^~?:,.\[\]#-]|\$\w+|\$\{#?\w+(?:\[[\w@*]+\])?[^\s{}()'"`\\$<>@=]*\})+"""
)
_END_MARK = re.compile(r"""\\?[\w.%+:@!-]+|'[^'\\\n]+'|"[^"\\$`\n]+\"""")
_ANSI = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))",
    re.DOTALL,
)
_BACKTICK_ESCAPE = re.compile(r"\\([$`\\])")
_BACKTICK_DOUBT = re.compile(r'\\["\n]')
_ENDS_WORD = frozenset(" \t\n;&|<>()")
_BEFORE_BRACKET = frozenset("=@?*+!")
_ESCAPABLE = frozenset('$`"\\')
_ANSI_QUOTE = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ANSI_DOUBT = re.compile(r"(?<!\\)(?:\\\\)*\\(?:'|c|x\{)")
_ANSI_LETTERS = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "e": "\x1b",
    "E": "\x1b",
}


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
    quoted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Output:
    """``$(...)``, backticks or ``<(...)``: text that only exists once these commands have run."""

    commands: tuple[Simple, ...]
    quoted: bool = field(default=False, compare=False)


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
        return any(
            isinstance(part, Text) and not part.quoted and not set("{*?[").isdisjoint(part.value)
            for part in self.parts
        )

    @property
    def splits(self) -> bool:
        """Whether it may become several words, or none, by what a variable or an output holds when
        it runs.
        """
        return any(_splits(part) for part in self.parts)

    @property
    def assigns(self) -> str | None:
        """The name that ``NAME=value`` sets, when the word has that form."""
        first = self.parts[0] if self.parts else None
        found = (
            _ASSIGNMENT.match(first.value) if isinstance(first, Text) and not first.quoted else None
        )
        return _NAME.match(found.group()).group() if found else None  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Redirect:
    """``> target``; for a here-document or here-string ``body`` is the text that is fed in."""

    operator: str
    target: Word
    body: Word | None = None
    number: str = ""


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command: leading assignments and keywords included, control operators on both
    sides named.
    """

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    before: str = ""
    after: str = ""
    depth: int = 0


def _splits(part: Part) -> bool:
    if isinstance(part, Variable) and (part.name == "@" or Text("[@]") in part.operand[:1]):
        return True
    return not isinstance(part, Text) and not part.quoted


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
    r"""The text with ``\x2f``, ``\057``, ``\n`` and the like decoded, as ``$'...'`` and ``printf``
    do.
    """
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
    """A position in the text, the words of the command being read, and the commands found so
    far.
    """

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
        self.document_line: int | None = None
        self.only: str | None = None  # the operators that may stand here, when not all may

    # -- commands
    # ------------------------------------------------------------------------------------------

    def commands(self, closer: str) -> None:
        """Read commands up to ``closer`` (a bracket that someone else opened) or to the end of the
        text.
        """
        while self.skip_blanks() < len(self.text):
            if self.text[self.at] == "#":
                self.skip_comment()
            elif self.text[self.at] == closer and not self.in_pattern():
                self.at += 1
                return self.end(closer)
            elif not (self.counting_loop() or self.redirect() or self.operator()):
                self.add_word()
        if closer:
            raise Unreadable(f"a {closer!r} is missing")
        return self.end("")

    def end(self, after: str) -> None:
        if self.document_line is not None and self.document_line < len(self.text):
            raise Unreadable(
                "shells differ on where a here-document starts when its line goes on; put its mark"
                " last on the line"
            )
        self.flush(after)

    def skip_blanks(self) -> int:
        if found := _BLANK.match(self.text, self.at):
            self.at = found.end()
        return self.at

    def skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def counting_loop(self) -> bool:
        """``for ((...))`` counts; what follows it is a command. Elsewhere ``((`` computes in bash
        and runs commands in sh.
        """
        if not self.text.startswith("((", self.at):
            return False
        if [word.source for word in self.words] != ["for"]:
            raise Unreadable(
                "'((' computes in bash and runs commands in sh; write '[ $a -lt 3 ]' or 'a=$((a +"
                " 1))', or '( (' for commands"
            )
        self.arithmetic(";")
        self.words.clear()
        self.flush(";")
        return True

    def arithmetic(self, more: str = "") -> list[Part]:
        """Step over ``((...))``. What is not plainly a number, a name or an operator is read in
        different ways, or run.
        """
        depth, parts, self.at = 0, list[Part](), self.at + 2
        while depth or not self.text.startswith("))", self.at):
            self.counted()
            character = self.text[self.at : self.at + 1]
            if (found := _ARITHMETIC.match(self.text, self.at)) and "IFS" not in found.group():
                self.at = found.end()
            elif self.text.startswith("$(", self.at):
                parts += self.dollar(quoted=True)
            elif character and character in "()" + more and (depth or character != ")"):
                depth += (character == "(") - (character == ")")
                self.at += 1
            else:
                raise Unreadable(
                    "'((' is not plain arithmetic up to its '))'; write '( (' with a blank for"
                    " commands"
                )
        self.at += 2
        return parts

    def operator(self) -> bool:
        found = _OPERATOR.match(self.text, self.at)
        if found is None:
            return False
        self.counted()
        self.at = found.end()
        self.refuse_continued(found.group())
        self.refuse_misplaced(found.group())
        if found.group() == "(":
            self.round_bracket()
        elif found.group() != "|" or not self.in_pattern():
            self.flush(found.group())
        if found.group() == "\n":
            self.step_over_documents(found.start())
        return True

    def refuse_continued(self, operator: str) -> None:
        if operator != "\n" and _CONTINUED_OPERATOR.match(self.text, self.at):
            raise Unreadable("a line ends inside an operator")

    def refuse_misplaced(self, operator: str) -> None:
        """Bash goes on with the next line when it finds an operator between the elements of an
        array.
        """
        if self.only is not None and operator not in self.only:
            raise Unreadable(f"'{operator}' does not belong between the words of a bracket")

    def step_over_documents(self, line_end: int) -> None:
        """Go on behind the here-documents of the line that ends here, which must be the end that
        they were read from.
        """
        if self.document_line not in (None, line_end):
            raise Unreadable(
                "shells differ on where a here-document starts when its line goes on; put its mark"
                " last on the line"
            )
        self.at = max(self.at, self.document_end)
        self.document_line = None

    def in_pattern(self) -> bool:
        """Whether the words being read are a pattern of ``case``, where ``|`` joins
        alternatives.
        """
        first = self.words[0].source if self.words else "esac"
        opens = (
            next((word.source for word in self.words if word.source not in BEFORE_COMMANDS), "")
            == "case"
        )
        if opens and any(word.source == "esac" for word in self.words[1:]):
            raise Unreadable("a 'case' has no patterns, or one that is named 'esac'")
        return opens or (self.before in CASE_ENDS and first != "esac")

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
            self.found.append(
                Simple(tuple(self.words), tuple(self.redirects), self.before, after, self.depth)
            )
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

    # -- redirections and here-documents
    # -------------------------------------------------------------------------------

    def redirect(self) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if found is None or _PROCESS.match(self.text, self.at):
            return False
        self.counted()
        self.at = found.end()
        operator, number = found["operator"], found["number"] or ""
        self.refuse_continued(operator)
        self.refuse_misplaced(operator)
        self.skip_blanks()
        # A redirection without a target is a syntax error in every shell: nothing runs. The words
        # are judged all the same.
        target = self.word() or literal_word("")
        body = target if operator == "<<<" else None
        if operator in ("<<", "<<-"):
            body = self.document(target, indented=operator == "<<-")
        self.redirects.append(Redirect(operator, target, body, number))
        return True

    def document(self, mark: Word, *, indented: bool) -> Word:
        """The body of a here-document: the lines after this one, up to the line that is the
        mark.
        """
        if not _END_MARK.fullmatch(mark.source) or mark.literal is None:
            raise Unreadable(
                "the end mark of a here-document is not a plain word, such as EOF or 'EOF'"
            )
        line_end = self.text.find("\n", self.at)
        self.document_line = len(self.text) if line_end < 0 else line_end
        start = max(min(self.document_line + 1, len(self.text)), self.document_end)
        end, self.document_end = self.body_end(start, mark.literal, indented=indented)
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
            line = self.text[at:end]
            if (line.lstrip("\t") if indented else line) == mark:
                return at, min(end + 1, len(self.text))
            at = end + 1
        return len(self.text), len(self.text)

    # -- words
    # ------------------------------------------------------------------------------------------

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
        """``name=(a b)`` and the wildcard ``@(a|b)`` continue a word: what stands in the bracket is
        words, not commands.
        """
        last = parts[-1] if parts else None
        if (
            not isinstance(last, Text)
            or last.quoted
            or last.value == "!"
            or last.value[-1:] not in _BEFORE_BRACKET
        ):
            return
        if not self.text.startswith("(", self.at):
            return
        inner = _Reader(self.text, self.depth + 1, self.at + 1, self.count)
        inner.only = "\n" if last.value[-1] == "=" else "\n|"
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
        if following == "\r":
            self.carriage_return(quoted)
        if not following:
            raise Unreadable(
                "it ends in a backslash, which shells keep or drop depending on what stands"
                " before it"
            )
        return [
            Text(
                following if not quoted or following in _ESCAPABLE else "\\" + following,
                quoted=True,
            )
        ]

    def carriage_return(self, _quoted: bool) -> list[Part]:
        raise Unreadable(
            "a carriage return is no blank and no line end to a shell; end lines with a plain"
            " newline"
        )

    def backtick(self, quoted: bool) -> list[Part]:
        found = _BACKTICK.match(self.text, self.at)
        if found is None:
            raise Unreadable("a closing ` is missing")
        if _BACKTICK_DOUBT.search(found.group(1)):
            raise Unreadable(
                "shells differ on a backslash before a quote or a line end in backticks; write"
                " $(...)"
            )
        self.at = found.end()
        return [Output(self.apart(_BACKTICK_ESCAPE.sub(r"\1", found.group(1))), quoted)]

    def dollar(self, quoted: bool) -> list[Part]:
        if not quoted and self.text.startswith("$'", self.at):
            return [self.ansi_quote()]
        self.at += 1
        if self.text.startswith("\\\n", self.at):
            raise Unreadable("a line ends inside an expansion")
        if self.text.startswith('"', self.at) and not quoted:
            return []  # $"..." is a text to translate
        if self.text.startswith("((", self.at):
            self.arithmetic()
            return [Text("1", quoted=True)]
        if self.text.startswith("(", self.at):
            self.at += 1
            self.refuse_continued("(")
            return [Output(self.nested(), quoted)]
        if self.text.startswith("{", self.at):
            return [self.braces(quoted)]
        if found := _NAME.match(self.text, self.at):
            self.at = found.end()
            return [Variable(found.group(), quoted=quoted)]
        return [Text("$", quoted)]

    def ansi_quote(self) -> Text:
        """``$'...'``, which is a dollar sign and a plain quote in sh: both must end at the same
        place.
        """
        found = _ANSI_QUOTE.match(self.text, self.at)
        text = (
            "\0"
            if found is None or _ANSI_DOUBT.search(found.group(1))
            else ansi_text(found.group(1))
        )
        if found is None or "\0" in text:
            raise Unreadable("shells differ on this $'...'; write it in plain quotes")
        self.at = found.end()
        return Text(text, quoted=True)

    def braces(self, quoted: bool) -> Variable:
        found = _BRACE_NAME.match(self.text, self.at)
        if found is None:
            raise Unreadable(f"of the expansion at position {self.at - 1}")
        self.at = found.end()
        operand = self.parts(_BRACED, "}")
        if quoted and "'" in self.text[found.end() : self.at]:
            raise Unreadable("shells differ on a ' inside ${...} inside quotes")
        if _PROCESS.search(self.text, found.end(), self.at):
            raise Unreadable("<(...) inside ${...} is not followed")
        if self.text[found.end() : self.at] == "@P}":
            raise Unreadable(f"${{{found.group(2)}@P}} runs what the variable holds")
        return Variable(found.group(2), found.group(1), tuple(operand), quoted)


_PIECES: dict[str, Callable[[_Reader, bool], list[Part]]] = {
    "'": _Reader.single_quote,
    '"': _Reader.double_quote,
    "\\": _Reader.escape,
    "`": _Reader.backtick,
    "$": _Reader.dollar,
    "\r": _Reader.carriage_return,
}
