"""Values behind telling names: ``api_key = "..."``, ``--password ...``, ``<token>...</token>``.

Whether such a value is a secret is judged by its name and by itself. Code is full of
``token = self.token`` and ``password: str``: what reads like code, like words or like a placeholder
is not one.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import groupby
from math import log2
from operator import itemgetter

from edictum.core.secret_forms import NamedForm, Span, is_wordy, read_named_forms
from edictum.core.sensitive_keys import FRONTS, is_sensitive_by_words

HINTS = (
    *("key", "token", "secret", "passw", "passphrase", "pwd", "pass", "credential"),
    *("auth", "connectionstring", "connection_string", "connection-string"),
)
_TAIL = r"[A-Za-z0-9_-]{0,24}"
_CLOSE = r"(?:\\{0,4}[\"'`]|\]|\*){0,3}"
# ``name: DB_PASSWORD`` with ``value: ...`` behind it, as attributes or as lines.
_PAIR = (
    r"(?:[,;\s]|\\{1,4}[rnt]){1,40}(?:\\{0,4}[\"'])?[vV](?:alue|ALUE)(?:\\{0,4}[\"'])?"
    r"\s{0,3}[:=]\s{0,3}"
)
_SIGN = r"(?:=>|:=|=|:|>|\||\\u003[dD]|%3[dDaA])\*{0,2}"
ASSIGNMENT_HEAD = (
    r"(?i:key|token|secret|passw|passphrase|pwd|pass|credential|auth|connection[_-]?string)"
    rf"{_TAIL}(?:{_CLOSE}(?:\s{{0,3}}{_SIGN}\s{{0,3}}|{_PAIR})"
    r"(?:[a-zA-Z]{0,2}\\{0,4}[\"'`])?[^\s=>\"'`,;]"
    r"|\s(?:is|was)\s[^\s]{4})"
)
FLAG_HINTS = ("-pass", "-token", "-secret", "-api", "-key", "-auth", "-pwd")
FLAG_HEAD = r"(?i:-(?:pass|token|secret|api|key|auth|pwd))[a-z-]{0,12}[= ]{1,3}[^\s-]"
MAX_JUDGED_VALUE = 400  # characters of a value that are looked at

_REST = re.compile(
    rf"(?P<tail>[A-Za-z0-9_-]{{0,40}}){_CLOSE}"
    rf"(?:(?P<pair>{_PAIR})|(?P<gap>\s{{0,3}})(?P<sign>{_SIGN}|\s(?:is|was)\s))"
    r"(?P<space>\s{0,3})(?P<prefix>[a-zA-Z]{0,2}(?=\\{0,4}[\"'`]))?(?P<quote>\\{0,4}[\"'`])?"
)
_FLAG_REST = re.compile(
    r"(?P<tail>[A-Za-z0-9_-]{0,40})(?P<gap>)(?P<sign>[= ])(?P<space>\s{0,3})"
    r"(?P<prefix>)(?P<quote>\\{0,4}[\"'`])?"
)
_NAME_BACKWARDS = re.compile(r"[\w.$-]*")
_FRONT_WORD = re.compile(r"(?<![A-Za-z0-9])([A-Za-z]{2,12}) \Z")
_NO_NAMES = "The This That An Your My Our Its Their Each Every No Any And Or"
_ARTICLES = frozenset(_NO_NAMES.split())
_PROSE_BEHIND = re.compile(r" [A-Za-z]{2}")
_BARE = re.compile(r"[^\s\"'`&;,|\\]{1,8000}")
_CLOSERS = ")]}>.:!?"
_SHELL = ("export", "set", "setx", "env", "declare", "local", "readonly")
_ENDS = {
    '"': re.compile(r"[^\"\\\n]*(?:\\.[^\"\\\n]*)*"),
    "'": re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*)*"),
    "`": re.compile(r"[^`\\\n]*(?:\\.[^`\\\n]*)*"),
    "\\": re.compile(r"[^\"'`\n\\]*(?:\\[^\"'`\\\n][^\"'`\n\\]*)*"),
}
_CODE = re.compile(
    r"[A-Za-z_$][\w$]*(?:(?:\.|::|->|\?\.)[A-Za-z_$][\w$]*)+[;)\]}]*\Z"  # self.token
    r"|[!&*~^]{1,2}[A-Za-z_]|\+\+"
)
_CODE_INSIDE = re.compile(
    r"(?<=[A-Za-z_\])])[(\[{]|=>|==.|!=|&&|\|\||::|\+\+[;)]*\Z"  # get_token(
    r"|\?[A-Za-z_$][\w$.]*:"  # a ? b : c
)
_PLACEHOLDER = re.compile(
    r"(?i)(?:\$|\{|<|…|%[sd({]|\*|\[|\(|@|#|\\|\.{2,}|\?|_+$|-+$|\.{3}|-{3,}).*"
    r"|(?:[a-z]{2,4}[-_])?x{3,}(?:[-_ ]?x+)*|0{3,6}"
    r"|(?:your|my|some|the|an?|new|old|test|dummy|fake|sample|example|mock|insert|enter|change"
    r"|replace|fill|user|not)[-_ ].*"
    r"|(?:example|changeme|change_me|placeholder|redacted|hidden|none|null|nil|true|false|yes|no"
    r"|undefined|optional|required|unset|empty|todo|tbd|n/a|str|string|bytes|int|bool|any|object"
    r"|number|integer|text|void|self|this|env|default|basic|bearer|password|passwd|secret|token"
    r"|key|pass|pwd|value|hash|foo|bar|baz|foobar|dummy|fake|sample|mock|test|admin|root|user"
    r"|(?:secret|token|key|password|passwd|pass)[-_ ]?(?:value|hash|here|name|ref|string|str)"
    r"|secretkeyref|valuefrom|bcrypt|argon2|scrypt)[\])};,.]*"
)
_PLACEHOLDER_INSIDE = re.compile(
    r"\.{3}|[xX]{5}|\*{3}|\$\{|\{\{|<[A-Za-z_ -]+>|%\(|%s(?![A-Za-z0-9])"
)
# What says where a secret is: ``op://vault/item``, ``self.token``, ``!Ref DbPassword``.
_REFERENCE = re.compile(
    r"(?i)(?:file|op|vault|secret|sm|ssm|awssm|gsm|keychain|keyvault|env)://?"
    r"|(?:arn|vault|secretref|env|ssm|ref\+\w+):|!(?:ref|sub|getatt|vault|env|secret)\b|ENC\["
    r"|(?:self|this|cls|config|settings|env|var|vars|local|data|module|request|options|props"
    r"|params|args|process\.env|os\.environ|os\.getenv|getpass|keyring|random_password|secrets"
    r"|import\.meta)[.\[(]"
)
# The last word of names that say something about a secret: ``secret_ref``, ``KeyArn``.
_ABOUT_WORDS = """
id ids arn arns name names file files path paths dir ref refs type types schema version
pair url urls uri endpoint policy length size count limit ttl expiry expires expiration
field label placeholder hint error message description status state index column prefix
suffix method mode class provider manager store alias format usage rule help
"""
_ABOUT = frozenset(_ABOUT_WORDS.split())
_LAST_WORD = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+)\Z")
_TEMPLATE = re.compile(r"\$[{(A-Za-z_]|\{|<|%[s(]|\*+$|\.\.\.|x{4,}$", re.IGNORECASE)
_STRONG = re.compile(r"(?i)pass|pwd|secret|credential|api.?key|private|access.?key|connection")
_PASSWORD = re.compile(r"(?i)passw|pwd|passphrase")
_APP_PASSWORD = re.compile(r"[a-z]{4}(?:-[a-z]{4}){3}")  # as Apple and Google make them
_VARIABLE = re.compile(
    r"(?i)pass|pwd|secret|token|key|value|string|user|input|prompt|config|arg|text"
)
_IDENTIFIER = re.compile(
    r"[A-Za-z_][a-z_]*\d{0,2}|[a-z]+(?:[A-Z][a-z]*)+\d{0,2}|[A-Z]+(?:_[A-Z]+)+"
)


def entropy(text: str) -> float:
    """Return the Shannon entropy of a text in bits per character."""
    size = len(text)
    return -sum(n / size * log2(n / size) for n in Counter(text).values()) if size else 0.0


def find_by_name(text: str, at: int) -> tuple[str, Span] | None:
    """Return the kind and span of a secret behind a name whose telling word stands at a place."""
    is_flag = text[at] == "-"
    found = (_FLAG_REST if is_flag else _REST).match(text, at)
    return None if found is None else _judge(text, at, found, is_flag)


def _judge(text: str, at: int, found: re.Match[str], is_flag: bool) -> tuple[str, Span] | None:
    name = _name_at(text, at) + found.group("tail")
    sign, quote = (found.group("sign") or "").strip(" *"), found.group("quote") or ""
    if not (_is_option(text, at) if is_flag else _is_assignment(text, at, found, sign)):
        return None
    shell = sign == "=" and _is_shell(text, at)
    if not (shell or _names_secret(name, is_flag)):
        return None
    start = found.end()
    end = _find_end(text, start, quote, start + MAX_JUDGED_VALUE)
    if start == end:
        return None
    spaced = not is_flag and (
        bool(found.group("gap"))
        or sign in ("is", "was", "|")
        or (sign == ":" and not quote and _PROSE_BEHIND.match(text, end) is not None)
    )
    if not is_secret(name, text[start:end], quoted=bool(quote), spaced=spaced, shell=shell):
        return None
    return "assigned", (start, _find_end(text, start, quote, len(text)))


def _is_assignment(text: str, at: int, found: re.Match[str], sign: str) -> bool:
    """Return whether the sign behind a name gives it a value."""
    if sign == ">":
        return not found.group("space").startswith(" ") and _is_tag(text, at)
    if sign == "|":
        return _is_cell(text, at)
    if sign == ":" and text[max(0, _run_before(text, at) - 1)] == ":":
        return False  # a part of a longer name, such as an ARN
    return not (sign in ("=", ":") and text.startswith(sign, found.end("sign")))


def _name_at(text: str, at: int) -> str:
    """Return the part of a name before its telling word, and a word such as ``API`` before that."""
    start = _run_before(text, at)
    found = _FRONT_WORD.search(text, max(0, start - 14), start) if start == at else None
    if found is not None:
        word = found.group(1)
        if word.lower() in FRONTS or (word.istitle() and word not in _ARTICLES):
            return word + "_"
    return text[start:at]


def _names_secret(name: str, is_flag: bool) -> bool:
    """Return whether a name is that of a secret, and not of something about one."""
    last = _LAST_WORD.search(name)
    if last is not None and last.group().lower() in _ABOUT:
        return False
    return is_flag or is_sensitive_by_words(name)


def _run_before(text: str, at: int) -> int:
    """Return where the name begins that ends at a place."""
    found = _NAME_BACKWARDS.match(text[max(0, at - 64) : at][::-1])
    assert found is not None
    return at - found.end()


def _is_shell(text: str, at: int) -> bool:
    """Return whether a shell's word for assignments stands before a name."""
    start = _run_before(text, at)
    return text[max(0, start - 12) : start].rstrip().lower().endswith(_SHELL)


def _is_option(text: str, at: int) -> bool:
    """Return whether a name with a dash is an option of a command, and not a part of a word."""
    start = _run_before(text, at)
    return text.startswith("-", start) and (start == 0 or not text[start - 1].isalnum())


def _is_cell(text: str, at: int) -> bool:
    """Return whether a name stands in a cell of a table: ``| password |``."""
    start = _run_before(text, at)
    return text[max(0, start - 8) : start].rstrip(" *`").endswith("|")


def _is_tag(text: str, at: int) -> bool:
    """Return whether a name stands in a tag: ``<password>``."""
    return "<" in text[max(0, at - 64) : at].rsplit(">", 1)[-1].rsplit(" ", 1)[-1]


def _find_end(text: str, at: int, quote: str, limit: int) -> int:
    """Return the end of a value that begins at a place: of what is inside its quotes, else where a
    word ends; at most a limit.
    """
    if quote:
        found = _ENDS["\\" if len(quote) > 1 else quote].match(text, at, limit)
        assert found is not None
        return found.end()
    bare = _BARE.match(text, at, limit)
    if bare is None:
        return at
    end = bare.end()
    cut = text.find("</", at, end)
    end = cut if cut > at else end
    while end > at and text[end - 1] in _CLOSERS:
        end -= 1
    return end


def is_secret(name: str, value: str, *, quoted: bool, spaced: bool, shell: bool) -> bool:
    """Return whether a value behind a telling name is a secret, by the looks of both."""
    if _is_placeholder(value) or not is_filled_in(value):
        return False
    if _is_code(value) if not quoted else is_wordy(value) and _CODE_INSIDE.search(value):
        return False
    if not quoted and "://" in value:
        return False
    if is_reference(value):
        return False
    if shell:
        return True
    if value.lower().strip("_-") in name.lower():
        return False
    if _STRONG.search(name):
        return _is_password(name, value, quoted, spaced)
    return _is_token(value, quoted, spaced)


def _is_placeholder(value: str) -> bool:
    return bool(_PLACEHOLDER_INSIDE.search(value) or _PLACEHOLDER.fullmatch(value))


def is_reference(value: str) -> bool:
    """Return whether a value says where a secret is: a path, a variable, an entry of a vault."""
    if value.startswith("/"):
        return not is_random(value)
    return _REFERENCE.match(value) is not None or ("/" in value and is_wordy(value))


def _is_code(value: str) -> bool:
    return bool(_CODE_INSIDE.search(value) or _CODE.match(value))


def _is_password(name: str, value: str, quoted: bool, spaced: bool) -> bool:
    """Return whether a value behind a name such as ``password`` is one; some are words."""
    if len(value) < 4:
        return False
    if any(not sign.isalpha() and sign not in "_- ." for sign in value):
        return quoted or not spaced or not _IDENTIFIER.fullmatch(value) or len(value) >= 6
    if " " in value:
        return False
    if quoted or not is_wordy(value) or _APP_PASSWORD.fullmatch(value):
        return True
    return not spaced and (name.isupper() or _is_written_password(name, value))


def _is_written_password(name: str, value: str) -> bool:
    """Return whether ``password=lovelace`` stands there: a word, and not the name of a variable."""
    return (
        _PASSWORD.search(name) is not None
        and value.isalpha()
        and len(value) >= 6
        and _VARIABLE.search(value) is None
    )


def _is_token(value: str, quoted: bool, spaced: bool) -> bool:
    """Return whether a value behind a name such as ``token`` is one: it was drawn by lot."""
    if is_wordy(value) or value.isdigit() or (not quoted and _IDENTIFIER.fullmatch(value)):
        return False
    if spaced and not quoted:
        return len(value) >= 12 and entropy(value) >= 3.0
    return len(value) >= 6


def is_filled_in(value: str) -> bool:
    """Return whether a value is one, and not a placeholder or what stands for a hidden one."""
    return REPLACEMENT.match(value) is None and _TEMPLATE.match(value) is None


def is_chosen(value: str) -> bool:
    """Return whether a value in the place of a password may be one that was chosen."""
    is_named = _is_placeholder(value) or is_reference(value)
    return len(value) >= 4 and is_filled_in(value) and not is_named


REPLACEMENT = re.compile(r"\[REDACTED\]|\*{4}[^*\s]{0,4}\Z|\[[a-z0-9_.]+:[a-s]{16}\]")


# --- Vendors' names -------------------------------------------------------------------------------

_SAYS = rf"(?:{_PAIR}|{_SIGN}|,|\s)\s{{0,3}}(?:[a-zA-Z]{{0,2}}\\{{0,4}}[\"'`])?"
_GIVEN = r"[A-Za-z0-9_+/=.~%:-]"
NAMED_TAIL = rf"[A-Za-z0-9_. -]{{0,40}}{_CLOSE}\s{{0,3}}{_SAYS}{_GIVEN}{{14}}"
_NAMED_GAP = re.compile(
    rf"[A-Za-z0-9_. -]{{0,40}}?{_CLOSE}\s{{0,3}}{_SAYS}(?P<v>{_GIVEN}{{14,200}})(?![A-Za-z0-9_])"
)


@lru_cache(maxsize=1)
def named_by_word() -> dict[str, tuple[NamedForm, ...]]:
    """Return the kinds by the words that they stand behind."""
    made: dict[str, tuple[NamedForm, ...]] = {}
    for form in read_named_forms():
        for word in form.words:
            made[word] = (*made.get(word, ()), form)
    return made


def vendor_words() -> tuple[str, ...]:
    """Return the names of vendors that secrets stand behind."""
    return tuple(named_by_word())


def vendor_head() -> str:
    """Return the pattern of such a name and the first characters of a value behind it."""
    return f"(?i:{'|'.join(map(re.escape, vendor_words()))}){NAMED_TAIL}"


def find_by_vendor(text: str, at: int) -> tuple[str, Span] | None:
    """Return the kind and span of a secret behind the name of its vendor at a place."""
    near = text[at : at + 32].lower()
    words = _vendors_by_letter().get(near[:1], ())
    found = (_find_behind(text, at, word) for word in words if near.startswith(word))
    return next(filter(None, found), None)


@lru_cache(maxsize=1)
def _vendors_by_letter() -> dict[str, tuple[str, ...]]:
    """Return the names of vendors by their first letter."""
    by_letter = groupby(sorted(vendor_words(), key=_first), _first)
    return {letter: tuple(words) for letter, words in by_letter}


_first = itemgetter(0)


def is_of_vendor(name: str, value: str) -> bool:
    """Return whether a value is the secret of a vendor, under a name that holds the vendor's."""
    forms = _forms_under(name)
    return any(_compiled(form.pattern).fullmatch(value) for form in forms) and is_random(value)


@lru_cache(maxsize=4_096)
def _forms_under(name: str) -> tuple[NamedForm, ...]:
    lowered = name.lower()
    return tuple(
        form for word, forms in named_by_word().items() if word in lowered for form in forms
    )


def names_vendor(name: str) -> bool:
    """Return whether values under a name may be those of a vendor."""
    return bool(_forms_under(name))


def _find_behind(text: str, at: int, word: str) -> tuple[str, Span] | None:
    found = _NAMED_GAP.match(text, at + len(word))
    if found is None:
        return None
    value = found.group("v")
    for form in named_by_word()[word]:
        if _compiled(form.pattern).fullmatch(value) and is_random(value):
            return form.kind, found.span("v")
    return None


_compiled = lru_cache(maxsize=512)(re.compile)


def is_random(value: str) -> bool:
    """Return whether a value looks drawn by lot: digits and letters, and few repeated."""
    return (
        any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
        and entropy(value) >= 2.8
        and not is_wordy(value)
    )
