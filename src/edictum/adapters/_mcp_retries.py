"""Elicitation in the newer protocol: the answer to a call is a question, and the client retries.

Nothing is kept in between: what the server itself had asked for goes to the client and back inside
of the state of our question.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from edictum.adapters._mcp import InputRequired, MCPClient
from edictum.adapters._mcp_exchange import VERSION_KEY, MCPMessage

CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
QUESTION = "edictum_approval"  # the name of our question, and of our part of the state
RETRY_KEYS = ("inputResponses", "requestState")


class ApprovalQuestion(InputRequired):
    """A person has to be asked: ``result`` is the answer to the call, until it comes again."""

    def __init__(self, result: MCPMessage) -> None:
        super().__init__()
        self.result = result


def split_retry(
    request: MCPMessage, client: MCPClient | None
) -> tuple[MCPMessage, MCPClient | None]:
    """Return a request without our part of it, and its client with a way to be asked, if any."""
    params = request.get("params")
    if not isinstance(params, dict) or not _can_be_asked(params.get("_meta")):
        return request, client
    state, responses = _read_state(params.get("requestState")), params.get("inputResponses")
    given = responses.get(QUESTION) if isinstance(responses, dict) else None
    sent = {key: params[key] for key in RETRY_KEYS if key in params}
    if state is not None:  # what the client sent is ours; what the server wanted is in the state
        kept = {key: part for key, part in params.items() if key not in RETRY_KEYS}
        sent = {key: state[key] for key in RETRY_KEYS if key in state}
        request = {**request, "params": {**kept, **sent}}

    async def elicit(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        asked = hashlib.sha256(message.encode(errors="replace")).hexdigest()
        if state is not None and state[QUESTION] == asked and isinstance(given, dict):
            return given
        raise ApprovalQuestion(_make_question(message, schema, {QUESTION: asked, **sent}))

    known = client or MCPClient()
    return request, MCPClient(known.session_id, known.principal, elicit)


def _make_question(message: str, schema: dict[str, Any], state: MCPMessage) -> MCPMessage:
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    question = {"method": "elicitation/create", "params": params}
    return {
        "resultType": "input_required",
        "inputRequests": {QUESTION: question},
        "requestState": json.dumps(state),
    }


def _can_be_asked(meta: Any) -> bool:
    if not isinstance(meta, dict) or VERSION_KEY not in meta:
        return False
    capabilities = meta.get(CAPABILITIES_KEY)
    return isinstance(capabilities, dict) and can_show_forms(capabilities)


def can_show_forms(capabilities: MCPMessage) -> bool:
    """Return whether a client that has these capabilities shows forms to a person."""
    modes = capabilities.get("elicitation")
    return isinstance(modes, dict) and (not modes or "form" in modes)


def _read_state(text: Any) -> MCPMessage | None:
    """Return the state of our question; None for the server's own."""
    try:
        state = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) and isinstance(state.get(QUESTION), str) else None
