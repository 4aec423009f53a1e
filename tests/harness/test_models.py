"""Ready-made models: OpenAI-style and Anthropic-style clients, synchronous and asynchronous,
without their libraries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NotRequired

import pytest
from pydantic import BaseModel, Field
from turns import new_guard, search
from typing_extensions import TypedDict

from edictum import Edictum, EdictumConfigError, EdictumInputError, ToolExecutionResult
from edictum.harness import (
    BoundedToolExecutor,
    File,
    Image,
    ModelError,
    ModelReply,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallRequest,
    ToolCallStarted,
    TurnBudget,
    TurnState,
    anthropic_model,
    openai_model,
    openai_responses_model,
    run_turn,
    run_turn_sync,
    tool,
)
from edictum.harness.messages import (
    drop_calls,
    make_assistant_message,
    make_tool_message,
    to_reply,
)
from edictum.harness.models import can_stream, to_anthropic, to_openai, to_responses
from support.values import nest

USER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do it."}]


def client(replies: list[Any], asynchronous: bool) -> tuple[Any, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []

    def create(**request: Any) -> Any:
        sent.append(request)
        return replies.pop(0)

    async def create_later(**request: Any) -> Any:
        return create(**request)

    verb = create_later if asynchronous else create
    return (
        SimpleNamespace(
            chat=SimpleNamespace(completions=SimpleNamespace(create=verb)),
            messages=SimpleNamespace(create=verb),
        ),
        sent,
    )


def openai_replies() -> list[Any]:
    function = SimpleNamespace(name="search", arguments='{"query": "a"}')
    asking = SimpleNamespace(content=None, tool_calls=[SimpleNamespace(id="c1", function=function)])
    usage = SimpleNamespace(
        prompt_tokens=7, completion_tokens=3, prompt_tokens_details=SimpleNamespace(cached_tokens=2)
    )
    first = SimpleNamespace(choices=[SimpleNamespace(message=asking)], usage=usage)
    return [first, {"choices": [{"message": {"content": "done"}}]}]


def anthropic_replies() -> list[Any]:
    usage = SimpleNamespace(
        input_tokens=7, output_tokens=3, cache_read_input_tokens=2, cache_creation_input_tokens=None
    )
    blocks = [
        SimpleNamespace(type="text", text="Looking."),
        SimpleNamespace(type="tool_use", id="c1", name="search", input={"query": "a"}),
        SimpleNamespace(type="tool_use", id="c2", name="nobody", input={}),
    ]
    return [
        SimpleNamespace(content=blocks, usage=usage),
        {"content": [{"type": "text", "text": "done"}]},
    ]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_openai_style_client(asynchronous: bool) -> None:
    made, sent = client(openai_replies(), asynchronous)
    result = await run_turn(
        openai_model(made, model="m", temperature=0), USER, [search], new_guard()
    )
    assert result.text == "done"
    assert sent[0]["tools"] == [search.to_openai_schema()]
    assert (sent[0]["model"], sent[0]["temperature"]) == ("m", 0)
    assert sent[1]["messages"][-2]["tool_calls"][0]["function"] == {
        "name": "search",
        "arguments": '{"query": "a"}',
    }
    assert sent[1]["messages"][-1]["tool_call_id"] == "c1"
    assert (
        result.state.input_tokens,
        result.state.output_tokens,
        result.state.cache_read_tokens,
    ) == (7, 3, 2)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_anthropic_style_client(asynchronous: bool) -> None:
    made, sent = client(anthropic_replies(), asynchronous)
    result = await run_turn(
        anthropic_model(made, model="m", max_tokens=99), USER, [search], new_guard()
    )
    assert result.text == "done"
    assert sent[0]["system"] == "Be brief."
    assert sent[0]["tools"] == [search.to_anthropic_schema()]
    asked, answered = sent[1]["messages"][-2:]
    assert [block["type"] for block in asked["content"]] == ["text", "tool_use", "tool_use"]
    assert [(block["type"], block["tool_use_id"]) for block in answered["content"]] == [
        ("tool_result", "c1"),
        ("tool_result", "c2"),
    ]
    assert (result.state.input_tokens, result.state.cache_read_tokens) == (7, 2)


@pytest.mark.parametrize("make", [openai_model, openai_responses_model, anthropic_model])
@pytest.mark.parametrize("client", [None, "gpt", object()])
def test_a_client_that_is_none(make: Any, client: Any) -> None:
    with pytest.raises(EdictumConfigError, match=r"which has no \w+\.(\w+\.)?create\."):
        make(client, model="m")


def test_messages_in_anthropics_shape() -> None:
    calls = [{"id": "a", "function": {"name": "t", "arguments": "{broken"}}]
    system, turns = to_anthropic(
        [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "{}", "is_error": True},
            {"role": "system", "content": "half is used"},
        ]
    )
    assert system == ""
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == [
        {"type": "tool_use", "id": "a", "name": "t", "input": {"arguments": "{broken"}}
    ]
    assert turns[2]["content"][0]["is_error"] is True
    assert turns[2]["content"][1] == {"type": "text", "text": "half is used"}


def test_what_says_nothing_is_not_sent_to_anthropic() -> None:
    """An empty content is refused by the API as soon as the conversation goes on, and so is a blank
    text.
    """
    system, turns = to_anthropic(
        [
            {"role": "system", "content": None},
            {"role": "developer", "content": "Be brief."},
            {"role": "system"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": [{"type": "text", "text": " "}]},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"role": "tool", "tool_call_id": "t", "content": None},
        ]
    )
    assert system == "Be brief."
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [block["text"] for block in turns[0]["content"]] == ["a", "b"]
    assert turns[2]["content"] == [{"type": "tool_result", "tool_use_id": "t", "content": ""}]


def test_blocks_of_a_client_are_sent_as_they_are() -> None:
    answer = anthropic_replies()[0].content
    _, turns = to_anthropic([USER[1], {"role": "assistant", "content": answer}])
    assert turns[1]["content"] == answer


def test_instructions_in_blocks_stay_blocks() -> None:
    cached = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral"}}
    system, _ = to_anthropic(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": [cached]},
            *USER[1:],
        ]
    )
    assert system == [{"type": "text", "text": "Be brief."}, cached]


async def test_what_says_nothing_is_not_sent_to_openai() -> None:
    made, sent = client(openai_replies()[1:], asynchronous=True)
    spoken = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    messages = [
        {"role": "system", "content": None},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        spoken,
    ]
    await run_turn(openai_model(made, model="m"), messages, [search], new_guard())
    assert sent[0]["messages"] == [messages[1], spoken]


async def test_the_last_question_to_openai_says_nothing_of_tools() -> None:
    made, sent = client(openai_replies(), asynchronous=True)
    model = openai_model(
        made, model="m", tool_choice="auto", parallel_tool_calls=False, temperature=0
    )
    await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=1))
    assert {"tools", "tool_choice", "parallel_tool_calls", "temperature"} <= set(sent[0])
    assert set(sent[1]) == {"model", "messages", "temperature"}


async def test_later_system_messages_are_the_users_for_servers_that_want_them_first() -> None:
    made, sent = client(openai_replies(), asynchronous=True)
    model = openai_model(made, model="m", system_first=True)
    await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=1))
    roles = [message["role"] for message in sent[1]["messages"]]
    assert roles[:4] == ["system", "user", "assistant", "tool"]
    assert set(roles[4:]) == {"user"}
    assert "The budget of this turn is used up." in sent[1]["messages"][-1]["content"]


async def test_the_last_question_to_anthropic_declares_what_was_called_and_offers_nothing() -> None:
    made, sent = client(anthropic_replies(), asynchronous=True)
    model = anthropic_model(made, model="m", tool_choice={"type": "any"})
    await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=1))
    assert sent[0]["tool_choice"] == {"type": "any"}
    assert sent[1]["tool_choice"] == {"type": "none"}
    assert [declared["name"] for declared in sent[1]["tools"]] == ["search", "nobody"]


HALF = "\ud83d"  # of an emoji; a model that is cut short writes it, and JSON lets it through


@pytest.mark.parametrize(
    "call",
    [
        ToolCallRequest(HALF, "search", {"query": "a"}),
        ToolCallRequest("c", HALF, {}),
        ToolCallRequest("c", "search", {"query": HALF}),
        ToolCallRequest("c", "search", json.dumps({"query": HALF})),
        ToolCallRequest("c", "search", f'{{"query": "{HALF}"}}'),
    ],
)
async def test_half_a_character_can_be_sent_back(call: ToolCallRequest) -> None:
    replies = [ModelReply(HALF, (call,)), ModelReply(f"done {HALF}")]
    result = await run_turn(lambda _messages, _tools: replies.pop(0), USER, [search], new_guard())
    assert result.text == result.messages[-1]["content"] == "done ?"
    for sent in (to_openai(result.messages), to_anthropic(result.messages)):
        json.dumps(
            sent, ensure_ascii=False
        ).encode()  # as clients do it; it raises for half a character


# --- Streams of servers that are not quite like OpenAI's ------------------------------------------


class Stream:
    """A stream of a blocking or asynchronous client, which says whether it was closed."""

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks, self.closed = iter(chunks), False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return next(self.chunks)

    def close(self) -> None:
        self.closed = True


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(arguments: str, **about: Any) -> dict[str, Any]:
    name = {"name": about.pop("name")} if "name" in about else {}
    return {**about, "function": {**name, "arguments": arguments}}


def stream_chat(*chunks: Any) -> tuple[Any, list[Any]]:
    made, _ = client([Stream(list(chunks))], asynchronous=False)
    events: list[Any] = []
    reply = openai_model(made, model="m")(USER, [search], on_event=events.append)
    return reply, events


@pytest.mark.parametrize(
    "pieces",
    [
        [piece('{"query"', index=0, id="a", name="search"), piece(': "x"}', index=0, id=None)],
        [piece('{"query"', id="a", name="search"), piece(': "x"}')],
        [piece('{"query"', index=0, id="a", name="search"), piece(': "x"}', index=0, id="a")],
        [piece('{"query"', index=0, id="a", name="search"), piece(': "x"}', index=0, id="", name="")],
        [piece('{"query": "x"}', index=0, id="a", name="search")],
    ],
)  # fmt: skip
def test_pieces_of_a_call_are_put_together(pieces: list[Any]) -> None:
    second = piece("{}", index=len(pieces) % 2, id="b", name="search")
    given = [chunk(tool_calls=[each]) for each in (*pieces, second)]
    reply, events = stream_chat(*given, chunk("tool_calls"))
    assert reply.tool_calls == (
        ToolCallRequest("a", "search", '{"query": "x"}'),
        ToolCallRequest("b", "search", "{}"),
    )
    started = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [(event.index, event.id, event.name) for event in started] == [
        (0, "a", "search"),
        (1, "b", "search"),
    ]
    assert all("index" not in call for call in reply.content["tool_calls"])


def test_streamed_reasoning_details_are_put_together() -> None:
    part = {"type": "reasoning.text", "index": 0, "format": "v1"}
    reply, events = stream_chat(
        chunk(reasoning="I ", reasoning_details=[{**part, "text": "I "}]),
        chunk(reasoning="see", reasoning_details=[{**part, "text": "see", "signature": "s"}]),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "x"}]),
        chunk("stop", content="done"),
    )
    assert reply.content["reasoning_details"] == [
        {**part, "text": "I see", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
    ]
    thoughts = [event.text for event in events if isinstance(event, ReasoningDelta)]
    assert (thoughts, reply.text) == (["I ", "see"], "done")


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(content="do")],
        [chunk(content="do"), {"error": {"message": "overloaded"}, "choices": []}],
        [chunk(content="do"), {"choices": [{"error": {"message": "overloaded"}, "delta": {}}]}],
        [],
    ],
)
def test_a_stream_without_its_end_is_an_error(chunks: list[Any]) -> None:
    with pytest.raises(ModelError):
        stream_chat(*chunks)


def test_a_blocking_stream_is_closed_when_its_listener_raises() -> None:
    stream = Stream([chunk(content="do"), chunk("stop", content="ne")])
    made, _ = client([stream], asynchronous=False)

    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        openai_model(made, model="m")(USER, (), on_event=stop)
    assert stream.closed


def test_a_client_that_never_streams_is_heard_all_the_same() -> None:
    made, sent = client([openai_replies()[0]], asynchronous=False)
    events: list[Any] = []
    openai_model(made, model="m")(USER, [search], on_event=events.append)
    assert sent[0]["stream"] is True
    assert events == [ToolCallStarted(0, "c1", "search"), ToolCallDelta(0, '{"query": "a"}')]


def test_which_models_can_stream() -> None:
    made, _ = client([], asynchronous=False)
    assert can_stream(openai_model(made, model="m"))
    assert can_stream(lambda messages, tools, on_event=None: "")
    assert not can_stream(lambda messages, tools: "")
    assert not can_stream(type)


# --- Answers --------------------------------------------------------------------------------------


def read_chat(message: dict[str, Any], finish: str | None = "stop", **settings: Any) -> ModelReply:
    body = {"choices": [{"message": message, "finish_reason": finish}]}
    made, _ = client([body], asynchronous=False)
    reply: ModelReply = openai_model(made, model="m", **settings)(USER, ())
    return reply


def test_a_message_in_parts_stays_in_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "done"},
    ]
    reply = to_reply(read_chat({"role": "assistant", "content": parts}))
    assert reply.text == "done"
    assert make_assistant_message(reply) == {"role": "assistant", "content": parts}


def test_what_is_empty_or_too_large_is_not_sent_back() -> None:
    audio = {"id": "audio_1", "data": "A" * 1000, "transcript": "done"}
    message = {"content": None, "audio": audio, "annotations": [], "function_call": None}
    sent = to_openai([make_assistant_message(to_reply(read_chat(message)))])
    assert sent == [{"role": "assistant", "content": "", "audio": {"id": "audio_1"}}]


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        (None, "end"),
        ("eos", "end"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("SAFETY", "content_filter"),
    ],
)
def test_finish_reasons_of_other_providers(finish: str | None, stop: str) -> None:
    assert read_chat({"content": "do"}, finish).stop_reason == stop


@pytest.mark.parametrize("body", ["<html>", None, {"choices": [{"finish_reason": "error"}]}])
def test_what_is_not_an_answer(body: Any) -> None:
    made, _ = client([body], asynchronous=False)
    with pytest.raises(ModelError):
        openai_model(made, model="m")(USER, ())


def test_calls_that_are_taken_out_of_a_message_are_not_sent() -> None:
    """Whatever the content has: the provider refuses calls without results."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    use = {"type": "tool_use", "id": "a", "name": "search", "input": {}}
    blocks = [thought, {"type": "text", "text": "One."}, use, {**use, "id": "b"}]
    made, _ = client([{"content": blocks, "stop_reason": "tool_use"}], asynchronous=False)
    message = make_assistant_message(to_reply(anthropic_model(made, model="m")(USER, [search])))
    assert to_anthropic([USER[1], message])[1][1]["content"] == blocks
    message["tool_calls"].pop()
    assert to_anthropic([USER[1], message])[1][1]["content"] == blocks[:3]
    assert to_anthropic([USER[1], drop_calls(message)])[1][1]["content"] == blocks[:2]


def test_half_a_thought_is_not_sent() -> None:
    blocks = [{"type": "text", "text": "One."}, {"type": "thinking", "thinking": "Hm"}]
    made, _ = client([{"content": blocks, "stop_reason": "max_tokens"}], asynchronous=False)
    message = make_assistant_message(to_reply(anthropic_model(made, model="m")(USER, ())))
    assert to_anthropic([USER[1], message])[1][1]["content"] == blocks[:1]


async def test_content_that_cannot_be_sent_back_ends_the_turn() -> None:
    for content in (object, {"a": {1, 2}}, nest(100_000)):
        answer = ModelReply("done", content=content, api="mine")
        result = await run_turn(lambda _messages, _tools, say=answer: say, USER, [search])
        assert (result.stopped_by, type(result.error)) == ("model_error", EdictumInputError)


async def test_content_of_a_model_function_stands_in_the_message() -> None:
    block = SimpleNamespace(kind="thought", text=HALF)
    answer = ModelReply("done", content=[block], api="mine")
    result = await run_turn(lambda _messages, _tools: answer, USER, [search])
    kept = {"api": "mine", "content": [{"kind": "thought", "text": "?"}]}
    assert result.messages[-1]["provider_content"] == kept
    assert [list(message) for message in to_openai(result.messages)][-1] == ["role", "content"]


# --- Settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"tools": {"type": "web_search"}},
        {"tools": "web_search"},
        {"messages": USER},
        {"previous_response_id": "r"},
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings: dict[str, Any]) -> None:
    made, _ = client([], asynchronous=False)
    with pytest.raises(EdictumConfigError):
        openai_model(made, model="m", **settings)


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", None),
        ({"type": "function", "function": {"name": "search"}}, None),
        ({"type": "allowed_tools", "mode": "auto"}, {"type": "allowed_tools", "mode": "auto"}),
        ({"type": "allowed_tools", "mode": "required"}, {"type": "allowed_tools", "mode": "auto"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        ),
    ],
)
async def test_a_choice_of_tools_in_later_steps(choice: Any, later: Any) -> None:
    made, sent = client(openai_replies(), asynchronous=True)
    await run_turn(openai_model(made, model="m", tool_choice=choice), USER, [search], new_guard())
    assert [request.get("tool_choice") for request in sent] == [choice, later]


@pytest.mark.parametrize(
    ("settings", "sent_with"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": {"include_obfuscation": False}}, {"include_obfuscation": False}),
        ({"stream_options": None}, None),
    ],
)
def test_options_of_a_stream_are_sent_with_a_stream_alone(settings: Any, sent_with: Any) -> None:
    made, sent = client([Stream([chunk("stop")]), openai_replies()[1]], asynchronous=False)
    model = openai_model(made, model="m", **settings)
    model(USER, (), on_event=lambda event: None)
    model(USER, ())
    assert [request.get("stream_options") for request in sent] == [sent_with, None]


# --- Answers of a type ----------------------------------------------------------------------------


@dataclass
class Place:
    name: str
    tags: dict[str, int]


class Point(TypedDict):
    x: int
    y: NotRequired[int]


def test_types_that_are_not_strict_are_said_not_to_be() -> None:
    made, sent = client([{"choices": [{"message": {"content": "{"}}]}], asynchronous=False)
    reply = openai_model(made, model="m", response_format=Place)(USER, ())
    shape = sent[0]["response_format"]
    assert (shape["type"], shape["json_schema"]["strict"]) == ("json_schema", False)
    assert reply.parsed is None
    assert "Invalid JSON" in reply.parse_error


class Branch(BaseModel):
    name: str
    branches: list[Branch] = []


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Loose(BaseModel):
    anything: Any
    items: list[Any] = []


def ask_for(answer_type: Any) -> dict[str, Any]:
    """Return the schema that the provider is given, and whether it is strict."""
    made, sent = client([{"choices": [{"message": {"content": "{}"}}]}], asynchronous=False)
    openai_model(made, model="m", response_format=answer_type)(USER, ())
    return dict(sent[0]["response_format"]["json_schema"])


def test_a_type_that_contains_itself_is_an_object_on_top() -> None:
    schema = ask_for(Branch)["schema"]
    assert (schema["type"], schema["required"]) == ("object", ["name", "branches"])
    assert schema["properties"]["branches"]["items"] == {"$ref": "#/$defs/Branch"}
    assert schema["$defs"]["Branch"]["required"] == ["name", "branches"]
    content = {"content": '{"name": "a", "branches": [{"name": "b"}]}'}
    read = read_chat(content, response_format=Branch).parsed
    assert read == Branch(name="a", branches=[Branch(name="b")])


def test_a_choice_of_types_has_no_keyword_that_providers_refuse() -> None:
    asked = ask_for(Home)
    pet = asked["schema"]["properties"]["pet"]
    assert (asked["strict"], list(pet)) == (True, ["anyOf"])


def test_a_part_of_any_type_is_not_strict() -> None:
    assert ask_for(Loose)["strict"] is False


def test_anthropic_has_no_objects_of_any_keys() -> None:
    with pytest.raises(EdictumConfigError, match="Place, which has objects of any keys"):
        anthropic_model(client([], asynchronous=False)[0], model="m", response_format=Place)


def test_a_typed_dict_and_a_dataclass_are_read() -> None:
    content = {"content": '{"x": 1, "y": 2}'}
    assert read_chat(content, response_format=Point).parsed == {"x": 1, "y": 2}
    content = {"content": '{"name": "a", "tags": {"b": 1}}'}
    assert read_chat(content, response_format=Place).parsed == Place("a", {"b": 1})


def test_a_cut_answer_is_not_read() -> None:
    reply = read_chat({"content": '{"x": 1'}, "length", response_format=Point)
    assert (reply.parsed, reply.parse_error) == (None, "")


def test_the_providers_own_format_is_passed_on() -> None:
    given = {"type": "json_object"}
    made, sent = client([{"choices": [{"message": {"content": "[1]"}}]}], asynchronous=False)
    reply = openai_model(made, model="m", response_format=given)(USER, ())
    assert (sent[0]["response_format"], reply.parsed) == (given, [1])
    assert read_chat({"content": "no"}, response_format=given).parse_error


@pytest.mark.parametrize("given", [int, list[int], object(), lambda: None])
def test_types_that_cannot_be_answers_are_refused(given: Any) -> None:
    made, _ = client([], asynchronous=False)
    with pytest.raises(EdictumConfigError):
        openai_model(made, model="m", response_format=given)


# --- Images and files -----------------------------------------------------------------------------


def test_an_image_is_a_part_and_its_place_is_named() -> None:
    value = {"shots": [Image(b"abc"), "and"], "page": File(b"%PDF", name="p.pdf")}
    message = make_tool_message("c1", ToolExecutionResult("c1", "shoot", value, 1))
    text, image, page = message["content"]
    assert json.loads(text["text"]) == {
        "shots": ["[image: image/png, 3 bytes]", "and"],
        "page": "[file: p.pdf, application/pdf, 4 bytes]",
    }
    assert image == {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}}
    assert page["file"]["filename"] == "p.pdf"


def test_images_of_users_are_written_for_each_api() -> None:
    url = "https://example.org/a.png"
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    message = {"role": "user", "content": parts}
    assert to_openai([message]) == [message]
    assert to_anthropic([message])[1][0]["content"] == [
        parts[0],
        {"type": "image", "source": {"type": "url", "url": url}},
    ]
    assert to_responses([message])[0]["content"] == [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": url, "detail": "low"},
    ]


async def test_an_image_of_a_tool_reaches_the_model() -> None:
    @tool(side_effect="read")
    def shoot() -> Image:
        """Shoot."""
        return Image(b"abc", "image/jpeg")

    use = {"type": "tool_use", "id": "c1", "name": "shoot", "input": {}}
    replies = [{"content": [use]}, {"content": [{"type": "text", "text": "done"}]}]
    made, sent = client(replies, asynchronous=True)
    await run_turn(anthropic_model(made, model="m"), USER, [shoot], new_guard())
    text, image = sent[1]["messages"][2]["content"][0]["content"]
    assert json.loads(text["text"]) == {"result": "[image: image/jpeg, 3 bytes]"}
    source = {"type": "base64", "media_type": "image/jpeg", "data": "YWJj"}
    assert image == {"type": "image", "source": source}


NO_KEYS = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: no-keys}
defaults: {mode: enforce}
contracts:
  - id: no-keys
    type: post
    tool: read_log
    when: {output.text: {matches: "sk-[a-z]+"}}
    then: {effect: redact, message: "A key."}
"""


@pytest.mark.parametrize("wrap", [lambda file: file, lambda file: [file], lambda file: {"a": file}])
def test_contracts_see_files_that_are_text(wrap: Any) -> None:
    @tool(side_effect="read")
    def read_log() -> Any:
        return wrap(File(b"the key is sk-abc", "text/plain", "log.txt"))

    def run(guard: Edictum | None) -> str:
        executor = BoundedToolExecutor([read_log], guard=guard)
        outcome = executor.execute(ToolCallRequest("c1", "read_log", {}), TurnState())
        return str(make_tool_message("c1", outcome)["content"])

    assert "the key is sk-abc" in run(None)
    assert "sk-abc" not in run(Edictum.from_yaml_string(NO_KEYS))


def test_an_image_without_data_is_refused() -> None:
    with pytest.raises(EdictumInputError):
        Image(b"")
    assert Image(b"a") == Image(b"a") != File(b"a")
    assert len({Image(b"a"), Image(b"a"), Image(b"b")}) == 2


CALL_BLOCKS = {
    "chat": {"id": "c1", "type": "function", "function": {"name": "note", "arguments": "{}"}},
    "anthropic": {"type": "tool_use", "id": "c1", "name": "note", "input": {}},
}


def answer_with_call(api: str, stop: Any) -> dict[str, Any]:
    """Return the answer of a provider that asks for a call and ends for this reason."""
    call = CALL_BLOCKS[api]
    if api == "chat":
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return {"choices": [{"message": message, "finish_reason": stop}]}
    return {"type": "message", "content": [call], "stop_reason": stop}


@pytest.mark.parametrize(
    ("api", "stop", "is_cut"),
    [
        ("chat", "tool_calls", False),
        ("chat", "stop", False),
        ("chat", None, False),
        ("chat", "insufficient_system_resource", True),
        ("chat", "abort", True),
        ("chat", 5, True),
        ("anthropic", "tool_use", False),
        ("anthropic", None, False),
        ("anthropic", "weird", True),
    ],
)
def test_calls_of_a_reply_that_ended_for_an_unknown_reason_do_not_run(
    api: str, stop: Any, is_cut: bool
) -> None:
    """A word that we do not know may mean that the provider broke the reply off."""
    ran: list[str] = []

    def note() -> str:
        """Write a note."""
        ran.append("note")
        return "done"

    replies = [answer_with_call(api, stop), answer_with_call(api, stop)]
    made, _ = client(replies, asynchronous=False)
    make = openai_model if api == "chat" else anthropic_model
    result = run_turn_sync(
        make(made, model="m"), USER, [note], Edictum(), TurnBudget.create(5, max_steps=1)
    )
    assert bool(ran) is not is_cut
    assert (result.stopped_by == "length") is is_cut
