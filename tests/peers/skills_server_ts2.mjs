// A server with skills on the TypeScript SDK 2.x: those in the folder that is its first argument, on standard streams or on a port.

import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../.peers/ts2/package.json', import.meta.url));
const { McpServer, createMcpHandler } = require('@modelcontextprotocol/server');
const { SkillsExtension } = require('@modelcontextprotocol/server/ext/skills');
const { nodeSkillFiles } = require('@modelcontextprotocol/server/ext/skills/node');
const { serveStdio } = require('@modelcontextprotocol/server/stdio');
const { toNodeHandler } = require('@modelcontextprotocol/node');

const [folder, port] = process.argv.slice(2);
const skills = await SkillsExtension.load(nodeSkillFiles(folder));

function makeServer() {
    const server = new McpServer({ name: 'ts2-skills', version: '1.0.0' });
    server.registerTool('hello', {}, async () => ({ content: [{ type: 'text', text: 'hello' }] }));
    skills.attach(server);
    return server;
}

if (port === undefined) serveStdio(makeServer);
else createServer(toNodeHandler(createMcpHandler(makeServer))).listen(Number(port), '127.0.0.1');
