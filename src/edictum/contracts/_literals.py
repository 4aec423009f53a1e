"""Find values in conditions that were probably meant as selectors."""

from __future__ import annotations

from edictum.contracts._problems import Problems
from edictum.contracts._selectors import CustomSelectors, SelectorError, parse_selector
from edictum.contracts._tree import Scalar

# Other roots are the beginnings of file names too: metadata.json, output.txt, env.local.
_TELLING_ROOTS = ("args", "principal", "session", "tool")


def warn_about_literal(
    place: Scalar, operator: str, custom: CustomSelectors, problems: Problems
) -> None:
    """Warn about a value that is compared as text and looks like a selector."""
    text = place.value
    if not isinstance(text, str) or "." not in text or not _is_selector(text, custom):
        return
    message = f"'{text}' is compared as text, not as the field of this name"
    field = f"{{{operator}: {{field: {text}}}}}"
    hint = f"To compare with the field write {field}; if the text is meant, ignore this."
    problems.warn(place, message, hint)


def _is_selector(text: str, custom: CustomSelectors) -> bool:
    try:
        selector = parse_selector(text, custom)
    except SelectorError:
        return False
    return selector.root in _TELLING_ROOTS or selector.root in custom
