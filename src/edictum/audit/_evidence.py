"""Evidence: part of a chained log in one file that can be verified on another machine.

A record is proven by the records behind it, up to one that a signed head lists; so those are in the
file as well. A manifest has the digest of each part under a signature, so that nothing can be taken
out. ``verify_evidence.py`` checks it all, and needs nothing of this library.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from edictum.audit._filters import EventData, FilterOptions, read_filter
from edictum.audit._heads import NumberedLine, refuse_chained_log
from edictum.audit._keys import HeadSigner, KeyPath
from edictum.audit._reading import LogReading, parse_line
from edictum.audit._verify import find_chain_reader
from edictum.audit.chain import ChainHead, hash_text, read_head, read_record, write_canonical
from edictum.errors import BackendError, EdictumConfigError

EVIDENCE_VERSION = 2
PolicyFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# What the person was shown, and who asked.
SHOWN_FIELDS = ("tool_name", "tool_args", "reason", "principal", "timestamp")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was written: ``selected`` events, in ``records`` records with those that prove them.

    ``unlisted`` of the events are listed by no head, so nothing proves them (yet).
    ``unknown_policies`` are versions in the events whose text was not given.
    """

    selected: int
    records: int
    heads: int
    unlisted: int
    unknown_policies: tuple[str, ...]


def write_evidence(
    source: Any,
    path: str | os.PathLike[str],
    *,
    policies: Iterable[PolicyFiles] = (),
    public_key: KeyPath | None = None,
    key: KeyPath | None = None,
    **wanted: Unpack[FilterOptions],
) -> Evidence:
    """Write the events that match, and what proves them, to a file of canonical JSON.

    ``source`` is the path of a chained log, or a sink that chains. ``policies`` are the bundles
    that were in force, each a file or a list of files that are layers of one. ``public_key`` is
    put into the file for reference; an examiner uses one that was received otherwise. ``key`` is
    the private key of the log: it signs the digests of all parts. Without it the examiner cannot
    know that nothing was taken out.
    """
    refuse_chained_log(Path(path))
    signer = None if key is None else HeadSigner(key)
    reader = find_chain_reader(source)
    heads = dict(_read_positions(reader.read_heads(LogReading())))
    tests = read_filter(wanted).list_tests()
    found = _Selection(heads)
    for _, line in reader.read_records(LogReading()):
        if line is not None:
            event = parse_line(line)
            is_wanted = isinstance(event, dict) and all(test(event) for test in tests)
            found.add(line, event if isinstance(event, dict) and is_wanted else None)
    texts = [_read_layers(files) for files in policies]
    content = found.describe(texts, None if public_key is None else Path(public_key).read_text())
    _write(Path(path), {**content, "manifest": _make_manifest(content, signer)})
    missing = found.versions - {policy["version"] for policy in content["policies"]}
    return Evidence(
        selected=len(content["selected"]),
        records=len(content["records"]),
        heads=len(content["heads"]),
        unlisted=found.count_pending(),
        unknown_policies=tuple(sorted(missing)),
    )


def _make_manifest(content: dict[str, Any], signer: HeadSigner | None) -> dict[str, Any]:
    """Return the digests of all parts, signed if there is a key."""
    digests = {name: hash_text(write_canonical(part).encode()) for name, part in content.items()}
    manifest = {"digests": digests, "key": "" if signer is None else signer.key_id}
    signed = write_canonical(manifest).encode()
    return {**manifest, "signature": "" if signer is None else signer.sign_bytes(signed)}


def _read_positions(lines: Iterator[NumberedLine]) -> Iterator[tuple[tuple[str, int], ChainHead]]:
    """Yield the heads by what they list."""
    for _, line in lines:
        if line is not None and (head := read_head(line)) is not None:
            for listed in head.writers:
                yield (listed.position.writer, listed.position.sequence), head


def _read_layers(files: PolicyFiles) -> dict[str, Any]:
    """Return the texts of a policy, with the version that events call it by."""
    paths = [files] if isinstance(files, str | os.PathLike) else files
    try:
        texts = [Path(path).read_text() for path in paths]
    except (OSError, UnicodeDecodeError) as exc:
        raise EdictumConfigError(
            f"A policy cannot be read: {exc}.", hint="Pass the files of bundles."
        ) from exc
    return {"texts": texts, "version": name_version(texts)}


def name_version(texts: Sequence[str]) -> str:
    """Return the version of a bundle, or of several that are layers."""
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(":".join(hashes).encode()).hexdigest()


@dataclass(slots=True)
class _Selection:
    """The records to keep: each from one that was asked for up to one that a head lists."""

    heads: dict[tuple[str, int], ChainHead]
    versions: set[str] = field(default_factory=set)
    _selected: list[str] = field(default_factory=list)
    _records: list[str] = field(default_factory=list)
    _used: dict[int, ChainHead] = field(default_factory=dict)
    _open: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)  # by writer
    _approvals: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, line: bytes, event: EventData | None) -> None:
        """Take the next line of the log; the event is None if it was not asked for."""
        record = read_record(line)
        if record is None:
            if event is not None:
                raise EdictumConfigError(
                    "An event that was asked for is in no chain, so nothing proves it:"
                    f" {event['action']} at {event['timestamp']}.",
                    hint="Look at the log with: edictum audit verify FILE.",
                )
            return
        pending = self._open.setdefault(record.writer, [])
        if event is None and not pending:
            return
        if not record.is_intact:
            raise EdictumConfigError(
                f"Record {record.sequence} of {record.writer} was changed, so it proves nothing.",
                hint="Look at the log with: edictum audit verify FILE.",
            )
        if event is not None:
            self._note(event, record.hash)
        pending.append((line.decode().rstrip("\n"), event is not None))
        head = self.heads.get((record.writer, record.sequence))
        if head is not None:
            self._used[head.number] = head
            self._records += [text for text, _ in pending]
            pending.clear()

    def _note(self, event: EventData, digest: str) -> None:
        self._selected.append(digest)
        if event.get("policy_version"):
            self.versions.add(event["policy_version"])
        if not event.get("approval_id"):
            return
        known = self._approvals.setdefault(
            event["approval_id"], {"approval_id": event["approval_id"], "answers": []}
        )
        if event["action"] == "call_approval_requested":
            known["shown"] = {name: event.get(name) for name in SHOWN_FIELDS} | {"record": digest}
        else:
            names = ("action", "approver", "reason", "timestamp")
            answer = {name: event.get(name) for name in names} | {"record": digest}
            known["answers"].append(answer)

    def count_pending(self) -> int:
        return sum(is_wanted for pending in self._open.values() for _, is_wanted in pending)

    def describe(self, policies: list[dict[str, Any]], public_key: str | None) -> dict[str, Any]:
        """Return the content of the file."""
        rest = [text for pending in self._open.values() for text, _ in pending]
        return {
            "approvals": list(self._approvals.values()),
            "evidence_version": EVIDENCE_VERSION,
            "heads": [self._used[number].to_json() for number in sorted(self._used)],
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "policies": policies,
            "public_key": public_key,
            "records": [*self._records, *rest],
            "selected": self._selected,
        }


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(write_canonical(content))
    except OSError as exc:
        raise BackendError(
            f"The evidence {path} cannot be written: {exc}.",
            hint="Check the path, its rights and the disk.",
        ) from exc
