"""Paths in command lines: each way out by name, beside an ordinary command of the same form that
stays inside.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall
from edictum.errors import EdictumConfigError

# name -> (leaves the working directory, stays inside)
PAIRS = {
    "absolute": ("cat /etc/passwd", "cat WORK/src/a.py"),
    "dot dot": ("cat ../../etc/passwd", "cat src/../src/a.py"),
    "dot dot in the middle": ("cat src/../../x", "cat ./src/./a.py"),
    "dot dot through a link": ("cat outlink/../passwd", "cat inlink/a.py"),
    "the root itself": ("ls /", "ls ."),
    "several slashes": ("cat ///etc/passwd", "cat src//a.py"),
    "a neighbour with the same beginning": ("cat WORK2/x", "cat WORK/x"),
    "home": ("cat ~/.ssh/id_rsa", "git show HEAD~1"),
    "home alone": ("ls ~", "git reset HEAD~"),
    "home of another": ("cat ~root/x", "cat x~"),
    "home by variable": ("cat $HOME/.ssh/id_rsa", "cat $PWD/src/a.py"),
    "home in braces": ('cat "${HOME}/x"', 'cat "${PWD}/x"'),
    "double quotes": ('cat "/etc/passwd"', 'cat "src/a.py"'),
    "single quotes": ("cat '/etc/passwd'", "cat 'src/a.py'"),
    "quotes inside a word": ("cat /e'tc'/pass\"wd\"", "cat s'r'c/a.py"),
    "backslash": ("cat \\/etc/passwd", "cat my\\ dir/x"),
    "blank in a name": ('cat "/etc/my file"', 'cat "my dir/x" "WORK/my dir/x"'),
    "input": ("wc </etc/passwd", "wc <src/a.py"),
    "output": ("echo x >/etc/x", "echo x >src/x"),
    "appended output": ("echo x >>/etc/x", "echo x >>src/x"),
    "numbered output": ("make 2>/etc/x", "make 2>&1 2>/dev/null"),
    "both outputs": ("make &>/etc/x", "make &>log"),
    "forced output": ("echo x >|/etc/x", "echo x >|log"),
    "opened for both": ("cat <>/etc/x", "cat <>x"),
    "opened by exec": ("exec 3</etc/passwd", "exec 3<x"),
    "long option": ("prog --file=/etc/passwd", "prog --file=src/a.py"),
    "short option": ("grep -f/etc/passwd x", "gcc -Isrc -c a.c"),
    "cluster of options": ("tar -xzf/etc/x.tgz", "tar -xzf x.tgz"),
    "dd": ("dd if=/etc/shadow", "dd if=a of=b"),
    "at sign": ("curl -d @/etc/passwd localhost", "curl -d @body.json localhost"),
    "after a colon": ("docker run -v /:/mnt x", "git show HEAD:src/a.py"),
    "file address": ("curl file:///etc/shadow", "curl file://WORK/x"),
    "file address with a host": (
        "curl file://localhost/etc/shadow",
        "curl file://localhost/WORK/x",
    ),
    "file address with one slash": ("curl file:/etc/shadow", "curl http://localhost/etc/shadow"),
    "other local address": ("prog sqlite:////etc/x.db", "prog sqlite://x.db"),
    "percent": ("prog %2fetc%2fpasswd", "printf '%s' 100%"),
    "percent of percent": ("prog %252e%252e%252fx", "date +%Y%m%d"),
    "hexadecimal escape": ("cat $'\\x2fetc\\x2fpasswd'", "echo $'a\\tb'"),
    "octal escape": ("cat $(printf '\\57etc\\57passwd')", "printf 'a\\nb'"),
    "lookalike characters": ("cat \uff0e\uff0e\uff0fx", "echo 1\uff0e5"),
    "link": ("cat outlink/passwd", "cat inlink/a.py"),
    "link by its plain name": ("cat outlink", "cat inlink"),
    "link in an option": ("prog --file=outlink/x", "prog --file=inlink/x"),
    "link in an attached option": ("prog -foutlink", "prog -finlink"),
    "link behind a colon": ("prog a:outlink:b", "prog a:inlink:b"),
    "link in code": (
        "python -c \"x = open('outlink/passwd')\"",
        "python -c \"x = open('inlink/a.py')\"",
    ),
    "link by wildcard": ("cat out*/passwd", "cat in*/*.py"),
    "link by wildcard alone": ("cat outl?nk", "cat *.py"),
    "link by a negated bracket": ("cat [^a]utlink/passwd", "cat [^a]nlink/a.py"),
    "link by a class": ("cat [[:alpha:]]utlink/passwd", "cat [[:alpha:]]nlink/a.py"),
    "address that climbs": ("cat a://../../x", "cat a://b/../x"),
    "address that climbs in an option": (
        "prog --file=a://../../x",
        "prog --file=https://b.com/../x",
    ),
    "brackets in a name": ("cat 'app/[id]/../../../x'", "cat 'app/[id]/page.tsx' 'app/(auth)/x'"),
    "closing tag": ("echo '</etc/passwd>'", "echo '</div>' > a.html"),
    "first line of a script": ("printf '#!/etc/passwd'", "printf '#!/bin/sh\\n' > a.sh"),
    "link deeper": ("cat src/deep/x", "cat src/a.py"),
    "semicolon": ("ls; cat /etc/passwd", "ls; cat x"),
    "semicolon without blanks": ("ls;cat /etc/passwd", "ls;cat x"),
    "and": ("ls && cat /etc/passwd", "ls && cat x"),
    "or": ("ls || cat /etc/passwd", "ls || cat x"),
    "pipe": ("ls | tee /etc/x", "ls | sort | tee x"),
    "background": ("ls & cat /etc/passwd", "ls & cat x"),
    "new line": ("ls\ncat /etc/passwd", "ls\ncat x\n"),
    "continued line": ("cat \\\n/etc/passwd", "cat \\\nx"),
    "substitution": ("echo $(cat /etc/passwd)", "echo $(cat x)"),
    "substitution in quotes": ('echo "$(cat /etc/passwd)"', 'echo "$(cat x)"'),
    "nested substitution": ("echo $(echo $(cat /etc/passwd))", "echo $(echo $(cat x))"),
    "read by redirection": ("echo $(</etc/passwd)", "echo $(<x)"),
    "backticks": ("echo `cat /etc/passwd`", "echo `cat x`"),
    "nested backticks": ("echo `echo \\`cat /etc/passwd\\``", "echo `echo \\`cat x\\``"),
    "process substitution": ("diff <(cat /etc/passwd) x", "diff <(sort a) <(sort b)"),
    "braces": ("{ cat /etc/passwd; }", "{ cat x; }"),
    "subshell": ("(cat /etc/passwd)", "(cat x)"),
    "condition": ("if true; then cat /etc/passwd; fi", "if [ -f x ]; then cat x; else echo no; fi"),
    "loop": ("for f in /etc/*; do cat $f; done", 'for f in *.py; do mv "$f" "${f%.py}.txt"; done'),
    "loop that builds a path": (
        "for d in .; do cat $d$d/x; done",
        "for d in src; do cat $d/a.py; done",
    ),
    "counting loop": (
        "for ((i=0; i<3; i++)); do cat /etc/x; done",
        "for ((i=0; i<3; i++)); do echo $i; done",
    ),
    "case": (
        "case x in a) cat /etc/passwd;; esac",
        'case "$1" in a|b) ls;; *) pwd;; esac; case x in *) ls;; esac',
    ),
    "function": ("f() { cat /etc/passwd; }; f", "f() { cat x; }; f"),
    "array": ("a=(x /etc/passwd)", "a=(x y); echo ${a[0]}"),
    "here document that runs": (
        "cat <<EOF\n$(cat /etc/passwd)\nEOF",
        "cat <<'EOF' > x\n$(cat /etc/passwd)\nEOF",
    ),
    "here document for a shell": ("sh <<EOF\ncat ../x\nEOF", "sh <<EOF\ncat x\nEOF"),
    "here document for another program": (
        "python - <<EOF\nopen('/etc/passwd')\nEOF",
        "python - <<EOF\nprint('a' / 2)\nEOF",
    ),
    "here string for a shell": ("bash <<< 'cat ../x'", "bash <<< 'cat x'"),
    "behind a here document": (
        "cat <<EOF > x\nhi\nEOF\ncat /etc/passwd",
        "cat <<EOF > x\nhi\nEOF\ncat x",
    ),
    "bash -c": ("bash -c 'cat ../x'", "bash -c 'cd src && ls'"),
    "bash with a cluster": ('bash -lc "cat ../x"', 'bash -lc "cat x"'),
    "bash in bash": ("""bash -c "sh -c 'cat ../x'\"""", """bash -c "sh -c 'cat x'\""""),
    "eval": ("eval 'cat ../x'", "eval 'cat x'"),
    "eval of words": ("eval cat ../x", "eval cat x"),
    "env": ("env A=1 cat /etc/passwd", "env A=1 cat x"),
    "env with a script": ("env -S 'bash -c \"cat ../x\"'", "env -S 'cat x'"),
    "sudo": ("sudo -u root cat /etc/passwd", "sudo -u root cat x"),
    "xargs": ("echo /etc/passwd | xargs cat", "find . -type f | xargs wc -l"),
    "xargs with a shell": (
        "ls | xargs -I{} sh -c 'cat ../{}'",
        "ls | xargs -I{} sh -c 'cat \"$1\"' _ {}",
    ),
    "find": ("find / -name x", "find . -name x"),
    "find -exec": (
        "find . -exec cat /etc/passwd \\;",
        "find . -name '*.py' -exec grep -l foo {} \\;",
    ),
    "find -exec sh": ("find . -exec sh -c 'cat ../x' \\;", "find . -exec sh -c 'cat x' \\;"),
    "trap": ("trap 'cat ../x' EXIT", "trap 'rm -f x' EXIT"),
    "alias": ("alias l='cat ../x'", "alias l='ls -l'"),
    "watch": ("watch 'cat ../x'", "watch -n 1 'cat x'"),
    "su": ("su ann -c 'cat ../x'", "su ann -c 'cat x'"),
    "cd out": ("cd .. && ls", "cd src && ls .."),
    "cd home": ("cd; cat .ssh/id_rsa", "cd src; cat a.py"),
    "cd that may fail": ("cd nowhere; cat ../x", "cd src && cat ../x"),
    "cd whose chain has ended": ("cd src && ls; cat ../x", "cd src && ls && cat ../x"),
    "cd in a subshell": ("(cd src); cat ../x", "(cd src); cat x"),
    "pushd": ("pushd ..", "pushd src"),
    "git -C": ("git -C .. status", "git -C src status"),
    "make -C": ("make --directory=/etc", "make -C src"),
    "variable": ("A=/; cat ${A}etc/passwd", "A=src; cat $A/a.py"),
    "variable made of dots": ("A=.; cat $A$A/x", "A=.; cat $A/x"),
    "variable that is not set": ("cat $UNSET_BY_ALL/etc/passwd", "cat src/$UNSET_BY_ALL"),
    "default value": ("cat ${UNSET_BY_ALL:-/etc/passwd}", "cat ${UNSET_BY_ALL:-x}"),
    "substring": ("cat ${HOME:0:1}etc${HOME:0:1}passwd", "A=abc; cat ${A:0:1}"),
    "replacement": ("A=xetcxpasswd; cat ${A//x//}", "A=a.txt; cat ${A/.txt/.md}"),
    "field separator": ("ls -l${IFS}/etc/passwd", "IFS=, ; ls"),
    "brace expansion": ("cat .{.,}/x", "mkdir -p src/{a,b}/c"),
    "path in braces": ("cat {/etc/passwd,x}", "ls *.{py,txt}"),
    "wildcard outside": ("cat /e?c/passwd", "cat s?c/*.py"),
    "wildcard for the parent": ("cat .?/x", "ls -d .[!.]*"),
    "wildcard for the parent itself": ("grep -r x .?", "ls -d .[a-z]* .??*"),
    "wildcard for hidden files": ("grep -r x .*", "ls .git*"),
    "device": ("cat /dev/sda", "cat x > /dev/null 2>/dev/stderr"),
    "disguised device": ("cat /dev/null/../sda", "cat /dev/stdin"),
    "program by its path": ("/usr/local/bin/evil x", "./run.sh x"),
    "sourced file": (". ../x", ". ./x"),
    "test": ("[ -f /etc/passwd ]", "[[ -f x ]] && echo yes"),
    "python": ("python -c \"open('/etc/passwd')\"", "python -c \"print('a'.split('/'))\""),
    "grep pattern and file": ("grep -rn x /etc", "grep -rn '/api/v1' src"),
    "grep with the pattern elsewhere": ("grep -rne x /etc/passwd", "grep -e /api -e /web src/a.py"),
    "grep with a shortened option": ("grep --reg=x /etc/passwd", "grep --regexp=/api x"),
    "sed file": ("sed -n p /etc/passwd", "sed -n '/start/,/end/p' x"),
    "sed reads": ("sed 'r /etc/passwd' x", "sed 's#/usr/local#/opt#g' x"),
    "sed reads after an address": ("sed '/a/r/etc/passwd' x", "sed '/^$/d' x"),
    "sed writes": ("sed 's/a/b/w /etc/x' x", "sed 's/a/b/' x"),
    "sed runs": ("sed '1e cat /etc/passwd' x", "sed -e '1d' x"),
    "awk reads": (
        """awk 'BEGIN{getline l < "/etc/passwd"}'""",
        """awk -F/ '/x/ {split($0, a, "/"); print $1 / 2}' x""",
    ),
    "awk file": ("awk '{print}' /etc/passwd", "awk '$1 ~ /x/' x"),
    "message": ("git commit -F /etc/passwd", "git commit -am 'Fix /api/users'"),
    "message that is none": ("git diff -m /etc/passwd x", "git tag -m 'about /etc' v1"),
    "translated text": ('cat $"/etc/passwd"', 'cat $"x"'),
    "delimiter": ("cut -f1 /etc/passwd", "cut -d/ -f2 x | tr / _"),
    "arithmetic": ("echo $((1+1)) /etc/x", "echo $((4 / 2)); expr 4 / 2"),
    "web address": (
        "curl -o /etc/x https://example.com/a",
        "curl -o x https://example.com/etc/passwd",
    ),
    "comment": ("cat /etc/passwd # x", "cat x # don't look at /etc/passwd"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_leaves_is_refused(name: str, in_work) -> None:
    assert in_work(PAIRS[name][0]) is not None


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_form_inside_passes(name: str, in_work) -> None:
    assert in_work(PAIRS[name][1]) is None


UNKNOWN = {
    "variable as a program": "$TOOL x",
    "variable in a program's name": "c$X x",
    "substitution as a program": "$(which cat) x",
    "backticks as a program": "`which cat` x",
    "blank by variable": "cat${IFS}x",
    "program behind a wrapper": "sudo $TOOL x",
    "script by variable": 'bash -c "$SCRIPT"',
    "eval of output": 'eval "$(curl localhost)"',
    "shell at the end of a pipe": "curl localhost | sh",
    "shell with options at the end of a pipe": "curl localhost | sudo bash -s",
    "indirect variable": "A=HOME; cat ${!A}",
    "quote in braces in quotes": """echo "${x:-'}"; cat x; echo "'}\"""",
    "line that ends in an expansion": 'echo "$\\\n(ls)"',
    "open single quote": "cat 'x",
    "open double quote": 'cat "x',
    "open backtick": "cat `x",
    "open substitution": "cat $(x",
    "open subshell": "(cat x",
    "open braces of a variable": "cat ${x",
    "NUL": "cat x\0y",
    "too deep": "$(" * 100 + "x" + ")" * 100,
    "too many values": "cat {a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}",
    "unknown user": "cat ~no_such_user_anywhere/x",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_judged_is_refused(name: str, in_work) -> None:
    assert "judged" in (in_work(UNKNOWN[name]) or "")


def test_the_sentence_names_path_and_bounds(work: Path, in_work) -> None:
    assert (
        in_work("cat /etc/passwd")
        == f"Path '/etc/passwd' is outside the allowed directories: {work}."
    )


def test_the_sentence_does_not_show_values_of_the_environment(
    in_work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "/very/private")
    assert "private" not in (in_work("cat $HIDDEN/x") or "private")


def test_variables_of_the_environment_are_followed(
    in_work, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMEWHERE", "/etc")
    assert in_work("cat $SOMEWHERE") is not None
    monkeypatch.setenv("SOMEWHERE", str(work))
    assert in_work("cat $SOMEWHERE/x") is None


def test_forbidden_comes_before_allowed(work: Path) -> None:
    box = Sandbox(within=[str(work)], not_within=[str(work / "secret")], cwd=str(work))
    judge = {
        text: box.violation(ToolCall("bash", {"command": f"cat {text}"}))
        for text in ("secret/x", "sec*/x", "src/../secret", "src/x")
    }
    assert judge["src/x"] is None
    assert all(
        "forbidden directory" in (judge[text] or "")
        for text in ("secret/x", "sec*/x", "src/../secret")
    )


@pytest.mark.parametrize(
    "name", ["[^a]ecret", "[!a]ecret", "[[:alpha:]]ecret", "[r-t]ecret", "sec[^a]et", "s[]e]cret"]
)
def test_no_spelling_of_a_wildcard_reaches_a_forbidden_directory(name: str, work: Path) -> None:
    box = Sandbox(within=[str(work)], not_within=[str(work / "secret")], cwd=str(work))
    assert "forbidden directory" in (
        box.violation(ToolCall("bash", {"command": f"cat {name}/x"})) or ""
    )


def test_links_in_a_circle_do_not_keep_wildcards_busy(tmp_path: Path) -> None:
    """Without a bound this would look at 3 to the power of 22 places."""
    for name in "abc":
        (tmp_path / name).symlink_to(".")
    box = Sandbox(within=[str(tmp_path)], cwd=str(tmp_path))
    assert "too many places" in (
        box.violation(ToolCall("bash", {"command": "ls " + "*/" * 22 + "zz"})) or ""
    )
    assert box.violation(ToolCall("bash", {"command": "ls */*/zz"})) is None


def test_an_address_whose_scheme_is_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a:").symlink_to("/etc")
    box = Sandbox(within=[str(tmp_path)], cwd=str(tmp_path))
    assert box.violation(ToolCall("read_file", {"path": "a://passwd"})) is not None
    assert box.violation(ToolCall("read_file", {"path": "b://passwd"})) is None


@pytest.mark.parametrize("key", ["within", "not_within"])
@pytest.mark.parametrize(
    "path",
    [
        "/srv/*/secrets",
        "/srv/**/.env",
        "/srv/[ab]",
        "$UNSET_BY_ALL/x",
        "${UNSET_BY_ALL}",
        "~no_such_user_anywhere/x",
    ],
)
def test_a_bound_in_which_no_path_can_lie_is_an_error(key: str, path: str) -> None:
    with pytest.raises(EdictumConfigError, match="cannot be used"):
        Sandbox(**{"within": ["/tmp"], key: [path]})


def test_a_directory_that_has_such_a_name_can_be_a_bound(tmp_path: Path) -> None:
    (tmp_path / "[id]").mkdir()
    box = Sandbox(not_within=[str(tmp_path / "[id]")], cwd=str(tmp_path))
    assert box.violation(ToolCall("read_file", {"path": "[id]/x"})) is not None


def test_forbidden_devices_stay_forbidden() -> None:
    assert (
        Sandbox(not_within=["/dev"]).violation(ToolCall("bash", {"command": "ls > /dev/null"}))
        is not None
    )


def test_only_forbidden_directories() -> None:
    box = Sandbox(not_within=["/etc"])
    assert box.violation(ToolCall("bash", {"command": "cat /usr/x"})) is None
    assert box.violation(ToolCall("bash", {"command": "cat /etc/x"})) is not None


def test_bounds_may_be_relative_links_and_home(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(work))
    for within in ("src", "inlink", "~/src", "$HOME/src"):
        box = Sandbox(within=[within], cwd=str(work))
        assert box.violation(ToolCall("read_file", {"path": "src/a.py"})) is None, within
        assert box.violation(ToolCall("read_file", {"path": "x"})) is not None, within


def test_directories_whose_names_have_blanks_are_allowed(work: Path) -> None:
    box = Sandbox(within=[str(work / "my dir")], cwd=str(work / "my dir"))
    assert (
        box.violation(ToolCall("bash", {"command": f"cat '{work}/my dir/x' > \"{work}/my dir/y\""}))
        is None
    )
    assert (
        box.violation(ToolCall("bash", {"command": f"python -c \"open('{work}/my dir/x')\""}))
        is None
    )
    assert box.violation(ToolCall("bash", {"command": f"cat '{work}/my dirt/x'"})) is not None


def test_the_working_directory_of_the_process_is_the_default(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work / "src")
    box = Sandbox(within=["."])
    assert box.violation(ToolCall("read_file", {"path": "a.py"})) is None
    assert box.violation(ToolCall("read_file", {"path": "../x"})) is not None
    monkeypatch.chdir(work)
    assert box.violation(ToolCall("read_file", {"path": "a.py"})) is not None


def test_a_working_directory_that_is_gone_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    box = Sandbox(within=["/tmp"])
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    assert box.violation(ToolCall("read_file", {"path": "x"})) is not None


def test_the_directory_that_a_call_asks_for_counts(work: Path) -> None:
    box = Sandbox(within=[str(work.parent), "/tmp"], cwd=str(work))
    assert box.violation(ToolCall("bash", {"command": "cat ../x"})) is None
    assert box.violation(ToolCall("bash", {"command": "cat ../x", "cwd": "/tmp"})) is not None
