"""Watch files: a thread that reloads when their content changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from edictum._logs import CALLBACK_FAILED, POLICY_NOT_WATCHED, log
from edictum.core.policy import join_versions
from edictum.errors import EdictumConfigError
from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child
from edictum.execution.threads import start_thread


class Watch:
    """Reloads when the files are not what was loaded last, until ``stop()`` or the end of its
    ``with`` block. ``in_force`` is the version of the policy that was loaded before.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        reload: Callable[[Sequence[Path]], Any],
        interval_s: float,
        on_reload: Callable[[Any], Any] | None,
        on_error: Callable[[Exception], Any] | None,
        on_missing: Callable[[EdictumConfigError], None],
        in_force: str | None,
    ) -> None:
        if not paths:
            hint = "Pass the path of a YAML file."
            raise EdictumConfigError("watch() requires at least one path.", hint=hint)
        if missing := [path for path in paths if not path.is_file()]:
            hint = "Watch files that exist; a file may be removed and come back later."
            raise EdictumConfigError(f"watch(): there is no file {str(missing[0])!r}.", hint=hint)
        if not interval_s > 0:
            hint = "Use seconds, more than 0."
            raise EdictumConfigError(f"watch(): interval_s is {interval_s!r}.", hint=hint)
        self._paths = paths
        self._reload = reload
        self._interval_s = interval_s
        self._on_reload = on_reload
        self._on_error = on_error
        self._on_missing = on_missing
        self.problem: str | None = None  # why the files are not what is in force
        self._loading_problem: str | None = None  # with their content, if they are there
        self._seen = in_force  # what was changed since it was loaded is reloaded
        self._start()
        call_in_child(self._start_in_child)

    def _start(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edictum-watch", daemon=True)
        start_thread(self._thread)

    def _start_in_child(self) -> None:
        """Watch in a forked child too: it has the policy of its parent, but no thread."""
        if self._stopped.is_set():
            return
        try:
            self._start()
        except NotStarted as exc:
            self.problem = f"the files are not watched in this process: {exc}"
            log(POLICY_NOT_WATCHED, "watch() was not started again after a fork: %s", exc)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not self._stopped.is_set()

    def stop(self) -> None:
        """Stop watching, and wait for a reload under way."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self) -> None:
        is_missing = False
        stopped = self._stopped  # a forked child has another
        while not stopped.wait(self._interval_s):
            version = self._find_version()
            if version is None and not is_missing:
                self._report_missing()
            elif version is not None and version != self._seen:
                self._reload_now()
                self._seen = version  # last: a child that is forked meanwhile loads it itself
            elif version is not None and is_missing:
                self.problem = self._loading_problem
            is_missing = version is None

    def _report_missing(self) -> None:
        """Report a file that is missing or cannot be read, once until it is back."""
        gone = next((path for path in self._paths if not path.is_file()), None)
        what = "a watched file cannot be read" if gone is None else f"{gone} is gone"
        error = EdictumConfigError(
            f"watch(): {what}; the policy that was loaded stays in force.",
            hint="Put the file back: it is loaded if it has changed.",
        )
        self.problem = str(error)
        self._on_missing(error)
        self._notify(self._on_error, error)

    def _reload_now(self) -> None:
        try:
            report = self._reload(self._paths)
        except Exception as exc:
            self.problem = self._loading_problem = str(exc)
            self._notify(self._on_error, exc)
        else:
            self.problem = self._loading_problem = None
            self._notify(self._on_reload, report)

    def _notify(self, callback: Callable[[Any], Any] | None, value: Any) -> None:
        try:
            if callback is not None:
                callback(value)
        except Exception:
            log(CALLBACK_FAILED, "a callback of watch() raised; watching continues", exc_info=True)

    def _find_version(self) -> str | None:
        """Return the version of the policy that is in the files; None while one is missing."""
        try:
            return join_versions([sha256(path.read_bytes()).hexdigest() for path in self._paths])
        except OSError:
            return None
