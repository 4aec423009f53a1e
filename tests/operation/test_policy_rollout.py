"""Rolling out a policy: every process reloads, and log and audit say which version is in force."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum, EdictumConfigError

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: b}}
defaults: {{mode: enforce}}
contracts:
  - id: rule
    type: pre
    tool: t
    when: {{args.x: {{equals: {value}}}}}
    then: {{effect: deny, message: no}}
"""


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def policy_events(guard: Edictum) -> list[tuple[str, str | None]]:
    return [
        (event.action.value, event.policy_version)
        for event in guard.local_sink.events
        if event.action.value.startswith("policy_")
    ]


def log_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None]]:
    return [
        (vars(record)["edictum_event"], vars(record)["policy_version"])
        for record in caplog.records
        if "policy_version" in vars(record)
    ]


async def test_a_reload_is_in_the_log_and_in_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    """With the version that is in force afterwards."""
    caplog.set_level(logging.INFO)
    guard = Edictum.from_yaml_string(BUNDLE.format(value=1))
    first = guard.policy_version
    await guard.reload(BUNDLE.format(value=2))
    second = guard.policy_version
    with pytest.raises(EdictumConfigError):
        await guard.reload("contracts: [")
    assert first != second == guard.policy_version
    assert policy_events(guard) == [("policy_reloaded", second), ("policy_not_reloaded", second)]
    assert log_lines(caplog) == [("policy.reloaded", second), ("policy.not_reloaded", second)]
    event = guard.local_sink.last()
    assert event.policy_digest == guard.policy_digest
    assert str(second) in str(event.reason)


class Broken:
    def emit(self, event: Any) -> None:
        raise OSError("full")


async def test_a_sink_that_fails_does_not_keep_a_policy_back() -> None:
    """A tightened policy must be in force even when that cannot be written down."""
    guard = Edictum.from_yaml_string(BUNDLE.format(value=1), audit_sink=Broken())
    first = guard.policy_version
    await guard.reload(BUNDLE.format(value=2))
    assert guard.policy_version != first
    assert guard.stats().audit_failures == 1


def test_watched_files_tell_of_reloads_failures_and_missing_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, in the audit, and in ``check`` for as long as it is so."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "b.yaml"
    path.write_text(BUNDLE.format(value=1))
    guard = Edictum.from_yaml(path)
    with guard.watch(path, interval_s=0.02):
        assert "watched" in guard.check_sync()["policy"].message
        path.write_text(BUNDLE.format(value=2))
        assert wait_until(lambda: len(policy_events(guard)) == 1)
        version = guard.policy_version
        path.write_text("contracts: [")
        assert wait_until(lambda: not guard.check_sync().ok)
        assert str(version) in guard.check_sync()["policy"].message
        path.unlink()
        assert wait_until(lambda: len(policy_events(guard)) >= 3)
        assert "is gone" in guard.check_sync()["policy"].message
        path.write_text(BUNDLE.format(value=2))
        assert wait_until(lambda: guard.check_sync().ok)
    codes = [code for code, _ in log_lines(caplog)]
    assert codes[:3] == ["policy.reloaded", "policy.not_reloaded", "policy.file_missing"]
    actions = [action for action, _ in policy_events(guard)]
    assert actions[:3] == ["policy_reloaded", "policy_not_reloaded", "policy_file_missing"]
    assert {told for _, told in policy_events(guard)} == {version}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_reloads_as_its_parent_does(tmp_path: Path) -> None:
    """As under gunicorn --preload; a watch that was stopped stays so in the child."""
    path = tmp_path / "b.yaml"
    path.write_text(BUNDLE.format(value=1))
    guard, stopped = Edictum.from_yaml(path), Edictum.from_yaml(path)
    stopped.watch(path, interval_s=0.02).stop()
    with guard.watch(path, interval_s=0.02):
        version = guard.policy_version
        child = os.fork()
        if child == 0:
            reloaded = wait_until(lambda: guard.policy_version != version)
            watched = "watched" in guard.check_sync()["policy"].message
            kept = stopped.policy_version == version
            os._exit(0 if reloaded and watched and kept else 1)
        path.write_text(BUNDLE.format(value=2))
        assert wait_until(lambda: guard.policy_version != version)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("layers", [1, 2])
def test_a_file_that_changed_before_it_was_watched_is_loaded(tmp_path: Path, layers: int) -> None:
    """As when an application loads its policy and starts to watch later; others are not loaded
    again.
    """
    paths = [tmp_path / f"{number}.yaml" for number in range(layers)]
    for path in paths:
        path.write_text(BUNDLE.format(value=1))
    guard, current = Edictum.from_yaml(*paths), list[Any]()
    paths[0].write_text(BUNDLE.format(value=2))
    with guard.watch(*paths, interval_s=0.01, on_reload=current.append):
        assert wait_until(lambda: current)
        time.sleep(0.1)  # several more looks
    assert len(current) == 1
    assert guard.policy_version == Edictum.from_yaml(*paths).policy_version
    with guard.watch(*paths, interval_s=0.01, on_reload=current.append):
        time.sleep(0.1)
    assert len(current) == 1
