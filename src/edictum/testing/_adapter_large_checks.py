"""Checks of the adapters' suite about results that are too large for a model."""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from edictum.guard import Edictum
from edictum.harness.artifact_store import ArtifactRef, ArtifactStore
from edictum.testing._adapter_driver import (
    AdapterDriver,
    ScriptedCall,
    make_script,
    point,
)
from edictum.testing._adapter_tools import SuiteTools, get_last_event, list_actions

SHOWN_CHARS, LONG, LAST = 2_000, 20_000, "the very end"
OWN_ARTIFACT = "art_2"  # the first is another session's
END_OF_NOTICE = "the first {:,} are shown; ask for a smaller part]"


def tell_long(key: str) -> Any:
    return f"{'x' * LONG}{LAST}"


def tell_dict(key: str) -> Any:
    return {"name": key, "text": tell_long(key), "count": 3}


def tell_rows(key: str) -> Any:
    return {"name": key, "rows": [f"row {number}" for number in range(LONG)]}


class _NamingStore(ArtifactStore):
    """Gives artifacts ids that a script can know before they are stored: art_1, art_2, ..."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._ids: dict[str, str] = {}

    def store(self, *args: Any, **options: Any) -> ArtifactRef:
        ref = super().store(*args, **options)
        name = f"art_{len(self._ids) + 1}"
        self._ids[name] = ref.artifact_id
        return replace(ref, artifact_id=name)

    def retrieve(self, artifact_id: str, session_id: str | None = None) -> str | None:
        return super().retrieve(self._ids.get(artifact_id, ""), session_id)


class LargeResultChecks(AdapterDriver):
    @point("large result")
    def test_the_model_reads_the_beginning_of_a_long_text(self, tools: SuiteTools) -> None:
        guard = Edictum()
        answer = self.call_once(guard, tools.make("tell", tell_long), max_result_chars=SHOWN_CHARS)
        assert END_OF_NOTICE.format(SHOWN_CHARS) in answer.text, answer.text[-300:]
        assert f"{LONG + len(LAST):,} characters" in answer.text, answer.text[-300:]
        assert "x" * (SHOWN_CHARS - 10) in answer.text
        assert LAST not in answer.text
        assert answer.failed in (False, None), "a shortened result is not a failure"
        assert get_last_event(guard).action == "call_executed", list_actions(guard)

    @point("large result")
    def test_a_structure_with_a_long_text_stays_a_structure(self, tools: SuiteTools) -> None:
        tool = tools.make("tell", tell_dict)
        answer = self.call_once(Edictum(), tool, max_result_chars=SHOWN_CHARS)
        assert LAST not in answer.text
        assert answer.failed in (False, None), "a shortened result is not a failure"
        assert "ask for a smaller part]" in answer.text
        stays = "count" in answer.text or not self.has_structures
        assert stays, "the structure was cut, not the text in it"

    @point("large result")
    def test_the_model_reads_the_beginning_of_a_structure_with_too_many_parts(
        self, tools: SuiteTools
    ) -> None:
        if not self.make_adapter(Edictum()).can_store:
            return  # its form is declared elsewhere, so it is not cut
        tool = tools.make("tell", tell_rows)
        answer = self.call_once(Edictum(), tool, max_result_chars=SHOWN_CHARS)
        assert END_OF_NOTICE.format(SHOWN_CHARS) in answer.text, answer.text[-300:]
        assert f"row {LONG - 1}" not in answer.text

    @point("large result")
    def test_results_are_shown_whole_without_a_limit(self, tools: SuiteTools) -> None:
        tool = tools.make("tell", tell_long)
        answer = self.call_once(Edictum(), tool, max_result_chars=None)
        assert LAST in answer.text or self.shortens_itself

    @point("large result")
    def test_a_stored_result_is_read_in_parts_by_its_session_only(self, tools: SuiteTools) -> None:
        if not self.make_adapter(Edictum()).can_store:
            return
        with TemporaryDirectory() as folder:
            self._check_reading(tools, _NamingStore(folder))

    def _check_reading(self, tools: SuiteTools, store: ArtifactStore) -> None:
        theirs = store.store("another session", tell_long(""), "tell").artifact_id
        asked = [
            {"artifact_id": key, "offset": LONG, "limit": 100} for key in (OWN_ARTIFACT, theirs)
        ]
        reads = [
            ScriptedCall("read_artifact", args, f"call_{number}")
            for number, args in enumerate(asked, 2)
        ]
        adapter = self.make_adapter(Edictum(), artifact_store=store, max_result_chars=SHOWN_CHARS)
        own = [] if self.adds_reader else [adapter.make_reader()]
        script = [*make_script("tell", "a"), *([each] for each in reads)]
        answers = self.ask(adapter, [tools.make("tell", tell_long), *own], script)
        assert OWN_ARTIFACT in answers[0].text, answers[0]
        assert len(answers[0].text) < SHOWN_CHARS, "the model reads a reference"
        assert LAST in answers[1].text, answers[1]
        assert "No artifact" in answers[2].text, answers[2]
