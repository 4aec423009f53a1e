"""Secrets do not reach the audit: not in arguments, results, reasons, principals or errors,
wherever they stand.
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    Principal,
    RedactionPolicy,
    Verdict,
    outcome_to_model_content,
    postcondition,
    precondition,
)
from edictum.core.redaction import MAX_PAYLOAD, MAX_STRING, MAX_SUMMARY, shorten
from edictum.core.values import change_text
from support.guards import approval_contract
from support.processes import run_python
from support.values import nest

POLICY = RedactionPolicy()

# --- Names and values ---------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [("name", "value"), ("key", "value"), ("Name", "Value")])
def test_the_value_of_a_pair_is_hidden_by_its_name(keys: tuple[str, str]) -> None:
    """As variables are listed for containers: whatever the value is."""
    name, value = keys
    pairs = [{name: "DB_PASSWORD", value: "lovelace"}, {name: "HOST", value: "db"}]
    hidden = [{name: "DB_PASSWORD", value: "[REDACTED]"}, {name: "HOST", value: "db"}]
    assert POLICY.redact_value({"env": pairs}) == {"env": hidden}
    guard = Edictum()
    guard.dispatch_sync("t", {"env": pairs}, lambda env: pairs)
    guard.dispatch_sync("t", pairs[0], lambda **_: "done")
    assert [event.tool_args for event in guard.local_sink.events][-1] == hidden[0]
    assert "lovelace" not in "".join(json.dumps(e.to_dict()) for e in guard.local_sink.events)


def test_a_text_under_the_name_of_its_vendor_is_hidden() -> None:
    """Where the name alone says too little, and the text as well."""
    args = {"clarifai_pat": "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "twilio": "a text"}
    shown = {**args, "clarifai_pat": "[REDACTED]"}
    assert POLICY.redact_value(args) == shown
    guard = Edictum()
    guard.dispatch_sync("t", args, lambda **_: [args])
    assert [event.tool_args for event in guard.local_sink.events] == [shown, shown]
    assert args["clarifai_pat"] not in str(guard.local_sink.last())


# --- Keys -----------------------------------------------------------------------------------------

SENSITIVE = [
    "password",
    "Password",
    "PASSWORD",
    "db_password",
    "dbPassword",
    "user-password",
    "passwd",
    "pwd",
    "secret",
    "client_secret",
    "clientSecret",
    "token",
    "access_token",
    "accessToken",
    "access-token",
    "refresh_token",
    "api_key",
    "apiKey",
    "API_KEY",
    "x-api-key",
    "apikey",
    "private_key",
    "ssh_key",
    "authorization",
    "Authorization",
    "auth",
    "auth_header",
    "credentials",
    "credential",
    "passphrase",
    "connection_string",
    "connectionString",
    "database_url",
    "DATABASE_URL",
    "cookie",
    "session_token",
    "bearer_token",
    "signing_key",
    "encryption_key",
    "secret_name",
    "aws_secret_access_key",
    "oauth_tokens",
    "api_keys",
    "dbpassword",
    "userpassword",
    "DBPASSWORD",
    "mysqlpasswd",
    "oldpasswords",
    "mysecret",
    "appsecret",
    "authtoken",
    "accesstoken",
    "usertoken",
    "githubaccesstoken",
    "myapikey",
    "sshkey",
    "secretkey",
    "signingkey",
    "dbpass",
    "userpwd",
    "awscredentials",
    "dbconnectionstring",
    "DATABASEURL",
    "dbpassword2",
    "login_dbpass",
    "clientsecret_value",
]
HARMLESS = [
    "monkey",
    "max_tokens",
    "maxTokens",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "token_count",
    "keyboard",
    "key",
    "keys",
    "sort_key",
    "sort_keys",
    "primary_key",
    "foreign_key",
    "partition_key",
    "public_key",
    "keyword",
    "author",
    "authority",
    "tokenizer",
    "turkey",
    "hockey",
    "next_page_token",
    "page_token",
    "passenger",
    "compass",
    "cache_key",
    "idempotency_key",
    "secretary",
    "path",
    "",
    "passwordless",
    "tokenizers",
    "secretaries",
    "undersecretary",
    "bypass",
    "trespass",
    "overpass",
    "encompass",
    "hotkey",
    "donkey",
    "jockey",
    "whiskey",
    "primarykey",
    "sortkey",
    "cachekey",
    "nexttoken",
    "pagetoken",
    "maxtokens",
    "betoken",
    "pass",
    "oldpwd",
    "OLDPWD",
    "keypad",
    "passport",
    "tokenized",
    "authtoken_count",
    "accesspoint",
    "authors",
]


@pytest.mark.parametrize("key", SENSITIVE)
def test_the_value_under_a_sensitive_key_is_hidden(key: str) -> None:
    """By the words of the key."""
    assert POLICY.is_sensitive(key)
    assert POLICY.redact_args({key: "hunter2", "nested": {key: ["hunter2"]}}) == {
        key: "[REDACTED]",
        "nested": {key: "[REDACTED]"},
    }


@pytest.mark.parametrize("key", HARMLESS)
def test_the_value_under_a_harmless_key_is_shown(key: str) -> None:
    """A substring is not a word."""
    assert not POLICY.is_sensitive(key)
    assert POLICY.redact_args({key: "value"}) == {key: "value"}


def test_numbers_flags_and_nothing_under_a_sensitive_key_are_shown() -> None:
    """``has_token: true`` is no secret; a numeric code may be one."""
    shown = POLICY.redact_args(
        {"token": None, "auth": True, "password": "", "secret": 0.5, "pin_token": 1234}
    )
    assert shown == {
        "token": None,
        "auth": True,
        "password": "",
        "secret": 0.5,
        "pin_token": "[REDACTED]",
    }


def test_keys_can_be_added_and_excepted() -> None:
    """By the user, in any case."""
    policy = RedactionPolicy(sensitive_keys=["Iban"], safe_keys=["Secret"])
    assert policy.redact_args({"iban": "DE1", "secret": "x", "token": "y"}) == {
        "iban": "[REDACTED]",
        "secret": "x",
        "token": "[REDACTED]",
    }


def test_keys_that_are_no_text_are_no_problem() -> None:
    """Nested arguments may have any."""
    assert not POLICY.is_sensitive(5)
    assert POLICY.redact_value({5: "x", None: "y"}) == {5: "x", None: "y"}


# --- Texts ----------------------------------------------------------------------------------------

ALNUM = string.ascii_letters + string.digits
SECRETS: dict[str, tuple[str, str]] = {
    # name: (the whole text as it occurs, the part that must not survive)
    "openai": ("sk-" + "a1B2" * 6, "a1B2a1B2"),
    "openai project": ("sk-proj-" + "a1B2" * 10, "a1B2a1B2"),
    "anthropic": ("sk-ant-api03-" + "a1B2" * 10, "a1B2a1B2"),
    "stripe": ("sk_live_" + "a1B2" * 6, "a1B2a1B2"),
    "aws": ("AKIA" + "A1B2" * 4, "A1B2A1B2"),
    "github": ("ghp_" + "a1B2" * 9, "a1B2a1B2"),
    "github fine-grained": ("github_pat_" + "a1B2" * 9, "a1B2a1B2"),
    "gitlab": ("glpat-" + "a1B2" * 5, "a1B2a1B2"),
    "npm": ("npm_" + "a1B2" * 9, "a1B2a1B2"),
    "slack": ("xoxb-123456789012-a1B2a1B2", "a1B2a1B2"),
    "google": ("AIza" + "a1B2" * 9, "a1B2a1B2"),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.a1B2a1B2a1", "a1B2a1B2"),
    "bearer": ("Authorization: Bearer a1B2a1B2a1B2a1B2", "a1B2a1B2"),
    "basic": ("authorization: basic YTFCMmExQjI6cGFzcw==", "YTFCMmExQjI"),
    "basic with a tab": ("Basic\tYTFCMmExQjI6cGFzcw==", "YTFCMmExQjI"),
    "url": ("postgresql://admin:hunter2@db.internal/prod", "hunter2"),
    "url with an empty user": ("redis://:hunter2@cache:6379/0", "hunter2"),
    "export": ("export API_KEY=hunter2", "hunter2"),
    "export quoted": ("export API_KEY='hunter2 and more'", "hunter2"),
    "export of another key": ("export SIGNING_KEY=hunter2", "hunter2"),
    "export with a suffix": ("export GITHUB_TOKEN_RO=hunter2", "hunter2"),
    "export of credentials": ("export DB_CREDENTIALS=hunter2", "hunter2"),
    "assignment": ("AWS_SECRET_ACCESS_KEY=hunter2 aws s3 ls", "hunter2"),
    "option": ("mysql --password=hunter2 -u root", "hunter2"),
    "option with a space": ("tool --api-key hunter2", "hunter2"),
    "json": ('{"password": "hunter2"}', "hunter2"),
    "python": ("connect(password='hunter2')", "hunter2"),
    "yaml": ("db:\n  password: hunter2\n", "hunter2"),
    "pem": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEa1B2a1B2\n-----END RSA PRIVATE KEY-----",
        "a1B2a1B2",
    ),
    "encrypted pem": (
        (
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info:"
            " AES-128-CBC,00\n\nMIIEa1B2a1B2\n-----END RSA PRIVATE KEY-----"
        ),
        "a1B2a1B2",
    ),
    "pem that was cut": ("-----BEGIN PRIVATE KEY-----\nMIIEa1B2a1B2", "a1B2a1B2"),
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "use {} now", "a,{};b", "\n{}\n", "({})", "x={} y", '"{}"', "token_{}"]
)
def test_a_secret_is_found_anywhere_in_a_text(name: str, around: str) -> None:
    """At the start, in a sentence, in quotes, behind an underscore."""
    whole, secret = SECRETS[name]
    if around == "token_{}" and not whole.startswith(
        ("sk", "AK", "gh", "gi", "gl", "npm", "xox", "AI", "eyJ")
    ):
        around = "see {}"
    shown = POLICY.redact_text(around.format(whole))
    assert secret not in shown
    assert "[REDACTED]" in shown


INNOCENT = [
    "the monkey=banana",
    "max_tokens: 500",
    "please reset the password for me",
    "sk-short",
    "see https://example.com/a:b/c",
    "git checkout feature/basic auth",
    "ssh git@github.com:edictum/edictum.git",
    "the token was invalid",
    "AKIA is a prefix",
    "primary_key=5 and sort_key=name",
    "a" * 5_000,
]


@pytest.mark.parametrize("text", INNOCENT, ids=lambda text: text[:20])
def test_ordinary_text_is_left_alone(text: str) -> None:
    """A log full of [REDACTED] is no log."""
    assert POLICY.redact_text(text) == text


COMMANDS = [
    "mysql -u root -pHUNTER2 db",
    "mysql -u root -p HUNTER2 db",
    "mysqldump --all -p'HUNTER2 x' > dump.sql",
    "mariadb-dump -pHUNTER2 db",
    "mongosh -u admin -p HUNTER2",
    "sshpass -p HUNTER2 ssh host",
    "docker login -u me -p HUNTER2 registry",
    "sqlcmd -S host -P HUNTER2",
    "redis-cli -h host -a HUNTER2 ping",
    "curl -u me:HUNTER2 https://example.com",
    'curl -s --user "me:HUNTER2" host',
    "PGPASSWORD=HUNTER2 psql",
    "dbpassword=HUNTER2",
    "mysecret: HUNTER2",
    'authtoken="HUNTER2"',
]
PLAIN_COMMANDS = [
    "mkdir -p reports/2026",
    "docker run -p 8080:80 nginx",
    "mysql -P 3306 -h db",
    "mysql -u root -p",
    "mysql -p -h db",
    "cp -p a b",
    "redis-cli -h host ping",
    "curl -s https://example.com/a:b",
    "mysql --port 3306",
    "ssh -p 2222 host",
    "mysql; mkdir -p x",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_secret_after_a_flag_is_found(command: str) -> None:
    """For the programs that take one so."""
    assert "HUNTER2" not in POLICY.redact_text(command)
    assert (
        POLICY.redact_text(command).split()[0] == POLICY.redact_text(f"echo; {command}").split()[1]
    )


@pytest.mark.parametrize("command", PLAIN_COMMANDS)
def test_flags_that_mean_something_else_are_left_alone(command: str) -> None:
    """The same letters after other programs, or without a value."""
    assert POLICY.redact_text(command) == command


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("length", [100, 8_000, 9_000, 70_000, 300_000])
@pytest.mark.parametrize("before", [0, 50_000, 60_000, 65_000])
def test_a_quoted_secret_of_any_length_is_found_whole(quote: str, length: int, before: int) -> None:
    """Long texts are searched in windows; a secret that reaches beyond one is still one secret."""
    text = f"{'x ' * (before // 2)}password={quote}{'s3 ' * (length // 3)}{quote} and more"
    hidden = f"password={quote}[REDACTED]{quote} and more"
    assert POLICY.redact_text(text) == "x " * (before // 2) + hidden


def test_a_quote_that_is_not_closed_hides_the_rest_of_its_line() -> None:
    """And an escaped quote does not close it."""
    assert POLICY.redact_text("password='abc1 def\nnext line") == "password='[REDACTED]\nnext line"
    assert (
        POLICY.redact_text('{"token": "aB3x9 \\" def", "n": 1}')
        == '{"token": "[REDACTED]", "n": 1}'
    )
    assert "s3" not in POLICY.redact_result("password='" + "s3 " * 5_000)


def test_the_rest_of_the_text_is_kept() -> None:
    """Only the secret is replaced."""
    text = (
        "curl -H 'Authorization: Bearer abcdef1234567890' https://u:pw12@host/x && export"
        " API_KEY=k1 && ls"
    )
    assert (
        POLICY.redact_text(text)
        == "curl -H 'Authorization: Bearer [REDACTED]' https://u:[REDACTED]@host/x && export"
        " API_KEY=[REDACTED] && ls"
    )


def test_a_secret_behind_a_hundred_thousand_characters_is_found() -> None:
    """All of a text is searched before any of it is cut."""
    secret = SECRETS["github"][0]
    guard = Edictum()
    guard.dispatch_sync(
        "t",
        {"text": "x " * 50_000 + secret, "head": secret + " y" * 50_000},
        lambda text, head: text,
    )
    written = json.dumps([event.to_dict() for event in guard.local_sink.events])
    assert "a1B2a1B2" not in written
    assert POLICY.redact_text("x " * 50_000 + secret).endswith("[REDACTED]")


def test_a_cut_does_not_bare_half_a_secret() -> None:
    """Redacted first, then cut."""
    secret = SECRETS["github"][0]
    for offset in range(MAX_SUMMARY - 45, MAX_SUMMARY + 5):
        assert "a1B2a1B2" not in POLICY.redact_result("x" * (offset - 1) + " " + secret)
        assert "a1B2a1B2" not in POLICY.redact_result({"text": "x" * (offset - 1) + " " + secret})
    for offset in range(MAX_STRING - 45, MAX_STRING + 5):
        assert "a1B2a1B2" not in json.dumps(
            POLICY.redact_args({"text": "x" * (offset - 1) + " " + secret})
        )


@pytest.mark.parametrize("most", [200, 500], ids=["of a failed result", "of a contract"])
def test_a_cut_of_a_reason_does_not_bare_half_a_secret(most: int) -> None:
    """A reason is cut long before it is written, so it is searched before that."""

    @precondition("t")
    def refuse(call: Any) -> Verdict:
        return Verdict.fail(call.args["text"]) if most == 500 else Verdict.pass_()

    guard = Edictum(contracts=[refuse])
    for offset in range(most - 60, most + 5):
        text = "x" * offset + " postgres://app:a1B2a1B2pass@db/app"
        outcome = guard.dispatch_sync("t", {"text": text}, lambda text: {"error": text})
        assert "a1B2a1B2" not in str(outcome)
    assert "a1B2a1B2" not in "".join(event.to_json() for event in guard.local_sink.events)


def test_own_patterns_come_first_and_detection_can_be_switched_off() -> None:
    """For data that is full of things that look like secrets."""
    policy = RedactionPolicy(
        custom_patterns=[(r"\b\d{3}-\d{2}-\d{4}\b", "[SSN]")], detect_secret_values=False
    )
    assert policy.redact_text("123-45-6789 export API_KEY=x") == "[SSN] export API_KEY=x"
    assert policy.redact_args({"password": "x"}) == {"password": "[REDACTED]"}
    assert POLICY.redact_bash_command("export API_KEY=x") == "export API_KEY=[REDACTED]"


@pytest.mark.parametrize("before", [0, 50_000, 65_530, 200_000])
def test_own_patterns_are_searched_in_all_of_a_long_text(before: int) -> None:
    """Window by window; a match that reaches beyond one is still one match."""
    policy = RedactionPolicy(custom_patterns=[(r"EMP-\d+", "[EMPLOYEE]"), (r"<[^>]*", "<")])
    text = "x " * (before // 2) + "EMP-12 <" + "y " * 60_000 + "> EMP-7"
    assert policy.redact_text(text) == "x " * (before // 2) + "[EMPLOYEE] <> [EMPLOYEE]"


def test_patterns_take_time_in_proportion_to_the_text() -> None:
    """Texts made to hurt end; the guard sees output of attackers."""
    for hostile in (
        "password" * 30_000,
        "eyJ" * 60_000,
        "://" * 60_000,
        "a" * 200_000 + "=",
        '"' * 200_000,
        "-----BEGIN " * 20_000,
        "_" * 200_000 + "token",
    ):
        assert POLICY.redact_text(hostile)


# --- Structures -----------------------------------------------------------------------------------


def test_the_structure_is_kept() -> None:
    """A dict stays a dict, a list a list."""
    value = {"a": [1, {"note": "export API_KEY=x"}], "b": ("t", None), "n": 1.5}
    assert POLICY.redact_value(value) == {
        "a": [1, {"note": "export API_KEY=[REDACTED]"}],
        "b": ("t", None),
        "n": 1.5,
    }
    assert POLICY.redact_secrets({"password": "export API_KEY=x", "t": ("export API_KEY=y",)}) == {
        "password": "export API_KEY=[REDACTED]",
        "t": ("export API_KEY=[REDACTED]",),
    }
    assert change_text({"a": ["x"]}, str.upper) == {"A": ["X"]}


def test_deep_structures_end_somewhere() -> None:
    """Hidden rather than shown."""
    secret = SECRETS["github"][0]
    assert secret not in json.dumps(POLICY.redact_value(nest(80, secret)))
    assert secret not in POLICY.redact_result(nest(80, secret))
    assert secret not in json.dumps(POLICY.redact_args({"x": nest(80, secret)}))


def test_a_large_payload_stays_valid_json_and_says_what_was_left_out() -> None:
    """Nothing is cut in the middle."""
    guard = Edictum()
    args = {f"key-{number}": "x" * 5_000 for number in range(200)} | {"rows": list(range(100_000))}
    guard.dispatch_sync("t", args, lambda **given: 1)
    shown = guard.local_sink.last().tool_args
    text = json.dumps(shown)
    assert len(text) < MAX_PAYLOAD * 2
    assert json.loads(text) == shown
    assert shown["key-0"] == "x" * 997 + "..."
    assert shown["_omitted"].endswith("more keys")


def test_a_large_list_says_how_much_was_left_out() -> None:
    """As its last item."""
    shown = POLICY.redact_args({"rows": ["x" * 100] * 2_000, "after": 1})
    assert shown["rows"][-1].startswith("[omitted: ")
    assert len(json.dumps(shown)) < MAX_PAYLOAD * 2
    assert shorten("abcdef", 5) == "ab..."


def test_the_summary_of_a_huge_result_is_short() -> None:
    """And costs no more than a small one: it stops looking once it has enough."""
    shown = POLICY.redact_result(
        {"rows": [{"id": number, "text": "x" * 50} for number in range(10_000)]}
    )
    assert len(shown) in range(MAX_SUMMARY - 20, MAX_SUMMARY + 1)
    assert POLICY.redact_result({f"k{number}": "v" * 100 for number in range(1_000)}).endswith(
        '..."'
    )
    assert (
        POLICY.redact_result({"password": "x", "n": None})
        == '{"password": "[REDACTED]", "n": null}'
    )
    assert [POLICY.redact_result(value) for value in (None, True, 5, 1.5, "text")] == [
        "null",
        "true",
        "5",
        "1.5",
        "text",
    ]


# --- Everywhere in an event -----------------------------------------------------------------------


@dataclass
class Holder:
    note: str


class Told:
    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def everywhere(secret: str) -> dict[str, Any]:
    """Arguments with a secret in every kind of place."""
    return {
        "text": f"see {secret} there",
        "nested": {"list": [secret, (secret,)], "deep": {"er": secret}},
        "key": {secret: 1},
        "bytes": secret.encode(),
        "object": Holder(f"note {secret}"),
        "told": Told(f"told {secret}"),
        "set": {secret},
    }


def trail(guard: Edictum) -> str:
    return json.dumps([event.to_dict() for event in guard.local_sink.events])


tails = st.text(ALNUM, min_size=40, max_size=60)
planted = st.one_of(
    tails.map(lambda tail: ("ghp_" + tail, tail)),
    tails.map(lambda tail: ("sk-" + tail, tail)),
    tails.map(lambda tail: ("sk-proj-" + tail, tail)),
    tails.map(lambda tail: ("glpat-" + tail, tail)),
    tails.map(lambda tail: ("npm_" + tail, tail)),
    tails.map(lambda tail: ("xoxb-" + tail, tail)),
    tails.map(lambda tail: ("AIza" + tail, tail)),
    tails.map(lambda tail: ("eyJ" + tail + "." + tail + "." + tail, tail)),
    tails.map(lambda tail: ("Bearer " + tail, tail)),
    tails.map(lambda tail: (f"postgres://u:{tail}@host/db", tail)),
    tails.map(lambda tail: (f"export API_KEY={tail}", tail)),
    tails.map(lambda tail: (f"password: {tail}", tail)),
)


class TestNoPlantedSecretSurvives:
    @given(planted)
    def test_in_arguments(self, plant: tuple[str, str]) -> None:
        """Wherever in them."""
        whole, secret = plant
        guard = Edictum()
        guard.dispatch_sync("t", everywhere(whole), lambda **args: "done")
        assert secret not in trail(guard)

    @given(planted)
    def test_in_results(self, plant: tuple[str, str]) -> None:
        """Of calls that succeeded and of calls that failed, with every kind of value."""
        whole, secret = plant
        for value in [everywhere(whole), *everywhere(whole).values()]:
            for success in (True, False):
                guard = Edictum(success_check=lambda tool, result, success=success: success)
                outcome = guard.dispatch_sync("t", {}, lambda value=value: value)
                assert secret not in trail(guard)
                if not success:
                    assert secret not in outcome_to_model_content(outcome)

    @given(planted)
    def test_in_exceptions(self, plant: tuple[str, str]) -> None:
        """Of the tool, a checker, a contract, a hook, a resolver."""
        whole, secret = plant

        def explode(*args: Any) -> Any:
            raise ValueError(f"cannot use {whole}")

        guards = [
            Edictum(),
            Edictum(success_check=explode),
            Edictum(contracts=[precondition("*", id="x")(explode)]),
            Edictum(contracts=[postcondition("*", id="x")(explode)]),
            Edictum(hooks=[HookRegistration("before", "*", explode)]),
            Edictum(principal_resolver=explode),
        ]
        for number, guard in enumerate(guards):
            guard.dispatch_sync("t", {}, explode if number == 0 else lambda: 1)
            assert secret not in trail(guard), number

    @given(planted)
    def test_in_reasons_and_metadata(self, plant: tuple[str, str]) -> None:
        """What contracts, hooks and people say about a call."""
        whole, secret = plant
        deny = precondition("*", id="x", metadata={"why": whole})(
            lambda call: Verdict.fail(f"contains {whole}", found=[whole])
        )
        ask = approval_contract(message=f"contains {whole}")
        hook = HookRegistration("before", "*", lambda call: HookDecision.deny(f"contains {whole}"))
        for guard in (
            Edictum(contracts=[deny]),
            Edictum(contracts=[deny], mode="observe"),
            Edictum(hooks=[hook]),
            Edictum(contracts=[ask], approval_backend=InMemoryApprovalBackend(False)),
            Edictum(contracts=[ask]),
        ):
            guard.dispatch_sync("t", {}, lambda: 1)
            assert secret not in trail(guard)

    @given(planted)
    def test_in_principals(self, plant: tuple[str, str]) -> None:
        """Claims often hold tokens."""
        whole, secret = plant
        guard = Edictum(
            principal=Principal(
                user_id=f"u {whole}",
                claims={"raw": whole, "access_token": "hunter2", "list": [whole]},
            )
        )
        guard.dispatch_sync("t", {}, lambda: 1)
        assert secret not in trail(guard)
        assert "hunter2" not in trail(guard)


class UnreadableDict(dict):
    def items(self):
        raise OSError("gone")


def test_a_mapping_that_cannot_be_read_is_shown_as_redacted_text() -> None:
    """Neither form of redaction raises, and neither shows what it could not look into."""
    policy = RedactionPolicy()
    broken = UnreadableDict(note="password=hunter2")
    assert "hunter2" not in str(policy.redact_value({"in": broken}))
    assert "hunter2" not in str(policy.redact_secrets([broken]))


# --- When its table is made -----------------------------------------------------------------------


def test_the_table_of_secrets_is_made_with_a_guard_that_has_a_sink() -> None:
    """Not in the event loop of the first call, nor in that of a forked worker, and not for a guard
    that writes nothing.
    """
    code = """
        import json, os, sys
        from edictum import CollectingAuditSink, Edictum
        from edictum.core.secret_scan import secret_detector
        made = lambda: secret_detector.cache_info().misses
        Edictum()
        found = [made()]
        guard = Edictum(audit_sink=CollectingAuditSink())
        found.append(made())
        guard.run_sync("t", {"text": "see https://example.com"}, lambda text: text)
        found.append(made())
        child = os.fork()
        if child == 0:
            guard.run_sync("t", {"text": "see https://example.com"}, lambda text: text)
            os._exit(made())
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(json.dumps(found))
        """
    assert run_python(code) == [0, 1, 1, 1]
