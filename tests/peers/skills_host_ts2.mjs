// A host of skills on the TypeScript SDK 2.x: lists what a server has, reads and verifies every file of it, and prints what it saw.
//     node skills_host_ts2.mjs URL

import { createRequire } from 'node:module';

const require = createRequire(new URL('../../.peers/ts2/package.json', import.meta.url));
const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
const { SkillsClient } = require('@modelcontextprotocol/client/ext/skills');

const client = new Client(
    { name: 'skills-host', version: '1.0.0' },
    { versionNegotiation: { mode: { pin: '2026-07-28' } } }
);
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const host = new SkillsClient(client);
const seen = { supported: host.supported, directories: host.directoryRead, skills: {}, folders: {}, got: {} };
const { skills } = await host.list();
for (const skill of skills) {
    const files = {};
    for (const { uri } of skill.resources) {
        const file = await host.read(skill, uri);
        files[uri] = { verified: file.verified, text: file.text ?? Buffer.from(file.bytes).toString('base64') };
    }
    seen.skills[skill.uri] = files;
    seen.got[skill.uri] = (await host.get(skill.uri)).skill.frontmatter;
    if (host.directoryRead) {
        const root = skill.uri.slice(0, -'/SKILL.md'.length);
        seen.folders[root] = (await host.readDirectory(root)).resources.map(({ uri }) => uri).sort();
    }
}
console.log(JSON.stringify(seen));
await client.close();
process.exit(0);
