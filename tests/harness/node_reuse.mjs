// Runs one program as often as it is asked to, each time as a fresh module in this process: what it imports is loaded once.
//
//     node node_reuse.mjs SOCKET PROGRAM
//
// An order is a line of JSON with the arguments and the environment; the answer says with which code the program ended and what it
// wrote. Orders are carried out one after the other. The program has to end by `process.exit()`. What would end any Node process,
// an exception or a rejection that nobody handles, ends this one without an answer.

import { writeSync } from 'node:fs';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { setImmediate as turn } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const [node, , place, program] = process.argv;
const leave = process.exit.bind(process);
let runs = 0;
let last = Promise.resolve();

class Ended extends Error {}

function crash(error) {
    if (error instanceof Ended) return;
    writeSync(2, `${error?.stack ?? error}\n`);
    leave(1);
}

// Whoever waits for what was written to be out goes on.
function collect(stream) {
    let text = '';
    stream.write = (chunk, ...more) => {
        text += chunk;
        const written = more.at(-1);
        if (typeof written === 'function') queueMicrotask(() => written());
        return true;
    };
    return () => text;
}

function takeOver(environment) {
    for (const name of Object.keys(process.env)) if (!(name in environment)) delete process.env[name];
    Object.assign(process.env, environment);
}

async function run({ words, environment }) {
    process.argv = [node, program, ...words];
    takeOver(environment);
    const [out, err] = [collect(process.stdout), collect(process.stderr)];
    const ended = new Promise(resolve => {
        process.exit = code => {
            resolve(Number(code ?? process.exitCode ?? 0));
            throw new Ended('the program has ended');
        };
    });
    import(`${pathToFileURL(program)}?run=${++runs}`).catch(crash);
    const code = await ended;
    // A program that catches what its end throws has done so by then.
    await turn();
    process.exitCode = undefined;
    return { code, out: out(), err: err() };
}

process.on('unhandledRejection', crash);
process.on('uncaughtException', crash);

const server = createServer(connection => {
    connection.on('error', () => {});
    createInterface({ input: connection }).once('line', line => {
        last = last.then(() => run(JSON.parse(line))).then(answer => connection.end(JSON.stringify(answer)));
    });
});
server.listen(place);
