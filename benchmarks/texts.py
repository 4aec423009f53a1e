"""The contracts and texts that all systems are timed with. Every contract looks at two things and
objects to neither.
"""

import itertools
import json

BUNDLE = """apiVersion: edictum/v1
kind: Ruleset
metadata: {{name: bench}}
defaults: {{mode: enforce}}
rules:
{rules}"""

RULE = """  - id: rule-{number}
    type: pre
    tool: read_file
    when:
      all:
        - args.path: {{contains: "/etc/secret-{number}"}}
        - environment: {{equals: production}}
    then: {{action: block, message: "no"}}
"""

OTHER_RULE = (
    "  - {{id: o{number},type: pre,tool: t{number},when: {{args.p: {{contains: x}}}},then:"
    " {{action: block,message: n}}}}\n"
)

PATTERN_RULE = """  - id: patterns
    type: pre
    tool: read_file
    when: {{args.path: {{matches_any: {patterns}}}}}
    then: {{action: block, message: "no"}}
"""

NESTED = ["^(a+)+$"]
TWO_HUNDRED = [rf"\b(?:key|token)-{number:03}-[a-z0-9]{{16,32}}\b" for number in range(200)]
_WORDS = (
    "the",
    "report",
    "of",
    "key-7",
    "tokens",
    "for",
    "2026",
    "was",
    "written",
    "by",
    "ada@example.com",
    "and",
    "token-12-x",
    "others",
)

_loads = itertools.count()


def bundle(matching, others=0):
    rules = [RULE.format(number=number) for number in range(matching)]
    rules += [
        OTHER_RULE.format(number=number) for number in range(others)
    ]  # short: 10,000 of them stay under the 1 MiB of both loaders
    return BUNDLE.format(rules="".join(rules))


def another_bundle(text):
    """The same contracts as a text that was not loaded before, so that nobody can answer from a
    cache.
    """
    return f"{text}# {next(_loads)}\n"


def pattern_bundle(patterns):
    return BUNDLE.format(rules=PATTERN_RULE.format(patterns=json.dumps(patterns)))


def letters(count):
    """Letters that the nested pattern matches, and a mark at the end that spoils it."""
    return "a" * count + "!"


def prose(characters):
    """A text in which none of the two hundred patterns is found, although it often looks as if one
    began.
    """
    line = " ".join(_WORDS) + "\n"
    return (line * (characters // len(line) + 1))[:characters]
