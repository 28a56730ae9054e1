// A caller on the TypeScript SDK 1.x (2025-11-25) that plays a script and prints what it saw, over HTTP or stdio.
// Tasks go through `callToolStream`, the way applications on this SDK use them.

import { createRequire } from 'node:module';
import { Notebook, commonActions, options, perform, report } from './script.mjs';

const require = createRequire(new URL('../../.peers/ts1/package.json', import.meta.url));
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const wire = require('@modelcontextprotocol/sdk/types.js');

const chosen = options();
const notebook = new Notebook();
const client = new Client(
    { name: 'client-ts1', version: '1.0.0' },
    { capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } } }
);
client.setRequestHandler(wire.ElicitRequestSchema, ({ params }) => notebook.elicit(params));
client.setRequestHandler(wire.CreateMessageRequestSchema, ({ params }) => notebook.sample(params));
client.setRequestHandler(wire.ListRootsRequestSchema, () => notebook.roots());
client.setNotificationHandler(wire.LoggingMessageNotificationSchema, ({ params }) => {
    notebook.logs.push([params.level, params.data]);
});
client.fallbackNotificationHandler = async ({ method }) => notebook.notice(method);

const [program, ...rest] = chosen.command ?? [];
await client.connect(
    chosen.url
        ? new StreamableHTTPClientTransport(new URL(chosen.url))
        : new StdioClientTransport({ command: program, args: rest, stderr: 'inherit' })
);

const actions = commonActions(client, notebook, (params, more) => client.callTool(params, undefined, more));

actions.task = async ({ name, arguments: given, cancel }) => {
    const tasks = client.experimental.tasks;
    const stream = tasks.callToolStream({ name, arguments: given }, wire.CallToolResultSchema, { task: { ttl: 60_000 } });
    let taskId;
    for await (const message of stream) {
        if (message.type === 'taskCreated') {
            taskId = message.task.taskId;
            if (cancel) return { status: (await tasks.cancelTask(taskId)).status };
        }
        if (message.type === 'error') throw message.error;
        if (message.type === 'result') {
            const listed = (await tasks.listTasks()).tasks.some(task => task.taskId === taskId);
            return { status: (await tasks.getTask(taskId)).status, result: message.result, listed };
        }
    }
    throw new Error('the stream ended without a result');
};

await report(await perform(chosen.script, actions, notebook));
await client.close();
process.exit(0);
