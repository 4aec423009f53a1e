"""Print the JSON Schema from the loader's grammar: ``python -m edictum.contracts.schema >
bundle.schema.json``.
"""

import json
import sys

from edictum.contracts.grammar import bundle_schema

sys.stdout.write(json.dumps(bundle_schema(), indent=2) + "\n")
