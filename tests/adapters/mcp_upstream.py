"""An ordinary MCP server that knows nothing of us, for both generations of the SDK:
``mcp_upstream.py stdio | http PORT``.
"""

from __future__ import annotations

import sys
from typing import Any

try:
    from mcp.server.mcpserver import Context, MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

server: Any = MCPServer(
    "upstream", instructions="Ask for one thing at a time.", log_level="CRITICAL"
)


@server.tool()
def lookup(key: str) -> str:
    """Look something up."""
    print("RAN", key, file=sys.stderr, flush=True)
    return f"the number of {key} is 123-45-6789"


@server.tool()
def person(key: str) -> dict[str, Any]:
    """Find a person."""
    return {"name": key, "ssn": "123-45-6789"}


@server.tool()
async def fall(key: str) -> str:
    """Fail."""
    raise ValueError("no luck")


@server.tool()
async def slow(key: str, ctx: Context) -> str:  # type: ignore[type-arg]
    """Report on the way."""
    await ctx.report_progress(1, 2)
    return f"slow {key}"


@server.resource("data://one")
def one() -> str:
    return "resource one"


@server.resource("data://{name}/record")
def record(name: str) -> str:
    return f"record of {name}"


@server.prompt()
def hello(name: str) -> str:
    return f"hello {name}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        import uvicorn

        uvicorn.run(
            server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="error"
        )
