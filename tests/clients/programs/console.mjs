// What the TypeScript clients share; `console.py` says what the lines are.

import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

const answer = { colour: 'blue' };
const questions = [];

export function options() {
    const known = { url: { type: 'string' }, command: { type: 'string' }, generation: { type: 'string', default: '2025' } };
    const { values } = parseArgs({ options: known });
    return { url: values.url, command: values.command && JSON.parse(values.command), stateless: values.generation === '2026' };
}

// What the person at the client answers.
export function elicit({ message }) {
    questions.push(message);
    return { action: 'accept', content: { ...answer } };
}

const say = reply => process.stdout.write(JSON.stringify(reply) + '\n');

async function obey({ id, op, tool, arguments: given }, library, signal) {
    let reply;
    try {
        const value = op === 'tools' ? await library.tools() : await library.call(tool, given, signal);
        reply = { value, text: JSON.stringify(value) };
    } catch (error) {
        reply = signal.aborted ? { cancelled: true } : { error: `${error.name}: ${error.message}` };
    }
    say({ id, questions, ...reply });
}

// Obeys until standard input ends.
export async function attend(library) {
    const running = new Map();
    say({ ready: true });
    for await (const line of createInterface({ input: process.stdin })) {
        const command = JSON.parse(line);
        if (command.op === 'cancel') {
            running.get(command.id).abort('given up');
        } else {
            const control = new AbortController();
            running.set(command.id, control);
            obey(command, library, control.signal);
        }
    }
}
