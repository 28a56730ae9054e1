// LangChain JS: the tools that `MultiServerMCPClient` makes.

import { createRequire } from 'node:module';
import { attend, options } from './console.mjs';

const require = createRequire(new URL('../../../.peers/langchain-js/package.json', import.meta.url));
const { MultiServerMCPClient } = require('@langchain/mcp-adapters');

const chosen = options();
const client = new MultiServerMCPClient({ mcpServers: { gateway: { transport: 'http', url: chosen.url } } });
let known = {};
await attend({
    tools: async () => Object.keys((known = Object.fromEntries((await client.getTools()).map(tool => [tool.name, tool])))),
    call: (name, given, signal) => known[name].invoke(given, { signal })
});
await client.close();
process.exit(0);
