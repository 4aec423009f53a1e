"""How gunicorn runs ``operated_service``."""

from __future__ import annotations

import asyncio
from typing import Any

preload_app = True
workers = 4
worker_class = "gthread"
threads = 2
timeout = 120
graceful_timeout = 30
control_socket_disable = True


def worker_exit(_server: Any, _worker: Any) -> None:
    """Count what ran, and close the guard, at the end of a worker."""
    from operated_service import guard

    asyncio.run(guard.close())
