"""Paths in the arguments of any tool: at any depth, under any key."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall

# name -> (leaves the working directory, stays inside)
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "path": ({"path": "/etc/passwd"}, {"path": "src/a.py"}),
    "camel case": ({"filePath": "../x"}, {"filePath": "x"}),
    "dashes": ({"file-path": "../x"}, {"file-path": "x"}),
    "unknown key": ({"foo": "/etc/passwd"}, {"foo": "bar"}),
    "relative under an unknown key": ({"foo": "../../etc/passwd"}, {"foo": "src/a.py"}),
    "link under an unknown key": ({"foo": "outlink"}, {"foo": "inlink"}),
    "list": ({"paths": ["x", "/etc/passwd"]}, {"paths": ["x", "src/a.py"]}),
    "list under an unknown key": ({"foo": ["x", "/etc/passwd"]}, {"foo": ["x", "y"]}),
    "tuple": ({"foo": ("x", "/etc/passwd")}, {"foo": ("x", "y")}),
    "set": ({"foo": {"/etc/passwd"}}, {"foo": {"x"}}),
    "mapping": ({"foo": {"bar": {"path": "/etc/passwd"}}}, {"foo": {"bar": {"path": "x"}}}),
    "list in mapping in list": ({"foo": [{"a": [{"b": "../x"}]}]}, {"foo": [{"a": [{"b": "x"}]}]}),
    "key of a mapping": ({"files": {"/etc/passwd": "text"}}, {"files": {"x": "text"}}),
    "home": ({"path": "~/.ssh/id_rsa"}, {"path": "a~b"}),
    "variable": ({"path": "$HOME/x"}, {"path": "$5"}),
    "variable in braces": ({"path": "${HOME}/x"}, {"path": "x{1}"}),
    "percent": ({"path": "%2e%2e%2fx"}, {"path": "100%"}),
    "percent twice": ({"path": "%252fetc"}, {"path": "x%20y"}),
    "file address": ({"uri": "file:///etc/passwd"}, {"uri": "https://example.com/etc/passwd"}),
    "backslashes": ({"path": "..\\..\\x"}, {"path": "src\\a.py"}),
    "path object": ({"foo": PurePosixPath("/etc/passwd")}, {"foo": PurePosixPath("x")}),
    "bytes": ({"foo": b"/etc/passwd"}, {"foo": b"\xff\x00 text"}),
    "number as a path": ({"path": 5}, {"limit": 5}),
    "flag as a path": ({"directory": True}, {"recursive": True}),
    "bytes as a path": ({"path": b"x"}, {"path": None}),
    "number in a list of paths": ({"files": ["x", 7]}, {"max_files": 7}),
    "NUL in a path": ({"path": "x\0y"}, {"content": "x\0y z"}),
    "lone surrogate": ({"path": "\ud800/../../x"}, {"path": "é/x"}),
    "sentence with a path": ({"foo": "read /etc/passwd now"}, {"foo": "this and/or that, 1 / 2"}),
    "content that is a path": (
        {"content": "/etc/passwd"},
        {"content": "/* a comment */ see /etc/passwd"},
    ),
    "glob pattern": ({"pattern": "/etc/**"}, {"pattern": "**/*.py"}),
    "blank in a path": ({"path": "/etc/my file"}, {"path": "my dir/x"}),
    "command under another tool": ({"command": "ls; cat /etc/passwd"}, {"command": "ls; cat x"}),
    "command under another key": ({"cmd": "cat ../x"}, {"cmd": "cat x"}),
    "list of words": ({"command": ["cat", "/etc/passwd"]}, {"command": ["cat", "it's", "$x"]}),
    "list of words with a script": (
        {"command": ["bash", "-c", "cat ../x"]},
        {"command": ["bash", "-c", "cat x"]},
    ),
    "list of commands": ({"commands": ["ls", "cat ../x"]}, {"commands": ["ls", "cat x | wc"]}),
    "command that is no text": ({"command": {"a": 1, "cmd": 5}}, {"command": "ls"}),
    "flag beside a command": (
        {"command": "cat ../x", "shell": True},
        {"command": "cat x", "shell": True},
    ),
    "address that climbs": ({"path": "a://../../x"}, {"path": "a://b"}),
    "address of a page that climbs": (
        {"uri": "https://b.com/../../../x"},
        {"uri": "https://b.com/a/../x"},
    ),
    "square brackets": ({"path": "app/[id]/../../../x"}, {"path": "app/[id]/page.tsx"}),
    "round brackets": ({"path": "/app/(auth)/x"}, {"path": "app/(auth)/login/page.tsx"}),
    "blank and brackets": ({"path": "notes (1) /etc"}, {"path": "notes (1)/x.txt"}),
    "sharp sign": ({"path": "C#,/etc/x"}, {"path": "C#/x.cs"}),
    "template": ({"path": "{{a}}/../../x"}, {"path": "{{cookiecutter.slug}}/src/a.py"}),
    "text for a file": (
        {"old_string": "/usr/bin/env"},
        {"path": "x", "old_string": "/usr/bin/env", "new_string": "</p>"},
    ),
    "version": ({"version": "~1/x"}, {"version": "~1.2.0"}),
    "attached to a cluster": ({"foo": "-cvf/etc/x"}, {"foo": "-cvfx"}),
    "words beside a command": (
        {"command": "cat", "args": ["../x"]},
        {"command": "cat", "args": ["x"]},
    ),
    "working directory": ({"command": "ls", "cwd": "/etc"}, {"command": "ls", "cwd": "src"}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_leaves_is_refused(name: str, in_work) -> None:
    assert in_work(PAIRS[name][0], "some_tool") is not None


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_form_inside_passes(name: str, in_work) -> None:
    assert in_work(PAIRS[name][1], "some_tool") is None


def test_a_call_without_paths_passes(in_work) -> None:
    assert in_work({}, "some_tool") is None
    assert (
        in_work({"n": 1, "flag": True, "text": "hello there", "none": None, "f": 1.5}, "some_tool")
        is None
    )


def test_a_shell_tool_without_a_command_key_has_its_texts_read_as_commands(in_work) -> None:
    assert in_work({"input": "ls && cat ../x"}, "bash") is not None
    assert in_work({"input": "ls && cat x"}, "bash") is None


def test_absolute_paths_inside_pass_in_every_place(work: Path, in_work) -> None:
    inside = str(work / "src/a.py")
    assert (
        in_work({"path": inside, "foo": [inside, {"bar": f"file://{inside}"}]}, "some_tool") is None
    )


def test_no_bounds_refuse_nothing_but_the_unreadable() -> None:
    assert Sandbox().violation(ToolCall("bash", {"command": "cat /etc/passwd"})) is None
    assert Sandbox().violation(ToolCall("bash", {"command": "cat 'x"})) is not None


def test_a_path_that_is_no_text_matters_only_where_paths_are_bounded() -> None:
    assert Sandbox(domains=["good.com"]).violation(ToolCall("fetch", {"path": 5})) is None
    assert Sandbox(within=["/tmp"]).violation(ToolCall("fetch", {"url": 5})) is None
