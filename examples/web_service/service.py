"""The service: one guard and one agent in each worker, many users."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

from agent import make_agent, read_replies
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi import Path as UrlPath
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from tokens import Caller, Tokens

from edictum import Edictum, FileAuditSink, Principal
from edictum.approval import ApprovalLinks
from edictum.approval.asgi import ApprovalApp

HERE = Path(__file__).resolve().parent
routes = APIRouter()


class Message(BaseModel):
    text: str


@asynccontextmanager
async def run_worker(app: FastAPI) -> AsyncIterator[None]:
    """Make what a worker needs when it starts, and close it when its last request has ended.

    Here, and not when the module is imported: a server may import it in a process that forks.
    """
    data = Path(os.environ["SERVICE_DATA"])
    guard = Edictum.from_yaml(
        HERE / "contracts.yaml",
        audit_sink=FileAuditSink(data / f"audit-{os.getpid()}.jsonl", max_bytes=100_000_000),
        local_events=0,  # the audit is in the file
    )
    app.state.guard, app.state.tokens = guard, Tokens.open(data / "token.key")
    links = ApprovalLinks(f"{os.environ['SERVICE_URL']}/approvals", key_file=data / "token.key")
    app.mount("/approvals", ApprovalApp(guard.approvals, links, identify=identify_staff))
    app.state.agent = await asyncio.to_thread(make_agent, guard, data / "refunds.jsonl")
    app.state.running = running = set()
    try:
        yield
    finally:
        if running:  # cancelled when their time was over: a server need not wait for their end
            await asyncio.wait(running, timeout=10)
        await guard.close()


@contextmanager
def keep_track(app: FastAPI) -> Iterator[None]:
    """Let the end of the worker wait for this request."""
    task = asyncio.current_task()
    app.state.running.add(task)
    try:
        yield
    finally:
        app.state.running.discard(task)


def find_caller(
    request: Request, sent: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]
) -> Caller:
    caller = request.app.state.tokens.read(sent.credentials)
    if caller is None:
        raise HTTPException(401, "The token was not made by this service.")
    return caller


def find_staff(caller: Annotated[Caller, Depends(find_caller)]) -> Caller:
    if caller.role != "staff":
        raise HTTPException(403, "Only staff may see this.")
    return caller


def identify_staff(scope: Any) -> Principal | None:
    """Tell the approval pages who is calling; staff alone may see what is asked."""
    request = Request(scope)
    _, _, token = request.headers.get("authorization", "").partition(" ")
    caller = request.app.state.tokens.read(token)
    if caller is None or caller.role != "staff":
        return None
    return Principal(user_id=caller.user_id, role=caller.role)


@routes.post("/conversations/{conversation_id}/messages")
async def send_message(
    request: Request,
    conversation_id: Annotated[str, UrlPath(pattern=r"^[\w-]{1,64}$")],
    message: Message,
    caller: Annotated[Caller, Depends(find_caller)],
) -> dict[str, Any]:
    """Run the agent. The session is a conversation of this user: no other can be named."""
    with keep_track(request.app):
        state = await request.app.state.agent.ainvoke(
            {"messages": [{"role": "user", "content": message.text}]},
            {"configurable": {"thread_id": f"{caller.user_id}/{conversation_id}"}},
            context=caller,
        )
    messages = state["messages"]
    return {"text": messages[-1].text, "calls": read_replies(messages), "worker": os.getpid()}


@routes.get("/conversations/{conversation_id}")
def read_counters(
    request: Request, conversation_id: str, caller: Annotated[Caller, Depends(find_caller)]
) -> dict[str, int]:
    """Tell a user what was counted. An ordinary function: FastAPI runs it in a thread."""
    found = request.app.state.guard.session(f"{caller.user_id}/{conversation_id}").snapshot().totals
    return {"attempts": found.attempts, "executions": found.executions, "running": found.in_flight}


@routes.get("/health")
async def check_health(request: Request, response: Response) -> dict[str, Any]:
    """Say whether this worker can do its work, and by which policy. What is wrong is for staff."""
    health = await request.app.state.guard.check()
    response.status_code = 200 if health.ok else 503
    return {"ok": health.ok, "worker": os.getpid(), "policy_version": health.policy_version}


@routes.get("/stats")
async def read_stats(
    request: Request, staff: Annotated[Caller, Depends(find_staff)]
) -> dict[str, Any]:
    """Tell what this worker has counted, and how its parts are."""
    guard = request.app.state.guard
    return {"health": (await guard.check()).to_dict(), "stats": guard.stats().to_dict()}


def make_app() -> FastAPI:
    app = FastAPI(title="Support", lifespan=run_worker)
    app.include_router(routes)
    return app
