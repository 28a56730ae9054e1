// The TypeScript SDK 1.32: `Client.callTool`, over HTTP or stdio.

import { createRequire } from 'node:module';
import { attend, elicit, options } from './console.mjs';

const require = createRequire(new URL('../../../.peers/ts1/package.json', import.meta.url));
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { ElicitRequestSchema } = require('@modelcontextprotocol/sdk/types.js');

const chosen = options();
const client = new Client({ name: 'matrix-ts1', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } });
client.setRequestHandler(ElicitRequestSchema, ({ params }) => elicit(params));
const [program, ...rest] = chosen.command ?? [];
await client.connect(
    chosen.url
        ? new StreamableHTTPClientTransport(new URL(chosen.url))
        : new StdioClientTransport({ command: program, args: rest, stderr: 'inherit' })
);
await attend({
    tools: async () => (await client.listTools()).tools.map(tool => tool.name),
    call: (name, given, signal) => client.callTool({ name, arguments: given }, undefined, { signal })
});
await client.close();
process.exit(0);
