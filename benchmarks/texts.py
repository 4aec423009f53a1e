"""The contracts that all systems are timed with, as text. Every contract looks at two things and objects to neither."""

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

OTHER_RULE = "  - {{id: o{number},type: pre,tool: t{number},when: {{args.p: {{contains: x}}}},then: {{action: block,message: n}}}}\n"

PATTERN_RULE = """  - id: pattern
    type: pre
    tool: read_file
    when: {args.path: {matches: '^(a+)+$'}}
    then: {action: block, message: "no"}
"""


def bundle(matching, others=0):
    rules = [RULE.format(number=number) for number in range(matching)]
    rules += [OTHER_RULE.format(number=number) for number in range(others)]  # short: 10,000 of them stay under the 1 MiB of both loaders
    return BUNDLE.format(rules="".join(rules))


def pattern_bundle():
    return BUNDLE.format(rules=PATTERN_RULE)
