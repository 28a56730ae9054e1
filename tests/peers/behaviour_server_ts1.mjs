// The behaviour server on the TypeScript SDK 1.x: 2025-11-25 only, with its experimental tasks, over HTTP or stdio.
//     node behaviour_server_ts1.mjs --http 9100 | --stdio

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import * as content from './behaviour_content.mjs';

const require = createRequire(new URL('../../.peers/ts1/package.json', import.meta.url));
const { Server } = require('@modelcontextprotocol/sdk/server/index.js');
const { StdioServerTransport } = require('@modelcontextprotocol/sdk/server/stdio.js');
const { StreamableHTTPServerTransport } = require('@modelcontextprotocol/sdk/server/streamableHttp.js');
const { InMemoryTaskStore, InMemoryTaskMessageQueue } = require('@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js');
const wire = require('@modelcontextprotocol/sdk/types.js');

const { text, pause, nameForm } = content;
const taskStore = new InMemoryTaskStore();
const taskMessageQueue = new InMemoryTaskMessageQueue();
const watchers = new Map();
let extra = {};

function makeServer() {
    const server = new Server(
        { name: 'behaviour-ts1', version: '1.0.0' },
        {
            capabilities: {
                tools: { listChanged: true },
                resources: { listChanged: true, subscribe: true },
                prompts: { listChanged: true },
                completions: {},
                logging: {},
                tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } }
            },
            taskStore,
            taskMessageQueue
        }
    );
    const handle = (schema, handler) => server.setRequestHandler(schema, handler);

    handle(wire.ListToolsRequestSchema, () => ({ tools: withTaskSupport(content.listTools({ ...content.workTools, ...extra })) }));
    handle(wire.CallToolRequestSchema, ({ params }, context) => {
        const tool = content.plainTools[params.name] ?? askingTools[params.name];
        if (tool === undefined) throw content.failure(-32602, `Unknown tool: ${params.name}`);
        return tool(params.arguments ?? {}, context, params);
    });
    handle(wire.ListResourcesRequestSchema, () => ({ resources: content.resources }));
    handle(wire.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: content.resourceTemplates }));
    handle(wire.ReadResourceRequestSchema, ({ params }) => content.readMemo(params.uri, -32002));
    handle(wire.SubscribeRequestSchema, ({ params }) => (watchers.set(server, params.uri), {}));
    handle(wire.UnsubscribeRequestSchema, () => (watchers.delete(server), {}));
    handle(wire.ListPromptsRequestSchema, () => ({ prompts: content.prompts }));
    handle(wire.GetPromptRequestSchema, ({ params }) => content.getPrompt(params));
    handle(wire.CompleteRequestSchema, ({ params }) => content.complete(params));

    const askName = (context, message, options) =>
        context.sendRequest(
            { method: 'elicitation/create', params: { mode: 'form', message, requestedSchema: nameForm } },
            wire.ElicitResultSchema,
            options
        );

    const askingTools = {
        async slow({ seconds, steps }, context) {
            for (let step = 1; step <= steps; step += 1) {
                const progressToken = context._meta?.progressToken;
                const params = { progressToken, progress: step, total: steps, message: `step ${step}` };
                if (progressToken !== undefined) await context.sendNotification({ method: 'notifications/progress', params });
                await pause(seconds / steps);
            }
            return text(`done after ${steps} steps`);
        },
        async ask(_, context) {
            const answer = await askName(context, 'What is your name?');
            return text(`${answer.action}:${answer.content?.name}`);
        },
        async ask_twice(_, context) {
            const first = await askName(context, 'What is the first name?');
            const second = await askName(context, 'What is the second name?');
            return text(`${first.content.name} and ${second.content.name}`);
        },
        async ask_url(_, context) {
            const params = { mode: 'url', message: 'Please sign in', url: 'https://example.test/sign', elicitationId: 'sign-1' };
            return text((await context.sendRequest({ method: 'elicitation/create', params }, wire.ElicitResultSchema)).action);
        },
        async sample(_, context) {
            const request = { method: 'sampling/createMessage', params: content.samplingParams };
            const answer = await context.sendRequest(request, wire.CreateMessageResultSchema);
            return text(`the model said: ${answer.content.text}`);
        },
        async roots(_, context) {
            const { roots } = await context.sendRequest({ method: 'roots/list' }, wire.ListRootsResultSchema);
            return text(roots.map(root => root.uri).join(','));
        },
        async log(_, context) {
            for (const [level, data] of content.logLines) {
                await context.sendNotification({ method: 'notifications/message', params: { level, logger: 'peer', data } });
            }
            return text('logged');
        },
        async update() {
            for (const [watcher, uri] of watchers) await watcher.sendResourceUpdated({ uri }).catch(() => watchers.delete(watcher));
            return text('updated');
        },
        async mutate() {
            extra = content.grown(extra);
            await server.sendToolListChanged();
            return text('mutated');
        },
        work: ({ seconds }, context, params) =>
            maybeAsTask(context, params, async () => {
                await pause(seconds);
                return text('worked');
            }),
        work_asking: (_, context, params) =>
            maybeAsTask(context, params, async task => {
                const options = task && { relatedTask: { taskId: task.taskId } };
                const answer = await askName(context, 'What is your name?', options);
                return text(`${answer.action}:${answer.content?.name}`);
            })
    };
    return server;
}

function withTaskSupport(tools) {
    for (const tool of tools) if (tool.name in content.workTools) tool.execution = { taskSupport: 'optional' };
    return tools;
}

// Runs the work in the background when the caller asked for a task, otherwise at once.
async function maybeAsTask(context, params, work) {
    if (params.task === undefined) return work();
    const task = await context.taskStore.createTask({ ttl: params.task.ttl ?? 60_000, pollInterval: 50 });
    work(task).then(
        result => context.taskStore.storeTaskResult(task.taskId, 'completed', result),
        error => context.taskStore.storeTaskResult(task.taskId, 'failed', text(error.message, { isError: true }))
    );
    return { task };
}

async function body(request) {
    const parts = [];
    for await (const part of request) parts.push(part);
    return parts.length ? JSON.parse(Buffer.concat(parts).toString()) : undefined;
}

function serveHttp(port) {
    const transports = new Map();
    createServer(async (request, response) => {
        const parsed = request.method === 'POST' ? await body(request) : undefined;
        let transport = transports.get(request.headers['mcp-session-id']);
        if (transport === undefined && parsed?.method === 'initialize') {
            transport = new StreamableHTTPServerTransport({
                sessionIdGenerator: randomUUID,
                onsessioninitialized: id => transports.set(id, transport)
            });
            await makeServer().connect(transport);
        }
        if (transport === undefined) {
            const known = request.headers['mcp-session-id'] === undefined;
            const error = { code: -32000, message: known ? 'Bad Request: no session' : 'Session not found' };
            response.writeHead(known ? 400 : 404, { 'content-type': 'application/json' });
            response.end(JSON.stringify({ jsonrpc: '2.0', error, id: null }));
            return;
        }
        await transport.handleRequest(request, response, parsed);
    }).listen(port, '127.0.0.1');
}

if (process.argv[2] === '--http') serveHttp(Number(process.argv[3]));
else await makeServer().connect(new StdioServerTransport());
