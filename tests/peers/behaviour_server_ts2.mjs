// The behaviour server on the TypeScript SDK 2.x: 2026-07-28 over HTTP, and whatever the client opens with over stdio.
//     node behaviour_server_ts2.mjs --http 9100 | --stdio
// Questions are returned as `input_required`; over stdio to a 2025 client the SDK turns them into pushed requests by itself.

import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import * as content from './behaviour_content.mjs';

const require = createRequire(new URL('../../.peers/ts2/package.json', import.meta.url));
const { Server, createMcpHandler, inputRequired, ProtocolError } = require('@modelcontextprotocol/server');
const { serveStdio } = require('@modelcontextprotocol/server/stdio');
const { toNodeHandler } = require('@modelcontextprotocol/node');

const { text, pause, nameForm } = content;
const fresh = { ttlMs: 60_000, cacheScope: 'public' };
let extra = {};
let announce = {};

function makeServer() {
    const server = new Server(
        { name: 'behaviour-ts2', version: '1.0.0' },
        {
            capabilities: {
                tools: { listChanged: true },
                resources: { listChanged: true, subscribe: true },
                prompts: { listChanged: true },
                completions: {},
                logging: {}
            }
        }
    );
    const subscribed = new Set();
    const handle = (method, handler) => server.setRequestHandler(method, asProtocolError(handler));

    handle('tools/list', () => ({ tools: content.listTools({ ...content.workTools, ...extra }), ...fresh }));
    handle('tools/call', ({ params }, context) => {
        const tool = content.plainTools[params.name] ?? askingTools[params.name];
        if (tool === undefined) throw content.failure(-32602, `Unknown tool: ${params.name}`);
        return tool(params.arguments ?? {}, context);
    });
    handle('resources/list', () => ({ resources: content.resources, ...fresh }));
    handle('resources/templates/list', () => ({ resourceTemplates: content.resourceTemplates, ...fresh }));
    handle('resources/read', ({ params }) => ({ ...content.readMemo(params.uri, -32602), ...fresh }));
    handle('resources/subscribe', ({ params }) => (subscribed.add(params.uri), {}));
    handle('resources/unsubscribe', ({ params }) => (subscribed.delete(params.uri), {}));
    handle('prompts/list', () => ({ prompts: content.prompts, ...fresh }));
    handle('prompts/get', ({ params }) => content.getPrompt(params));
    handle('completion/complete', ({ params }) => content.complete(params));

    const askName = message => ({
        method: 'elicitation/create',
        params: { mode: 'form', message, requestedSchema: nameForm }
    });

    const askingTools = {
        async slow({ seconds, steps }, context) {
            for (let step = 1; step <= steps; step += 1) {
                const progressToken = context.mcpReq._meta?.progressToken;
                const params = { progressToken, progress: step, total: steps, message: `step ${step}` };
                if (progressToken !== undefined) await context.mcpReq.notify({ method: 'notifications/progress', params });
                await pause(seconds / steps);
            }
            return text(`done after ${steps} steps`);
        },
        ask: (_, context) =>
            afterAsking(context, { name: askName('What is your name?') }, ({ name }) => text(`${name.action}:${name.content?.name}`)),
        ask_twice: (_, context) =>
            afterAsking(context, { first: askName('What is the first name?') }, ({ first }) =>
                afterAsking(
                    context,
                    { second: askName('What is the second name?') },
                    ({ second }) => text(`${first.content.name} and ${second.content.name}`),
                    { first }
                )
            ),
        ask_url: (_, context) =>
            afterAsking(
                context,
                { sign: inputRequired.elicitUrl({ message: 'Please sign in', url: 'https://example.test/sign' }) },
                ({ sign }) => text(sign.action)
            ),
        sample: (_, context) =>
            afterAsking(context, { model: inputRequired.createMessage(content.samplingParams) }, ({ model }) =>
                text(`the model said: ${model.content.text}`)
            ),
        roots: (_, context) =>
            afterAsking(context, { roots: inputRequired.listRoots() }, ({ roots }) => text(roots.roots.map(root => root.uri).join(','))),
        async log(_, context) {
            for (const [level, data] of content.logLines) await context.mcpReq.log(level, data, 'peer');
            return text('logged');
        },
        async update(_, context) {
            const uri = 'memo://watched';
            if (announce.updated) announce.updated(uri);
            else if (subscribed.has(uri) || context.mcpReq.envelope) await server.sendResourceUpdated({ uri });
            return text('updated');
        },
        async work({ seconds }) {
            await pause(seconds);
            return text('worked');
        },
        work_asking: (given, context) => askingTools.ask(given, context),
        async mutate() {
            extra = content.grown(extra);
            announce.tools?.();
            if (announce.tools === undefined) await server.sendToolListChanged();
            return text('mutated');
        }
    };
    return server;
}

// Asks what has not been answered yet; the answers of earlier rounds travel in the request state.
function afterAsking(context, requests, use, earlier = {}) {
    const state = context.mcpReq.requestState();
    const known = { ...(typeof state === 'string' ? JSON.parse(state) : state), ...context.mcpReq.inputResponses };
    const missing = Object.entries(requests).filter(([key]) => !(key in known));
    if (missing.length === 0) return use(known);
    return inputRequired({ inputRequests: Object.fromEntries(missing), requestState: JSON.stringify(earlier) });
}

function asProtocolError(handler) {
    return async (request, context) => {
        try {
            return await handler(request, context);
        } catch (error) {
            throw typeof error.code === 'number' ? new ProtocolError(error.code, error.message, error.data) : error;
        }
    };
}

function serveHttp(port) {
    const handler = createMcpHandler(makeServer, { legacy: 'reject' });
    announce = { tools: () => handler.notify.toolsChanged(), updated: uri => handler.notify.resourceUpdated(uri) };
    createServer(toNodeHandler(handler)).listen(port, '127.0.0.1');
}

if (process.argv[2] === '--http') serveHttp(Number(process.argv[3]));
else serveStdio(makeServer);
