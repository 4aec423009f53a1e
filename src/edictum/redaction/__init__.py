"""Find secrets and personal data in text."""

from edictum.core.secret_scan import Detection, use_finder
from edictum.redaction._engine import make_finder

__all__ = ["Detection"]

use_finder(make_finder)
