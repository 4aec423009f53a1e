"""``python -m edictum``: the same as ``edictum``."""

from __future__ import annotations

import sys

from edictum.cli.main import main

sys.exit(main())
