// What a client of the TypeScript SDK sees of a server. `node client.cjs RECORD TARGET`: the name of one of the
// records below, and a URL, with `sse:` before it for HTTP+SSE, or a command as a JSON list. Prints one JSON object.
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { ClientCredentialsProvider } = require("@modelcontextprotocol/sdk/client/auth-extensions.js");
const { SSEClientTransport } = require("@modelcontextprotocol/sdk/client/sse.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const types = require("@modelcontextprotocol/sdk/types.js");

const [record, target, ...more] = process.argv.slice(2);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const VARYING = /\d{1,2}:\d\d:\d\d( [AP]M)?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g;
const URI = "demo://resource/dynamic/text/1";

let breakStream = () => {};

// As a load balancer does: a response that is silent for too long breaks.
async function fetchImpatiently(url, init, longest) {
  const response = await fetch(url, init);
  let timer;
  const body = new TransformStream({
    start: (control) => (timer = setTimeout(() => control.error(new Error("silent for too long")), longest)),
    transform: (part, control) => (timer.refresh(), control.enqueue(part)),
    flush: () => clearTimeout(timer),
  });
  return response.body ? new Response(response.body.pipeThrough(body), response) : response;
}

// As a network does: the stream that is read breaks, without a word to the server.
function fetchBreakably(url, init) {
  if (record === "silent" && more[1]) return fetchImpatiently(url, init, Number(more[1]));
  if (init.method !== "GET") return fetch(url, init);
  const control = new AbortController();
  breakStream = () => control.abort();
  return fetch(url, { ...init, signal: AbortSignal.any([init.signal, control.signal]) });
}

function reach(options = {}) {
  if (target.startsWith("[")) {
    const [command, ...args] = JSON.parse(target);
    return new StdioClientTransport({ command, args, env: process.env, stderr: "ignore" });
  }
  if (target.startsWith("sse:")) return new SSEClientTransport(new URL(target.slice(4)));
  const reconnectionOptions = {
    initialReconnectionDelay: 100, maxReconnectionDelay: 1000, reconnectionDelayGrowFactor: 1.5, maxRetries: 5,
  };
  return new StreamableHTTPClientTransport(new URL(target), { reconnectionOptions, fetch: fetchBreakably, ...options });
}

function makeClient(seen) {
  const capabilities = { sampling: {}, elicitation: { form: {} }, roots: { listChanged: true } };
  const client = new Client({ name: "record", version: "1" }, { capabilities });
  client.setRequestHandler(types.CreateMessageRequestSchema, async ({ params }) => {
    seen.sampled = params.messages;
    return { model: "scripted", role: "assistant", content: { type: "text", text: "sampled" } };
  });
  client.setRequestHandler(types.ElicitRequestSchema, async ({ params }) => {
    seen.elicited = params.message;
    return { action: "accept", content: { name: "Ada", check: true } };
  });
  client.setRequestHandler(types.ListRootsRequestSchema, async () => ({ roots: [{ uri: "file:///root", name: "r" }] }));
  client.fallbackNotificationHandler = async ({ method, params }) => {
    if (method !== "notifications/message") (seen.notified ??= []).push([method, params?.uri]);
  };
  return client;
}

const call = (client, name, args = {}, options) =>
  client.callTool({ name, arguments: args }, undefined, { timeout: 120_000, ...options });
const withProgress = async (client) => {
  const told = [];
  const onprogress = (progress) => told.push(progress);
  const result = await call(client, "trigger-long-running-operation", { duration: 0.3, steps: 3 }, { onprogress });
  return { told: told.slice(0, 2), result }; // the last one may come after the result
};
const cancelled = async (client) => {
  const given = new AbortController();
  setTimeout(() => given.abort("enough"), 200);
  const args = { duration: 3, steps: 1 };
  return call(client, "trigger-long-running-operation", args, { signal: given.signal });
};
const until = async (holds) => {
  for (let waited = 0; !holds() && waited < 20_000; waited += 50) await sleep(50);
  return holds();
};
const complete = (client, ref, argument, context) => client.complete({ ref, argument, context });
const listPages = async (client) => {
  const pages = [];
  let cursor;
  do {
    pages.push(await client.listTools({ cursor }));
    cursor = pages.at(-1).nextCursor;
  } while (cursor);
  return pages;
};
const changes = (seen) => (seen.notified ?? []).filter(([method]) => method.endsWith("list_changed")).length;

const RECORDS = {
  everything: {
    "version": (client) => client.getServerVersion(),
    "capabilities": (client) => client.getServerCapabilities(),
    "instructions": (client) => client.getInstructions(),
    "tools": (client) => client.listTools(),
    "resources": (client) => client.listResources(),
    "templates": (client) => client.listResourceTemplates(),
    "read a text": (client) => client.readResource({ uri: URI }),
    "read a file": async (client) => client.readResource({ uri: (await client.listResources()).resources[0].uri }),
    "read what is not there": (client) => client.readResource({ uri: "demo://nothing" }),
    "prompts": (client) => client.listPrompts(),
    "simple prompt": (client) => client.getPrompt({ name: "simple-prompt" }),
    "prompt with arguments": (client) => client.getPrompt({ name: "args-prompt", arguments: { city: "Ulm" } }),
    "prompt with a resource": (client) =>
      client.getPrompt({ name: "resource-prompt", arguments: { resourceType: "Text", resourceId: "1" } }),
    "unknown prompt": (client) => client.getPrompt({ name: "nothing" }),
    "completion": (client) =>
      complete(client, { type: "ref/prompt", name: "completable-prompt" }, { name: "department", value: "S" }),
    "completion with context": (client) =>
      complete(client, { type: "ref/prompt", name: "completable-prompt" }, { name: "name", value: "A" }, {
        arguments: { department: "Engineering" },
      }),
    "set the level": (client) => client.setLoggingLevel("error"),
    "ping": (client) => client.ping(),
    "text": (client) => call(client, "echo", { message: "\u2028 \u00e4 \ud83d\ude00" }),
    "sum": (client) => call(client, "get-sum", { a: 1, b: 2 }),
    "structure": (client) => call(client, "get-structured-content", { location: "Chicago" }),
    "image": (client) => call(client, "get-tiny-image"),
    "annotations": (client) => call(client, "get-annotated-message", { messageType: "error", includeImage: true }),
    "links": (client) => call(client, "get-resource-links", { count: 3 }),
    "embedded resource": (client) =>
      call(client, "get-resource-reference", { resourceType: "Text", resourceId: 1 }),
    "bad arguments": (client) => call(client, "get-sum", { a: "one" }),
    "unknown tool": (client) => call(client, "nothing"),
    "unknown method": (client) => client.request({ method: "nothing/at-all" }, types.EmptyResultSchema),
    "sampling": async (client, seen) => [await call(client, "trigger-sampling-request", { prompt: "p" }), seen.sampled],
    "elicitation": async (client, seen) => [await call(client, "trigger-elicitation-request"), seen.elicited],
    "roots": (client) => call(client, "get-roots-list"),
    "progress": withProgress,
    "cancellation": cancelled,
    "subscribe": (client) => client.subscribeResource({ uri: URI }),
    "update": async (client, seen) => {
      await call(client, "toggle-subscriber-updates");
      return until(() => (seen.notified ?? []).some(([, uri]) => uri === URI));
    },
    "unsubscribe": (client) => client.unsubscribeResource({ uri: URI }),
    "40 calls at once": (client) =>
      Promise.all(Array.from({ length: 40 }, (_, each) => call(client, "get-sum", { a: each, b: 1000 }))),
  },
  own: {
    "pages": listPages,
    "3 MB": async (client) => (await call(client, "large", { size: 3_000_000 })).content[0].text.length,
    "list changed": async (client, seen) => [await call(client, "announce"), await until(() => changes(seen) === 1)],
  },
  // --- Over HTTP
  silent: { "silence": (client) => call(client, "silent", { ms: Number(more[0]) }) },
  polled: { "early closed": (client) => call(client, "polled", { ms: 500 }) },
  reconnect: {
    "the server hangs up": async (client, seen) => {
      await call(client, "hang_up");
      await sleep(500);
      return [await call(client, "announce"), await until(() => changes(seen) === 1)];
    },
    "the network breaks": async (client, seen) => {
      const before = changes(seen);
      breakStream();
      await sleep(1000);
      return [await call(client, "announce"), await until(() => changes(seen) > before)];
    },
  },
  oauth: { "pages": listPages },
};

function makeOptions() {
  if (record !== "oauth") return {};
  const known = { clientId: "client", clientSecret: "secret", expectedIssuer: more[0] };
  return { authProvider: new ClientCredentialsProvider(known) };
}

async function main() {
  const [seen, found] = [{}, {}];
  const client = makeClient(seen);
  await client.connect(reach(makeOptions()));
  for (const [name, ask] of Object.entries(RECORDS[record]))
    found[name] = await Promise.resolve(ask(client, seen)).catch((error) => ({
      error: [error.name, error.code, error.message],
    }));
  await client.close();
  console.log(JSON.stringify(found, (_, value) => (typeof value === "string" ? value.replace(VARYING, "VARIES") : value)));
}

main().then(
  () => process.exit(0),
  (error) => (console.error(error), process.exit(1)),
);
