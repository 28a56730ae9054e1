// The TypeScript SDK 2.4: `Client.callTool`, in either generation, over HTTP or stdio.

import { attend, elicit, options } from './console.mjs';

const packages = new URL('../../../.peers/ts2/node_modules/@modelcontextprotocol/', import.meta.url);
const { Client, StreamableHTTPClientTransport } = await import(new URL('client/dist/index.mjs', packages));
const { StdioClientTransport } = await import(new URL('client/dist/stdio.mjs', packages));

const chosen = options();
const client = new Client(
    { name: 'matrix-ts2', version: '1.0.0' },
    {
        capabilities: { elicitation: { form: {} } },
        versionNegotiation: chosen.stateless ? { mode: { pin: '2026-07-28' } } : { mode: 'legacy' }
    }
);
client.setRequestHandler('elicitation/create', ({ params }) => elicit(params));
const [program, ...rest] = chosen.command ?? [];
await client.connect(
    chosen.url
        ? new StreamableHTTPClientTransport(new URL(chosen.url))
        : new StdioClientTransport({ command: program, args: rest, stderr: 'inherit' })
);
await attend({
    tools: async () => (await client.listTools()).tools.map(tool => tool.name),
    call: (name, given, signal) => client.callTool({ name, arguments: given }, { signal })
});
await client.close();
process.exit(0);
