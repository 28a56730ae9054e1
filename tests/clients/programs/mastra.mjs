// Mastra: the tools that its `MCPClient` makes, under names with the server's in front.

import { createRequire } from 'node:module';
import { attend, elicit, options } from './console.mjs';

const require = createRequire(new URL('../../../.peers/mastra/package.json', import.meta.url));
const { MCPClient } = require('@mastra/mcp');

const chosen = options();
const server = { url: new URL(chosen.url), inputRequests: async ({ params }) => elicit(params) };
const client = new MCPClient({ servers: { gateway: server }, timeout: 60_000 });
let known = {};
await attend({
    tools: async () => {
        known = Object.fromEntries(Object.entries(await client.listTools()).map(([name, tool]) => [name.replace(/^gateway_/, ''), tool]));
        return Object.keys(known);
    },
    call: (name, given, abortSignal) => known[name].execute(given, { abortSignal })
});
await client.disconnect();
process.exit(0);
