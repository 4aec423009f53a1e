"""Read a command line into simple commands. This judges nothing.

The reader is *flat on purpose*. It builds no syntax tree; it finds every word and every redirection
that a shell could see, at every depth (``$(...)``, backticks, ``<(...)``, subshells,
here-documents), and cuts them into simple commands at the control operators. A structure that it
misunderstands therefore makes it less precise, but never hides a word. What it must get right is
quoting, because a wrong quote hides words: whatever leaves a quote or a bracket open is
``Unreadable``, and callers refuse it. So is what ``sh`` (dash) and ``bash`` read in different ways,
because nothing here says which of them will run the line.

Every character is consumed once and nesting is bounded, so the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

CASE_ENDS = (";;", ";&", ";;&")
# Words of the shell's grammar right behind which a command starts.
BEFORE_COMMANDS = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "{", "!", "time"}
)
MAX_SHELL_DEPTH = 24
MAX_PIECES = 20_000

_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_CONTINUED_OPERATOR = re.compile(r"(?:\\\n)+[;&|<>(-]")
_PLAIN = re.compile(r"[^ \t\r\n'\"\\$`;&|<>()]+")
_QUOTED = re.compile(r'[^"\\$`]+')
_BRACED = re.compile(r"[^'\"\\$`}]+")
_BODY = re.compile(r"[^\\$`]+")
_REDIRECT = re.compile(
    r"(?P<number>\d{1,9}|\{\w{1,64}\})?"
    r"(?P<operator><<<|<<-|<<|<>|<&|>>|>&|>\||<|>|(?<!\d)&>>|(?<!\d)&>)"
)
_DESCRIPTOR = re.compile(r"\d+-?|-")
_PROCESS = re.compile(r"[<>]\(")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=")
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
_ALONE = re.compile(r"(?:^|[^\\])[ \t\n]\\\Z")
_BACKTICK_ESCAPE = re.compile(r"\\([$`\\])")
_BACKTICK_DOUBT = re.compile(r'\\["\n]')
_ENDS_WORD = frozenset(" \t\n;&|<>()")
_BEFORE_BRACKET = frozenset("=@?*+!")
_ESCAPABLE = frozenset('$`"\\')
_ANSI_QUOTE = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ANSI_DOUBT = re.compile(r"(?<!\\)(?:\\\\)*\\(?:'|c|x\{)")
_ANSI_LETTERS = dict(zip("ntrabfveE", "\n\t\r\a\b\f\v\x1b\x1b", strict=True))
_ANSI_DIFFERENCE = "shells differ on this $'...'; write it in plain quotes"
_DOCUMENT_START = "shells differ on where a here-document starts; put its mark last on the line"


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


class Unreadable(ValueError):
    """The text cannot be read as a command line with certainty."""


@dataclass(frozen=True, slots=True)
class Plain:
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


Part = Plain | Variable | Output


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, as parts, with the text that it was read from."""

    parts: tuple[Part, ...]
    source: str

    @property
    def literal(self) -> str | None:
        """Return the word as the program receives it; None when it is known only at run time."""
        texts = [part.value for part in self.parts if isinstance(part, Plain)]
        return "".join(texts) if len(texts) == len(self.parts) else None

    @property
    def expands(self) -> bool:
        """Whether a shell may make other words of it: it has braces or wildcards outside quotes."""
        return any(
            isinstance(part, Plain) and not part.quoted and not set("{*?[").isdisjoint(part.value)
            for part in self.parts
        )

    @property
    def splits(self) -> bool:
        """Whether a variable or an output may make several words of it, or none."""
        return any(_splits(part) for part in self.parts)

    @property
    def assigns(self) -> str | None:
        """Return the name that ``NAME=value`` sets; None when the word has another form."""
        first = self.parts[0] if self.parts else None
        if not isinstance(first, Plain) or first.quoted:
            return None
        found = _ASSIGNMENT.match(first.value)
        return found.group(1) if found else None


@dataclass(frozen=True, slots=True)
class Redirect:
    """``> target``; for a here-document or here-string ``body`` is the text that is fed in."""

    operator: str
    target: Word
    body: Word | None = None
    number: str = ""

    @property
    def is_copy(self) -> bool:
        """Whether it is ``2>&1`` or ``<&-``, which names no file."""
        literal = self.target.literal
        is_descriptor = literal is not None and bool(_DESCRIPTOR.fullmatch(literal))
        return self.operator in (">&", "<&") and is_descriptor


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command with its keywords, and the control operators on both sides."""

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    before: str = ""
    after: str = ""
    depth: int = 0


def _splits(part: Part) -> bool:
    if isinstance(part, Variable) and (part.name == "@" or Plain("[@]") in part.operand[:1]):
        return True
    return not isinstance(part, Plain) and not part.quoted


def split(line: str, depth: int = 0) -> list[Simple]:
    """Return every simple command of the line, inner ones before the one that contains them."""
    if "\0" in line:
        raise Unreadable("it contains a NUL character")
    reader = _Reader(line, depth)
    reader.read_commands("")
    return reader.found


def literal_word(text: str) -> Word:
    """Return a word that no shell has changed, as in an argument list."""
    return Word((Plain(text, quoted=True),), text)


def decode_escapes(text: str) -> str:
    r"""Decode ``\x2f``, ``\057``, ``\n`` and the like, as ``$'...'`` and ``printf`` do."""
    return _ANSI.sub(_decode_escape, text)


def _decode_escape(found: re.Match[str]) -> str:
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
    """A position in the text, the command being read, and the commands found so far."""

    def __init__(self, text: str, depth: int, at: int = 0, count: int = 0) -> None:
        if depth > MAX_SHELL_DEPTH:
            raise Unreadable(f"it nests commands more than {MAX_SHELL_DEPTH} levels deep")
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

    # --- Commands ---------------------------------------------------------------------------------

    def read_commands(self, closer: str) -> None:
        """Read commands up to ``closer``, the bracket that ends them, or to the end of the text."""
        while self.skip_blanks() < len(self.text):
            if self.text[self.at] == "#":
                self.at = self.find_line_end(self.at)
            elif self.text[self.at] == closer and not self.is_in_pattern():
                self.at += 1
                return self.finish(closer)
            elif not (self.read_counting_loop() or self.read_redirect() or self.read_operator()):
                self.words.append(self.read_word() or self.refuse_character())
        if closer:
            raise Unreadable(f"a {closer!r} is missing")
        return self.finish("")

    def finish(self, after: str) -> None:
        if self.document_line is not None and self.document_line < len(self.text):
            raise Unreadable(_DOCUMENT_START)
        self.flush(after)

    def skip_blanks(self) -> int:
        if found := _BLANK.match(self.text, self.at):
            self.at = found.end()
        return self.at

    def find_line_end(self, at: int) -> int:
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end

    def read_counting_loop(self) -> bool:
        """Read ``for ((...))``; elsewhere ``((`` computes in bash and runs commands in sh."""
        if not self.text.startswith("((", self.at):
            return False
        if [word.source for word in self.words] != ["for"]:
            message = "'((' computes in bash and runs commands in sh"
            raise Unreadable(
                f"{message}; write '[ $a -lt 3 ]' or 'a=$((a + 1))', or '( (' for commands"
            )
        self.read_arithmetic(";")
        self.words.clear()
        self.flush(";")
        return True

    def read_arithmetic(self, more: str = "") -> list[Part]:
        """Step over ``((...))``; refuse what shells read in different ways, or run."""
        depth, parts, self.at = 0, list[Part](), self.at + 2
        while depth or not self.text.startswith("))", self.at):
            self.count_piece()
            character = self.text[self.at : self.at + 1]
            if (found := _ARITHMETIC.match(self.text, self.at)) and "IFS" not in found.group():
                self.at = found.end()
            elif self.text.startswith("$(", self.at):
                parts += self.read_expansion(quoted=True)
            elif character and character in "()" + more and (depth or character != ")"):
                depth += (character == "(") - (character == ")")
                self.at += 1
            else:
                message = "'((' is not plain arithmetic up to its '))'"
                raise Unreadable(f"{message}; write '( (' with a blank for commands")
        self.at += 2
        return parts

    def read_operator(self) -> bool:
        found = _OPERATOR.match(self.text, self.at)
        if found is None:
            return False
        self.count_piece()
        self.at = found.end()
        self.refuse_continued_operator(found.group())
        self.refuse_misplaced_operator(found.group())
        if found.group() == "(":
            self.read_round_bracket()
        elif found.group() != "|" or not self.is_in_pattern():
            self.flush(found.group())
        if found.group() == "\n":
            self.skip_documents(found.start())
        return True

    def refuse_continued_operator(self, operator: str) -> None:
        if operator != "\n" and _CONTINUED_OPERATOR.match(self.text, self.at):
            raise Unreadable("a line ends inside an operator")

    def refuse_misplaced_operator(self, operator: str) -> None:
        """Refuse an operator between elements of an array: bash continues with the next line."""
        if self.only is not None and operator not in self.only:
            raise Unreadable(f"'{operator}' does not belong between the words of a bracket")

    def skip_documents(self, line_end: int) -> None:
        """Skip the here-documents of the line that ends here."""
        if self.document_line not in (None, line_end):
            raise Unreadable(_DOCUMENT_START)
        self.at = max(self.at, self.document_end)
        self.document_line = None

    def is_in_pattern(self) -> bool:
        """Return whether the words are a pattern of ``case``, where ``|`` joins alternatives."""
        sources = [word.source for word in self.words]
        opens = next((source for source in sources if source not in BEFORE_COMMANDS), "") == "case"
        if opens and "esac" in sources[1:]:
            raise Unreadable("a 'case' has no patterns, or one that is named 'esac'")
        return opens or (self.before in CASE_ENDS and sources[:1] not in ([], ["esac"]))

    def read_round_bracket(self) -> None:
        """Read ``name()``, which defines a function, or the subshell of any other bracket."""
        if len(self.words) == 1 and self.text.startswith(")", self.skip_blanks()):
            self.words.clear()
            self.at += 1
        else:
            self.flush("(")
            self.read_nested_commands()

    def flush(self, after: str) -> None:
        """Close the simple command being read."""
        if after == "\n" and (
            self.is_in_pattern() or (self.before in CASE_ENDS and not self.words)
        ):
            after = ";;"  # the next pattern stands on a line of its own
        if self.words or self.redirects:
            self.found.append(
                Simple(tuple(self.words), tuple(self.redirects), self.before, after, self.depth)
            )
            self.words, self.redirects = [], []
        self.before = after

    def read_nested_commands(self) -> tuple[Simple, ...]:
        """Read the commands of an inner shell in place, and continue behind its bracket."""
        return self.include(self.read_bracket(self.at).found)

    def read_bracket(self, start: int, only: str | None = None) -> _Reader:
        """Read what stands in a bracket; ``only`` are the operators that may stand there."""
        inner = _Reader(self.text, self.depth + 1, start, self.count)
        inner.only = only
        inner.read_commands(")")
        self.at, self.count = inner.at, inner.count
        return inner

    def include(self, inner: list[Simple]) -> tuple[Simple, ...]:
        self.found.extend(inner)
        return tuple(inner)

    # --- Redirections and here-documents ----------------------------------------------------------

    def read_redirect(self) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if found is None or _PROCESS.match(self.text, self.at):
            return False
        self.count_piece()
        self.at = found.end()
        operator, number = found["operator"], found["number"] or ""
        self.refuse_continued_operator(operator)
        self.refuse_misplaced_operator(operator)
        self.skip_blanks()
        # Without a target it is a syntax error in every shell, and nothing runs.
        target = self.read_word() or literal_word("")
        body = target if operator == "<<<" else None
        if operator in ("<<", "<<-"):
            body = self.read_document(target, indented=operator == "<<-")
        self.redirects.append(Redirect(operator, target, body, number))
        return True

    def read_document(self, mark: Word, *, indented: bool) -> Word:
        """Read the body of a here-document: the lines after this one, up to the mark."""
        if not _END_MARK.fullmatch(mark.source) or mark.literal is None:
            message = "the end mark of a here-document is not a plain word, such as EOF or 'EOF'"
            raise Unreadable(message)
        self.document_line = self.find_line_end(self.at)
        start = max(min(self.document_line + 1, len(self.text)), self.document_end)
        end, self.document_end = self.find_body_end(start, mark.literal, indented=indented)
        body = self.text[start:end]
        if any(isinstance(part, Plain) and part.quoted for part in mark.parts):
            return literal_word(body)
        inner = _Reader(body, self.depth + 1)
        parts = inner.read_parts(_BODY, "")
        self.include(inner.found)
        return Word(tuple(parts), body)

    def find_body_end(self, start: int, mark: str, *, indented: bool) -> tuple[int, int]:
        """Return where the body ends and where the next command starts."""
        at = start
        while at < len(self.text):
            end = self.find_line_end(at)
            line = self.text[at:end]
            if (line.lstrip("\t") if indented else line) == mark:
                return at, min(end + 1, len(self.text))
            at = end + 1
        return len(self.text), len(self.text)

    # --- Words ------------------------------------------------------------------------------------

    def refuse_character(self) -> NoReturn:
        raise Unreadable(f"{self.text[self.at]!r} is unexpected at position {self.at}")

    def read_word(self) -> Word | None:
        """Read the word that starts here; None when none does."""
        start = self.at
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in _ENDS_WORD:
            parts += self.read_piece(_PLAIN, quoted=False)
            self.read_bracket_in_word(parts)
        if not parts and _PROCESS.match(self.text, self.at):
            self.at += 2
            parts.append(Output(self.read_nested_commands()))
        return Word(tuple(parts), self.text[start : self.at]) if self.at > start else None

    def read_bracket_in_word(self, parts: list[Part]) -> None:
        """Read ``name=(a b)`` and the wildcard ``@(a|b)``, in which a bracket holds words."""
        sign = _sign_before_bracket(parts) if self.text.startswith("(", self.at) else ""
        if not sign:
            return
        inner = self.read_bracket(self.at + 1, only="\n" if sign == "=" else "\n|")
        self.include([simple for simple in inner.found if simple.depth > inner.depth])
        own = (simple for simple in inner.found if simple.depth == inner.depth)
        for simple in own:
            for word in simple.words:
                parts += (*word.parts, Plain(" "))

    def read_parts(self, plain: re.Pattern[str], end: str) -> list[Part]:
        """Read pieces up to ``end``, which is consumed."""
        parts: list[Part] = []
        while self.at < len(self.text):
            if self.text[self.at] == end:
                self.at += 1
                return parts
            parts += self.read_piece(plain, quoted=plain is not _BRACED)
        if end:
            raise Unreadable(f"a closing {end} is missing")
        return parts

    def read_piece(self, plain: re.Pattern[str], *, quoted: bool) -> list[Part]:
        """Read one run of plain characters, one quote, one escape or one expansion."""
        self.count_piece()
        if found := plain.match(self.text, self.at):
            self.at = found.end()
            return [Plain(found.group(), quoted)]
        return _PIECES[self.text[self.at]](self, quoted)

    def count_piece(self) -> None:
        self.count += 1
        if self.count > MAX_PIECES:
            raise Unreadable(f"it has more than {MAX_PIECES} words, quotes and operators")

    def read_single_quote(self, _quoted: bool) -> list[Part]:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Unreadable("a closing ' is missing")
        text = self.text[self.at + 1 : end]
        self.at = end + 1
        return [Plain(text, quoted=True)]

    def read_double_quote(self, _quoted: bool) -> list[Part]:
        self.at += 1
        return self.read_parts(_QUOTED, '"') or [Plain("", quoted=True)]

    def read_escape(self, quoted: bool) -> list[Part]:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            return []
        if following == "\r":
            self.refuse_carriage_return(quoted)
        if not following and not self.is_alone(quoted):
            raise Unreadable("it ends in a backslash, which some shells keep and others drop")
        kept = "\\" if not following or (quoted and following not in _ESCAPABLE) else ""
        return [Plain(kept + following, quoted=True)]

    def is_alone(self, quoted: bool) -> bool:
        """Return whether the last backslash of the text is a word of its own: it joins nothing."""
        return not quoted and bool(_ALONE.search(self.text))

    def refuse_carriage_return(self, _quoted: bool) -> list[Part]:
        message = "a carriage return is neither a blank nor a line end to a shell"
        raise Unreadable(f"{message}; end lines with a plain newline")

    def read_backtick(self, quoted: bool) -> list[Part]:
        found = _BACKTICK.match(self.text, self.at)
        if found is None:
            raise Unreadable("a closing ` is missing")
        if _BACKTICK_DOUBT.search(found.group(1)):
            message = "shells differ on a backslash before a quote or a line end in backticks"
            raise Unreadable(f"{message}; write $(...)")
        self.at = found.end()
        text = _BACKTICK_ESCAPE.sub(r"\1", found.group(1))
        return [Output(self.include(split(text, self.depth + 1)), quoted)]

    def read_expansion(self, quoted: bool) -> list[Part]:
        if not quoted and self.text.startswith("$'", self.at):
            return [self.read_ansi_quote()]
        self.at += 1
        if self.text.startswith("\\\n", self.at):
            raise Unreadable("a line ends inside an expansion")
        if self.text.startswith('"', self.at) and not quoted:
            return []  # $"..." is a text to translate
        if self.text.startswith("((", self.at):
            self.read_arithmetic()
            return [Plain("1", quoted=True)]
        if self.text.startswith("(", self.at):
            self.at += 1
            self.refuse_continued_operator("(")
            return [Output(self.read_nested_commands(), quoted)]
        if self.text.startswith("{", self.at):
            return [self.read_braces(quoted)]
        if found := _NAME.match(self.text, self.at):
            self.at = found.end()
            return [Variable(found.group(), quoted=quoted)]
        return [Plain("$", quoted)]

    def read_ansi_quote(self) -> Plain:
        """Read ``$'...'``, in sh a dollar and a plain quote: both must end at the same place."""
        found = _ANSI_QUOTE.match(self.text, self.at)
        if found is None or _ANSI_DOUBT.search(found.group(1)):
            raise Unreadable(_ANSI_DIFFERENCE)
        text = decode_escapes(found.group(1))
        if not text.strip("\0"):
            text = ""  # what bash makes of $'\\0'; to sh it is a name like any other
        if "\0" in text:
            raise Unreadable(_ANSI_DIFFERENCE)
        self.at = found.end()
        return Plain(text, quoted=True)

    def read_braces(self, quoted: bool) -> Variable:
        found = _BRACE_NAME.match(self.text, self.at)
        if found is None:
            raise Unreadable(f"the expansion at position {self.at - 1} is not known")
        self.at = found.end()
        operand = self.read_parts(_BRACED, "}")
        if quoted and "'" in self.text[found.end() : self.at]:
            raise Unreadable("shells differ on a ' inside ${...} inside quotes")
        if _PROCESS.search(self.text, found.end(), self.at):
            raise Unreadable("<(...) inside ${...} is not followed")
        if self.text[found.end() : self.at] == "@P}":
            raise Unreadable(f"${{{found.group(2)}@P}} runs what the variable holds")
        return Variable(found.group(2), found.group(1), tuple(operand), quoted)


def _sign_before_bracket(parts: list[Part]) -> str:
    """Return the sign that makes a bracket part of the word before it; "" when there is none."""
    last = parts[-1] if parts else None
    if not isinstance(last, Plain) or last.quoted or last.value == "!":
        return ""
    sign = last.value[-1:]
    return sign if sign in _BEFORE_BRACKET else ""


_PIECES: dict[str, Callable[[_Reader, bool], list[Part]]] = {
    "'": _Reader.read_single_quote,
    '"': _Reader.read_double_quote,
    "\\": _Reader.read_escape,
    "`": _Reader.read_backtick,
    "$": _Reader.read_expansion,
    "\r": _Reader.refuse_carriage_return,
}
