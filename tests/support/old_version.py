"""Makes calls, one for each line that it reads: run with an older version of the library before
this one on its path.
"""

from __future__ import annotations

import json
import sys

from edictum import Edictum, OperationLimits
from edictum.errors import EdictumConfigError

url, maximum = sys.argv[1], int(sys.argv[2])
tools = {"work": {"side_effect": "read"}}
limits = OperationLimits(max_tool_calls=maximum)
try:
    guard = Edictum(limits=limits, backend=url, tools=tools)
except EdictumConfigError as exc:
    print(json.dumps(["refused", str(exc)]), flush=True)
    sys.exit()
print(json.dumps(["ready", ""]), flush=True)
for line in sys.stdin:
    outcome = guard.dispatch_sync("work", {}, lambda: "done", session_id=line.strip())
    said = [type(outcome).__name__, getattr(outcome, "details", "")]
    print(json.dumps(said), flush=True)
