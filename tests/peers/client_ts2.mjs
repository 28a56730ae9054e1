// A caller on the TypeScript SDK 2.x that plays a script in either generation and prints what it saw, over HTTP or stdio.
// Tasks go through `@modelcontextprotocol/ext-tasks`, in both generations.

import { Notebook, commonActions, options, perform, report } from './script.mjs';

// An import resolves from this file, where no packages are; ext-tasks needs the very classes of the client it imports itself.
const packages = new URL('../../.peers/ts2/node_modules/@modelcontextprotocol/', import.meta.url);
const { Client, StreamableHTTPClientTransport } = await import(new URL('client/dist/index.mjs', packages));
const { StdioClientTransport } = await import(new URL('client/dist/stdio.mjs', packages));

const version = '2026-07-28';
const clientInfo = { name: 'client-ts2', version: '1.0.0' };
const chosen = options();
const notebook = new Notebook();
const capabilities = chosen.alone ? {} : { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
const client = new Client(clientInfo, {
    capabilities,
    versionNegotiation: chosen.stateless ? { mode: { pin: version } } : { mode: 'legacy' }
});
if (!chosen.alone) {
    client.setRequestHandler('elicitation/create', ({ params }) => notebook.elicit(params));
    client.setRequestHandler('sampling/createMessage', ({ params }) => notebook.sample(params));
    client.setRequestHandler('roots/list', () => notebook.roots());
}
client.setNotificationHandler('notifications/message', ({ params }) => {
    notebook.logs.push([params.level, params.data]);
});
for (const method of ['notifications/tools/list_changed', 'notifications/resources/updated']) {
    client.setNotificationHandler(method, () => notebook.notice(method));
}

const [program, ...rest] = chosen.command ?? [];
const transport = chosen.url
    ? new StreamableHTTPClientTransport(new URL(chosen.url))
    : new StdioClientTransport({ command: program, args: rest, stderr: 'inherit' });
await client.connect(transport);

let logLevel = {};
const actions = commonActions(client, notebook, (params, more) => client.callTool({ ...params, ...logLevel }, more));

if (chosen.stateless) {
    // Stateless requests ask for logging one by one, and changes are followed on a listen stream.
    actions.level = async ({ level }) => {
        logLevel = { _meta: { 'io.modelcontextprotocol/logLevel': level } };
        return {};
    };
    let subscription;
    actions.watch = async ({ uri }) => {
        subscription = await client.listen({ toolsListChanged: true, resourceSubscriptions: [uri] });
        return {};
    };
    actions.unwatch = async () => (await subscription?.close(), {});
    actions.ping = async () => ({});
    actions.tools = async () => (await client.listTools({}, { cacheMode: 'refresh' })).tools.map(tool => tool.name);
}

actions.task = async ({ name, arguments: given, cancel }) => {
    const tasks = await import(new URL('ext-tasks/dist/client/index.js', packages));
    const tools = (await client.listTools()).tools.map(tasks.toolDeclarationFromMcpTool);
    const answer = { elicitation: 'elicit', sampling: 'sample', roots: 'roots' };
    const session = tasks.createTaskSessionFromClient(client, {
        endpointId: 'upstream',
        tools: { currentTool: wanted => tools.find(tool => tool.name === wanted) },
        ...(!chosen.alone && { onInputRequest: async ({ kind, params }) => notebook[answer[kind]](params) }),
        ...(chosen.stateless && { rawDispatch: post, v2RequestFraming: framing() })
    });
    try {
        const execution = await session.callTool(name, given, { task: { preference: 'prefer' } });
        if (cancel) await execution.cancel();
        const { outcome } = await execution.settle();
        return { status: outcome.status, result: outcome.result, error: outcome.error?.message };
    } finally {
        await session.close();
    }
};

function framing() {
    const extensions = { 'io.modelcontextprotocol/tasks': {} };
    return { protocolVersion: version, clientInfo, clientCapabilities: { ...capabilities, extensions } };
}

// The SDK's own codecs refuse task results, so ext-tasks sends its requests itself: over HTTP, or on the pipe of the client.
let posted = 0;
const written = new Map();
function post(request) {
    return chosen.url ? postOverHttp(request) : write(request);
}

async function write({ method, params }) {
    if (!written.size) {
        const ofClient = transport.onmessage;
        transport.onmessage = (message, extra) => {
            const answer = 'method' in message ? undefined : written.get(message.id);
            return answer ? answer(message) : ofClient(message, extra);
        };
    }
    const id = `raw-${++posted}`;
    const answered = new Promise(resolve => written.set(id, resolve));
    await transport.send({ jsonrpc: '2.0', id, method, params });
    const { result, error } = await answered;
    return error ? { kind: 'error', error } : { kind: 'result', result };
}

async function postOverHttp({ method, params }) {
    const name = params.name ?? params.taskId;
    const response = await fetch(chosen.url, {
        method: 'POST',
        headers: {
            'content-type': 'application/json',
            accept: 'application/json, text/event-stream',
            'mcp-protocol-version': version,
            'mcp-method': method,
            ...(name && { 'mcp-name': name })
        },
        body: JSON.stringify({ jsonrpc: '2.0', id: `raw-${++posted}`, method, params })
    });
    const body = await response.text();
    const events = body.split('\n').filter(line => line.startsWith('data: {'));
    const { result, error } = JSON.parse(events.length ? events.at(-1).slice(6) : body);
    return error ? { kind: 'error', error } : { kind: 'result', result };
}

await report(await perform(chosen.script, actions, notebook));
await client.close();
process.exit(0);
