"""A web application with one guard, made when it is imported: gunicorn --preload imports it before
it forks its workers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from edictum import Edictum, FileAuditSink

FOLDER = Path(os.environ["OPERATED_FOLDER"])
POLICY = FOLDER / "contracts.yaml"

guard = Edictum.from_yaml(
    POLICY,
    backend=os.environ["OPERATED_STORE"],
    audit_sink=FileAuditSink(FOLDER / "audit" / "audit.jsonl"),
    local_events=0,
)
guard.watch(POLICY, interval_s=0.1)


def do_work(session: str, call: str, edition: int) -> str:
    """Write down that it ran, in a file of its own."""
    out = os.open(FOLDER / "bodies.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(out, f"{session} {call}\n".encode())
    finally:
        os.close(out)
    time.sleep(0.005)
    return f"done for edition {edition}"


def make_call(session: str, call: str, edition: str = "0") -> dict[str, Any]:
    args = {"session": session, "call": call, "edition": int(edition)}
    outcome = guard.dispatch_sync("work", args, do_work, session_id=session, call_id=call)
    details = getattr(outcome, "details", "")
    return {"outcome": type(outcome).__name__, "details": details, "notes": list(outcome.notes)}


def check_health() -> dict[str, Any]:
    return guard.check_sync().to_dict()


ROUTES: dict[str, Callable[..., dict[str, Any]]] = {"/call": make_call, "/health": check_health}


def app(request: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    answer = ROUTES[request["PATH_INFO"]](**dict(parse_qsl(request["QUERY_STRING"])))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"worker": os.getpid(), **answer}).encode()]
