"""Images and files in the results of tools, as each provider takes them.

In messages they are parts as chat completions have them in user messages: ``image_url`` and
``file``, with the data in the URL. The text of the result names them where they stood.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from edictum.errors import EdictumInputError

ANTHROPIC_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
PDF = "application/pdf"
TEXT_TYPES = ("application/json", "application/xml", "application/yaml")
MAX_LEVELS = 20  # of containers, in which attachments are looked for

ContentPart = dict[str, Any]


class Attachment:
    """Data that a model reads directly, not as text."""

    __slots__ = ("data", "media_type", "name")

    def __init__(self, data: bytes, media_type: str, name: str = "") -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)) or not data:
            hint = "Pass the bytes of the file."
            raise EdictumInputError(f"{type(self).__name__} has no data.", hint=hint)
        self.data = bytes(data)
        self.media_type = media_type
        self.name = name

    def __repr__(self) -> str:
        named = f"{self.name}, " if self.name else ""
        kind = type(self).__name__.lower()
        return f"[{kind}: {named}{self.media_type}, {len(self.data)} bytes]"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, each) == getattr(other, each) for each in Attachment.__slots__)

    def __hash__(self) -> int:
        return hash((self.data, self.media_type, self.name))

    @property
    def url(self) -> str:
        """The data as a URL."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


class Image(Attachment):
    """An image that a tool returns, alone or in a list or dict: the model sees it."""

    __slots__ = ()

    def __init__(self, data: bytes, media_type: str = "image/png", name: str = "") -> None:
        super().__init__(data, media_type, name)

    def to_part(self) -> ContentPart:
        return {"type": "image_url", "image_url": {"url": self.url}}


class File(Attachment):
    """A file that a tool returns, such as a PDF: the model reads it, if its provider accepts it.

    A text file becomes part of the result's text, where contracts see it.
    """

    __slots__ = ()

    def __init__(self, data: bytes, media_type: str = PDF, name: str = "file") -> None:
        super().__init__(data, media_type, name)

    def __str__(self) -> str:
        return f"{self.name}:\n{self.text}" if self.is_text else repr(self)

    @property
    def is_text(self) -> bool:
        return _is_text_type(self.media_type)

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    def to_part(self) -> ContentPart:
        return {"type": "file", "file": {"filename": self.name, "file_data": self.url}}


def find_attachments(value: Any, levels: int = MAX_LEVELS) -> Iterator[Image | File]:
    """Yield the images and files in a result that its text does not show."""
    if isinstance(value, (Image, File)):
        if not (isinstance(value, File) and value.is_text):
            yield value
    elif levels and isinstance(value, (list, tuple)):
        for item in value:
            yield from find_attachments(item, levels - 1)
    elif levels and isinstance(value, Mapping):
        for item in value.values():
            yield from find_attachments(item, levels - 1)


def list_attachments(content: Any) -> list[ContentPart]:
    """Return the parts of a message's content that are images or files."""
    parts = content if isinstance(content, list) else ()
    return [part for part in parts if _get_type(part) in ("image_url", "file")]


def _get_type(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def _text_part(text: str) -> ContentPart:
    return {"type": "text", "text": text}


def _read_url(part: ContentPart) -> tuple[str, str, str]:
    """Return the media type, the base64 data and the name of a part; no data if it is a link."""
    image, file = part.get("image_url") or {}, part.get("file") or {}
    url = str(image.get("url") or file.get("file_data") or "")
    head, comma, data = url.partition(";base64,")
    if not url.startswith("data:") or not comma:
        return "", "", str(file.get("filename") or "")
    return head.removeprefix("data:"), data, str(file.get("filename") or "")


def _read_text_file(media_type: str, data: str) -> str | None:
    """Return the text of a file that is text, or None."""
    if not _is_text_type(media_type):
        return None
    return base64.b64decode(data).decode("utf-8", "replace")


def _is_text_type(media_type: str) -> bool:
    return media_type.startswith("text/") or media_type in TEXT_TYPES


def _name_unread(media_type: str, name: str) -> str:
    return f"[{name or 'attachment'}: this model cannot read {media_type}]"


# --- Chat completions -----------------------------------------------------------------------------


def split_parts(content: list[ContentPart], call_id: str) -> tuple[str, list[ContentPart]]:
    """Return the text of a tool's result, and the parts for a user message behind the results:
    chat completions take images and files only from users.
    """
    texts = [str(part.get("text") or "") for part in content if _get_type(part) == "text"]
    shown = [_to_chat_part(part) for part in list_attachments(content)]
    notice = f"What the call {call_id} returned besides its text:"
    return "\n".join(texts), [_text_part(notice), *shown]


def _to_chat_part(part: ContentPart) -> ContentPart:
    media_type, data, name = _read_url(part)
    if part["type"] == "image_url" or media_type in ("", PDF):
        return part
    text = _read_text_file(media_type, data)
    return _text_part(_name_unread(media_type, name) if text is None else f"{name}:\n{text}")


# --- Anthropic ------------------------------------------------------------------------------------


def to_anthropic_content(content: Any) -> Any:
    """Return content with images and files as Anthropic's blocks; other blocks as they are."""
    if not isinstance(content, list):
        return "" if content is None else content
    return [
        _to_anthropic_block(part) if _get_type(part) in ("image_url", "file") else part
        for part in content
    ]


def _to_anthropic_block(part: ContentPart) -> ContentPart:
    media_type, data, name = _read_url(part)
    if not data:
        return _link_anthropic(part)
    source = {"type": "base64", "media_type": media_type, "data": data}
    titled = {"title": name} if name else {}
    if media_type in ANTHROPIC_IMAGES:
        return {"type": "image", "source": source}
    if media_type == PDF:
        return {"type": "document", "source": source, **titled}
    text = _read_text_file(media_type, data)
    if text is None:
        return _text_part(_name_unread(media_type, name))
    plain = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": plain, **titled}


def _link_anthropic(part: ContentPart) -> ContentPart:
    url = (part.get("image_url") or {}).get("url")
    if url:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return part  # a file by its id, of another provider: its own error says so


# --- Responses ------------------------------------------------------------------------------------


def to_responses_content(content: Any, text_type: str = "input_text") -> Any:
    """Return content with its parts as the Responses API has them."""
    if not isinstance(content, list):
        return content
    return [_to_responses_part(part, text_type) for part in content]


def _to_responses_part(part: Any, text_type: str) -> Any:
    match _get_type(part):
        case "text":
            return {"type": text_type, "text": part["text"]}
        case "image_url":
            image = part["image_url"]
            return {
                "type": "input_image",
                "image_url": image["url"],
                "detail": image.get("detail") or "auto",
            }
        case "file":
            return {"type": "input_file", **part["file"]}
        case _:
            return part
