"""``edictum audit keygen FILE``: the key that signs the heads of a log."""

from __future__ import annotations

import argparse
import json

from edictum.audit import generate_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "where the private key goes; the public one goes to FILE.pub"
    parser.add_argument("file", metavar="FILE", help=what)
    parser.add_argument("--json", action="store_true", help="say where they are as JSON")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write both keys, and print where they are."""
    public = generate_key(options.file)
    if options.json:
        print(json.dumps({"private_key": options.file, "public_key": str(public)}))
    else:
        print(f"The private key is {options.file}: keep it where the agent cannot read it.")
        print(f"The public key is {public}.")
    return 0
