// A small host of MCP Apps for tests, on the official host kit: it opens an app for a tool call as the specification says, in two
// frames of another origin, and keeps what the app asked for.

import {
    AppBridge, getToolUiResourceUri, isToolVisibilityModelOnly, PostMessageTransport, RESOURCE_MIME_TYPE
} from '@modelcontextprotocol/ext-apps/app-bridge';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const info = { name: 'apps-host', version: '1.0.0' };
const ui = { extensions: { 'io.modelcontextprotocol/ui': { mimeTypes: [RESOURCE_MIME_TYPE] } } };
const host = (window.host = { tools: new Map(), apps: [], failed: '' });
let client;

host.connect = async (target, generation) => {
    const mode = generation === '2026' ? { pin: '2026-07-28' } : 'legacy';
    client = new Client(info, { capabilities: ui, versionNegotiation: { mode } });
    await client.connect(new StreamableHTTPClientTransport(new URL(`/to/${target}/mcp`, location.href)));
    await host.list();
};

host.list = async () => {
    const { tools } = await client.listTools();
    host.tools = new Map(tools.map(tool => [tool.name, tool]));
};

// Calls a tool and opens its app, if it has one. The app is there as soon as it has said that it is ready.
host.open = async (name, args) => {
    const tool = host.tools.get(name);
    const app = { name, calls: [], links: [], heights: [], closing: 0, ready: false, result: null };
    host.apps.push(app);
    const result = client.callTool({ name, arguments: args }, { onprogress: () => {} });
    const uri = getToolUiResourceUri(tool);
    app.uri = uri;
    if (uri !== undefined) await show(app, tool, uri, args, result);
    app.result = await result;
};

async function show(app, tool, uri, args, result) {
    const { contents } = await client.readResource({ uri });
    if (contents.length !== 1 || contents[0].mimeType !== RESOURCE_MIME_TYPE) throw new Error('not an app');
    const [content] = contents;
    const { csp, permissions } = content._meta?.ui ?? {};
    const frame = document.createElement('iframe');
    frame.id = `app-${host.apps.length - 1}`;
    frame.className = 'app';
    frame.style.width = '700px';
    frame.sandbox = 'allow-scripts allow-same-origin allow-forms';
    const bridge = new AppBridge(null, info, { openLinks: {}, serverTools: {}, serverResources: {} }, {
        hostContext: { theme: 'light', toolInfo: { tool } }
    });
    bridge.oncalltool = async params => {
        app.calls.push(params);
        const called = host.tools.get(params.name) ?? [...host.tools.values()].find(t => t.name.endsWith(`__${params.name}`));
        if (called === undefined || isToolVisibilityModelOnly(called)) throw new Error(`not for apps: ${params.name}`);
        return client.callTool(params);
    };
    bridge.onreadresource = params => client.readResource(params);
    bridge.onopenlink = async ({ url }) => (app.links.push(url), {});
    bridge.addEventListener('sizechange', ({ height }) => {
        app.heights.push(height);
        if (height !== undefined) frame.style.height = `${height}px`;
    });
    bridge.addEventListener('requestteardown', async () => {
        app.closing += 1;
        await bridge.teardownResource({});
        frame.remove();
    });
    const initialized = new Promise(resolve => bridge.addEventListener('initialized', resolve));
    await new Promise(resolve => {
        const listening = ({ source, data }) => {
            if (source !== frame.contentWindow || data?.method !== 'ui/notifications/sandbox-proxy-ready') return;
            window.removeEventListener('message', listening);
            resolve();
        };
        window.addEventListener('message', listening);
        frame.src = `${window.sandbox}?csp=${encodeURIComponent(JSON.stringify(csp ?? {}))}`;
        document.body.append(frame);
    });
    await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
    await bridge.sendSandboxResourceReady({ html: content.text ?? atob(content.blob), csp, permissions });
    await initialized;
    app.ready = true;
    await bridge.sendToolInput({ arguments: args });
    result.then(done => bridge.sendToolResult(done), problem => bridge.sendToolCancelled({ reason: String(problem) }));
}

// Reads a tool's interface without showing it.
host.read = async name => {
    const uri = getToolUiResourceUri(host.tools.get(name));
    const { contents } = await client.readResource({ uri });
    host.contents = contents;
};

host.call = async name => {
    host.called = null;
    host.called = await client.callTool({ name, arguments: {} });
};

// WebDriver's scripts do not wait: what goes wrong is kept.
host.begin = work => {
    work().catch(problem => (host.failed = String(problem?.stack ?? problem)));
};
