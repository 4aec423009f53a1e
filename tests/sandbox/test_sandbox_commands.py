"""The list of allowed commands: every program of a line must be on it, wherever it hides."""

from __future__ import annotations

from typing import Any

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall

WRAPPERS = [
    "env",
    "sudo",
    "nohup",
    "timeout",
    "nice",
    "time",
    "xargs",
    "find",
    "bash",
    "sh",
    "eval",
    "watch",
    "command",
    "exec",
    "trap",
]
BOX = Sandbox(commands=["ls", "cat", "echo", "git", "grep", *WRAPPERS])

# name -> (runs rm, runs allowed programs only)
PAIRS = {
    "plain": ("rm x", "ls x"),
    "semicolon": ("ls ; rm x", "ls ; cat x"),
    "and": ("git fetch && git pull && rm x", "git fetch && git pull"),
    "or": ("ls || rm x", "ls || cat x"),
    "pipe": ("ls | rm x", "ls | grep x"),
    "pipe of both": ("ls |& rm x", "ls |& grep x"),
    "background": ("ls & rm x", "ls &"),
    "new line": ("ls\nrm x", "ls\ncat x"),
    "substitution": ("echo $(rm x)", "echo $(ls)"),
    "substitution in quotes": ('echo "a $(rm x) b"', 'echo "a $(ls) b"'),
    "backticks": ("echo `rm x`", "echo `ls`"),
    "process substitution": ("cat <(rm x)", "cat <(ls)"),
    "in a default value": ("echo ${x:-$(rm x)}", "echo ${x:-$(ls)}"),
    "in an array": ("a=($(rm x))", "a=($(ls) rm)"),
    "in a here document": ("cat <<EOF\n$(rm x)\nEOF", "cat <<'EOF'\n$(rm x)\nEOF"),
    "in a redirection": ("ls > $(rm x)", "ls > $(echo x)"),
    "in an assignment": ("A=$(rm x)", "A=$(ls)"),
    "behind an assignment": ("A=1 rm x", "A=1 ls"),
    "quoted name": ("'rm' x", "'ls' x"),
    "split name": ("r''m x", "l''s x"),
    "escaped name": ("\\rm x", "\\ls x"),
    "braces that expand": ("{rm,x}", "ls {a,b}"),
    "brace group": ("{ rm x; }", "{ ls; }"),
    "subshell": ("(rm x)", "(ls)"),
    "negation": ("! rm x", "! grep x y"),
    "negated subshell": ("!(rm x)", "! (ls)"),
    "condition": ("if ls; then rm x; fi", "if ls; then cat x; else echo; fi"),
    "tested command": ("while rm x; do ls; done", "while ls; do cat x; done"),
    "loop": ("for f in a; do rm $f; done", "for rm in a; do cat $rm; done"),
    "loop without a separator": ("for f do rm $f; done", "for f do cat $f; done"),
    "counting loop": ("for ((i=0;i<3;i++)); do rm $i; done", "for ((i=0;i<3;i++)); do ls $i; done"),
    "case": ("case x in y) rm x;; esac", "case x in rm) ls;; cat|rm) ls;; esac"),
    "function": ("f() { rm x; }", "f() { ls; }"),
    "function with its keyword": ("function f { rm x; }", "function f { ls; }"),
    "case in a substitution": (
        'echo "$(case x in x) rm x;; esac)"',
        'echo "$(case x in x) ls;; y) cat x;; esac)"',
    ),
    "case on lines": (
        "case x in\nx)\nrm x\n;;\nesac",
        "case x in\nrm)\nls\n;;\n\ncat|rm) ls\n;;\nesac\nls",
    ),
    "two subshells in a substitution": ("echo $((ls) | (rm x))", "echo $( (ls) | (cat x) )"),
    "arithmetic that is none": ("$((rm x) )", "echo $((1+(2*3)))"),
    "env": ("env A=1 rm x", "env A=1 ls"),
    "env with options": ("env -u HOME -i rm x", "env -u HOME -i ls"),
    "env with a script": ("env -S 'rm x'", "env -S 'ls x'"),
    "env with an attached script": ("env '-Srm x'", "env '-Sls x'"),
    "sudo": ("sudo -u ann rm x", "sudo -u ann ls"),
    "nohup": ("nohup rm x &", "nohup ls &"),
    "timeout": ("timeout -k 5 10 rm x", "timeout -k 5 10 ls"),
    "nice": ("nice -n 5 rm x", "nice -n 5 ls"),
    "time": ("time -p rm x", "time -p ls"),
    "xargs": ("ls | xargs -n 1 rm", "ls | xargs -n 1 cat"),
    "find": ("find . -exec rm {} +", "find . -exec cat {} +"),
    "find twice": (
        "find . -exec cat {} \\; -exec rm {} \\;",
        "find . -exec cat {} \\; -exec ls {} \\;",
    ),
    "command": ("command rm x", "command ls"),
    "exec": ("exec rm x", "exec ls"),
    "wrappers in wrappers": (
        "sudo env nice timeout 5 nohup rm x",
        "sudo env nice timeout 5 nohup ls",
    ),
    "bash -c": ("bash -c 'rm x'", "bash -c 'ls x'"),
    "bash -c behind an option": ("bash -e -c 'rm x'", "bash -e -c 'ls x'"),
    "sh -c in find": ("find . -exec sh -c 'rm x' \\;", "find . -exec sh -c 'ls x' \\;"),
    "eval": ("eval 'rm x'", "eval 'ls x'"),
    "eval of words": ("eval rm x", "eval ls x"),
    "watch": ("watch -n 1 'rm x'", "watch -n 1 'ls x'"),
    "trap": ("trap 'rm x' EXIT", "trap 'ls' EXIT"),
    "here string": ("bash <<< 'rm x'", "bash <<< 'ls x'"),
    "from a system directory": ("/bin/rm x", "/bin/ls x"),
    "from any other directory": ("./ls x", "/usr/bin/ls x"),
    "wrapper that is not known": ("mywrapper ls", "ls mywrapper"),
    "own search path": ("PATH=. ls", "MYPATH=. ls"),
    "own library": ("LD_PRELOAD=./x.so ls", "A=./x.so ls"),
    "exported search path": ("env PATH=. ls", "env A=. ls"),
    "test": ("[ -f x ]", "[[ -f x ]]"),
}


def judge(command: str) -> str | None:
    return BOX.violation(ToolCall("bash", {"command": command}))


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_not_listed_is_refused(name: str) -> None:
    assert judge(PAIRS[name][0]) is not None


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_form_with_listed_programs_passes(name: str) -> None:
    assert judge(PAIRS[name][1]) is None


def test_the_sentence_names_the_command_and_the_list() -> None:
    violation = Sandbox(commands=["ls", "cat"]).violation(
        ToolCall("bash", {"command": "ls; rm -rf x"})
    )
    assert violation == "Command 'rm' is not one of the allowed commands: cat, ls."


def test_a_wrapper_must_be_listed_as_well() -> None:
    assert Sandbox(commands=["ls"]).violation(ToolCall("bash", {"command": "sudo ls"})) is not None


def test_a_list_of_words_is_one_program() -> None:
    assert BOX.violation(ToolCall("run", {"command": ["ls", "; rm x"]})) is None
    assert BOX.violation(ToolCall("run", {"command": ["rm", "x"]})) is not None
    assert BOX.violation(ToolCall("run", {"argv": ["bash", "-c", "rm x"]})) is not None


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("run_script", {"script": "rm x"}),
        ("tool", {"script": "rm x"}),
        ("terminal", {"input": "rm x"}),
        ("shellExec", {"data": "rm x"}),
        ("bash", {"text": "rm x"}),
        ("tool", {"bash": "rm x"}),
        ("tool", {"command": "env", "args": ["rm", "x"]}),
        ("tool", {"command": "env", "arguments": "rm x"}),
        ("tool", {"command": "bash", "args": ["-c", "rm x"]}),
        ("tool", {"command": ["env"], "args": ["rm", "x"]}),
        ("tool", {"command": "bash", "stdin": "rm x"}),
    ],
    ids=str,
)
def test_a_program_is_found_under_any_key_that_runs(tool: str, args: dict[str, Any]) -> None:
    assert "'rm' is not one of the allowed" in (BOX.violation(ToolCall(tool, args)) or "")


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("run_script", {"script": "ls x"}),
        ("terminal", {"input": "ls", "description": "Remove nothing"}),
        ("bash", {"text": "ls x"}),
        ("tool", {"command": "env", "args": ["ls", "x"]}),
        ("tool", {"command": "ls", "shell": "/bin/zsh"}),
        ("tool", {"command": "cat", "stdin": "rm x"}),
        ("read_file", {"text": "rm x", "input": "rm x"}),
    ],
    ids=str,
)
def test_listed_programs_pass_under_the_same_keys(tool: str, args: dict[str, Any]) -> None:
    assert BOX.violation(ToolCall(tool, args)) is None


def test_square_bracket_is_test() -> None:
    assert Sandbox(commands=["test"]).violation(ToolCall("bash", {"command": "[ -f x ]"})) is None


def test_a_call_without_a_command_passes() -> None:
    assert BOX.violation(ToolCall("read_file", {"path": "rm"})) is None
