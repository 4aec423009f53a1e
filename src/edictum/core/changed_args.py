"""Changed arguments: a person approves a call with arguments other than it was made with.

The person has seen the arguments without secrets. So an argument that comes back as it was shown
stays as it was in the call, and a changed one must not contain the placeholder of a secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edictum.core.call import ToolCall
from edictum.core.secret_patterns import REDACTED
from edictum.core.values import dumps, is_same
from edictum.errors import EdictumInputError


def compare_args(shown: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a person has changed or added, as JSON data."""
    before, after = json.loads(dumps(shown)), json.loads(dumps(wanted))
    return {
        name: value
        for name, value in after.items()
        if name not in before or not is_same(before[name], value)
    }


def find_hidden(shown: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return the name of a changed argument that contains the placeholder of a secret, which no
    tool could use; None if none does.
    """
    changes = compare_args(shown, wanted)
    return next((name for name, value in changes.items() if REDACTED in dumps(value)), None)


def change_args(
    call: ToolCall, shown: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that a person wants, together with those that stay as they are in the
    call.

    A default that comes back as it was shown stays left out. Raises EdictumInputError for arguments
    that the call cannot have.
    """
    if not isinstance(wanted, Mapping) or not all(isinstance(name, str) for name in wanted):
        raise EdictumInputError("Changed arguments are a mapping of names to values.")
    if (hidden := find_hidden(shown, wanted)) is not None:
        raise EdictumInputError(f"The changed argument {hidden!r:.80} holds {REDACTED}.")
    changes, known = compare_args(shown, wanted), call.effective_args
    for name in wanted:
        if name not in changes and name not in known:  # its name was hidden as well
            raise EdictumInputError(f"The call has no argument {name!r:.80}.")
    args = call.args
    named = [name for name in wanted if name in changes or name in args]
    return {name: changes[name] if name in changes else args[name] for name in named}
