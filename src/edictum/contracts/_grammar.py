"""The grammar of a bundle, in both vocabularies, as shapes; the JSON Schema is printed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edictum.contracts._bundle import STYLES
from edictum.contracts._expressions import expression_schema, read_shape
from edictum.contracts._shapes import (
    MOST,
    Anything,
    Boolean,
    Choice,
    Definition,
    Duration,
    Each,
    EnvironmentText,
    Field,
    Free,
    ListOf,
    MapOf,
    Number,
    NumberOrSelector,
    Record,
    Shape,
    String,
    TextOr,
    Variant,
    words,
)
from edictum.contracts._vocabulary import ALLOW, APPROVE, DENY, VOCABULARIES, Vocabulary
from edictum.core.approvers import MAX_COUNT
from edictum.core.contract import MESSAGE_MAX_CHARS
from edictum.core.limits import MAX_AMOUNT, SESSION_FIELDS, TOOL_FIELDS
from edictum.core.tool_entry import ENTRY_SETTINGS, PIN_PATTERN, RUN_IN
from edictum.redaction import PII_NAMES, SECRETS

API_VERSION = "edictum/v1"
SCHEMA_ID = "https://edictum.dev/schema/bundle-v1.json"
ID = String(
    max_length=200,
    pattern=r"^[a-z0-9][a-z0-9_-]*$",
    rule="lower-case letters, digits, '-' and '_', starting with a letter or digit",
)
NAME = String(
    max_length=200,
    pattern=r"^[a-z0-9][a-z0-9._-]*$",
    rule="lower-case letters, digits, '.', '-' and '_'",
)
TOOL_NAME = String(
    max_length=256,
    pattern=r"^(?! )[^\x00-\x1f\x7f/\\]*[^\x00-\x20\x7f/\\]$",
    rule="a tool's name or a glob; names have no slashes, and no space before or behind them",
)
PIN = String(pattern=PIN_PATTERN, rule="sha256: and 64 hexadecimal digits")
SCOPE = String(
    max_length=100,
    pattern=r"^[^\x00-\x1f\x7f-\x9f]+$",
    rule="session, principal, org, global, or a selector such as args.account_id",
)
PATH = String(max_length=4_096)  # longer ones are refused by operating systems
MESSAGE = String(max_length=MESSAGE_MAX_CHARS)
MODE = words("enforce", "observe")
COUNT = Number(whole=True, at_least=0, at_most=MOST)  # 0 is a kill switch
AMOUNT = Number(at_least=0, at_most=MAX_AMOUNT)
STATED_AMOUNT = NumberOrSelector(AMOUNT)
WHEN = Definition(read_shape, "expression")
OPTIONAL_WHEN = Field(WHEN)  # without it the contract is about every call of its tools
KINDS = ListOf(words(SECRETS, *PII_NAMES), one_will_do=True)


class _Grammar:
    """The grammar in one vocabulary; keys and words of the other are named in errors."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.words = vocabulary
        self.other = next(each for each in VOCABULARIES.values() if each is not vocabulary)

    def choice(self, *meanings: str) -> Choice:
        """Return the words for these meanings, and the word to use for each of the other's."""
        mine, others = self.words.words_for(*meanings), self.other.words_for(*meanings)
        word_for = {meaning: word for word, meaning in mine.items()}
        return Choice(mine, {w: word_for[meant] for w, meant in others.items() if w not in mine})

    def document(self) -> Record:
        defaults = {
            "mode": Field(MODE),
            "unlisted_tools": Field(self.choice(ALLOW, DENY, APPROVE)),
            **self.missing_args(),
            "timezone": Field(String()),
        }
        metadata = {"name": Field(NAME, required=True), "description": Field(String())}
        contracts = self.words.contracts
        return Record(
            {
                "apiVersion": Field(words(API_VERSION), required=True),
                "kind": Field(words(self.words.kind), required=True),
                "metadata": Field(Record(metadata), required=True),
                "defaults": Field(Record(defaults)),
                "tools": Field(MapOf(TOOL_ENTRY, may_be_empty=True)),
                contracts: Field(Each(self.contract(), may_be_empty=True)),
                "success": Field(Each(SUCCESS_RULE, may_be_empty=True)),
                "secrets": Field(Each(OWN_SECRET)),
                "session": Field(SESSION_SETTINGS),
                "approvals": Field(APPROVAL_SETTINGS),
                "observability": Field(OBSERVABILITY_SETTINGS),
                "observe_alongside": Field(Boolean()),
            },
            any_of=((contracts, "success", "tools", "defaults"),),
            others={self.other.contracts: contracts},
        )

    def contract(self) -> Variant:
        approval = self.approval()
        session = {
            "scope": Field(SCOPE),
            "limits": Field(LIMITS, required=True),
            "when": OPTIONAL_WHEN,
            "then": self.then(DENY, APPROVE, extra=approval),
        }
        return Variant(
            "type",
            {
                "pre": self.conditional(self.then(DENY, APPROVE, extra=approval)),
                "post": self.post(),
                "session": Record({**_COMMON, **session}),
                "sandbox": self.sandbox(),
            },
            synonyms=_TYPE_SYNONYMS,
        )

    def missing_args(self) -> dict[str, Field]:
        """Return the key for what to do about arguments that are left out and have no known
        value.
        """
        return {"missing_args": Field(self.choice(ALLOW, DENY))}

    def approval(self) -> dict[str, Field]:
        """Return the keys for how long to wait for a person, what happens then, and who may
        answer.
        """
        return {
            "timeout": Field(Duration()),
            self.words.timeout_effect: Field(self.choice(DENY, ALLOW)),
            "approvers": Field(APPROVERS),
        }

    def then(
        self, *effects: str, extra: Mapping[str, Field] | None = None, required: bool = True
    ) -> Field:
        effect = {self.words.effect: Field(self.choice(*effects), required=True)}
        others = {
            self.other.effect: self.words.effect,
            self.other.timeout_effect: self.words.timeout_effect,
        }
        fields = {**effect, **_MESSAGE_FIELDS, **(extra or {})}
        return Field(Record(fields, others=others), required=required)

    def conditional(self, then: Field) -> Record:
        when = {"when": OPTIONAL_WHEN, **self.missing_args()}
        fields = {**_COMMON, **_TOOLS, **when, "then": then}
        return Record(fields, one_of=(("tool", "tools"),))

    def post(self) -> Record:
        """Return a contract on results; without ``when`` it is about every result."""
        then = self.then("warn", *STYLES, "suppress", DENY, required=False)
        when = {"when": OPTIONAL_WHEN, "redact": Field(KINDS), **self.missing_args()}
        fields = {**_COMMON, **_TOOLS, **when, "then": then}
        return Record(fields, one_of=(("tool", "tools"),), any_of=(("then", "redact"),))

    def sandbox(self) -> Record:
        allows = Record({"commands": _TEXTS, "domains": _TEXTS}, any_of=(("commands", "domains"),))
        not_allows = Record({"domains": Field(ListOf(String()), required=True)})
        bounds = {
            "within": Field(ListOf(PATH)),
            "not_within": Field(ListOf(PATH)),
            "cwd": Field(PATH),
            "allows": Field(allows),
            "not_allows": Field(not_allows),
            "outside": Field(self.choice(DENY, APPROVE)),
        }
        return Record(
            {
                **_COMMON,
                **_TOOLS,
                **_MESSAGE_FIELDS,
                **self.approval(),
                **bounds,
                **self.missing_args(),
            },
            one_of=(("tool", "tools"),),
            any_of=(("within", "allows"),),
            needs={"not_within": "within", "cwd": "within", "not_allows": "allows"},
            others={self.other.timeout_effect: self.words.timeout_effect},
        )


ROLES = ListOf(String(max_length=200), one_will_do=True)
ESCALATION = Record({"after": Field(Duration(), required=True), "to": Field(ROLES, required=True)})
APPROVERS = Record(
    {
        "roles": Field(ROLES),
        "not": Field(words("requester")),
        "count": Field(Number(whole=True, at_least=1, at_most=MAX_COUNT)),
        "escalate": Field(ESCALATION),
    },
    any_of=(("roles", "not", "count"),),
    needs={"escalate": "roles"},
)
_TYPE_SYNONYMS = {
    "precondition": "pre",
    "postcondition": "post",
    "limit": "session",
    "limits": "session",
}
_TEXTS = Field(ListOf(String()))
_COMMON = {
    "id": Field(ID, required=True),
    "type": Field(Anything(), required=True),
    "enabled": Field(Boolean()),
    "mode": Field(MODE),
}
_TOOLS = {"tool": Field(replace(TOOL_NAME, plural="tools")), "tools": Field(ListOf(TOOL_NAME))}
_MESSAGE_FIELDS = {
    "message": Field(MESSAGE, required=True),
    "tags": Field(ListOf(String())),
    "metadata": Field(Free()),
}
_LIMIT_FIELDS: dict[str, Field] = {
    **{name: Field(COUNT) for name in SESSION_FIELDS},
    **{name: Field(MapOf(COUNT)) for name in TOOL_FIELDS},
    "max_cost": Field(AMOUNT),
    "max_amounts": Field(MapOf(AMOUNT)),
}
LIMITS = Record({**_LIMIT_FIELDS, "per": Field(Duration())}, any_of=(tuple(_LIMIT_FIELDS),))
# by the names that ``core.tool_entry`` gives them
_SETTING_SHAPES: dict[str, Shape] = {
    "side effect": words("pure", "read", "write", "irreversible"),
    "run_in": words(*RUN_IN),
    "boolean": Boolean(),
    "duration": Duration(),
    "tool": TOOL_NAME,
    "amounts": MapOf(STATED_AMOUNT),
    "pin": PIN,
}
TOOL_ENTRY = Record(
    {name: Field(_SETTING_SHAPES[setting.kind.shape]) for name, setting in ENTRY_SETTINGS.items()},
    any_of=(tuple(ENTRY_SETTINGS),),
)
SUCCESS_RULE = Record(
    {
        "id": Field(ID),
        **_TOOLS,
        "failure_when": Field(WHEN, required=True),
        "message": Field(MESSAGE),
        "retryable": Field(Boolean()),
        "enabled": Field(Boolean()),
    },
    one_of=(("tool", "tools"),),
)
OWN_SECRET = Record(
    {
        "kind": Field(NAME, required=True),
        "pattern": Field(String(), required=True),
        "samples": Field(ListOf(String()), required=True),
        "not_samples": Field(ListOf(String())),
    }
)
SESSION_SETTINGS = Record(
    {
        "store": Field(EnvironmentText()),
        "lease": Field(Duration()),
        "ttl": Field(Duration(or_none=True)),
        "on_store_error": Field(words(DENY)),  # nothing else would be safe
        "require_store": Field(Boolean()),
    },
    any_of=(("store", "lease", "ttl", "on_store_error", "require_store"),),
)
_KEY = {"key": Field(EnvironmentText()), "key_file": Field(EnvironmentText())}
APPROVER = Record(
    {"user_id": Field(EnvironmentText(), required=True), "role": Field(EnvironmentText())}
)
LINK_SETTINGS = Record(
    {
        "url": Field(EnvironmentText(), required=True),
        **_KEY,
        "valid": Field(Duration()),
        "approver": Field(APPROVER, required=True),
    },
    one_of=(("key", "key_file"),),
)
WEBHOOK_SETTINGS = Record(
    {
        "url": Field(EnvironmentText(), required=True),
        "allowed_hosts": Field(ListOf(EnvironmentText()), required=True),
        **_KEY,
        "body": Field(Free()),
        "timeout": Field(Duration()),
        "link": Field(LINK_SETTINGS),
    },
    one_of=(("key", "key_file"),),
)
APPROVAL_SETTINGS = Record(
    {"store": Field(EnvironmentText(), required=True), "notify": Field(ListOf(WEBHOOK_SETTINGS))}
)
OTEL_SETTINGS = Record(
    {
        "enabled": Field(Boolean()),
        "endpoint": Field(EnvironmentText()),
        "protocol": Field(words("grpc", "http")),
        "service_name": Field(EnvironmentText()),
        "insecure": Field(Boolean()),
        "resource_attributes": Field(MapOf(EnvironmentText(), may_be_empty=True)),
    }
)
AUDIT_FILE = Record(
    {
        "path": Field(EnvironmentText(), required=True),
        "max_bytes": Field(Number(whole=True, at_least=1, at_most=MOST)),
        "keep": Field(Number(whole=True, at_least=1, at_most=MOST)),
        "compress": Field(Boolean()),
        "fsync": Field(Boolean()),
        "chain": Field(Boolean()),
        "key": Field(EnvironmentText()),
        "retain": Field(Duration()),
    }
)
AUDIT_STORE = Record(
    {
        "url": Field(EnvironmentText(), required=True),
        "chain": Field(Boolean()),
        "key": Field(EnvironmentText()),
        "when_full": Field(words("block", "drop")),
    }
)
OBSERVABILITY_SETTINGS = Record(
    {
        "otel": Field(OTEL_SETTINGS),
        "stdout": Field(Boolean()),
        "file": Field(TextOr(AUDIT_FILE, EnvironmentText())),
        "store": Field(TextOr(AUDIT_STORE, EnvironmentText())),
    }
)

DOCUMENTS: dict[str, Record] = {
    kind: _Grammar(vocabulary).document() for kind, vocabulary in VOCABULARIES.items()
}
DOCUMENT: Shape = Variant("kind", DOCUMENTS)


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of a bundle, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Edictum contract bundle",
        "description": "What AI agents may call, when, and what may be shown of the result.",
        **DOCUMENT.schema(),
        "$defs": {"expression": expression_schema()},
    }
