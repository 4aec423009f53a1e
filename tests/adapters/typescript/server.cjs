// A server of the TypeScript SDK for what server-everything does not do: pages, large results, silence,
// streams that it closes early, and OAuth. `node server.cjs stdio | http PORT | oauth PORT`
const http = require("node:http");
const { randomUUID } = require("node:crypto");
const { Server } = require("@modelcontextprotocol/sdk/server/index.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { InMemoryEventStore } = require("@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js");
const types = require("@modelcontextprotocol/sdk/types.js");

const PAGE = 2;
const TOKEN = "the-token";
const [mode, port] = process.argv.slice(2);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const text = (said) => ({ content: [{ type: "text", text: said }] });

const TOOLS = {
  large: async ({ size }) => text("x".repeat(size)),
  silent: async ({ ms }) => (await sleep(ms), text("after a silence")),
  // closes the stream of the call, and answers on the one with which the client goes on
  polled: async ({ ms }, extra) => (extra.closeSSEStream?.(), await sleep(ms), text("polled")),
  // closes the stream of the server's own messages
  hang_up: async (_, extra) => (extra.closeStandaloneSSEStream?.(), text("hung up")),
  announce: async (_, extra) => {
    await sleep(50);
    await extra.server.sendToolListChanged();
    return text("announced");
  },
};

function makeServer() {
  const server = new Server({ name: "own", version: "1" }, { capabilities: { tools: { listChanged: true } } });
  const names = Object.keys(TOOLS);
  server.setRequestHandler(types.ListToolsRequestSchema, async ({ params }) => {
    const start = Number(params?.cursor ?? 0);
    const tools = names.slice(start, start + PAGE).map((name) => ({ name, inputSchema: { type: "object" } }));
    return start + PAGE < names.length ? { tools, nextCursor: String(start + PAGE) } : { tools };
  });
  server.setRequestHandler(types.CallToolRequestSchema, async ({ params }, extra) =>
    TOOLS[params.name](params.arguments ?? {}, { ...extra, server }),
  );
  return server;
}

const transports = new Map();

async function findTransport(request) {
  const known = transports.get(request.headers["mcp-session-id"]);
  if (known) return known;
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new InMemoryEventStore(),
    retryInterval: 100,
    onsessioninitialized: (id) => transports.set(id, transport),
  });
  await makeServer().connect(transport);
  return transport;
}

function serveOAuth(request, response) {
  const here = `http://127.0.0.1:${port}`;
  const reply = (body) => response.setHeader("content-type", "application/json").end(JSON.stringify(body));
  const metadata = {
    issuer: here,
    authorization_endpoint: `${here}/authorize`,
    token_endpoint: `${here}/token`,
    response_types_supported: ["code"],
    grant_types_supported: ["client_credentials"],
    token_endpoint_auth_methods_supported: ["client_secret_basic"],
  };
  if (request.url === "/.well-known/oauth-protected-resource/mcp")
    reply({ resource: `${here}/mcp`, authorization_servers: [here] });
  else if (request.url === "/.well-known/oauth-authorization-server") reply(metadata);
  else if (request.url === "/token") reply({ access_token: TOKEN, token_type: "Bearer" });
  else if (request.headers.authorization === `Bearer ${TOKEN}`) return false;
  else {
    const place = `${here}/.well-known/oauth-protected-resource/mcp`;
    response.writeHead(401, { "www-authenticate": `Bearer resource_metadata="${place}"` }).end();
  }
  return true;
}

if (mode === "stdio") makeServer().connect(new StdioServerTransport());
else
  http
    .createServer(async (request, response) => {
      if (mode === "oauth" && serveOAuth(request, response)) return;
      await (await findTransport(request)).handleRequest(request, response);
    })
    .listen(Number(port), "127.0.0.1");
