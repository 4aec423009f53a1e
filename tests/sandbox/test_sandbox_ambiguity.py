"""What shells read in different ways, or run although it looks like text, is refused; its plain
form beside it passes.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall

LISTED = (
    "ls cat echo : true false read printf test env xargs script sh bash timeout nice find tee alias"
    " parallel source trap sudo"
)
BOX = Sandbox(commands=LISTED.split())

# name -> (runs rm in sh or in bash, a plain form that runs listed programs only)
PROGRAMS = {
    "double brackets": ("((rm x))", "( (ls) )"),
    "double brackets with a comment": ("((1 # )); rm x\n))", "i=0; i=$((i + 1))"),
    "arithmetic that never ends": (
        "false && echo $((ls) | (cat x)) '))  ; rm x # '",
        "echo $(( $(ls | cat) + (2 * 3) ))",
    ),
    "carriage return before a comment": ("ls a\r# ; rm x", "ls 'a\r'"),
    "carriage return behind a backslash": ("echo \\\r\nrm x", "echo \\\nls"),
    "end mark with a carriage return": (
        "cat <<'X'\nX\r\n: '\nX\nrm x\n: '\n",
        "cat <<'X'\na\r\nX\nls",
    ),
    "end mark with a variable": ('cat <<"$X"\n$X\nrm x\n', 'cat <<"X"\n$X\nX\nls'),
    "here-document behind a quote": (
        "cat <<'E' 'a\nE\n'\n: '\nE\nrm x\n: '\n",
        "cat <<'E' 'a'\n'\nE\nls",
    ),
    "here-document behind a continued line": (
        "cat <<'E' \\\nE\n: '\nE\nrm x\n: '\n",
        "cat \\\n<<'E'\n'\nE\nls",
    ),
    "here-document that a bracket ends": (
        "echo $(cat <<'E') \n: '\nE\nrm x\n: '\n",
        "echo $(cat <<'E'\n'\nE\n)",
    ),
    "continued operator": ("cat <\\\n<'X'\n: '\nX\nrm x\n: '\n", "ls &&\\\nls |\\\ncat"),
    "continued operator with a dash": (
        "cat <<\\\n-E\n: '\n\tE\nrm x\n: '\n-E\n",
        "cat <<-E\n'\n\tE\nls",
    ),
    "quotes in backticks in quotes": (
        'echo "`echo \\"\'\\" ; rm x ; echo \\"\'\\"`"',
        'echo "`echo a`" "$(echo "b")"',
    ),
    "counting loop with braces": ("for ((i=0;i<1;i++)) { rm x; }", "for ((i=0;i<1;i++)) { ls; }"),
    "counting loop without a separator": (
        "for ((i=0;i<1;i++)) do rm x; done",
        "for ((i=0;i<1;i++)) do ls; done",
    ),
    "function without braces": (
        "function ls if rm x; then :; fi; ls",
        "function f if ls; then :; fi",
    ),
    "coprocess": ("coproc ls { rm x; }", "ls &"),
    "search path by loop": ("for PATH in ./bin; do ls; done", "for P in ./bin; do ls; done"),
    "search path by read": ("read PATH <<< ./bin; ls", "read P <<< ./bin; ls"),
    "library by default value": (": ${LD_PRELOAD:=./x.so}; ls", ": ${P:=./x.so}; ls"),
    "case behind another word": (
        'echo "$(if :; then case x in x) rm x;; esac; fi)"',
        'echo "$(if :; then case x in x) ls;; esac; fi)"',
    ),
    "subscript": ("a=(1); echo ${a[$(rm x)]}", "a=(1); i=0; echo ${a[0]} ${a[$i]} ${a[@]}"),
    "operator in an array": ("x=(||\nrm x\na)", "x=(a\nrm x)"),
    "text that is computed": ("x='a[$(rm x)]'; echo $((x))", "x='a[0]'; echo $((x))"),
    "text that is compared": ("[[ 'a[$(rm x)]' -eq 0 ]]", "[[ 1 -eq 0 ]]"),
    "text that is a prompt": ("x='$(rm x)'; echo ${x@P}", "x='$(rm x)'; echo ${x}"),
    "name of a variable that runs": (
        "printf -v 'a[$(rm x)]' x; test -v 'a[`rm x`]'",
        "printf -v a x; test -v a",
    ),
    "process substitution as a default value": ("echo ${x:-<(rm x)}", "echo ${x:-a}"),
    "escaped quote": ("echo $'\\'\nrm x\necho '", "echo $'a\\tb\\\\'"),
    "env with a cluster": ("env '-vSrm x'", "env '-vSls x'"),
    "env with a shortened script": ("env --split='rm x'", "env --split-string='ls x'"),
    "env with a script and words": ("env -S nice rm x", "env -S nice ls x"),
    "env with a shortened option": ("env --uns ls rm x", "env --unset=A ls x"),
    "xargs with an option without value": (
        "ls | xargs --max-lines rm ls",
        "ls | xargs --max-lines=2 ls",
    ),
    "script in a cluster": ("script -qc 'rm x' log", "script -qc 'ls x' log"),
    "program from xargs": ("echo rm x | xargs env", "echo x | xargs env A=1 ls"),
    "script from xargs": ("ls | xargs -n1 sh -c", "ls | xargs -n1 sh -c 'ls \"$1\"' _"),
    "text from xargs in a script": (
        "echo 'x; rm x' | xargs -I% sh -c 'cat %'",
        "ls | xargs -I% sh -c 'cat \"$1\"' _ %",
    ),
    "commands from parallel": ("echo rm x | parallel", "ls | parallel cat"),
    "pipe into a subshell": ("echo rm x | (sh)", "echo x | (cat)"),
    "pipe into a group": ("echo rm x | { true; sh; }", "echo x | { true; cat; }"),
    "pipe into a shell with a value": (
        "echo rm x | bash -o pipefail",
        "bash -o pipefail -c 'ls | cat'",
    ),
    "pipe into a shell with words": ("echo rm x | sh -s x", "ls | sh run.sh x"),
    "pipe by the name of a device": ("echo rm x | sh /dev/stdin", "echo x | cat /dev/stdin"),
    "output as a file": ("bash <(echo rm x)", "cat <(echo rm x)"),
    "output behind an empty word": ('bash ""<(echo rm x)', "bash run.sh"),
    "output as input": ("bash < <(echo rm x)", "bash < run.sh"),
    "input of everything": ("exec < <(echo rm x); bash", "bash"),
    "sourced output": ("source <(echo rm x)", 'source "$D/activate"'),
    "shell behind tee": ("echo rm x | tee >(sh)", "echo x | tee >(cat)"),
    "here-document under another number": ("echo rm x | sh 3<<E\nE\n", "sh <<E\nls\nE\n"),
    "option of a shell by variable": (
        "A=-c; bash $A 'rm x'",
        'for f in a b; do bash "$f"; done; bash "$D/run.sh" x',
    ),
    "script behind another option": ("bash -c -o pipefail 'rm x'", "bash -c -o pipefail 'ls x'"),
    "several words by variable": ("T='5 rm x'; timeout $T ls", 'T=5; timeout "$T" ls'),
    "option of find by variable": ("X='-exec rm x ;'; find . $X", "X=src; find $X -name x"),
    "alias of a wrapper": ("alias ls=env\nls rm x", "alias l='ls -l'\nl x"),
    "alias by variable": ('Y="rm x"; alias ls="$Y"\nls', "alias"),
    "trap behind dashes": ("trap -- 'rm x' EXIT", "trap -- 'ls x' EXIT"),
    "file names as programs": ("find . -exec {} \\;", "find . -exec cat {} \\;"),
}


def judge(command: str) -> str | None:
    return BOX.violation(ToolCall("bash", {"command": command}))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_hides_is_refused(name: str) -> None:
    assert judge(PROGRAMS[name][0]) is not None


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plain_form_passes(name: str) -> None:
    box = Sandbox(commands=[*BOX.commands.allowed, "exec", "l"])
    assert box.violation(ToolCall("bash", {"command": PROGRAMS[name][1]})) is None


# name -> (leaves the working directory, stays inside)
PATHS = {
    "trimmed start": ("x=_/etc/passwd; cat ${x#_}", "f=src/a.py; cat ${f#src/} ${f##*/}"),
    "trimmed end": ("cat ${PWD%/*}/x", "f=src/a.py; cat ${f%.*}.md ${f%%.py}"),
    "trimmed by an output": ("x=_._; cat ${x#$(echo _)}./x", "x=_._; cat ${x#_}./x"),
    "trimmed as it is written": ('x=.; cat ${x##"*"}./x', 'x=.; cat ${x##"_"}/x'),
    "appended": ("A=.; A+=.; cat $A/x", "A=src/; A+=a; cat $A.py"),
    "grown in a loop": (
        "for i in 1 2; do A=$A.; done; cat $A/x",
        "for i in 1 2; do A=$A$i; done; cat $A",
    ),
    "elements of an array": ("a=(. .); cd ${a[0]}${a[1]} && ls", "a=(src b); cat ${a[0]} ${a[1]}"),
    "default value that stays": (": ${x:=.}; cat $x./x", ": ${x:=src}; cat $x/a.py"),
    "list of directories": ("x=a/b:.; cat ${x#a/b:}./x", "x=a/b:c; cat ${x#a/b:}"),
    "octal offset": ("x=aaaaaaaa.; cat ${x:010}./x", "x=aaaaaaaa.; cat ${x:8}/x"),
    "words split elsewhere": (
        "IFS=q; x=aq/etc/passwd; cat $x",
        "while IFS=q read -r x; do cat \"$x\"; done < a; IFS=','",
    ),
    "words split by an output": ("IFS=$(echo q); x=aq/etc/passwd; cat $x", "IFS= ; x=aq; cat $x"),
    "words split by another program": (
        "printf -v IFS q; x=aq/etc/passwd; cat $x",
        "printf -v F q; x=aq; cat $x",
    ),
    "words split by arithmetic": (
        ": $((IFS=5)); x=a5/etc/passwd; cat $x",
        "V=1.2; echo $(( ${V##*.} + 1 ))",
    ),
    "text cut off": ("cat $'.\\0a'./x", "cat $'a\\x2ea'/x"),
    "backslash in backticks": ("echo `cat '.\\\n./x'`", "echo `cat 'x'`"),
    "double brackets": ("((cat /etc/passwd))", "( (cat x) )"),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_hides_is_refused(name: str, in_work) -> None:
    assert in_work(PATHS[name][0]) is not None


@pytest.mark.parametrize("name", PATHS)
def test_the_plain_path_passes(name: str, in_work) -> None:
    assert in_work(PATHS[name][1]) is None


def test_going_back_to_a_directory_from_before(
    in_work, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLDPWD", "/etc")
    assert "cd -" in (in_work("cd - && cat passwd") or "")
    assert "cd -" in (in_work("cd nowhere; cd - && cat passwd") or "")
    assert in_work("cd src && ls && cd - && cat x") is None
    monkeypatch.delenv("OLDPWD")
    assert in_work("cd src; ls; cd -; cat x") is None


def test_values_that_double_are_refused_before_they_fill_the_memory(in_work) -> None:
    line = (
        "v0=aaaa; "
        + "; ".join(f"v{step + 1}=$v{step}$v{step}" for step in range(40))
        + "; echo $v40"
    )
    assert "too much text" in (in_work(line) or "")


def test_values_are_not_dropped(in_work) -> None:
    line = "; ".join(f"v={number}" for number in range(300)) + "; v=.; cat $v./x"
    assert in_work(line) is not None


REAL = [path for path in map(shutil.which, ("bash", "dash")) if path]
PIECES = [
    "rm",
    "rm ",
    "; rm;",
    "\nrm\n",
    "echo ",
    ": ",
    " ",
    "\n",
    ";",
    "&&",
    "|",
    "'",
    '"',
    "\\",
    "`",
    "$(",
    ")",
    "(",
    "$((",
    "((",
    "))",
    "{ ",
    "}",
    "<<E\n",
    "<<'E'",
    "<<-E\n",
    "\nE\n",
    "E",
    "#",
    " #",
    "case x in ",
    "x)",
    ";;",
    "esac",
    "if ",
    "then ",
    "; fi",
    "do ",
    "; done",
    "for x do ",
    "${x:-",
    "${x#",
    "$'",
    "\\'",
    "\\\n",
    "$x",
    "x=",
    "x=(",
    "a[",
    "]",
    "$",
    "<(",
    ">",
    "<",
    "!",
    "function f ",
    "f() ",
    "[[ ",
    " ]]",
    "${a[",
    "1",
    "@(",
    '\\"',
    "\t",
    "\r",
]
LINES = [
    'echo "$(case x in x) rm;; esac)"',
    "cat <<E\n$(rm)\nE\n",
    "echo `rm`",
    "for i in 1; do rm; done",
    "if true; then rm; fi",
    "echo ${x:-$(rm)}",
    'echo "`echo rm`"',
    "case x in x) rm;; esac",
    "echo $(( $(rm) + 1 ))",
    "cat <<'E' | cat\nrm\nE\nrm",
    "f() { rm; }; f",
    "echo 'a' \"b\" \\c # rm",
    "echo $'a' rm",
    'echo "${x:-"a"}" rm',
    "{ rm; }",
    "(rm)",
    "x=(a $(rm))",
    "echo \"$(cat <<E\nrm ' \nE\n)\" '",
    "((rm))",
    "cat <<'E' 'a'\n'\nE\nrm # '",
    'echo "$(if :; then case x in x) rm;; esac; fi)"',
    "echo ${a[$(rm)]}",
    "echo ${x:-<(rm)}",
    "for ((i=0;i<1;i++)) do rm; done",
    'echo "`echo \\"a\\"`" rm',
    "ls a\r# ; rm",
]


def mixed(chance: random.Random) -> str:
    """A line with a few pieces put in or in place of others."""
    line = chance.choice([*LINES, ""])
    for _ in range(chance.randint(1, 5)):
        start = chance.randint(0, len(line))
        line = line[:start] + chance.choice(PIECES) + line[start + chance.choice([0, 0, 1, 2]) :]
    return line


@pytest.mark.parametrize("shell", REAL)
def test_what_passes_runs_no_other_program_in_a_real_shell(shell: str, tmp_path: Path) -> None:
    """``rm`` leaves a trace here, and no other program is there, so that no line can do harm."""
    trace, chance = tmp_path / "trace", random.Random(20)
    (tmp_path / "rm").write_text(f"#!/bin/sh\n: > '{trace}'\n")
    (tmp_path / "rm").chmod(0o755)
    passing = [line for line in (mixed(chance) for _ in range(3000)) if judge(line) is None]
    assert len(passing) > 100
    for line in passing:
        subprocess.run(
            [shell, "-c", line],
            cwd=tmp_path,
            env={"PATH": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert not trace.exists(), line
