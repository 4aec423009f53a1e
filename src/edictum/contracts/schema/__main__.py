"""Print the JSON Schema of a bundle: ``python -m edictum.contracts.schema``."""

import json
import sys

from edictum.contracts.schema import bundle_schema

sys.stdout.write(json.dumps(bundle_schema(), indent=2) + "\n")
