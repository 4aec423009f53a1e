"""Wrappers: programs that run another program, and where in their operands that one stands.

An option that is not in the table is refused: if it takes a value, the next word is that value and
not the program. So are shortened long options, and a word that may become several at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edictum.contracts.sandbox._options import Others, find_option, values_in
from edictum.contracts.sandbox._shell import Unreadable, Word, literal_word, names


class Wrapper:
    """The options of a wrapper with a value and without, letters with an attached value, and the
    number of operands before the inner command.
    """

    def __init__(
        self,
        valued: str = "",
        letters: str = "",
        flags: str = "",
        attached: str = "",
        operands: int = 0,
        assigns: bool = False,
    ) -> None:
        self.valued = names(valued)
        self.flags = names(f"{flags} --help --version") | {f"-{letter}" for letter in letters}
        self.attached, self.operands, self.assignments = attached, operands, assigns


WRAPPERS: dict[str, Wrapper] = {
    "env": Wrapper(
        "-u --unset -C --chdir -S --split-string -P",
        "i0v",
        "--ignore-environment --null --debug",
        assigns=True,
    ),
    "sudo": Wrapper(
        "-u --user -g --group -h --host -p --prompt -C --close-from -r --role -t --type -T"
        " --command-timeout -U --other-user -D --chdir -R --chroot",
        "AbBEeHiKklnNPSsVv",
        "--askpass --background --bell --preserve-env --edit --set-home --login --non-interactive"
        " --stdin --shell --validate --list",
        assigns=True,
    ),
    "doas": Wrapper("-u -C -a", "nsL"),
    "nohup": Wrapper(),
    "nice": Wrapper("-n --adjustment", attached="0123456789"),
    "ionice": Wrapper("-c --class -n --classdata -p --pid -P --pgid -u --uid", "t", "--ignore"),
    "timeout": Wrapper(
        "-k --kill-after -s --signal", "vfp", "--foreground --preserve-status --verbose", operands=1
    ),
    "time": Wrapper("-f --format -o --output", "apqv", "--append --portability --quiet --verbose"),
    "stdbuf": Wrapper("-i --input -o --output -e --error"),
    "setsid": Wrapper(letters="cfw", flags="--ctty --fork --wait"),
    "chrt": Wrapper("-T -P -D", "abdfimoprRv", operands=1),
    "taskset": Wrapper(letters="acp", flags="--all-tasks --cpu-list --pid", operands=1),
    "xargs": Wrapper(
        "-I -J -R -S -n --max-args -P --max-procs -L -d --delimiter -E -s --max-chars -a --arg-file"
        " --process-slot-var",
        "0rtpxo",
        "--null --no-run-if-empty --verbose --interactive --exit --open-tty --show-limits"
        " --max-lines --eof --replace",
        attached="ile",
    ),
    "command": Wrapper(letters="pvV"),
    "builtin": Wrapper(),
    "exec": Wrapper("-a", "cl"),
    "strace": Wrapper("-e -o -p -s -u -P -E -a -S -O -b -I -X -U", "ACcdDFfhikNnqrtTvVwxyYzZ"),
    "ltrace": Wrapper("-e -o -p -s -u -a -n -l -x -A -D -F", "bcCfhiLrStTV"),
    "unbuffer": Wrapper(letters="p"),
    "caffeinate": Wrapper("-t -w", "dimsu"),
    "flock": Wrapper(
        "-w --timeout --wait -E --conflict-exit-code -c --command",
        "sxenuoFv",
        "--shared --exclusive --nonblock --nb --unlock --close --no-fork --verbose",
        operands=1,
    ),
    "chroot": Wrapper("--userspec --groups", flags="--skip-chdir", operands=1),
    "unshare": Wrapper(
        "-S --setuid -G --setgid -R --root -w --wd",
        "muinpUCTfrc",
        "--mount --uts --ipc --net --pid --user --cgroup --time --fork --map-root-user"
        " --map-current-user --mount-proc",
    ),
    "nsenter": Wrapper(
        "-t --target -S --setuid -G --setgid",
        "amuinpUCTF",
        "--all --mount --uts --ipc --net --pid --user --cgroup --time --no-fork",
    ),
    "setpriv": Wrapper(
        "--reuid --regid --groups --inh-caps --ambient-caps --bounding-set --securebits"
        " --pdeathsig",
        flags="--clear-groups --keep-groups --init-groups --no-new-privs --reset-env",
    ),
    "busybox": Wrapper(flags="--list"),
    "toybox": Wrapper(flags="--long"),
    "faketime": Wrapper(letters="fm", operands=1),
    "rlwrap": Wrapper("-f -H -s -C -l -p -b -D", "acmnruA"),
    "torsocks": Wrapper("-a -P -u -p", "i"),
    "proxychains": Wrapper("-f", "q"),
    "proxychains4": Wrapper("-f", "q"),
    "systemd-run": Wrapper(
        "-p --property -u --unit -E --setenv --uid --gid --slice -M --machine -H --host"
        " --description --nice --working-directory",
        "tPqdGrS",
        "--user --system --scope --wait --pty --pipe --quiet --same-dir --collect"
        " --remain-after-exit --no-block --shell --no-ask-password",
    ),
    "systemd-inhibit": Wrapper("--what --who --why --mode", flags="--list"),
    "dbus-run-session": Wrapper("--config-file --dbus-daemon"),
    "xvfb-run": Wrapper(
        "-s --server-args -n --server-num -e --error-file -f --auth-file -w --wait",
        "al",
        "--auto-servernum --listen-tcp",
    ),
    "firejail": Wrapper(),
    "watch": Wrapper(
        "-n --interval -q --equexit",
        "bcdegptxwC",
        "--beep --color --differences --errexit --chgexit --precise --no-title --exec --no-wrap",
    ),
    "parallel": Wrapper(
        "-j --jobs -P --max-procs -a --arg-file -I -n --max-args -N --max-replace-args -L --colsep"
        " -C --delay --timeout --halt --results --joblog --tagstring --retries --tmpdir --block -d"
        " --delimiter",
        "kX0tvuqmr",
        "--keep-order --gnu --bar --progress --will-cite --null --verbose --ungroup --quote"
        " --dry-run --line-buffer --lb --tag --no-run-if-empty --eta --pipe --xargs --shuf",
    ),
    "entr": Wrapper(letters="acdnprsxz"),
}
# Programs whose operands, joined, are a script for a shell.
SCRIPT_OPERANDS = frozenset({"eval", "watch", "parallel"})
# Programs with an option whose value is a script for a shell.
SCRIPT_OPTIONS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("su", "runuser", "script", "flock"), names("-c --command")),
    "env": names("-S --split-string"),
    "nix-shell": names("--run --command"),
}
# Options after which a command follows, up to ";" or "+" or the end.
COMMAND_OPTIONS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("find", "bfs"), names("-exec -execdir -ok -okdir")),
    **dict.fromkeys(("fd", "fdfind"), names("-x -X --exec --exec-batch")),
    "nix": names("-c --command"),
}
# Options of xargs that name the text which it replaces.
REPLACED_BY = names("-I -J -i --replace")
# Wrappers that give the inner program further words, which are known only when it runs.
FILLING = frozenset({"xargs", "parallel"})


def behind(name: str, operands: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the operands of a wrapper from the inner command on."""
    wrapper = WRAPPERS.get(name, Wrapper())
    texts = [word.literal or "" for word in operands]
    others = Others(wrapper.flags, wrapper.attached, strict=name)
    values = values_in(texts, wrapper.valued, others)
    places = (value.index for value in values if not value.option)
    if wrapper.assignments:
        places = (place for place in places if operands[place].assigns is None)
    start = next(places, len(operands)) + wrapper.operands
    if any(word.splits for word in operands[:start]):
        message = f"a variable before the program that {name} runs may become several words"
        raise Unreadable(f"{message}; put it in double quotes")
    return operands[start:]


def option_scripts(name: str, operands: tuple[Word, ...]) -> Iterator[Sequence[Word]]:
    """Return the scripts that options carry: the next word, or attached, even in a cluster."""
    options = SCRIPT_OPTIONS.get(name, frozenset())
    valued = WRAPPERS.get(name, Wrapper()).valued
    for index, word in enumerate(operands if options else ()):
        found = find_option(word.literal or "", options, valued)
        if found is None:
            continue
        script = [literal_word(found)] if found else list(operands[index + 1 : index + 2])
        # What env splits it runs together with the words that follow.
        yield [*script, *operands[index + (1 if found else 2) :]] if name == "env" else script


def find_replaced_texts(name: str, operands: tuple[Word, ...]) -> frozenset[str]:
    """Return the texts that a program replaces by what it reads or finds."""
    if name in COMMAND_OPTIONS or name == "parallel":
        return frozenset({"{}"})
    if name != "xargs":
        return frozenset()
    texts = [word.literal or "" for word in operands]
    xargs = WRAPPERS["xargs"]
    values = values_in(texts, xargs.valued, Others(attached=xargs.attached))
    given = (texts[each.index][each.at :] for each in values if each.option in REPLACED_BY)
    return frozenset({"{}", *given}) - {""}
