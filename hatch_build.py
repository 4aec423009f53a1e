"""Write the JSON Schema of bundles into wheels, where editors find it. Needs hatchling alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCHEMA = "edictum/contracts/schema/bundle.schema.json"


class SchemaHook(BuildHookInterface[Any]):
    """Print the schema from the sources being built, and add it to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.printed = Path(tempfile.mkdtemp()) / "bundle.schema.json"
        # A process of its own: this one may have imported another edictum.
        environment = {**os.environ, "PYTHONPATH": str(Path(self.root) / "src")}
        command = [sys.executable, "-m", "edictum.contracts.schema"]
        with self.printed.open("wb") as file:
            subprocess.run(command, env=environment, check=True, stdout=file)  # noqa: S603 - fixed words
        build_data["force_include"][str(self.printed)] = SCHEMA

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.printed.parent)
