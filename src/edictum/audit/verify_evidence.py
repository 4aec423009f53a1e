"""Verify a file that ``edictum audit evidence`` has written.

    python verify_evidence.py evidence.json --public-key audit.key.pub

This is a program of its own: copy it to any machine. It needs Python 3.11 or newer and the package
cryptography, and nothing of edictum. It ends with 0 if everything is proven, with 1 if not.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

# What data of another form than that of evidence raises.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
RECORD_START = '{"_chain":{"hash":"'


def verify_file(argv: list[str] | None = None) -> int:
    """Print what is wrong with a file of evidence, or what it proves; return the exit code."""
    parser = argparse.ArgumentParser(description="Verify a file of evidence.")
    parser.add_argument("file", help="the file of evidence")
    parser.add_argument("--public-key", help="a key that you have not from the file itself")
    unsigned = "accept a file of which it is not signed that nothing was taken out"
    parser.add_argument("--allow-unsigned", action="store_true", help=unsigned)
    options = parser.parse_args(argv)
    try:
        text = Path(options.file).read_text(encoding="utf-8")
        key = Path(options.public_key).read_text() if options.public_key else None
    except (OSError, UnicodeDecodeError) as exc:
        print(f"WRONG: a file cannot be read: {exc}")
        return 1
    problems = 0
    for problem in _find_all_problems(text, key, options.allow_unsigned):
        print(f"WRONG: {problem}")
        problems += 1
    if not problems:
        _tell(json.loads(text), is_key_given=key is not None)
    return 1 if problems else 0


def _find_all_problems(text: str, key: str | None, allow_unsigned: bool) -> Iterator[str]:
    """Yield what is wrong, and at last why no more could be checked, if that is so."""
    try:
        if key is not None:
            _load_key(key)
    except (ValueError, TypeError) as exc:
        yield f"the public key cannot be used: {exc}"
        return
    try:
        yield from find_problems(text, key, allow_unsigned=allow_unsigned)
    except MALFORMED as exc:
        yield f"the file is not evidence, or was changed: {type(exc).__name__}: {exc}"


def _tell(data: dict[str, Any], *, is_key_given: bool) -> None:
    count = len(data["selected"])
    print(f"OK: {count} events are proven by {len(data['heads'])} signed heads.")
    print(f"    {len(data['policies'])} policies, {len(data['approvals'])} approvals.")
    for version in sorted(_find_versions(data) - {it["version"] for it in data["policies"]}):
        print(f"    The text of the policy {version} is not in the file.")
    if not data["manifest"]["signature"]:
        print("    It is not signed what the file holds: parts may have been taken out.")
    if not is_key_given:
        print("    The key is the one in the file: compare it with one that you trust.")


def _find_versions(data: dict[str, Any]) -> set[str]:
    """Return the versions of policies that the events which were asked for name."""
    records = {record["_chain"]["hash"]: record for record in map(json.loads, data["records"])}
    versions = {records[digest].get("policy_version") for digest in data["selected"]}
    return {str(version) for version in versions if version}


def find_problems(text: str, key: str | None, *, allow_unsigned: bool = False) -> Iterator[str]:
    """Yield everything that a file of evidence does not prove."""
    data = json.loads(text)
    if _to_canonical(data) != text:
        yield "the file is not canonical JSON (RFC 8785)"
    if data["evidence_version"] != 2:
        yield f"version {data['evidence_version']} of evidence is not known to this program"
        return
    yield from _check_manifest(data, key or data["public_key"], allow_unsigned)
    listed: dict[tuple[str, int], str] = {}
    yield from _check_heads(data["heads"], key or data["public_key"], listed)
    yield from _check_records(data["records"], listed)
    records = {json.loads(line)["_chain"]["hash"]: json.loads(line) for line in data["records"]}
    yield from _check_selection(data["selected"], records)
    yield from _check_policies(data["policies"])
    yield from _check_approvals(data["approvals"], records)


def _check_manifest(data: dict[str, Any], key: str | None, allow_unsigned: bool) -> Iterator[str]:
    """Check that every part is the one whose digest was signed, and that none is missing."""
    manifest = data["manifest"]
    if manifest["signature"]:
        if key is not None and not _is_signed(manifest, key):
            yield "the manifest is not signed with the key"
    elif not allow_unsigned:
        yield "it is not signed what the file holds: parts may have been taken out"
    for name in sorted({*manifest["digests"], *data} - {"manifest"}):
        digest = hashlib.sha256(_to_canonical(data.get(name)).encode()).hexdigest()
        if manifest["digests"].get(name) != digest:
            yield f"the part {name!r} is not the one that was signed"


def _check_heads(lines: list[str], key: str | None, listed: dict[Any, str]) -> Iterator[str]:
    """Check signatures, and gather what the heads list."""
    if key is None:
        yield "no public key is known; pass --public-key"
        return
    for line in lines:
        head = json.loads(line)
        if not _is_signed(head, key):
            yield f"head {head['number']} is not signed with the key"
            continue
        for writer in head["writers"]:
            listed[writer["writer"], writer["sequence"]] = writer["hash"]


def _is_signed(content: dict[str, Any], key: str) -> bool:
    from cryptography.exceptions import InvalidSignature

    public = _load_key(key)
    signed = {name: value for name, value in content.items() if name != "signature"}
    try:
        public.verify(base64.b64decode(content["signature"]), _to_canonical(signed).encode())
    except InvalidSignature:
        return False
    return True


def _load_key(key: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    public = load_pem_public_key(key.encode())
    if not isinstance(public, Ed25519PublicKey):
        raise TypeError("it is not of Ed25519")
    return public


def _check_records(lines: list[str], listed: dict[tuple[str, int], str]) -> Iterator[str]:
    """Check each record, that each follows the one before it, and that a head lists the last."""
    ends: dict[str, dict[str, Any]] = {}
    for line in lines:
        chain = json.loads(line)["_chain"]
        name = f"record {chain['sequence']} of {chain['writer']}"
        if not _is_intact(line, chain):
            yield f"{name} was changed"
        before = ends.get(chain["writer"])
        is_next = before is not None and chain["sequence"] == before["sequence"] + 1
        if before is not None and is_next and chain["previous"] != before["hash"]:
            yield f"{name} does not follow the record before it"
        if before is not None and not is_next:
            yield from _check_end(before, listed)
        ends[chain["writer"]] = chain
    for chain in ends.values():
        yield from _check_end(chain, listed)


def _check_end(chain: dict[str, Any], listed: dict[tuple[str, int], str]) -> Iterator[str]:
    if listed.get((chain["writer"], chain["sequence"])) != chain["hash"]:
        name = f"record {chain['sequence']} of {chain['writer']}"
        yield f"{name}, and those before it, are listed by no signed head"


def _is_intact(line: str, chain: dict[str, Any]) -> bool:
    """Return whether the hash of a record is that of its text without the hash."""
    if (
        not line.startswith(f'{RECORD_START}{chain["hash"]}",')
        or _to_canonical(json.loads(line)) != line
    ):
        return False
    rest = line[len(RECORD_START) + len(chain["hash"]) + 2 :]
    digest = hashlib.sha256(f'{{"_chain":{{{rest}'.encode()).hexdigest()
    return bool(digest == chain["hash"])


def _check_selection(selected: list[str], records: dict[str, Any]) -> Iterator[str]:
    for digest in selected:
        if digest not in records:
            yield f"the event {digest} is not in the file"


def _check_policies(policies: list[dict[str, Any]]) -> Iterator[str]:
    for policy in policies:
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in policy["texts"]]
        joined = hashlib.sha256(":".join(hashes).encode()).hexdigest()
        if policy["version"] != (hashes[0] if len(hashes) == 1 else joined):
            yield f"the text of the policy {policy['version']} is another one"


def _check_approvals(approvals: list[dict[str, Any]], records: dict[str, Any]) -> Iterator[str]:
    """Check that what people were shown, and who answered, is what the records say."""
    for approval in approvals:
        told = [part for part in (approval.get("shown"), *approval["answers"]) if part]
        for part in told:
            record = records.get(part["record"], {})
            is_same = all(record.get(name) == part[name] for name in part if name != "record")
            if not is_same or record.get("approval_id") != approval["approval_id"]:
                yield f"the approval {approval['approval_id']} is not what the records say"


# --- Canonical JSON (RFC 8785) --------------------------------------------------------------------


def _to_canonical(value: Any) -> str:
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        members = (f"{_to_canonical(key)}:{_to_canonical(item)}" for key, item in pairs)
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_to_canonical, value))}]"
    if isinstance(value, float) or (type(value) is int and abs(value) >= 2**53):
        return _to_number(float(value))
    return json.dumps(value, ensure_ascii=False)


def _to_number(value: float) -> str:
    """Return a number as ECMAScript writes it, from the shortest digits that mean it."""
    if value == 0:
        return "0"
    number = Decimal(repr(value)).normalize().as_tuple()  # repr writes the shortest digits
    sign, digits = "-" if value < 0 else "", "".join(map(str, number.digits))
    point = len(digits) + int(number.exponent)
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


if __name__ == "__main__":
    sys.exit(verify_file())
