"""The ready-made models with the real clients of OpenAI and Anthropic, against a server that refuses
what the real APIs refuse.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest
from model_server import (
    AnthropicWire,
    Call,
    ChatWire,
    ModelServer,
    Refuse,
    Reply,
    ResponsesWire,
    Search,
    Think,
    says,
)
from pydantic import BaseModel, Field

from edictum import Edictum, Verdict, precondition
from edictum.harness import (
    File,
    Image,
    ModelError,
    ModelReply,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    ToolCallStarted,
    TurnBudget,
    anthropic_model,
    messages_from_json,
    messages_to_json,
    openai_model,
    openai_responses_model,
    run_turn,
    tool,
)
from edictum.harness.messages import make_assistant_message, to_reply

pytestmark = pytest.mark.s1  # needs anthropic

# --- The three APIs, with blocking and asynchronous clients ---------------------------------------


@dataclass(frozen=True)
class Api:
    name: str
    wire: Callable[[], Any]
    make_model: Callable[..., Any]
    clients: tuple[Any, Any]
    path: str = ""

    def client(self, server: ModelServer, is_async: bool) -> Any:
        make, make_http = self.clients[is_async]
        address = server.url + self.path
        # reading the certificates of all authorities takes longer than a conversation
        http = make_http(verify=False)
        return make(api_key="test", base_url=address, max_retries=0, http_client=http)


OPENAI = (
    (openai.OpenAI, openai.DefaultHttpxClient),
    (openai.AsyncOpenAI, openai.DefaultAsyncHttpxClient),
)
CLAUDE = (
    (anthropic.Anthropic, anthropic.DefaultHttpxClient),
    (anthropic.AsyncAnthropic, anthropic.DefaultAsyncHttpxClient),
)
APIS = (
    Api("chat", ChatWire, openai_model, OPENAI, "/v1"),
    Api("responses", ResponsesWire, openai_responses_model, OPENAI, "/v1"),
    Api("anthropic", AnthropicWire, anthropic_model, CLAUDE),
)
every_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
every_client = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
every_transport = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


async def close(client: Any) -> None:
    closed = client.close()
    if closed is not None:
        await closed


class Listening:
    """A model that is called with on_event, and what it said."""

    def __init__(self, model: Any) -> None:
        self.model, self.blocks, self.events = model, model.blocks, []

    def __call__(self, messages: Any, tools: Any) -> Any:
        return self.model(messages, tools, on_event=self.events.append)


async def ask(model: Any, messages: Any, tools: Any = (), **options: Any) -> Any:
    """Call a model as a turn does: a blocking one in a thread."""
    if model.blocks:
        return await asyncio.to_thread(model, messages, tools, **options)
    return await model(messages, tools, **options)


# --- Conversations --------------------------------------------------------------------------------

PIXEL = b"\x89PNG\r\n\x1a\n0000"


@tool(side_effect="read", idempotent=True)
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


@tool(side_effect="read")
def now() -> str:
    """Tell the time."""
    return "noon"


@tool(side_effect="write")
def break_down() -> str:
    """Fail."""
    raise RuntimeError("the disk is full")


@tool(side_effect="irreversible")
def erase(path: str) -> str:
    """Erase."""
    raise AssertionError("it must never run")


@tool(side_effect="read")
def paint() -> dict[str, Any]:
    """Return what is not text."""
    pages = [File(b"%PDF-1.7", name="a.pdf"), File(b"a,b", "text/csv", name="b.csv")]
    return {"picture": Image(PIXEL), "pages": pages, "raw": File(b"\x00", "application/zip")}


TOOLS = [look, now, break_down, erase, paint]


@precondition("erase")
def no_erasing(call: Any) -> Verdict:
    return Verdict.fail("Nothing is erased here.")


def new_guard() -> Edictum:
    return Edictum(contracts=[no_erasing])


class Weather(BaseModel):
    place: str = Field(min_length=2)
    degrees: float = Field(default=0, ge=-90)
    hours: list[int] = []


THINKING = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}
SEARCHES = {
    "anthropic": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "responses": {"tools": [{"type": "web_search"}]},
}
FORCED = {
    "chat": {"tool_choice": "required", "parallel_tool_calls": False},
    "responses": {"tool_choice": {"type": "function", "name": "look"}},
    "anthropic": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
}
NOT_STORED = {
    **THINKING,
    "responses": {"store": False, "include": ["reasoning.encrypted_content"]},
}


@dataclass(frozen=True)
class Conversation:
    replies: tuple[Reply, ...]
    text: str = "done"
    asked: tuple[str, ...] = ("Do it.",)  # one turn each
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    system: str = "Be brief."
    budget: dict[str, Any] = field(default_factory=dict)


look_here = Call("c1", "look", {"place": "here"})
look_there = Call("c4", "look", {"place": "ö€😀"})
CONVERSATIONS = {
    "an_answer": Conversation((says("done"),)),
    "a_call": Conversation((says(look_here), says("done"))),
    "text_and_a_call": Conversation((says("Let me look.", look_here), says("done"))),
    "calls_at_once": Conversation(
        (says(look_here, Call("c2", "now"), Call("c3", "look", {"place": "ö€😀"})), says("done"))
    ),
    "failed_denied_unknown_malformed": Conversation(
        (
            says(
                Call("c1", "break_down"),
                Call("c2", "erase", {"path": "/"}),
                Call("c3", "nothing_known", {"a": 1}),
                Call("c4", "look", '{"place": "he'),
                Call("c5", "look", {"plaice": 3}),
            ),
            says("done"),
        )
    ),
    "thinking_between_calls": Conversation(
        (
            says(Think("Where is it?"), "I look here.", look_here),
            says(Think("Not here."), Think("hidden", redacted=True), Call("c2", "now")),
            says(Think("Enough."), "done"),
        ),
        settings=THINKING,
    ),
    "thinking_that_is_not_stored": Conversation(
        (says(Think("Hm."), look_here), says(Think("So."), "done")), settings=NOT_STORED
    ),
    "a_second_turn": Conversation(
        (
            says(Think("Hm."), look_here),
            says(Think("So."), "half"),
            says(Think("Again?"), Call("c2", "now")),
            says("done"),
        ),
        asked=("Do it.", "And now?"),
        settings=THINKING,
    ),
    "images_and_files": Conversation((says(Call("c1", "paint"), Call("c2", "now")), says("done"))),
    "a_forced_call": Conversation((says(look_here), says("done")), settings=FORCED),
    "the_last_answer": Conversation(
        (says(Think("Hm."), look_here), says("done")), settings=THINKING, budget={"max_steps": 1}
    ),
    "nothing_said": Conversation((says(look_here), says("")), text=""),
    "nothing_said_and_a_second_turn": Conversation(
        (says(look_here), says(""), says(Call("c2", "now")), says("done")),
        asked=("Do it.", "And now?"),
    ),
    "only_thinking_and_a_second_turn": Conversation(
        (says(Think("Hm."), look_here), says(Think("So.")), says(Think("Well."), "done")),
        asked=("Do it.", "And now?"),
        settings=THINKING,
    ),
    "thinking_with_calls_that_fail": Conversation(
        (
            says(
                Think("All at once."),
                "I try.",
                Call("c1", "erase", {"path": "/"}),
                Call("c2", "break_down"),
                Call("c3", "look", '{"place": "he'),
                look_there,
            ),
            says(Think("So."), "half", Call("c5", "now")),
            says(Think("Enough."), "half"),
            says("done"),
        ),
        asked=("Do it.", "And now?"),
        settings=NOT_STORED,
    ),
    "ends_with_notes": Conversation(
        (
            says(look_here),
            says(Call("c2", "look", {"place": "here"})),
            says(Call("c3", "look", {"place": "here"})),
            says("done"),
        ),
    ),
    "a_name_that_is_made_up": Conversation(
        (
            says(Call("c1", "multi_tool_use.parallel", {"tool_uses": []})),
            says(Think("Hm."), Call("c2", "look at/that", {}), Call("c3", "now")),
            says("done"),
        ),
    ),
    "a_search_of_the_provider": Conversation(
        (says(Search("tea"), look_here), says("done")), settings=SEARCHES
    ),
}  # fmt: skip
# chat completions have no searches of the provider between the calls
CASES = [
    pytest.param(api, name, id=f"{api.name}-{name}")
    for api in APIS
    for name in CONVERSATIONS
    if not (api.name == "chat" and "search" in name)
]
assert len(CASES) >= 30


@every_client
@every_transport
@pytest.mark.parametrize(("api", "name"), CASES)
async def test_no_request_is_refused(api: Api, name: str, streamed: bool, is_async: bool) -> None:
    said = CONVERSATIONS[name]
    with ModelServer(api.wire(), said.replies) as server:
        client = api.client(server, is_async)
        settings = said.settings.get(api.name, {})
        model = Listening(api.make_model(client, model="test", **settings))
        messages: list[Any] = [{"role": "system", "content": said.system}]
        for question in said.asked:
            messages.append({"role": "user", "content": question})
            result = await run_turn(
                model if streamed else model.model,
                messages,
                TOOLS,
                new_guard(),
                TurnBudget.create(30, **{"max_steps": 8, "max_tool_calls": 20, **said.budget}),
            )
            assert server.refusals == []
            assert result.error is None
            messages = json.loads(json.dumps(result.messages))  # as stored in a database
        await close(client)
    assert result.text.endswith(said.text)
    assert server.replies == []
    assert all(bool(request.get("stream")) == streamed for request in server.requests)
    if streamed:
        check_events(model.events, said)


def check_events(events: list[Any], said: Conversation) -> None:
    """The events say all that the replies did."""

    def join(kind: type, name: str) -> str:
        return "".join(getattr(event, name) for event in events if isinstance(event, kind))

    parts = [part for reply in said.replies for part in reply.parts]
    calls = [part for part in parts if isinstance(part, Call)]
    started = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [(event.id, event.name) for event in started] == [(call.id, call.name) for call in calls]
    texts = "".join(part.text for part in parts if type(part).__name__ == "Say")
    assert join(TextDelta, "text").replace("Found tea.", "") == texts
    given = [call.arguments for call in calls if call.arguments]
    written = "".join(each if isinstance(each, str) else json.dumps(each) for each in given)
    assert join(ToolCallDelta, "arguments").replace("{}", "") == written
    thought = [part.text for part in parts if isinstance(part, Think) and not part.redacted]
    assert join(ReasoningDelta, "text").replace("hidden", "") == "".join(thought)


# --- What is returned to the provider -------------------------------------------------------------


@dataclass
class Played:
    requests: list[dict[str, Any]]
    wire: Any
    result: Any


async def play(api: Api, *replies: Reply, offered: Any = TOOLS, **settings: Any) -> Played:
    with ModelServer(api.wire(), replies) as server:
        client = api.client(server, True)
        model = api.make_model(client, model="test", **settings)
        messages = [{"role": "user", "content": "Do it."}]
        result = await run_turn(model, messages, offered, new_guard(), TurnBudget.create(30))
        await close(client)
    assert (server.refusals, result.error) == ([], None)
    return Played(server.requests, server.wire, result)


CHAT, RESPONSES, ANTHROPIC = APIS


@every_transport
async def test_blocks_go_back_in_their_order_and_unchanged(streamed: bool) -> None:
    first = says(Think("a"), "One.", Think("b", redacted=True), Search("tea"), look_here)
    settings = {**THINKING["anthropic"], **SEARCHES["anthropic"], "stream": streamed}
    played = await play(ANTHROPIC, first, says("done"), **settings)
    sent = [
        {name: value for name, value in block.items() if value is not None}
        for block in played.wire.sent[0]
    ]
    assert played.requests[1]["messages"][1]["content"] == sent
    assert [block["type"] for block in sent][:3] == ["thinking", "text", "redacted_thinking"]


@every_transport
async def test_items_go_back_in_their_order_and_unchanged(streamed: bool) -> None:
    first = says(Think("a"), Search("tea"), "One.", look_here)
    played = await play(RESPONSES, first, says("done"), stream=streamed, **SEARCHES["responses"])
    assert played.requests[1]["input"][1:5] == played.wire.sent[0]


@every_transport
async def test_reasoning_and_signatures_of_a_chat_go_back(streamed: bool) -> None:
    played = await play(CHAT, says(Think("a"), look_here), says("done"), stream=streamed)
    message = played.requests[1]["messages"][1]
    assert message["reasoning_content"] == "a"
    signature = {"google": {"thought_signature": "sig-c1=="}}
    assert message["tool_calls"][0]["extra_content"] == signature


async def test_a_plain_reply_is_a_chat_message_whatever_the_api() -> None:
    played = await play(ANTHROPIC, says("Let me look.", look_here), says("done"))
    allowed = {"role", "content", "tool_calls", "tool_call_id"}
    assert all(set(message) <= allowed for message in played.result.messages)


async def test_what_did_not_run_is_an_error_to_anthropic() -> None:
    said = CONVERSATIONS["failed_denied_unknown_malformed"].replies
    played = await play(ANTHROPIC, *said)
    results = played.requests[1]["messages"][2]["content"]
    assert [block.get("is_error") for block in results[:5]] == [True] * 5
    played = await play(ANTHROPIC, says(look_here), says("done"))
    assert "is_error" not in played.requests[1]["messages"][2]["content"][0]


async def test_reasoning_that_the_provider_cannot_read_any_more_is_left_out() -> None:
    """Neither stored nor encrypted: it could not be found, nor what demands it by an id."""
    wire = ResponsesWire()
    first, second = says(Think("a"), look_here), says("done")
    with ModelServer(wire, [first, second]) as server:
        wire.check = lambda body: None  # so that the server gives no encrypted content
        client = RESPONSES.client(server, True)
        model = openai_responses_model(client, model="test", store=False)
        await run_turn(model, [{"role": "user", "content": "Do it."}], TOOLS, new_guard())
        await close(client)
    kinds = [item.get("type") for item in server.requests[1]["input"]]
    assert kinds == [None, "function_call", "function_call_output"]
    assert "id" not in server.requests[1]["input"][1]


@every_api
async def test_a_conversation_goes_on_with_another_provider(api: Api) -> None:
    said = (says(Think("a"), "One.", look_here), says("done"))
    messages = [{"role": "user", "content": "Do it."}]
    for provider in (api, *(each for each in APIS if each is not api)):
        with ModelServer(provider.wire(), said) as server:
            client = provider.client(server, True)
            model = provider.make_model(client, model="test")
            result = await run_turn(model, messages, TOOLS, new_guard())
            await close(client)
        assert (server.refusals, result.error) == ([], None)
        said = (says("done"),)
        messages = [*result.messages, {"role": "user", "content": "And now?"}]


ODD_IDS = ("functions.look:0", "x" * 80, "", "c1", "c1")


def make_odd_calls(messages: Any, tools: Any) -> ModelReply:
    """Ask twice for calls with the same ids, which some providers would not have given."""
    asked = sum(message["role"] == "assistant" for message in messages)
    places = [f"{asked}-{n}" for n in range(len(ODD_IDS))]
    calls = [
        ToolCallRequest(each, "look", {"place": place})
        for each, place in zip(ODD_IDS, places, strict=True)
    ]
    return ModelReply("", tuple(calls)) if asked < 2 else ModelReply("done")


@every_api
async def test_ids_of_calls_that_an_api_refuses_are_sent_as_others(api: Api) -> None:
    asked = [{"role": "user", "content": "Do it."}]
    budget = TurnBudget.create(30, max_tool_calls=20)
    first = await run_turn(make_odd_calls, asked, TOOLS, new_guard(), budget)
    again = [*first.messages, {"role": "user", "content": "And now?"}]
    with ModelServer(api.wire(), [says(look_here), says("done")]) as server:
        client = api.client(server, True)
        result = await run_turn(api.make_model(client, model="test"), again, TOOLS, new_guard())
        await close(client)
    assert (server.refusals, result.error) == ([], None)
    begun, later = (str(request) for request in server.requests)
    shared = [f"{n}-{m}" for n in range(2) for m in range(len(ODD_IDS))]
    assert all(begun.count(f"nothing in {place}") == 1 for place in shared)
    assert begun[: begun.index("And now?")] == later[: later.index("And now?")], "as in a cache"
    assert list(result.messages[: len(again)]) == again, "in the conversation nothing is changed"


async def test_what_only_one_provider_knows_is_not_sent_to_another_one() -> None:
    """Both speak chat completions, or Responses: keys, ids and signatures are those of one."""
    for api, settings in ((CHAT, {}), (RESPONSES, {}), (ANTHROPIC, THINKING["anthropic"])):
        messages = [{"role": "user", "content": "Do it."}]
        for number in range(3):
            asks = Call(f"c{number}", "look", {"place": "here"})
            said = (says(Think("a"), "One.", asks), says("done"))
            with ModelServer(api.wire(), said) as server:
                client = api.client(server, True)
                model = api.make_model(client, model="test", **settings)
                result = await run_turn(model, messages, TOOLS, new_guard())
                await close(client)
            assert (server.refusals, result.error) == ([], None)
            messages = messages_from_json(messages_to_json(result.messages))
            messages.append({"role": "user", "content": "And now?"})
        sent = str(server.requests[-1])
        assert sent.count("One.") == 3


async def test_a_password_in_an_address_is_not_part_of_a_message() -> None:
    with ModelServer(ChatWire(), [says(Think("a"), look_here), says("done")]) as server:
        address = server.url.replace("http://", "http://me:pass@")
        client = openai.AsyncOpenAI(api_key="test", base_url=f"{address}/v1", max_retries=0)
        result = await run_turn(
            openai_model(client, model="test"), [{"role": "user", "content": "Do it."}], TOOLS
        )
        await client.close()
    assert result.messages[1]["provider_content"]["source"] == server.url.removeprefix("http://")


# --- Settings -------------------------------------------------------------------------------------


async def test_a_tool_that_provider_and_turn_know_is_declared_once() -> None:
    """The provider trained the model on its own declaration; the turn makes the calls."""
    ran = []

    @tool(side_effect="write")
    def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "ok"

    own = {
        "anthropic": {"type": "bash_20250124", "name": "bash"},
        "chat": {"type": "function", "function": {"name": "bash", "parameters": {}}},
        "responses": {"type": "function", "name": "bash", "parameters": {}, "strict": False},
    }
    asks = says(Call("c1", "bash", {"command": "ls"}))
    for api in APIS:
        played = await play(api, asks, says("done"), offered=[bash, now], tools=[own[api.name]])
        assert played.requests[0]["tools"][0] == own[api.name]
        assert len(played.requests[0]["tools"]) == 2
    assert ran == ["ls"] * 3


@every_transport
async def test_code_at_the_provider_goes_on_in_its_container(streamed: bool) -> None:
    """The model's code there calls a tool of the turn, and waits for its result."""
    code = {"type": "code_execution_20250825", "name": "code_execution"}
    ran = {"type": "server_tool_use", "id": "srvtoolu_1", "name": code["name"], "input": {}}
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    asks = {"type": "tool_use", "id": "t1", "name": "now", "input": {}, "caller": caller}
    body = AnthropicWire().answer(says(), 1)
    body |= {"content": [ran, asks], "stop_reason": "tool_use", "container": {"id": "container_1"}}
    played = await play(ANTHROPIC, body, says("done"), stream=streamed, tools=[code])
    assert [request.get("container") for request in played.requests] == [None, "container_1"]
    assert played.requests[1]["messages"][1]["content"] == [ran, asks]


UNMADE = {
    "mcp_approval_request": {"id": "mcpr_1", "name": "x", "arguments": "{}", "server_label": "s"},
    "computer_call": {"id": "cu_1", "call_id": "c1", "action": {"type": "screenshot"}},
    "custom_tool_call": {"id": "ctc_1", "call_id": "c1", "name": "sql", "input": "SELECT 1"},
}


@pytest.mark.parametrize("kind", UNMADE)
@every_transport
async def test_a_call_that_a_turn_cannot_make_is_an_error(kind: str, streamed: bool) -> None:
    body = {"id": "r", "object": "response", "status": "completed", "error": None}
    answer = {**body, "output": [{"type": kind, **UNMADE[kind]}]}
    with ModelServer(ResponsesWire(), [answer]) as server:
        client = RESPONSES.client(server, True)
        model = openai_responses_model(client, model="test", stream=streamed)
        result = await run_turn(model, [{"role": "user", "content": "Do it."}], TOOLS)
        await close(client)
    assert result.stopped_by == "model_error"
    assert f"The model asks for a {kind}" in str(result.error)


async def test_tools_of_the_provider_stand_beside_those_of_the_turn() -> None:
    for api in (ANTHROPIC, RESPONSES):
        played = await play(api, says("done"), **SEARCHES[api.name])
        names = [each.get("name") or each["type"] for each in played.requests[0]["tools"]]
        assert names[1:] == [each.name for each in TOOLS]
        assert names[0] == "web_search"
        played = await play(api, says("done"), offered=(), **SEARCHES[api.name])
        assert len(played.requests[0]["tools"]) == 1


@every_api
async def test_a_forced_call_is_forced_once(api: Api) -> None:
    played = await play(api, says(look_here), says("done"), **FORCED[api.name])
    given = FORCED[api.name]["tool_choice"]
    relaxed = {"type": "auto", "disable_parallel_tool_use": True}
    expected = relaxed if api is ANTHROPIC else None
    assert [request.get("tool_choice") for request in played.requests] == [given, expected]


async def test_system_stands_before_system_messages() -> None:
    with ModelServer(AnthropicWire(), [says("done")] * 2) as server:
        client = ANTHROPIC.client(server, True)
        cached = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral"}}
        messages = [{"role": "system", "content": "b"}, {"role": "user", "content": "c"}]
        for system in ("a", [cached]):
            await run_turn(anthropic_model(client, model="test", system=system), messages)
        await close(client)
    assert server.refusals == []
    assert server.requests[0]["system"] == "a\n\nb"
    assert server.requests[1]["system"] == [cached, {"type": "text", "text": "b"}]


@every_client
async def test_long_answers_are_streamed(is_async: bool) -> None:
    with ModelServer(AnthropicWire(), [says("done")]) as server:
        client = ANTHROPIC.client(server, is_async)
        model = anthropic_model(client, model="claude-test", max_tokens=64_000)
        result = await run_turn(model, [{"role": "user", "content": "Write a book."}])
        await close(client)
    assert (result.text, result.stopped_by) == ("done", "answered")
    assert server.requests[0]["stream"] is True


# --- Stop reasons ---------------------------------------------------------------------------------

STOPS = [
    (CHAT, says("done"), "end", ""),
    (CHAT, says(look_here), "tool_calls", ""),
    (CHAT, says(look_here, stop="stop"), "tool_calls", ""),
    (CHAT, says("do", stop="length"), "length", ""),
    (CHAT, says(Call("c1", "look", '{"pla'), stop="length"), "length", ""),
    (CHAT, says("do", stop="content_filter"), "content_filter", ""),
    (CHAT, says(Refuse("I will not.")), "refused", "I will not."),
    (RESPONSES, says("done"), "end", ""),
    (RESPONSES, says(look_here), "tool_calls", ""),
    (RESPONSES, says("do", stop="max_output_tokens"), "length", ""),
    (RESPONSES, says(Think("a"), stop="max_output_tokens"), "length", ""),
    (RESPONSES, says("do", stop="content_filter"), "content_filter", ""),
    (RESPONSES, says(Refuse("I will not.")), "refused", "I will not."),
    (ANTHROPIC, says("done"), "end", ""),
    (ANTHROPIC, says("done", stop="stop_sequence"), "end", ""),
    (ANTHROPIC, says(look_here), "tool_calls", ""),
    (ANTHROPIC, says("do", stop="max_tokens"), "length", ""),
    (ANTHROPIC, says("do", stop="model_context_window_exceeded"), "length", ""),
    (ANTHROPIC, says("I ", stop="refusal"), "refused", "Not that."),
    (ANTHROPIC, says(Search("tea", answered=False), stop="pause_turn"), "paused", ""),
]


@every_client
@every_transport
@pytest.mark.parametrize(
    ("api", "reply", "stop", "refusal"),
    [pytest.param(*each, id=f"{each[0].name}-{each[2]}{number}") for number, each in enumerate(STOPS)],
)  # fmt: skip
async def test_every_stop_reason_is_what_it_is(
    api: Api, reply: Reply, stop: str, refusal: str, streamed: bool, is_async: bool
) -> None:
    with ModelServer(api.wire(), [reply]) as server:
        client = api.client(server, is_async)
        model = api.make_model(client, model="test", stream=streamed)
        got = await ask(model, [{"role": "user", "content": "Do it."}], TOOLS)
        await close(client)
    got = to_reply(got)
    assert (got.stop_reason, got.refusal) == (stop, refusal)
    assert got.is_cut == (stop in ("length", "refused", "content_filter"))
    assert got.model in ("gpt-test", "claude-test")
    assert got.response_id
    usage = got.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (10, 5, 3)
    assert usage.reasoning_tokens == 1


@every_client
@every_transport
async def test_a_paused_reply_is_continued(streamed: bool, is_async: bool) -> None:
    """The reply goes back as the last message, and its search is answered by the provider."""
    paused = says("Let me search.", Search("tea", answered=False), stop="pause_turn")
    with ModelServer(AnthropicWire(), [paused, says("done"), says("more")]) as server:
        client = ANTHROPIC.client(server, is_async)
        model = anthropic_model(client, model="test", stream=streamed, **SEARCHES["anthropic"])
        messages: list[Any] = [{"role": "user", "content": "Do it."}]
        for _ in range(2):
            reply = await ask(model, messages)
            messages.append(to_message(reply))
        assert server.requests[1]["messages"][-1]["content"][1]["type"] == "server_tool_use"
        messages.append({"role": "user", "content": "And now?"})
        await ask(model, messages)
        await close(client)
    assert server.refusals == []


def to_message(reply: Any) -> dict[str, Any]:
    return make_assistant_message(to_reply(reply))


@every_api
async def test_a_cut_reply_can_be_sent_back_without_its_calls(api: Api) -> None:
    stops = {"chat": "length", "responses": "max_output_tokens", "anthropic": "max_tokens"}
    cut = says(Think("a"), Call("c1", "look", {"place": "h"}), stop=stops[api.name])
    with ModelServer(api.wire(), [cut, says("done")]) as server:
        client = api.client(server, True)
        model = api.make_model(client, model="test", **THINKING.get(api.name, {}))
        messages: list[Any] = [{"role": "user", "content": "Do it."}]
        message = to_message(await ask(model, messages, TOOLS))
        del message["tool_calls"]
        messages += [message, {"role": "user", "content": "Go on."}]
        reply = await ask(model, messages, TOOLS)
        await close(client)
    assert (server.refusals, reply.text) == ([], "done")


# --- Answers that are none ------------------------------------------------------------------------

NO_ANSWERS = {
    "chat": [{"choices": []}, {"error": {"message": "overloaded", "code": 502}}],
    "responses": [
        {"id": "r", "object": "response", "status": "completed", "output": []},
        {"id": "r", "status": "failed", "error": {"message": "overloaded"}, "output": []},
    ],
    "anthropic": [{"type": "error", "error": {"message": "overloaded"}}, {"type": "message"}],
}


@every_api
@every_client
async def test_an_empty_or_error_body_is_an_error(api: Api, is_async: bool) -> None:
    for body in NO_ANSWERS[api.name]:
        with ModelServer(api.wire(), [body]) as server:
            client = api.client(server, is_async)
            model = api.make_model(client, model="test")
            result = await run_turn(model, [{"role": "user", "content": "Do it."}], TOOLS)
            await close(client)
        assert result.stopped_by == "model_error"
        assert isinstance(result.error, ModelError)


@every_api
@every_client
async def test_a_stream_that_is_broken_off_is_an_error(api: Api, is_async: bool) -> None:
    with ModelServer(api.wire(), [says("a long answer that is not whole")]) as server:
        server.breaks_off = True
        client = api.client(server, is_async)
        model = api.make_model(client, model="test", stream=True)
        with pytest.raises((ModelError, openai.APIError, anthropic.APIError)):
            await ask(model, [{"role": "user", "content": "Do it."}])
        await close(client)


# --- Cancelling -----------------------------------------------------------------------------------


@pytest.fixture
def held(api: Api) -> Iterator[ModelServer]:
    """A server that stops in the middle of an answer."""
    with ModelServer(api.wire(), [says("a long answer " * 20)]) as server:
        server.holds = True
        yield server


@every_api
async def test_cancelling_closes_the_stream(api: Api, held: ModelServer) -> None:
    client = api.client(held, True)
    model = api.make_model(client, model="test")
    heard, begun = [], asyncio.Event()

    def on_event(event: Any) -> None:
        heard.append(event)
        begun.set()

    task = asyncio.ensure_future(
        model([{"role": "user", "content": "Do it."}], (), on_event=on_event)
    )
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(held.closed_early.wait, 10)
    await close(client)


class Enough(Exception):
    pass


@every_api
@every_client
async def test_an_error_of_on_event_closes_the_stream(
    api: Api, is_async: bool, held: ModelServer
) -> None:
    client = api.client(held, is_async)
    model = api.make_model(client, model="test")

    def on_event(event: Any) -> None:
        raise Enough

    with pytest.raises(Enough):
        await ask(model, [{"role": "user", "content": "Do it."}], on_event=on_event)
    assert await asyncio.to_thread(held.closed_early.wait, 10)
    await close(client)


@every_api
@every_client
async def test_events_are_heard_while_the_reply_is_written(
    api: Api, is_async: bool, held: ModelServer
) -> None:
    client = api.client(held, is_async)
    model = api.make_model(client, model="test")
    heard: list[Any] = []
    begun = threading.Event()

    def on_event(event: Any) -> None:
        heard.append(event)
        begun.set()

    asked = asyncio.ensure_future(
        ask(model, [{"role": "user", "content": "Do it."}], on_event=on_event)
    )
    assert await asyncio.to_thread(begun.wait, 10)
    assert not asked.done()
    held.may_finish.set()
    reply = await asyncio.wait_for(asked, 10)
    assert "".join(event.text for event in heard) == reply.text == "a long answer " * 20
    await close(client)


async def test_a_refusal_is_heard() -> None:
    for api in (CHAT, RESPONSES):
        with ModelServer(api.wire(), [says(Refuse("I will not."))]) as server:
            client = api.client(server, True)
            model = Listening(api.make_model(client, model="test"))
            await model([{"role": "user", "content": "Do it."}], ())
            await close(client)
        texts = [event.text for event in model.events if isinstance(event, RefusalDelta)]
        assert "".join(texts) == "I will not."


# --- Answers of a type ----------------------------------------------------------------------------


@every_api
@every_client
@every_transport
async def test_an_answer_of_a_type(api: Api, streamed: bool, is_async: bool) -> None:
    fits, does_not = '{"place": "Ulm", "degrees": 3, "hours": [1]}', '{"place": "U"}'
    with ModelServer(api.wire(), [says(look_here), says(fits), says(does_not)]) as server:
        client = api.client(server, is_async)
        model = api.make_model(client, model="test", response_format=Weather, stream=streamed)
        messages = [{"role": "user", "content": "What is the weather?"}]
        asking, good, bad = [await ask(model, messages, TOOLS) for _ in range(3)]
        await close(client)
    assert server.refusals == []
    assert (asking.parsed, asking.parse_error) == (None, "")
    assert (good.parsed, good.parse_error) == (Weather(place="Ulm", degrees=3, hours=[1]), "")
    assert bad.parsed is None
    problem = "place: String should have at least 2 characters"
    assert bad.parse_error == f"The answer is not Weather: {problem}"
    assert bad.text == does_not
