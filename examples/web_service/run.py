"""A support service for many users, whose agent is governed. It needs no network.

make service                                   in a venv of its own
python examples/web_service/run.py --workers 2 --port 8000
python examples/web_service/run.py --token alice
python examples/web_service/run.py --token carol --role staff
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import uvicorn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from tokens import Caller, Tokens  # noqa: E402 - found beside this file, from any directory


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--grace", type=int, default=30, help="seconds for requests to end in")
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / ".build" / "web_service")
    parser.add_argument("--token", metavar="USER", help="print a token of a user, and end")
    parser.add_argument("--role", default="customer", choices=["customer", "staff"])
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    data = options.data.resolve()
    tokens = Tokens.open(data / "token.key")
    if options.token:
        print(tokens.make(Caller(options.token, options.role)))
        return
    os.environ["SERVICE_DATA"] = str(data)  # workers are processes of their own
    os.environ.setdefault("SERVICE_URL", f"http://{options.host}:{options.port}")
    os.environ.setdefault("EDICTUM_STORE", f"sqlite:///{data / 'sessions.db'}")
    uvicorn.run(
        "service:make_app",
        factory=True,
        app_dir=str(HERE),
        host=options.host,
        port=options.port,
        workers=options.workers,
        timeout_keep_alive=75,  # longer than clients and proxies keep a connection
        timeout_worker_healthcheck=30,  # a worker on a busy machine is not taken for a hung one
        timeout_graceful_shutdown=options.grace,
    )


if __name__ == "__main__":
    main()
