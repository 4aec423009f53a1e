"""The grammar of a bundle, in both vocabularies, as shapes. The published JSON Schema is printed
from it.
"""

from __future__ import annotations

from typing import Any

from edictum.contracts.expressions import expression_schema, read_raw
from edictum.contracts.shapes import (
    MOST,
    Anything,
    Choice,
    Custom,
    Duration,
    Each,
    Field,
    Flag,
    Free,
    ListOf,
    MapOf,
    Number,
    Record,
    Shape,
    Text,
    Variant,
    words,
)
from edictum.core.contract import MESSAGE_MAX_CHARS
from edictum.core.limits import MAX_AMOUNT, SESSION_FIELDS, TOOL_FIELDS
from edictum.core.policy import RUN_IN, TOOL_KEYS

API_VERSION = "edictum/v1"
SCHEMA_ID = "https://edictum.dev/schema/bundle-v1.json"
ID = Text(
    max_length=200,
    pattern=r"^[a-z0-9][a-z0-9_-]*$",
    rule="lower-case letters, digits, '-' and '_', starting with a letter or digit",
)
NAME = Text(
    max_length=200,
    pattern=r"^[a-z0-9][a-z0-9._-]*$",
    rule="lower-case letters, digits, '.', '-' and '_'",
)
TOOL = Text(
    max_length=256,
    pattern=r"^(?! )[^\x00-\x1f\x7f/\\]*[^\x00-\x20\x7f/\\]$",
    rule="a tool's name or a glob; names have no slashes, and no space before or behind them",
)
PATH = Text(max_length=4_096)  # longer ones are refused by operating systems
MESSAGE = Text(max_length=MESSAGE_MAX_CHARS)
MODE = words("enforce", "observe")
WHOLE = Number(whole=True, at_least=1, at_most=MOST)
AMOUNT = Number(above=0, at_most=MAX_AMOUNT)
WHEN = Custom(read_raw, "expression")

DENY, APPROVE, ALLOW = "deny", "approve", "allow"


def _choice(mine: dict[str, str], other: dict[str, str]) -> Choice:
    """The words of one vocabulary, and for each word of the other the one to use instead."""
    meant = {meaning: word for word, meaning in mine.items()}
    return Choice(
        mine, {word: meant[meaning] for word, meaning in other.items() if word not in mine}
    )


class Vocabulary:
    """One of the two ways in which bundles are written."""

    def __init__(
        self, kind: str, contracts: str, effect: str, timeout_effect: str, deny: str, approve: str
    ) -> None:
        self.kind = kind
        self.contracts = contracts
        self.effect = effect
        self.timeout_effect = timeout_effect
        self.deny = deny
        self.approve = approve

    def words(self, *meanings: str) -> dict[str, str]:
        said = {DENY: self.deny, APPROVE: self.approve}
        return {said.get(meaning, meaning): meaning for meaning in meanings}

    def choice(self, *meanings: str) -> Choice:
        other = RULESET if self is CONTRACT_BUNDLE else CONTRACT_BUNDLE
        return _choice(self.words(*meanings), other.words(*meanings))

    def document(self) -> Record:
        other = RULESET if self is CONTRACT_BUNDLE else CONTRACT_BUNDLE
        return Record(
            {
                "apiVersion": Field(words(API_VERSION), required=True),
                "kind": Field(words(self.kind), required=True),
                "metadata": Field(
                    Record({"name": Field(NAME, required=True), "description": Field(Text())}),
                    required=True,
                ),
                "defaults": Field(
                    Record(
                        {
                            "mode": Field(MODE),
                            "unlisted_tools": Field(self.choice(ALLOW, DENY, APPROVE)),
                        },
                        any_of=(("mode", "unlisted_tools"),),
                    )
                ),
                "tools": Field(MapOf(TOOL_ENTRY)),
                self.contracts: Field(Each(self.contract())),
                "success": Field(Each(SUCCESS_RULE)),
                "session": Field(SESSION),
                "observability": Field(OBSERVABILITY),
                "observe_alongside": Field(Flag()),
            },
            any_of=((self.contracts, "success", "tools", "defaults"),),
            others={other.contracts: self.contracts},
        )

    def contract(self) -> Variant:
        other = RULESET if self is CONTRACT_BUNDLE else CONTRACT_BUNDLE
        common = {
            "id": Field(ID, required=True),
            "type": Field(Anything(), required=True),
            "enabled": Field(Flag()),
            "mode": Field(MODE),
        }
        tools = {"tool": Field(TOOL), "tools": Field(ListOf(TOOL))}
        said = {"message": Field(MESSAGE, required=True)}
        described = {"tags": Field(ListOf(Text())), "metadata": Field(Free())}
        waiting = {"timeout": Field(WHOLE), self.timeout_effect: Field(self.choice(DENY, ALLOW))}
        other_then = {other.effect: self.effect, other.timeout_effect: self.timeout_effect}

        def then(*effects: str, extra: dict[str, Field] | None = None) -> Field:
            effect = {self.effect: Field(self.choice(*effects), required=True)}
            return Field(
                Record({**effect, **said, **described, **(extra or {})}, others=other_then),
                required=True,
            )

        when = {"when": Field(WHEN, required=True)}
        return Variant(
            "type",
            {
                "pre": Record(
                    {**common, **tools, **when, "then": then(DENY, APPROVE, extra=waiting)},
                    one_of=(("tool", "tools"),),
                ),
                "post": Record(
                    {**common, **tools, **when, "then": then("warn", "redact", DENY)},
                    one_of=(("tool", "tools"),),
                ),
                "session": Record(
                    {**common, "limits": Field(LIMITS, required=True), "then": then(DENY)}
                ),
                "sandbox": Record(
                    {
                        **common,
                        **tools,
                        **said,
                        **described,
                        **waiting,
                        "within": Field(ListOf(PATH)),
                        "not_within": Field(ListOf(PATH)),
                        "allows": Field(
                            Record(
                                {"commands": _TEXTS, "domains": _TEXTS},
                                any_of=(("commands", "domains"),),
                            )
                        ),
                        "not_allows": Field(
                            Record({"domains": Field(ListOf(Text()), required=True)})
                        ),
                        "outside": Field(self.choice(DENY, APPROVE)),
                    },
                    one_of=(("tool", "tools"),),
                    any_of=(("within", "allows"),),
                    needs={"not_within": "within", "not_allows": "allows"},
                    others={other.timeout_effect: self.timeout_effect},
                ),
            },
        )


_TEXTS = Field(ListOf(Text()))
_LIMIT_FIELDS: dict[str, Field] = {
    **{name: Field(WHOLE) for name in SESSION_FIELDS},
    **{name: Field(MapOf(WHOLE)) for name in TOOL_FIELDS},
    "max_cost": Field(AMOUNT),
    "max_amounts": Field(MapOf(AMOUNT)),
}
LIMITS = Record({**_LIMIT_FIELDS, "per": Field(Duration())}, any_of=(tuple(_LIMIT_FIELDS),))
TOOL_ENTRY = Record(
    {
        "side_effect": Field(words("pure", "read", "write", "irreversible")),
        "idempotent": Field(Flag()),
        "timeout_s": Field(Number(above=0, at_most=MOST)),
        "run_in": Field(words(*RUN_IN)),
        "retry_on_timeout": Field(Flag()),
        "retry_on_failure": Field(Flag()),
        "verify": Field(TOOL),
    },
    any_of=(TOOL_KEYS,),
)
SUCCESS_RULE = Record(
    {
        "id": Field(ID),
        "tool": Field(TOOL),
        "tools": Field(ListOf(TOOL)),
        "failure_when": Field(WHEN, required=True),
        "enabled": Field(Flag()),
    },
    one_of=(("tool", "tools"),),
)
SESSION = Record(
    {
        "store": Field(Text()),
        "lease": Field(Duration()),
        "ttl": Field(Duration()),
        "on_store_error": Field(
            words(DENY)
        ),  # nothing else would be safe; the key is there so that a bundle can say so
    },
    any_of=(("store", "lease", "ttl", "on_store_error"),),
)
OBSERVABILITY = Record(
    {
        "otel": Field(
            Record(
                {
                    "enabled": Field(Flag()),
                    "endpoint": Field(Text()),
                    "protocol": Field(words("grpc", "http")),
                    "service_name": Field(Text()),
                    "insecure": Field(Flag()),
                    "resource_attributes": Field(MapOf(Text(), may_be_empty=True)),
                }
            )
        ),
        "stdout": Field(Flag()),
        "file": Field(Text()),
    }
)

CONTRACT_BUNDLE = Vocabulary(
    "ContractBundle", "contracts", "effect", "timeout_effect", "deny", "approve"
)
RULESET = Vocabulary("Ruleset", "rules", "action", "timeout_action", "block", "ask")
VOCABULARIES = {vocabulary.kind: vocabulary for vocabulary in (CONTRACT_BUNDLE, RULESET)}
DOCUMENTS: dict[str, Record] = {
    kind: vocabulary.document() for kind, vocabulary in VOCABULARIES.items()
}
DOCUMENT: Shape = Variant("kind", DOCUMENTS)


def bundle_schema() -> dict[str, Any]:
    """The JSON Schema of a bundle, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Edictum contract bundle",
        "description": "What AI agents may call, when, and what may be shown of the result.",
        **DOCUMENT.schema(),
        "$defs": {"expression": expression_schema()},
    }
