// The script that the TypeScript behaviour clients play, and the notebook in which they write what they saw.
// `script.py` says what a script is; both write the same observations.

import { parseArgs } from 'node:util';

const stepDeadline = 120_000;
const noticeDeadline = 120_000;
const names = ['Ann', 'Bob', 'Cleo', 'Dora'];

export class Notebook {
    questions = [];
    logs = [];
    progress = [];
    notices = [];
    namesGiven = 0;
    waiting = [];

    notice(method) {
        this.notices.push(method);
        for (const wake of this.waiting.splice(0)) wake();
    }

    async waitFor(method) {
        const deadline = Date.now() + noticeDeadline;
        while (!this.notices.includes(method)) {
            if (Date.now() > deadline) throw new Error(`no ${method} within ${noticeDeadline} ms`);
            await Promise.race([new Promise(wake => this.waiting.push(wake)), pause(200)]);
        }
        return method;
    }

    startStep() {
        this.namesGiven = 0;
        this.questions = [];
        this.logs = [];
        this.progress = [];
    }

    seen() {
        const { questions, logs, progress } = this;
        return Object.fromEntries(Object.entries({ questions, logs, progress }).filter(([, items]) => items.length));
    }

    // What the person at the client answers.
    elicit(params) {
        if (params.mode === 'url') {
            this.questions.push(['url', params.message, params.url]);
            return { action: 'accept' };
        }
        this.questions.push(['form', params.message]);
        return { action: 'accept', content: { name: names[this.namesGiven++ % names.length] } };
    }

    sample(params) {
        const first = params.messages[0].content;
        this.questions.push(['sampling', (Array.isArray(first) ? first[0] : first).text]);
        const content = { type: 'text', text: "hello from the caller's model" };
        return { role: 'assistant', content, model: 'none' };
    }

    roots() {
        this.questions.push(['roots']);
        return { roots: [{ uri: 'file:///tmp/project' }] };
    }
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

export async function perform(steps, actions, notebook) {
    const observations = [];
    for (const { op, ...given } of steps) {
        notebook.startStep();
        let found;
        try {
            const late = pause(stepDeadline).then(() => {
                throw new Error(`no answer within ${stepDeadline} ms`);
            });
            found = { value: await Promise.race([actions[op](given), late]) };
        } catch (error) {
            found = { error: describe(error) };
        }
        observations.push({ op, ...found, ...notebook.seen() });
    }
    return observations;
}

function describe(error) {
    const message = String(error.message ?? error);
    if (typeof error.code !== 'number') return { message };
    return { code: error.code, message: message.replace(/^MCP error -?\d+: /, ''), data: error.data ?? null };
}

export function options() {
    const { values, positionals } = parseArgs({
        allowPositionals: true,
        options: {
            url: { type: 'string' },
            command: { type: 'string' },
            generation: { type: 'string', default: '2025' },
            alone: { type: 'boolean' }
        }
    });
    const command = values.command === undefined ? undefined : JSON.parse(values.command);
    const stateless = values.generation === '2026';
    return { url: values.url, command, stateless, alone: values.alone, script: JSON.parse(positionals[0]) };
}

// The operations that read the same in both SDK lines; `callTool` differs and is handed in.
export function commonActions(client, notebook, callTool) {
    const call = ({ name, arguments: given, progress }) => {
        const note = ({ progress: done, total, message }) => notebook.progress.push([done, total, message]);
        return callTool({ name, arguments: given }, progress ? { onprogress: note } : {});
    };
    return {
        tools: async () => (await client.listTools()).tools.map(tool => tool.name),
        resources: async () => (await client.listResources()).resources.map(resource => resource.uri),
        templates: async () => (await client.listResourceTemplates()).resourceTemplates.map(kind => kind.uriTemplate),
        prompts: async () => (await client.listPrompts()).prompts.map(prompt => prompt.name),
        call,
        // A call that takes longer than its reply is held: the notice names a task, whose result a helper tool returns.
        followed: async given => {
            const notice = await call(given);
            const found = /tg_[0-9A-Z]{26}/.exec(JSON.stringify(notice));
            if (!found) return { notice: false, result: notice };
            const named = { task_id: found[0] };
            for (;;) {
                const state = JSON.stringify(await call({ name: 'get_task', arguments: named }));
                if (/completed|failed|cancelled/.test(state)) {
                    return { notice: true, result: await call({ name: 'get_task_result', arguments: named }) };
                }
                await pause(200);
            }
        },
        // Several calls at the same time; their results in the order in which they are given.
        together: ({ calls }) => Promise.all(calls.map(call)),
        read: ({ uri }) => client.readResource({ uri }),
        prompt: ({ name, arguments: given }) => client.getPrompt({ name, arguments: given }),
        complete: ({ prompt, argument, value }) =>
            client.complete({ ref: { type: 'ref/prompt', name: prompt }, argument: { name: argument, value } }),
        level: ({ level }) => client.setLoggingLevel(level),
        watch: ({ uri }) => client.subscribeResource({ uri }),
        unwatch: ({ uri }) => client.unsubscribeResource({ uri }),
        notice: ({ method }) => notebook.waitFor(method),
        ping: () => client.ping()
    };
}

// Resolves when the line is out: a process that exits earlier cuts what is still in the pipe.
export function report(observations) {
    return new Promise(resolve => process.stdout.write(JSON.stringify(observations) + '\n', resolve));
}
