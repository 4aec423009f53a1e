"""Documents that were made to be slow to load. Each is a function from a size in characters to a
text of about that size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

HEAD = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: x}\n"
Document = Callable[[int], str]

# One sign again and again: as the whole file, as the contracts, and as a value.
UNITS = {
    "brackets": "[",
    "braces": "{",
    "maps": "{a: ",
    "stars": "*",
    "aliases": "*a ",
    "quotes": "'",
    "double-quotes": '"',
    "dashes": "- ",
    "empty-items": "-\n",
    "tabs": "\t",
    "newlines": "\n",
    "spaces": " ",
    "colons": ": ",
    "questions": "? ",
    "anchors": "&a ",
    "tags": "!",
    "blocks": "|\n",
    "comments": "#\n",
    "directives": "%",
    "documents": "---\n",
    "ends": "...\n",
    "commas": ",",
    "closed": "]",
    "backslashes": "\\",
    "letters": "a",
    "digits": "9",
    "nothing": "\0",
    "separators": "\u2028",
    "returns": "\r",
    "pairs": "a: b\n",
    "nested-keys": "? - ",
    "next-lines": "\x85",
    "umlauts": "ä",
}


def contract(number: int, when: str, tool: str = "t", message: str = "m") -> str:
    return (
        f"  - {{id: c{number}, type: pre, tool: {tool}, when: {when}, then: {{effect: deny,"
        f" message: {message}}}}}\n"
    )


def repeated(unit: str, size: int) -> str:
    return unit * max(1, size // len(unit))


def many(make: Callable[[int], str], size: int) -> str:
    parts: list[str] = []
    for number in itertools.count():
        parts.append(make(number))
        if (size := size - len(parts[-1])) <= 0:
            return "".join(parts)
    raise AssertionError("numbers do not end")


def one(when: str, **more: str) -> str:
    return f"{HEAD}contracts:\n{contract(0, when, **more)}"


def long_key(key: str) -> str:
    """A contract whose selector is longer than a simple key may be."""
    then = "    then: {effect: deny, message: m}\n"
    return (
        f"{HEAD}contracts:\n  - id: a\n    type: pre\n    tool: t\n    when:\n      ? {key}\n     "
        f" : {{exists: true}}\n{then}"
    )


def contracts(make: Callable[[int], str]) -> Document:
    return lambda size: f"{HEAD}contracts:\n{many(make, size)}"


def leaves(word: str, make: Callable[[int], str]) -> Document:
    """One condition with many leaves."""
    return lambda size: one(f"{{{word}: [{many(make, size)}]}}")


def values(operator: str, make: Callable[[int], str]) -> Document:
    """One leaf with many values."""
    return lambda size: one(f"{{args.x: {{{operator}: [{many(make, size)}]}}}}")


def pattern(unit: str, before: str = "", after: str = "") -> Document:
    return lambda size: one(f"{{args.x: {{matches: '{before}{repeated(unit, size)}{after}'}}}}")


def aliased(what: str, make: Callable[[int], str]) -> Document:
    """A long text that aliases multiply."""
    return lambda size: (
        f"{HEAD}x: &a '{repeated(what, size // 2)}'\ncontracts:\n{many(make, size // 2)}"
    )


def sandbox(bounds: Callable[[int], str]) -> Document:
    return lambda size: (
        f"{HEAD}contracts:\n  - {{id: s, type: sandbox, tool: t, {bounds(size)}, message: m}}\n"
    )


def limits(inside: Callable[[int], str]) -> Document:
    then = "then: {effect: deny, message: m}"
    return lambda size: (
        f"{HEAD}contracts:\n  - {{id: s, type: session, limits: {{{inside(size)}}}, {then}}}\n"
    )


def tools_and_contracts(
    tool: Callable[[int], str], glob: Callable[[int], str], unlisted: str = "deny"
) -> Document:
    listed = f"defaults: {{unlisted_tools: {unlisted}}}\ntools:\n"
    return lambda size: (
        f"{HEAD}{listed}{many(lambda n: f'  {tool(n)}: {{side_effect: read}}{chr(10)}', size // 2)}"
        f"contracts:\n{many(lambda n: contract(n, '{args.x: {exists: true}}', glob(n)), size // 2)}"
    )


EXISTS = "{args.x: {exists: true}}"

DOCUMENTS: dict[str, Document] = {
    **{
        f"file/{name}": lambda size, unit=unit: repeated(unit, size) for name, unit in UNITS.items()
    },  # type: ignore[misc]
    **{
        f"contracts/{name}": lambda size, unit=unit: f"{HEAD}contracts:\n{repeated(unit, size)}"
        for name, unit in UNITS.items()
    },  # type: ignore[misc]
    **{
        f"value/{name}": lambda size, unit=unit: f"{HEAD}description: {repeated(unit, size)}"
        for name, unit in UNITS.items()
    },  # type: ignore[misc]
    # Large values and long names
    "scalar/text": lambda size: one(f"{{args.x: {{equals: '{'a' * size}'}}}}"),
    "scalar/escapes": lambda size: one(
        f'{{args.x: {{equals: "{repeated(chr(92) + "x41", size)}"}}}}'
    ),
    "scalar/integer": lambda size: one(f"{{args.x: {{equals: {'9' * size}}}}}"),
    "scalar/fraction": lambda size: one(f"{{args.x: {{equals: 1.{'9' * size}}}}}"),
    "scalar/exponent": lambda size: one(f"{{args.x: {{equals: 1e{'9' * size}}}}}"),
    "scalar/block": lambda size: (
        f"{HEAD}description: |\n{repeated('  aaaaaaaaaaaaaaaa' + chr(10), size)}"
    ),
    "scalar/many-lines": lambda size: f"{HEAD}description: a\n{repeated('  b' + chr(10), size)}",
    "scalar/timestamps": contracts(
        lambda n: contract(n, "{args.x: {equals: 2001-12-14t21:59:43.10-05:00}}")
    ),
    "key/long": lambda size: f"{HEAD}? {'x' * size}\n: 1\n",
    "key/long-selector": lambda size: long_key("args" + repeated(".a", size)),
    "key/dots": lambda size: long_key("args" + "." * size),
    "key/wild": lambda size: long_key(f"'args{repeated('[*]', size)}'"),
    "key/quotes": lambda size: long_key("args" + repeated('."', size)),
    "key/root": lambda size: long_key("a" * size),
    "key/operator": lambda size: one(f"{{args.x: {{? {repeated('contains_an', size)} : 1}}}}"),
    "key/similar": lambda size: HEAD + many(lambda n: f"contracts{n:06}: 1\n", size),
    "key/long-and-similar": lambda size: (
        HEAD + many(lambda n: f"{'contracts' * 20}{n:06}: 1\n", size)
    ),
    "key/twice": lambda size: HEAD + repeated("a: 1\n", size),
    "key/twice-in-a-line": lambda size: f"{HEAD}x: {{{repeated('a: 1,', size)}}}\n",
    "key/merge": lambda size: (
        f"{HEAD}x: &a {{b: 1}}\ncontracts:\n" + many(lambda n: f"  - {{<<: *a, id: c{n}}}\n", size)
    ),
    "name/id": lambda size: f"{HEAD}contracts:\n  - {{id: {'a' * size}, type: pre}}\n",
    "name/type": lambda size: f"{HEAD}contracts:\n  - {{id: a, type: {repeated('pre', size)}}}\n",
    "name/mode": lambda size: f"{HEAD}defaults: {{mode: '{repeated('enforce', size)}'}}\n",
    "name/tool": lambda size: one(EXISTS, tool=f"'{repeated('*a', size)}'"),
    # Anchors and aliases
    "alias/many-anchors": contracts(lambda n: f"  - &a{n} x\n"),
    "alias/many-aliases": lambda size: (
        f"{HEAD}x: &a [1, 2, 3]\ny:\n{repeated('- *a' + chr(10), size)}"
    ),
    "alias/bomb": lambda _: (
        f"{HEAD}a0: &a0 [{'1, ' * 10}]\n"
        + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 30))
    ),
    "alias/of-a-long-list": lambda size: (
        f"{HEAD}x: &a [{repeated('1,', size // 2)}]\ny:\n{repeated('- *a' + chr(10), size // 2)}"
    ),
    "alias/deeper-and-deeper": lambda size: (
        f"{HEAD}x0: &x0 [1]\n" + many(lambda n: f"x{n + 1}: &x{n + 1} [*x{n}]\n", size)
    ),
    "alias/long-key": aliased("k", lambda n: contract(n, "{args.x: {? *a : 1}}")),
    "alias/long-pattern": aliased("k.", lambda n: contract(n, "{args.x: {matches: *a}}")),
    "alias/long-message": aliased("k.", lambda n: contract(n, EXISTS, message="*a")),
    # Nesting
    "nested/lists": contracts(lambda n: f"  - {'[' * 60}{']' * 60}\n"),
    "nested/not": contracts(lambda n: contract(n, f"{'{not: ' * 50}{EXISTS}{'}' * 50}")),
    "nested/any": contracts(lambda n: contract(n, f"{'{any: [' * 25}{EXISTS}{']}' * 25}")),
    # Very many problems
    "errors/each-contract": contracts(lambda n: f"  - {{id: {n}}}\n"),
    "errors/in-one-line": lambda size: f"{HEAD}contracts: [{repeated('1,', size)}]\n",
    "errors/roots": contracts(lambda n: contract(n, f"{{arg.x{n}: {{exists: true}}}}")),
    "errors/operators": contracts(lambda n: contract(n, f"{{args.x: {{equls{n}: true}}}}")),
    "errors/keys-of-a-condition": lambda size: one(f"{{{many(lambda n: f'a{n}: 1,', size)}}}"),
    "errors/networks": values("in_cidr", lambda n: "x,"),
    "errors/placeholders": contracts(
        lambda n: contract(n, EXISTS, message=f"'{'{arg.foo}' * 50}'")
    ),
    "warnings/negatives": leaves("any", lambda n: f"{{args.x{n}: {{not_equals: 1}}}},"),
    "warnings/placeholders": contracts(lambda n: contract(n, EXISTS, message=f"'{'{foo}' * 90}'")),
    # Contracts against each other
    "contracts/same-id": contracts(lambda n: contract(0, EXISTS)),
    "contracts/same-glob": contracts(lambda n: contract(n, EXISTS, '"a*"')),
    "contracts/many-globs": contracts(lambda n: contract(n, EXISTS, f'"a{n}*"')),
    "contracts/long-globs": contracts(lambda n: contract(n, EXISTS, f"'{'*a' * 120}'")),
    "contracts/unlisted-tools": tools_and_contracts(lambda n: f"tool{n}", lambda n: f"other{n}"),
    "contracts/unlisted-globs": tools_and_contracts(
        lambda n: f"{'a' * 100}{n}", lambda n: f"'{'*a' * 60}b{n}'"
    ),
    "contracts/misspelt-tools": tools_and_contracts(
        lambda n: f"{'a' * 80}{n}", lambda n: f"{'a' * 81}{n}", "allow"
    ),
    "contracts/misspelt-tools-among-globs": tools_and_contracts(
        lambda n: f"'{'*a' * 60}b{n}'", lambda n: f"{'a' * 100}{n}", "allow"
    ),
    "contracts/unlisted-globs-on-both-sides": tools_and_contracts(
        lambda n: f"'x{n}*'", lambda n: f"'y{n}*'"
    ),
    "contracts/tool-names": lambda size: (
        f"{HEAD}contracts:\n  - {{id: a, type: pre, tools: [{many(lambda n: f't{n},', size // 2)}],"
        f" when: {{tool.name: {{in: [{many(lambda n: f'u{n},', size // 2)}]}}}}, then: {{effect:"
        " deny, message: m}}\n"
    ),
    "conditions/unequal": leaves("all", lambda n: f"{{args.x: {{equals: {n}}}}},"),
    "conditions/bounds": leaves("all", lambda n: f"{{args.x: {{gt: {n}}}}},"),
    "conditions/lists": leaves("all", lambda n: f"{{args.x: {{in: [{'1,' * 200}{n}]}}}},"),
    "conditions/all-different": leaves("all", lambda n: f"{{args.x{n}: {{exists: true}}}},"),
    "conditions/values": values("in", lambda n: f"{n},"),
    "conditions/networks": values("in_cidr", lambda n: f"10.{n % 256}.{n // 256 % 256}.0/24,"),
    "success/rules": lambda size: (
        f"{HEAD}success:\n"
        + many(
            lambda n: f"  - {{tool: 't{n}*', failure_when: {{result.a: {{equals: 1}}}}}}\n", size
        )
    ),
    "tools/entries": lambda size: (
        f"{HEAD}tools:\n" + many(lambda n: f"  't{n}*': {{side_effect: read}}\n", size)
    ),
    "limits/contracts": contracts(
        lambda n: (
            f"  - {{id: s{n}, type: session, limits: {{max_tool_calls: {n + 1}, per: 9s}}, then:"
            " {effect: deny, message: m}}\n"
        )
    ),
    "limits/tools": limits(
        lambda size: f"max_calls_per_tool: {{{many(lambda n: f't{n}: 3,', size)}}}"
    ),
    "tools/amounts": lambda size: (
        f"{HEAD}tools: {{t: {{amounts: {{{many(lambda n: f'a{n}: args.b{n},', size)}}}}}}}\n"
    ),
    "tools/amounts-and-limits": lambda size: (
        f"{HEAD}tools: {{t: {{actual: {{{many(lambda n: f'a{n}: 1,', size // 2)}}}}}}}\n"
        "contracts: [{id: c, type: session, limits: {max_amounts:"
        f" {{{many(lambda n: f'b{n}: 1,', size // 2)}}}}}, then: {{effect: deny, message: m}}}}]\n"
    ),
    "limits/amounts": limits(lambda size: f"max_amounts: {{{many(lambda n: f't{n}: 3,', size)}}}"),
    "limits/duration": limits(lambda size: f"max_failures: 1, per: '{'1' * size}s'"),
    "sandbox/directories": sandbox(lambda size: f"within: [{many(lambda n: f'/a/b{n},', size)}]"),
    "sandbox/long-directory": sandbox(lambda size: f"within: [{repeated('/a', size)}]"),
    "sandbox/up": sandbox(lambda size: f"within: [{repeated('/..', size)}]"),
    "sandbox/domains": sandbox(
        lambda size: (
            f"allows: {{domains: [{many(lambda n: f'*.e{n}.com,'.replace('*', 'a'), size)}]}}"
        )
    ),
    "sandbox/long-domain": sandbox(
        lambda size: f"allows: {{domains: ['{repeated('a.', size)}com']}}"
    ),
    "sandbox/umlauts": sandbox(lambda size: f"allows: {{domains: ['{repeated('ä.', size)}com']}}"),
    "sandbox/commands": sandbox(
        lambda size: f"allows: {{commands: [{many(lambda n: f'c{n},', size)}]}}"
    ),
    "post/words": lambda size: (
        f"{HEAD}contracts:\n  - {{id: p, type: post, tool: t, when: {{result.text: {{contains_any:"
        f" [{many(lambda n: f'w{n},', size)}]}}}}, then: {{effect: redact, message: m}}}}\n"
    ),
    # Patterns
    "pattern/nested-counts": lambda _: one("{args.x: {matches: '(a{1000}){1000}'}}"),
    "pattern/doubled-counts": lambda _: one("{args.x: {matches: 'a{1000}{1000}'}}"),
    "pattern/counts": pattern("a{1000}"),
    "pattern/counted-classes": pattern("[^x]{1000}"),
    "pattern/counted-letters": pattern(r"\w{1000}"),
    "pattern/counted-groups": pattern("(a{1000})"),
    "pattern/a-counted-group": pattern("ab", "(", "){1000}"),
    "pattern/optional": pattern(".{0,1000}"),
    "pattern/letters": pattern(r"\w"),
    "pattern/no-letters": pattern(r"[\W]"),
    "pattern/no-letters-in-one-class": pattern(r"\W", "[", "]"),
    "pattern/any-case": pattern("a", "(?i)"),
    "pattern/open-groups": pattern("("),
    "pattern/groups": lambda size: one(
        f"{{args.x: {{matches: '{'(' * (size // 2)}{')' * (size // 2)}'}}}}"
    ),
    "pattern/repeated-groups": lambda size: one(
        f"{{args.x: {{matches: '{'(' * (size // 3)}a{')+' * (size // 3)}'}}}}"
    ),
    "pattern/alternatives": pattern("a|"),
    "pattern/open-classes": pattern("["),
    "pattern/classes-in-a-comment": pattern("[", "(?#", ")"),
    "pattern/boundaries": pattern(r"\b"),
    "pattern/backslashes": pattern("\\\\"),
    "pattern/ends": pattern("$"),
    "pattern/starts": pattern("a^"),
    "pattern/comments": pattern("(?#a)"),
    "pattern/flags": pattern("(?i)"),
    "pattern/long-flags": pattern("i", "(?"),
    "pattern/posix": pattern("[[:alpha:]"),
    "pattern/names": pattern(r"\N{EM DASH}"),
    "pattern/hexadecimal": pattern(r"\x41"),
    "pattern/digits-of-a-count": pattern("1", "a{", "}"),
    "pattern/open-counts": pattern("a{1"),
    "pattern/stars": pattern("*", "a"),
    "pattern/anything": pattern(".*"),
    "patterns/overlapping": values("matches_any", lambda n: f"'.*a.*b{n}.*',"),
    "patterns/counts": contracts(
        lambda n: contract(n, f"{{args.x: {{matches: 'a{{1000}}x{n}'}}}}")
    ),
    "patterns/letters": contracts(
        lambda n: contract(n, rf"{{args.x: {{matches: '\w{{300}}x{n}'}}}}")
    ),
    "patterns/no-letters": contracts(
        lambda n: contract(n, rf"{{args.x: {{matches: '[\W]{{9}}x{n}'}}}}")
    ),
    "patterns/sets": contracts(
        lambda n: contract(
            n, f"{{args.x: {{matches_any: [{', '.join(f'.*a{n}.*b{m}' for m in range(10))}]}}}}"
        )
    ),
}
