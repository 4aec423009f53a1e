"""Where relative names start: the directory of the process, of the contract or of the call, and
wherever a command line goes from there.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from edictum import Edictum
from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``work`` and ``other`` are allowed; the process works in ``service``, which is not."""
    root = tmp_path.resolve()
    for name in ("work/src/deep", "service/app", "other"):
        (root / name).mkdir(parents=True)
    (root / "service" / "secret").write_text("key")
    (root / "work" / "outlink").symlink_to("/etc")
    (root / "work" / "otherlink").symlink_to(root / "other")
    (root / "service" / "inlink").symlink_to(root / "work")
    monkeypatch.chdir(root / "service")
    monkeypatch.delenv("OLDPWD", raising=False)
    return root


def violation(root: Path, command: str, contract: str | None = None, **beside: Any) -> str | None:
    box = Sandbox(
        within=[str(root / "work"), str(root / "other")],
        cwd=str(root / contract) if contract else None,
    )
    args = {"command": command.replace("ROOT", str(root)), **beside}
    return box.violation(ToolCall("bash", args))


# --- The directory that a call names --------------------------------------------------------------

# name -> (what the call says beside a command, a command that leaves, one that does not)
NAMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "inside": ({"cwd": "ROOT/work"}, "cat ../x", "cat x"),
    "another key": ({"working_directory": "ROOT/work"}, "cat ../x", "git status"),
    "camel case": ({"workingDirectory": "ROOT/work"}, "cat ../x", "cat x"),
    "below": ({"cwd": "ROOT/work/src"}, "cat ../../x", "cat ../x"),
    "not there": ({"cwd": "ROOT/work/nowhere"}, "cat ../../x", "cat x"),
    "by a link": ({"cwd": "inlink"}, "cat ../x", "cat x"),
    "a path object": ({"cwd": PurePosixPath("ROOT/work")}, "cat ../x", "cat x"),
    "two": ({"cwd": "ROOT/work", "workdir": "ROOT/work/src"}, "cat ../x", "cat x"),
    "two, one of them empty": ({"cwd": "", "workdir": "ROOT/work"}, "cat secret", "sleep 5"),
    "two, one of them missing": ({"cwd": None, "workdir": "ROOT/work"}, "cat secret", "echo hi"),
    "climbing behind a link": ({"cwd": "ROOT/work/otherlink/."}, "cat ../x", "cat x"),
    "none": ({"cwd": None}, "cat secret", "git status"),
    "empty": ({"cwd": ""}, "cat secret", "git status"),
    "of a mapping": ({"env": {"cwd": "ROOT/work"}}, "cat secret", "cat ROOT/work/x"),
}


def fill_in(root: Path, beside: dict[str, Any]) -> dict[str, Any]:
    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return fill_in(root, value)
        if isinstance(value, PurePosixPath):
            return PurePosixPath(fill(str(value)))
        return value.replace("ROOT", str(root)) if isinstance(value, str) else value

    return {key: fill(value) for key, value in beside.items()}


@pytest.mark.parametrize("name", NAMED)
def test_the_directory_of_the_call(name: str, root: Path) -> None:
    beside, leaves, stays = NAMED[name]
    assert violation(root, leaves, **fill_in(root, beside)) is not None
    assert violation(root, stays, **fill_in(root, beside)) is None


@pytest.mark.parametrize(
    "cwd",
    ["/etc", "/", "~", "$HOME", "..", ".", "app", "ROOT/work/outlink", "ROOT/work/..", "%2e%2e", 5],
)
def test_the_directory_of_the_call_must_lie_inside(cwd: Any, root: Path) -> None:
    assert violation(root, "true", **fill_in(root, {"cwd": cwd})) is not None


def test_a_relative_directory_of_the_call_starts_in_that_of_the_contract(root: Path) -> None:
    assert violation(root, "cat ../x", contract="work", workdir="src") is None
    assert violation(root, "cat ../../x", contract="work", workdir="src") is not None


def test_paths_under_other_keys_start_there_too(root: Path) -> None:
    box = Sandbox(within=[str(root / "work")])
    beside = {"cwd": str(root / "work")}
    assert box.violation(ToolCall("read_file", {"path": "x"})) is not None
    assert box.violation(ToolCall("read_file", {"path": "x", **beside})) is None
    assert box.violation(ToolCall("read_file", {"path": "../x", **beside})) is not None


# --- The directory of the contract ----------------------------------------------------------------

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: example}
defaults: {mode: enforce}
contracts:
  - id: stay
    type: sandbox
    tool: bash
    within: [ROOT/work]
    cwd: CWD
    message: "{violation}"
"""


@pytest.mark.parametrize("cwd", ["ROOT/work", "$EDICTUM_BASE/work", "inlink", "ROOT/work/src/.."])
def test_a_contract_says_its_directory(
    cwd: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDICTUM_BASE", str(root))
    guard = Edictum.from_yaml_string(BUNDLE.replace("CWD", cwd).replace("ROOT", str(root)))
    assert guard.evaluate("bash", {"command": "cat readme.txt"}).verdict == "allow"
    assert guard.evaluate("bash", {"command": "cat ../x"}).verdict == "deny"


def test_the_reason_says_what_to_write(root: Path) -> None:
    reason = violation(root, "cat readme.txt") or ""
    assert reason.startswith("Path 'readme.txt' is outside the allowed directories: ")
    assert reason.endswith("; the working directory lies outside as well, so write the full path.")
    assert "full path" not in (violation(root, "cat /etc/passwd") or "full path")
    assert "full path" not in (violation(root, "cat ../../x", contract="work") or "full path")


# --- Arguments that are not commands --------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "is_refused"),
    [
        ({"query": "hello", "limit": 5}, False),
        ({"mode": "fast", "tags": ["a", "b"]}, False),
        ({"url": "https://api.example.com/data"}, False),
        ({"path": "https://api.example.com/data"}, False),
        ({"url": "https://api.example.com/../../x"}, True),
        ({"mode": "secret"}, True),
        ({"mode": "app/x"}, True),
        ({"path": "new"}, True),
        ({"path": "-new"}, True),
        ({"file": "inlink/x"}, False),
        ({"file": "inlink/../secret"}, True),
    ],
    ids=str,
)
def test_arguments_from_outside(args: dict[str, Any], is_refused: bool, root: Path) -> None:
    box = Sandbox(within=[str(root / "work")])
    assert (box.violation(ToolCall("tool", args)) is not None) is is_refused


def test_an_allowed_address_passes_whatever_the_directory(root: Path) -> None:
    """Fixture sandbox-domain-001 of the older package."""
    box = Sandbox(within=[str(root / "work")], domains=["api.example.com"])
    call = {"url": "https://api.example.com/data"}
    assert box.violation(ToolCall("fetch", call)) is None
    assert box.violation(ToolCall("fetch", {"url": "https://evil.com/data"})) is not None


def test_a_listed_program_passes_in_the_directory_of_the_call(root: Path) -> None:
    """Fixture sandbox-cmd-001 of the older package."""
    box = Sandbox(within=[str(root / "work")], commands=["git"])
    call = {"command": "git status", "working_directory": str(root / "work")}
    assert box.violation(ToolCall("bash", call)) is None
    assert box.violation(ToolCall("bash", {**call, "working_directory": "/etc"})) is not None


# --- Going elsewhere ------------------------------------------------------------------------------

# From ROOT/work/src: name -> (leaves, stays)
GOING = {
    "another allowed directory": (
        "cd ROOT/other && cat ../x",
        "cd ROOT/other && cat x",
    ),
    "behind command": ("command cd ROOT/other && cat ../x", "command cd ROOT/work && cat x"),
    "behind builtin": ("builtin cd ROOT/other; cat ../x", "builtin cd ROOT/work; cat x"),
    "in a loop": (
        "for i in 1 2; do cat ../x; cd ROOT/other; done",
        "for i in a b; do cd $i && make && cd ..; done",
    ),
    "in a function": (
        "f() { cat ../x; cd ROOT/other; }; f; f",
        "f() { cat x; cd ROOT/other; }; f; f",
    ),
    "only if another cd fails": (
        "cd ROOT/other || cd ROOT/work/src && cat ../x",
        "cd ROOT/other || cd ROOT/work/src && cat x",
    ),
    "name of the directory": ("cd ROOT/other; cat $PWD/../x", "cd ROOT/other; cat $PWD/x"),
    "name in a variable": ("cd ROOT/other; d=$PWD; cat $d/../x", "cd ROOT/other; d=$PWD; cat $d/x"),
    "printed name": ("cd ROOT/other && cat $(pwd)/../x", "cd ROOT/other && cat $(pwd)/x"),
    "name of the last one": (
        "cd ROOT/other; cd ROOT/work/src; cat $OLDPWD/../x",
        "cd deep && cat $PWD/x",
    ),
    "a link": ("cd ../otherlink && cat ../x", "cd ../otherlink && cat x"),
    "a link and back": (
        "cd ROOT/work/otherlink/.. && cat ../../x",
        "cd ROOT/work/src/../src && cat ../x",
    ),
    "in a script": ("sh -c 'cd ROOT/other && cat ../x'", "sh -c 'cd deep && cat ../x'"),
}


@pytest.mark.parametrize("name", GOING)
def test_going_elsewhere(name: str, root: Path) -> None:
    leaves, stays = GOING[name]
    assert violation(root, leaves, contract="work/src") is not None
    assert violation(root, stays, contract="work/src") is None


# From the service: what may still run there is refused, what surely runs inside passes.
STILL_IN_THE_SERVICE = [
    "cd ROOT/work | true; cat secret",
    "true | cd ROOT/work && cat secret",
    "! cd ROOT/work && cat secret",
    "true || cd ROOT/work && cat secret",
    "false && cd ROOT/work; cat secret",
    "if false; then cd ROOT/work; fi; cat secret",
    "cd ROOT/work & cat secret",
    "cd ROOT/work/nowhere; cat secret",
    "cd ROOT/work && cd - && cat secret",
    "cd ROOT/work; cd -; cat secret",
    "pushd ROOT/work && popd && cat secret",
    "cd ROOT/work; popd; cat secret",
    "cd ROOT/work && pushd ROOT/other && pushd && cat secret",
    "cd ROOT/work && cat x; cat $OLDPWD/secret",
    "(cd ROOT/work); cat secret",
    "(cd ROOT/work && ls) && cat secret",
    "sh -c 'cd ROOT/work'; cat secret",
    "echo $(cd ROOT/work && ls) $(cat secret)",
    "cat secret; cd ROOT/work",
    "cd inlink/.. && cat secret",
    "CDPATH=ROOT; cd service && cat secret",
]
SURELY_INSIDE = [
    "cd ROOT/work && cat x && cd src && cat ../x",
    "cd ROOT/work; cat x",
    "cd ROOT/work\nls\ncat x\ncd src\ncat a.py",
    "cd ROOT/work || exit 1\npython run.py > log",
    "cd ROOT/work && ls; cat x",
    "(cd ROOT/work && cat x)",
    "bash -lc 'cd ROOT/work && cat x > y'",
    "cd inlink && cat x",
]


@pytest.mark.parametrize("command", STILL_IN_THE_SERVICE)
def test_what_may_run_outside_is_refused(command: str, root: Path) -> None:
    assert violation(root, command) is not None


@pytest.mark.parametrize("command", SURELY_INSIDE)
def test_what_surely_runs_inside_passes(command: str, root: Path) -> None:
    assert violation(root, command) is None


def test_each_command_of_a_list_may_start_anew(root: Path) -> None:
    box = Sandbox(within=[str(root / "work")])
    commands = [f"cd {root}/work; cat x", "cat secret"]
    assert box.violation(ToolCall("run", {"commands": commands})) is not None
    assert box.violation(ToolCall("run", {"commands": commands[:1]})) is None


def test_going_home_does_nothing_alone(root: Path) -> None:
    assert violation(root, "cd") is None
    for command in ("cd; ls", "cd && rm -rf x", "ls $(cd)", "cd | ls", "trap 'ls' EXIT; cd"):
        assert violation(root, command) is not None, command


# --- Scripts that are completed or fed ------------------------------------------------------------

# name -> (refused, passes), with ROOT/work as the directory of the contract
SCRIPTS = {
    "names of files": ("curl x | xargs -I{} sh -c 'cat {}'", "ls | xargs -I{} sh -c 'cat {}'"),
    "found files": (
        "find . -exec sh -c 'cat {}/../../x' \\;",
        "find . -exec sh -c 'cat {} > {}.bak' \\;",
    ),
    "found files of an absolute directory": (
        "find / -exec sh -c 'cat {}' \\;",
        "find ROOT/work -exec sh -c 'cat {}' \\;",
    ),
    "found files as programs": ("find . -exec sh -c '{}' \\;", "find . -exec sh -c 'wc {}' \\;"),
    "found files as programs by variable": (
        "find . -exec sh -c 'x={}; $x' \\;",
        "find . -exec sh -c 'x={}; cat $x' \\;",
    ),
    "found files as scripts": (
        "find . -exec sh -c 'eval {}' \\;",
        "find . -exec sh -c 'sh {}' \\;",
    ),
    "found files in a pipe": (
        "find . -exec sh -c 'cat {} | sh' \\;",
        "find . -exec sh -c 'cat {} | wc' \\;",
    ),
    "found files beside an escape": (
        "find . -exec sh -c 'cp {} /etc' \\;",
        "find . -exec sh -c 'cp {} src' \\;",
    ),
    "printed script": ("echo 'cat /etc/passwd' | sh", "echo 'cat x' | sh"),
    "printed document": ("cat <<'E' | sh\ncat ../x\nE", "cat <<'E' | sh\ncat x\nls\nE"),
    "printed by a file": ("cat x - <<'E' | sh\nls\nE", "cat <<'E' > x\nls\nE"),
    "printed with escapes": ("echo -e 'cat \\x2fetc' | sh", "echo 'cat src' | sh"),
    "printed by wildcard": ("echo ls * | sh", "echo ls x | sh"),
    "printed by output": ('echo ls "$(curl x)" | sh', "echo ls -l x | bash"),
    "printed by a function": ("echo() { curl x; }; echo ls | sh", "printf 'ls -l' | sh"),
    "printed by an alias": ("alias echo=curl\necho ls | sh", "ls; echo ls | sh"),
    "printed by another program before": ("echo ls | (curl x) | sh", "echo ls | sh | cat"),
    "printed by a group": ("{ curl x; } | sh", "echo ls | sudo sh"),
    "last backslash of a word": ("cat outlink\\", "docker run \\"),
    "last backslash behind a blank of a name": ("cat a\\ \\", "cat a\\ b"),
    "empty separator": ("cat .$'\\0'./x", "read -d $'\\0' x < y"),
    "text cut off": ("cat $'.\\0a'./x", "cat $'\\0'"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str, root: Path) -> None:
    refused, passes = SCRIPTS[name]
    assert violation(root, refused, contract="work") is not None
    assert violation(root, passes, contract="work") is None


def test_names_of_files_in_a_script_could_be_programs() -> None:
    box = Sandbox(commands=["find", "sh", "cat", "xargs", "ls"])
    for command in ("find . -exec sh -c 'cat {}' \\;", "ls | xargs -I% sh -c 'cat %'"):
        reason = box.violation(ToolCall("bash", {"command": command})) or ""
        assert "sh -c '... \"$1\"' _ {}" in reason
    safe = "find . -exec sh -c 'cat \"$1\"' _ {} \\;"
    assert box.violation(ToolCall("bash", {"command": safe})) is None


def test_the_process_directory_can_be_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.sep)
    for command in ("npm run dev", "make test", "git status", "echo etc", "sleep 5", "ls -la"):
        assert violation(root, command) is None, command
    for command in ("cat etc/passwd", "ls etc", "prog etc/passwd", "cd etc && cat passwd"):
        assert violation(root, command) is not None, command
