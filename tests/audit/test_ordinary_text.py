"""Ordinary text is left alone: code, documentation, hashes, identifiers, encoded images.

The corpus is what lies on every machine with Python, what the packages and the system beside it
bring, and what can be generated; ``make soak`` looks at more of it and prints the rates.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edictum.redaction import scan
from support.effort import effort

MOST = 0.001  # of the lines
LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def code() -> Iterator[str]:
    """Python's own library: code, comments and documentation."""
    files = sorted(path for path in LIBRARY.glob("*.py"))
    random.Random(7).shuffle(files)
    for path in files[: effort(60, 200)]:
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def identifiers() -> Iterator[str]:
    """Hashes, UUIDs, lock files, images and minified names, as they are printed."""
    lot = random.Random(7)
    for _ in range(effort(1_500, 20_000)):
        data = lot.randbytes(64)
        digest = hashlib.sha512(data).digest()
        names = "".join(lot.choices("abcdefgXYZ_$", k=3))
        yield f"commit {hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
        yield f"id: {uuid.UUID(bytes=data[:16])}"
        yield f"sha256:{hashlib.sha256(data).hexdigest()}  file-{lot.randrange(999)}.tar.gz"
        yield f'  "integrity": "sha512-{base64.b64encode(digest).decode()}",'
        yield f"    --hash=sha256:{hashlib.sha256(digest).hexdigest()} \\"
        yield f"data:image/png;base64,{base64.b64encode(lot.randbytes(300)).decode()}"
        yield f"{base64.urlsafe_b64encode(lot.randbytes(48)).decode()}"
        yield f"function {names}(e,t){{return e.{names}=t.key,t.token?{names}(t):e[{lot.random()}]}}"
        yield f"{lot.randrange(10**9)}.{lot.randrange(999)} INFO [{data[:4].hex()}] GET /v1/{names}"


NAMES = ("password", "api_key", "clientSecret", "DB_PASSWORD", "GITHUB_TOKEN", "auth_token")
_PLACEHOLDERS = """
changeme change-me <your-token> <YOUR_API_KEY> your-api-key-here ${TOKEN} $TOKEN {token} None null
{{password}} %(password)s xxxxxxxxxxxx XXXX-XXXX-XXXX ******** REPLACE_ME REPLACE-WITH-YOUR-KEY
my-secret-token test dummy foobar INSERT_TOKEN_HERE process.env.TOKEN config.token self.token hash
settings.SECRET_KEY vault:secret/data/app#password op://vault/item/password !vault secretKeyRef
file:///run/secrets/token ENC[AES256_GCM] sk-xxxx user-provided not-set secret_value var.db_password
arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-a1b2c3 data.aws_secret.token /run/secrets/x
"""
SHAPES = (
    *("{n}={v}", "{n}: {v}", '"{n}": "{v}"', "{n} = '{v}'", 'export {n}="{v}"', "--{n} {v}"),
    *("The {n} is {v}.", "<{n}>{v}</{n}>", "| {n} | {v} |", "**{n}**: `{v}`", "{n}={v} ./run"),
    *('<add key="{n}" value="{v}"/>', '- name: {n}\n  value: "{v}"', "curl -u user:{v} https://x"),
)


@pytest.mark.parametrize("value", _PLACEHOLDERS.split())
def test_placeholders_and_references_are_left_alone(value: str) -> None:
    """Wherever examples and settings have them in the place of a secret."""
    texts = [shape.replace("{n}", name).replace("{v}", value) for shape in SHAPES for name in NAMES]
    assert [text for text in texts if scan(text)] == []


PACKAGES = Path(sysconfig.get_paths()["purelib"])
SYSTEM = Path("/usr/share")
LIBRARIES = Path("/usr/lib")
# Kinds of files that are not everywhere: where they lie, and what they are called.
FILES: dict[str, tuple[tuple[Path, ...], tuple[str, ...]]] = {
    "packages": ((PACKAGES,), ("*.py", "*.pyi")),
    "scripts": ((PACKAGES, SYSTEM, LIBRARIES), ("*.js", "*.mjs", "*.ts")),
    "pages": ((PACKAGES, LIBRARY, SYSTEM), ("*.html", "*.htm", "*.css")),
    "data": ((PACKAGES, SYSTEM, LIBRARIES), ("*.json", "*.svg", "*.xml")),
    "settings": (
        (PACKAGES, SYSTEM, Path("/etc")),
        ("*.toml", "*.y*ml", "*.lock", "*.cfg", "*.conf"),
    ),
    "documents": ((SYSTEM / "doc", PACKAGES, SYSTEM), ("*.md", "*.rst", "*.txt", "copyright")),
    "licences": ((PACKAGES, SYSTEM), ("*LICEN[CS]E*", "GPL*", "COPYING*")),
    "records": ((PACKAGES,), ("RECORD", "METADATA")),
}
MAX_CHARACTERS = 400_000  # that are read of one file


def read_files(kind: str) -> Iterator[str]:
    """The lines of some files of a kind."""
    folders, names = FILES[kind]
    found = {path for folder in folders for name in names for path in folder.rglob(name)}
    paths = sorted(path for path in found if path.is_file() and os.access(path, os.R_OK))
    random.Random(7).shuffle(paths)
    left = effort(400_000, 8_000_000)
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CHARACTERS)
        if "\0" not in text:
            yield from text.splitlines()
            left -= len(text)
        if left <= 0:
            return


def list_touched(kind: str, lines: list[str]) -> list[str]:
    """Return the lines in which something is found, looked at one by one; print how many."""
    touched = [line[:160] for line in lines if scan(line)]
    rate = 100 * len(touched) / max(1, len(lines))
    print(f"{kind}: {len(touched)} of {len(lines):,} lines are touched, {rate:.3f} %")
    return touched


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("corpus", [code, identifiers], ids=["code", "identifiers"])
def test_at_most_one_line_in_a_thousand_is_touched(corpus: Callable[[], Iterator[str]]) -> None:
    """Lines are looked at one by one; a failure shows those that were touched."""
    lines = [line for line in corpus() if line.strip()]
    touched = list_touched(corpus.__name__, lines)
    assert len(lines) > 10_000
    assert len(touched) <= MOST * len(lines), touched[:20]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("kind", FILES)
def test_files_of_this_machine_are_left_alone(kind: str) -> None:
    """As far as there are any: another machine has other files."""
    lines = [line for line in read_files(kind) if line.strip()]
    if len(lines) < 5_000:
        pytest.skip(f"{len(lines)} lines of {kind} on this machine are too few for a rate")
    touched = list_touched(kind, lines)
    assert len(touched) <= MOST * len(lines), touched[:20]
