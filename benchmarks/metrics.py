"""Measure how the source reads: sizes, branches, names and words, next to the bounds.

    python benchmarks/metrics.py        (make metrics)

How it is counted:

- A *function* is every ``def``, methods and nested ones included. Its lines are those of its body,
  from the first statement after the docstring to the last one.
- *Branches* are the ways through a function: one, and one more for each ``if``, ``elif``, ``for``,
  ``while``, ``except``, conditional expression, ``match`` case that is not the wildcard, ``for`` of
  a comprehension, and operand of ``and`` and ``or`` after the first. Nested functions count for
  themselves. So house.md counted: 31 for ``lifecycle``, 24 for ``ToolSpec.__post_init__``.
- A *public name* is a module-level class, function or assignment without an underscore; one that
  is defined in two modules is counted once. Re-exports and names that are bound again in the same
  module are not counted.
- *Lines of src* are lines of Python files, which the formatter has set at 100 columns.
- A function is *named by a participle* by the pattern below; properties are values and may be, and
  so may predicates (is_, has_, can_, was_).
- A docstring *begins with a verb* if its first word is in the list below, in its base form.

``tests/meta/test_metrics.py`` holds the bounds. Standard library only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tables import print_table

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100
LONG_LINES, MANY_BRANCHES = 60, 10
PARTICIPLE = re.compile(
    r"^_?(?!is_|has_|can_|was_)(?:[a-z]+_)*(?:[a-z]+ed|[a-z]*(?:told|said|held|kept|left|given|taken"
    r"|known|seen|made|spent|sent|written|begun|lost|found|heard))$"
)
VERBS_IN_ED = re.compile(r"(?:^|_)(?:need|feed|seed|proceed|exceed|succeed|embed|shed|speed)$")
OF_ASYNCIO = frozenset({"connection_made", "data_received", "connection_lost"})  # not ours to name
VAGUE = re.compile(r"\b(?:somebody|nobody|anybody|whoever)\b", re.IGNORECASE)
AWKWARD = re.compile(
    r"\b(?:also when|of the user|and be it|is no (?!longer\b|more\b|less\b))\b", re.IGNORECASE
)
IGNORE = re.compile(r"# type: ignore(?:\[[^\]]*\])?(?P<reason>.*)$")
VERBS = frozenset(
    """
    abort accept acquire add adjust admit advance allocate allow analyze announce answer append
    apply ask assert assign attach attribute await batch become begin bind block bound bring build
    bump cache call cancel capture carry change charge check choose claim clamp clean clear clone
    close collect combine commit compare compile complete compose compress compute conclude connect
    consume continue convert copy correct count create cut deactivate decide decode decorate defer
    define delete deliver deny describe detach detect determine disable discard disconnect dispatch
    do drain drive drop emit enable encode end enforce enqueue ensure enter erase escape estimate
    evaluate exchange exclude execute exit expand explain export expose extend extract fail fetch
    fill filter find finish fire flatten flush follow forbid force forget fork format forward free
    freeze gather generate get give go govern grant group guard guess hand handle hash have hold
    identify ignore import include increment infer inform initialize insert inspect install
    interrupt invoke issue iterate join judge keep kill label launch leave let limit list listen
    load lock log look lower make map mark match measure merge mind move name narrow normalize note
    notice notify number observe open order overwrite own pack park parse pass patch pause perform
    permit pick pickle place play poll pop prefer prepare prevent print process produce propagate
    prove provide publish pull push put query queue quote raise read reap receive recognize record
    redact redirect reduce refill refund refuse register reject release reload remember remove
    rename renew reopen repair repeat replace replay reply report repr require reserve reset resolve
    respond restore restrict resume retry return reuse reverse rewrite roll rotate round run save
    say scan schedule search see select send serialize serve set settle shorten show shrink shut
    signal simplify skip sleep snapshot sort split stand start state stay step stop store strip
    submit subscribe substitute subtract suggest sum summarize supply suppress suspend swap switch
    synchronize tabulate take tell terminate test thaw throw tighten tokenize touch trace track
    transform translate trim truncate try turn undo unpack unwrap update upgrade use validate verify
    visit wait wake walk warn watch withdraw wrap write yield
    """.split()  # noqa: SIM905 - read as a text, not as 300 strings
)
FORMAT_SKIP = re.compile(r"# fmt: skip(?P<reason>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Function:
    """One ``def``: where it stands, and what is counted of it."""

    place: str
    name: str
    lines: int
    branches: int
    docstring: str | None
    is_property: bool

    def __str__(self) -> str:
        return f"{self.place} {self.name}"


Definition = ast.FunctionDef | ast.AsyncFunctionDef
# names that modules share on purpose: each command of the command line has these two functions
SHARED_NAMES = {"logger", "add_arguments", "run"}


def body_lines(node: Definition) -> int:
    """Count the lines of a function's body, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what lies in a function but not in one that is nested in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


def branches(node: Definition) -> int:
    """Count the ways through a function: one, and one more for everything that decides."""
    return 1 + sum(branches_of(inner) for inner in own_nodes(node))


def branches_of(node: ast.AST) -> int:
    """Count the branches that one node adds to those of its children."""
    match node:
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler():
            return 1
        case ast.IfExp():
            return 1
        case ast.BoolOp(values=values):
            return len(values) - 1
        case ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None):
            return 0
        case ast.match_case():
            return 1
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return len(node.generators)
        case _:
            return 0


def is_property(node: Definition) -> bool:
    names = {getattr(mark, "id", getattr(mark, "attr", "")) for mark in node.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def public_names(tree: ast.Module) -> set[str]:
    """Return the public names that a module defines itself."""
    found: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case _:
                pass
    return {name for name in found if not name.startswith("_") and name not in SHARED_NAMES}


class Source:
    """The Python files below a folder, and what is counted in them."""

    def __init__(self, root: Path = ROOT / "src" / "edictum") -> None:
        self.root = root
        self.texts = {
            str(path.relative_to(root)): path.read_text(encoding="utf-8")
            for path in sorted(root.rglob("*.py"))
        }
        self._trees = {path: ast.parse(text) for path, text in self.texts.items()}

    @cached_property
    def functions(self) -> list[Function]:
        return [
            Function(
                f"{path}:{node.lineno}",
                node.name,
                body_lines(node),
                branches(node),
                ast.get_docstring(node),
                is_property(node),
            )
            for path, tree in self._trees.items()
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]

    # --- Sizes ---

    @property
    def lines(self) -> int:
        return sum(text.count("\n") for text in self.texts.values())

    def size_at(self, share: float) -> int:
        """Return the number of lines that ``share`` of the functions do not exceed."""
        sizes = sorted(function.lines for function in self.functions)
        return sizes[min(int(len(sizes) * share), len(sizes) - 1)]

    @property
    def long_functions(self) -> list[str]:
        return [
            f"{function}: {function.lines} lines"
            for function in self.functions
            if function.lines > LONG_LINES
        ]

    @property
    def branchy_functions(self) -> list[str]:
        found = [function for function in self.functions if function.branches > MANY_BRANCHES]
        found.sort(key=lambda function: -function.branches)
        return [f"{function}: {function.branches} branches" for function in found]

    @property
    def adapters(self) -> dict[str, int]:
        """Return the lines of each public module of ``adapters``."""
        return {
            path: text.count("\n")
            for path, text in self.texts.items()
            if re.fullmatch(r"adapters/[^_/][^/]*\.py", path)
        }

    @property
    def wide_lines(self) -> list[str]:
        return [
            f"{path}:{number}"
            for path, text in self.texts.items()
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > COLUMNS
        ]

    @property
    def unexplained_format_skips(self) -> list[str]:
        return [
            path
            for path, text in self.texts.items()
            for found in FORMAT_SKIP.finditer(text)
            if not found["reason"].strip()
        ]

    # --- Names and words ---

    @property
    def names_defined_twice(self) -> dict[str, list[str]]:
        places: dict[str, list[str]] = defaultdict(list)
        for path, tree in self._trees.items():
            for name in public_names(tree):
                places[name].append(path)
        return {name: found for name, found in sorted(places.items()) if len(found) > 1}

    @property
    def participles(self) -> list[str]:
        return [
            str(function)
            for function in self.functions
            if PARTICIPLE.match(function.name)
            and not VERBS_IN_ED.search(function.name)
            and function.name not in OF_ASYNCIO
            and not function.is_property
        ]

    @property
    def vague_words(self) -> list[str]:
        return self._found(VAGUE)

    @property
    def awkward_phrases(self) -> list[str]:
        return self._found(AWKWARD)

    def _found(self, pattern: re.Pattern[str]) -> list[str]:
        return [
            f"{path}:{number} {found.group()}"
            for path, text in self.texts.items()
            for number, line in enumerate(text.splitlines(), 1)
            for found in pattern.finditer(line)
        ]

    @property
    def unexplained_ignores(self) -> list[str]:
        """Return the places of ``type: ignore`` without a reason behind it or in a comment above."""
        found = []
        for path, text in self.texts.items():
            lines = text.splitlines()
            for number, line in enumerate(lines):
                ignored = IGNORE.search(line)
                above = lines[number - 1].strip() if number else ""
                if ignored and not ignored["reason"].strip(" #-:") and not above.startswith("#"):
                    found.append(f"{path}:{number + 1}")
        return found

    @property
    def docstrings_without_verb(self) -> list[str]:
        return [
            f"{function}: {function.docstring.split()[0]}"
            for function in self.functions
            if function.docstring and not function.is_property
            if first_word(function.docstring) not in VERBS
        ]

    @property
    def share_of_verbs(self) -> float:
        documented = [item for item in self.functions if item.docstring and not item.is_property]
        return 1 - len(self.docstrings_without_verb) / max(len(documented), 1)


def first_word(text: str) -> str:
    return re.sub(r"[^a-z].*", "", text.split()[0].lower())


def rows(source: Source) -> list[tuple[str, str, str]]:
    """Return what is measured: title, figure, bound."""
    functions, branchy = source.functions, source.branchy_functions
    adapters = source.adapters
    widest = max(adapters, key=lambda path: adapters[path])
    return [
        ("lines of src", f"{source.lines:,}", ""),
        ("functions", f"{len(functions):,}", ""),
        ("  median lines", str(source.size_at(0.5)), "8"),
        ("  95 of 100, lines", str(source.size_at(0.95)), "30"),
        ("  longest, lines", str(source.size_at(1.0)), "60"),
        ("  over 60 lines", str(len(source.long_functions)), "0"),
        (
            "  with more than ten branches",
            f"{len(branchy)} ({len(branchy) / len(functions):.1%})",
            "1 %",
        ),
        ("longest adapter, lines", f"{adapters[widest]} ({Path(widest).stem})", "179"),
        ("public names defined in two modules", str(len(source.names_defined_twice)), "0"),
        ("lines over 100 columns", str(len(source.wide_lines)), "0"),
        ("'# fmt: skip' without a reason", str(len(source.unexplained_format_skips)), "0"),
        ("'type: ignore' without a reason", str(len(source.unexplained_ignores)), "0"),
        ("functions named by a participle", str(len(source.participles)), ""),
        ("somebody, nobody, anybody, whoever", str(len(source.vague_words)), ""),
        ("'also when', 'of the user', 'is no'", str(len(source.awkward_phrases)), ""),
        ("docstrings of functions that begin with a verb", f"{source.share_of_verbs:.0%}", ""),
    ]


DETAILS = {
    "long": "long_functions",
    "branches": "branchy_functions",
    "names": "names_defined_twice",
    "wide": "wide_lines",
    "participles": "participles",
    "words": "vague_words",
    "phrases": "awkward_phrases",
    "ignores": "unexplained_ignores",
    "docstrings": "docstrings_without_verb",
    "adapters": "adapters",
}


def print_details(found: list[str] | dict[str, object]) -> None:
    lines = (f"{k}: {v}" for k, v in found.items()) if isinstance(found, dict) else found
    print("\n".join(lines))


def main() -> None:
    source = Source()
    if wanted := sys.argv[1:]:
        for name in wanted:
            if name not in DETAILS:
                sys.exit(f"metrics: no detail {name!r}; there are: {', '.join(DETAILS)}")
            print_details(getattr(source, DETAILS[name]))
        return
    print_table([("src/edictum", "now", "at most"), *rows(source)])
    print(f"\nWhere they stand: python benchmarks/metrics.py {'|'.join(DETAILS)}")


if __name__ == "__main__":
    main()
