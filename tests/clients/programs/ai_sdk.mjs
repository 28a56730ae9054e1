// The AI SDK: the tools that `createMCPClient` makes, executed as `generateText` executes them.

import { createRequire } from 'node:module';
import { attend, elicit, options } from './console.mjs';

const require = createRequire(new URL('../../../.peers/ai-sdk/package.json', import.meta.url));
const { createMCPClient, ElicitationRequestSchema } = require('@ai-sdk/mcp');

const chosen = options();
const client = await createMCPClient({
    transport: { type: 'http', url: chosen.url },
    capabilities: { elicitation: {} }
});
client.onElicitationRequest(ElicitationRequestSchema, ({ params }) => elicit(params));
let known = {};
let number = 0;
await attend({
    tools: async () => Object.keys((known = await client.tools())),
    call: (name, given, abortSignal) => known[name].execute(given, { toolCallId: `call-${++number}`, messages: [], abortSignal })
});
await client.close();
process.exit(0);
