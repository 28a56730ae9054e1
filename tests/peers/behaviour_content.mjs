// What the two TypeScript behaviour servers offer, apart from the tools that ask the caller something.
// The Python sisters offer the same; what a client must see is written in tests/conversations/behaviours.py.

const string = (...names) => schema('string', names);
const number = (...names) => schema('number', names);
const nothing = { type: 'object', properties: {} };

function schema(type, names) {
    return { type: 'object', properties: Object.fromEntries(names.map(name => [name, { type }])), required: names };
}

export const text = (words, extra = {}) => ({ content: [{ type: 'text', text: words }], ...extra });
export const pause = seconds => new Promise(resolve => setTimeout(resolve, seconds * 1000));
export const failure = (code, message, data) => Object.assign(new Error(message), { code, data });
export const nameForm = string('name');

const schemas = {
    echo: string('text'),
    add: number('a', 'b'),
    slow: number('seconds', 'steps'),
    ask: nothing,
    ask_twice: nothing,
    ask_url: nothing,
    sample: nothing,
    roots: nothing,
    log: nothing,
    fail: nothing,
    crash: nothing,
    big: number('n'),
    vendor: nothing,
    update: nothing,
    mutate: nothing
};

export function listTools(extra = {}) {
    const tools = Object.entries({ ...schemas, ...extra }).map(([name, inputSchema]) => ({
        name,
        description: `Behaviour ${name}`,
        inputSchema
    }));
    tools[1].outputSchema = number('sum');
    return tools;
}

// Every mutation adds one more tool; the first is called `extra`.
export function grown(extra) {
    const count = Object.keys(extra).length;
    return { ...extra, [count ? `extra${count}` : 'extra']: string('text') };
}

export const workTools = { work: number('seconds'), work_asking: nothing };

// The tools that need nobody but themselves.
export const plainTools = {
    echo: ({ text: words }) => text(words),
    extra: ({ text: words }) => text(words),
    add: ({ a, b }) => text(String(a + b), { structuredContent: { sum: a + b } }),
    fail: () => text('it failed on purpose', { isError: true }),
    crash: () => {
        throw failure(-32010, 'it crashed on purpose', { why: 'test' });
    },
    big: ({ n }) => text('x'.repeat(n)),
    vendor: () =>
        text('vendor', { _meta: { 'example.com/mark': 7 }, vendorField: { nested: [1, 'two', null] } })
};

const memos = { 'memo://plain': 'plain memo', 'memo://watched': 'watched memo' };

export const resources = Object.keys(memos).map(uri => ({
    uri,
    name: uri.slice('memo://'.length),
    mimeType: 'text/plain'
}));
export const resourceTemplates = [{ uriTemplate: 'memo://notes/{name}', name: 'notes' }];

export function readMemo(uri, missing) {
    const note = uri.startsWith('memo://notes/') ? `note ${uri.slice('memo://notes/'.length)}` : memos[uri];
    if (note === undefined) throw failure(missing, 'Resource not found', { uri });
    return { contents: [{ uri, mimeType: 'text/plain', text: note }] };
}

export const prompts = [
    { name: 'greeting', description: 'A greeting' },
    { name: 'letter', description: 'A letter', arguments: [{ name: 'to', required: true }] }
];

export function getPrompt({ name, arguments: given }) {
    if (!prompts.some(prompt => prompt.name === name)) throw failure(-32602, `Unknown prompt: ${name}`);
    const line = name === 'greeting' ? 'Good day' : `Dear ${given.to}`;
    return { messages: [{ role: 'user', content: { type: 'text', text: line } }] };
}

export function complete({ argument }) {
    const values = ['Ann', 'Anton', 'Bob'].filter(name => name.startsWith(argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
}

export const logLines = [['debug', 'one'], ['info', 'two'], ['error', 'three']];
export const samplingParams = {
    messages: [{ role: 'user', content: { type: 'text', text: 'Say hello' } }],
    maxTokens: 20
};
