"""Check cases before they run: a key or a word that is ignored would make a case test nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime

from edictum.approval.port import ApprovalStatus
from edictum.contracts._problems import Place, Problems, join_words, suggest
from edictum.contracts._tree import Map, Scalar, Seq, Tree, describe_value, to_plain
from edictum.core.call import Principal

CASES_FILE_KEYS = ("bundle", "cases")
PERSON_ANSWERS = (ApprovalStatus.APPROVED, ApprovalStatus.DENIED, ApprovalStatus.TIMEOUT)
OPTIONS_OF_CALLS = ("environment", "metadata", "amounts", "session_id", "parent_session_id")
CALL_KEYS = ("tool", "args", "principal", *OPTIONS_OF_CALLS)
BODY_KEYS = ("result", "error", "approval")
EARLIER_KEYS = (*CALL_KEYS, *BODY_KEYS, "times", "wait")
CASE_KEYS = (
    *("note", "bundle", "when", "success", "tools", "mode"),
    *("call", "session", *BODY_KEYS, "env", "now", "want"),
)
COUNTS = ("attempts", "executions", "successes", "failures", "consecutive_failures")
# the possible results, where they are a fixed set of words
WORDS: Mapping[str, tuple[str, ...]] = {
    "decision": ("allow", "deny", "approve"),
    "outcome": ("executed", "failed", "timeout", "denied"),
    "mode": ("enforce", "observe"),
}
FLAGS = ("policy_error", "success")


class CaseChecker:
    """Reports what is wrong with the cases of one file, each problem with its place."""

    def __init__(self, problems: Problems, wants: Collection[str]) -> None:
        self._problems = problems
        self._wants = (*wants, "load_error")

    def check_file(self, tree: Tree) -> list[Map]:
        """Return the cases that are mappings."""
        listed: Tree | None = tree
        if isinstance(tree, Map):
            self._check_keys(tree, CASES_FILE_KEYS, "of a file with cases")
            listed = tree.values.get("cases")
        if not isinstance(listed, Seq):
            hint = "Write a list, or a mapping with 'cases:'."
            self._problems.add(listed or tree, "a list of cases is missing", hint)
            return []
        cases = [case for item in listed.items if (case := self._as_map(item, "a case"))]
        for case in cases:
            self._check_case(case)
        return cases

    def _check_case(self, case: Map) -> None:
        self._check_keys(case, CASE_KEYS, "of a case")
        note = case.values.get("note")
        if not isinstance(note, Scalar) or not isinstance(note.value, str):
            self._problems.add(note or case, "a case needs a note", "Write 'note: a/name'.")
        want = case.values.get("want")
        if not isinstance(want, Map) or not want.values:
            hint = "Write for example 'want: {decision: deny}'."
            self._problems.add(want or case, "a case needs what is wanted", hint)
        else:
            self._check_want(want)
        self._check_call(case.values.get("call"), CALL_KEYS, "under 'call'")
        self._check_answer(case.values.get("approval"))
        self._check_time(case.values.get("now"))
        self._check_words(case, {"mode": WORDS["mode"]})
        self._check_earlier(case.values.get("session"))

    def _check_earlier(self, session: Tree | None) -> None:
        if session is None:
            return
        if not isinstance(session, Seq):
            hint = "Write a list of the calls before this one."
            self._problems.add(session, f"'session' is {describe_value(session)}", hint)
            return
        for call in session.items:
            self._check_call(call, EARLIER_KEYS, "of an earlier call")
            if isinstance(call, Map):
                self._check_answer(call.values.get("approval"))
                self._check_numbers(call)

    def _check_call(self, tree: Tree | None, known: tuple[str, ...], where: str) -> None:
        call = None if tree is None else self._as_map(tree, "a call")
        if call is None:
            return
        self._check_keys(call, known, where)
        for key in ("args", "principal", "metadata", "amounts"):
            if key in call.values:
                self._as_map(call.values[key], f"'{key}'")
        principal = call.values.get("principal")
        if isinstance(principal, Map):
            names = tuple(field.name for field in fields(Principal))
            self._check_keys(principal, names, "of a principal")

    def _check_answer(self, answer: Tree | None) -> None:
        if isinstance(answer, Map):
            self._check_keys(answer, ("answer", "approver", "reason"), "under 'approval'")
            if "answer" not in answer.values:
                self._problems.add(answer, "'approval' has no answer", _list_words(PERSON_ANSWERS))
            self._check_words(answer, {"answer": PERSON_ANSWERS})
        elif answer is not None:
            self._check_word(answer, "approval", PERSON_ANSWERS)

    def _check_time(self, now: Tree | None) -> None:
        if now is None:
            return
        try:
            datetime.fromisoformat(str(to_plain(now)))
        except ValueError:
            hint = "Write for example 'now: 2026-11-17T09:30'."
            self._problems.add(now, f"'now' is {describe_value(now)}", hint)

    def _check_want(self, want: Map) -> None:
        self._check_keys(want, self._wants, "under 'want'")
        self._check_words(want, WORDS)
        counts = want.values.get("counts")
        if counts is not None and (found := self._as_map(counts, "'counts'")):
            self._check_keys(found, COUNTS, "under 'counts'")
        for key in FLAGS:
            flag = want.values.get(key)
            if flag is not None and not (isinstance(flag, Scalar) and type(flag.value) is bool):
                message = f"'{key}' is {describe_value(flag)}"
                self._problems.add(flag, message, "Write true or false.")

    def _check_numbers(self, call: Map) -> None:
        for key in ("times", "wait"):
            number = call.values.get(key)
            kinds = (int,) if key == "times" else (int, float)
            if number is not None and (
                not isinstance(number, Scalar) or type(number.value) not in kinds
            ):
                message = f"'{key}' is {describe_value(number)}"
                hint = "Write a whole number." if key == "times" else "Write a number of seconds."
                self._problems.add(number, message, hint)
        if "wait" in call.values and len(call.values) > 1:
            message = "'wait' stands alone: no call is made"
            self._problems.add(call.keys["wait"], message, "Make an item of its own for it.")

    def _check_words(self, tree: Map, words: Mapping[str, tuple[str, ...]]) -> None:
        for key, known in words.items():
            if key in tree.values:
                self._check_word(tree.values[key], key, known)

    def _check_word(self, tree: Tree, key: str, known: tuple[str, ...]) -> None:
        word = tree.value if isinstance(tree, Scalar) else None
        if word not in known:
            hint = suggest(str(word), known) + _list_words(known)
            self._problems.add(tree, f"'{key}' cannot be {describe_value(tree)}", hint)

    def _check_keys(self, tree: Map, known: Collection[str], where: str) -> None:
        for key, place in tree.keys.items():
            if key not in known:
                hint = f"{suggest(key, known)}Known keys: {join_words(sorted(known))}."
                self._problems.add(place, f"unknown key '{key}' {where}", hint)

    def _as_map(self, tree: Tree, what: str) -> Map | None:
        if isinstance(tree, Map):
            return tree
        place: Place = tree
        self._problems.add(place, f"{what} is {describe_value(tree)}", "Write a mapping.")
        return None


def _list_words(known: tuple[str, ...]) -> str:
    return f"Use one of: {', '.join(known)}."
