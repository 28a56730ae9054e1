// The task card: follows tasks of this gateway in the conversation. It reads and cancels tasks of its own caller, by the two tools in
// ALLOWED, and nothing else: what needs an approval is decided in the console, never here.
// Everything that is shown comes from the gateway's own tool, not from the result of the call that the card was opened for, because a
// server writes that. All texts become text nodes.
"use strict";
(() => {
  const VERSION = "2026-01-26";
  const SHOW = "show_tasks";
  const CANCEL = "cancel_task";
  const ALLOWED = Object.freeze([SHOW, CANCEL]);
  const TASK_ID = /^tg_[0-9A-Za-z]{10,40}$/;
  const MOST_TASKS = 20;
  const ANSWER_MS = 60000;
  const WORDS = {
    working: "Working", approval: "Waiting for approval", input: "Waiting for an answer", completed: "Completed",
    failed: "Failed", cancelled: "Cancelled", expired: "No longer kept"
  };
  const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);
  const cards = document.getElementById("cards");
  const open = new Map();
  let number = 0;
  let host = {};
  let followed = [];
  let began = 0;
  let timer = 0;
  let asking = false;

  function send(message) {
    window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  }

  function ask(method, params) {
    const id = ++number;
    send({ id, method, params });
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => { open.delete(id); reject(new Error("The host did not answer.")); }, ANSWER_MS);
      open.set(id, { resolve, reject, late });
    });
  }

  async function call(name, args) {
    if (!ALLOWED.includes(name)) throw new Error(`The card does not call ${name}.`);
    return ask("tools/call", { name, arguments: args });
  }

  window.addEventListener("message", event => {
    const message = event.data;
    if (event.source !== window.parent || message === null || typeof message !== "object") return;
    if (message.method === undefined) return answered(message);
    const params = message.params ?? {};
    if (message.method === "ui/notifications/tool-result") return follow(ids(params));
    if (message.method === "ui/notifications/tool-cancelled") return follow([]);
    if (message.method === "ui/notifications/host-context-changed") return dress(params);
    if (message.id === undefined) return;
    if (message.method === "ping") return send({ id: message.id, result: {} });
    if (message.method === "ui/resource-teardown") {
      clearTimeout(timer);
      return send({ id: message.id, result: {} });
    }
    send({ id: message.id, error: { code: -32601, message: "Method not found" } });
  });

  function answered({ id, result, error }) {
    const waiting = open.get(id);
    if (waiting === undefined) return;
    open.delete(id);
    clearTimeout(waiting.late);
    if (error) waiting.reject(new Error(String(error.message ?? "The host refused.")));
    else waiting.resolve(result ?? {});
  }

  // Which tasks to follow

  function ids(result) {
    const structured = result?.structuredContent ?? {};
    const notice = structured.taskgate_notice;
    const found = notice?.kind === "task" ? [notice.task_id] : [];
    const listed = Array.isArray(structured.tasks) ? structured.tasks.map(task => task?.task_id) : [];
    return [...found, ...listed].filter(id => typeof id === "string" && TASK_ID.test(id)).slice(0, MOST_TASKS);
  }

  function follow(found) {
    followed = found;
    began = Date.now();
    if (followed.length > 0) return look();
    // The call was answered as any other, so there is nothing to follow: the card takes no room.
    fill();
    send({ method: "ui/notifications/request-teardown", params: {} });
  }

  async function look() {
    clearTimeout(timer);
    if (asking) return;
    asking = true;
    let over = false;
    try {
      const result = await call(SHOW, { task_ids: followed });
      const tasks = result.structuredContent?.tasks;
      if (result.isError || !Array.isArray(tasks)) throw new Error(text(result) || "The gateway did not answer.");
      fill(...tasks.map(card));
      over = tasks.every(task => ENDED.has(state(task)));
    } catch (problem) {
      fill(node("article", {}, node("p", {}, problem.message)));
    }
    asking = false;
    if (!over) timer = setTimeout(look, pause());
  }

  function pause() {
    const minutes = (Date.now() - began) / 60000;
    return document.hidden ? 60000 : minutes < 1 ? 2000 : minutes < 10 ? 5000 : 15000;
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden && followed.length > 0 && timer) look(); });

  // How a task is shown

  function state(task) {
    return task.status === "working" && WORDS[task.waiting_for] ? task.waiting_for : String(task.status);
  }

  function text(result) {
    const blocks = Array.isArray(result.content) ? result.content : [];
    return blocks.filter(block => block?.type === "text").map(block => String(block.text)).join("\n").slice(0, 500);
  }

  function node(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.map(child => (child instanceof Node ? child : document.createTextNode(String(child)))));
    return made;
  }

  function card(task) {
    const now = state(task);
    const parts = [
      node("header", {}, node("h2", {}, `${task.server}: ${task.tool}`),
        node("span", { class: "state", "data-state": now }, WORDS[now] ?? now))
    ];
    if (task.status_message) parts.push(node("p", {}, task.status_message));
    if (now === "approval") {
      parts.push(node("p", { class: "faint" }, "The tool has not run. A person decides in the console of the gateway."));
    }
    if (typeof task.progress === "number" && !ENDED.has(now)) parts.push(bar(task));
    for (const question of task.questions ?? []) parts.push(asked(question));
    if (task.result) parts.push(node("pre", { tabindex: "0" }, task.result));
    if (task.executed === "maybe") {
      parts.push(node("p", { class: "faint" }, "The call may or may not have taken effect; check before trying again."));
    }
    parts.push(node("p", { class: "faint" }, `${task.task_id}, since ${task.created_at}`));
    const buttons = [cancel(task, now), link(task)].filter(Boolean);
    if (buttons.length > 0) parts.push(node("footer", {}, ...buttons));
    return node("article", { "data-task": task.task_id, "aria-label": `${task.tool}: ${WORDS[now] ?? now}` }, ...parts);
  }

  function bar(task) {
    const total = typeof task.progress_total === "number" && task.progress_total > 0;
    const label = total ? `${task.progress} of ${task.progress_total}` : `${task.progress}`;
    const range = total ? { max: task.progress_total, value: task.progress } : {};
    return node("progress", { ...range, "aria-label": label, title: label }, label);
  }

  function asked(question) {
    const fields = Array.isArray(question.fields) && question.fields.length > 0 ? `\n(${question.fields.join(", ")})` : "";
    const how = "Answer in the conversation or in the console.";
    return node("div", { class: "question" }, node("strong", {}, "Question of the server: "), `${question.message}${fields}\n${how}`);
  }

  function cancel(task, now) {
    if (ENDED.has(now)) return null;
    const button = node("button", { type: "button" }, "Cancel");
    button.addEventListener("click", async () => {
      if (button.textContent === "Cancel") {
        clearTimeout(timer);
        timer = setTimeout(look, 10000);
        button.replaceChildren("Cancel this task?");
        return;
      }
      button.disabled = true;
      try {
        await call(CANCEL, { task_id: task.task_id });
      } catch (problem) {
        button.after(node("span", { class: "faint" }, problem.message));
      }
      look();
    });
    return button;
  }

  function link(task) {
    if (typeof task.console_url !== "string" || !/^https?:\/\//.test(task.console_url)) return null;
    if (!host.hostCapabilities?.openLinks) return node("span", { class: "faint" }, task.console_url);
    const button = node("button", { type: "button" }, "Open in the console");
    button.addEventListener("click", () => ask("ui/open-link", { url: task.console_url }).catch(() => {
      button.replaceWith(node("span", { class: "faint" }, task.console_url));
    }));
    return button;
  }

  // Looks and size, as the host wishes

  function dress(context) {
    const root = document.documentElement;
    if (context.theme === "light" || context.theme === "dark") root.style.setProperty("color-scheme", context.theme);
    const variables = context.styles?.variables ?? {};
    for (const [name, value] of Object.entries(variables)) {
      if (name.startsWith("--") && typeof value === "string") root.style.setProperty(name, value);
    }
  }

  // Measured whenever the content changes: browsers do not run observers in a frame that takes no room.
  let height = -1;
  function measure() {
    const now = Math.ceil(cards.getBoundingClientRect().height);
    if (now === height) return;
    height = now;
    send({ method: "ui/notifications/size-changed", params: { height } });
  }
  new ResizeObserver(measure).observe(cards);

  function fill(...shown) {
    cards.replaceChildren(...shown);
    measure();
  }

  ask("ui/initialize", {
    appInfo: { name: "taskgate-task-card", version: "@VERSION@" }, appCapabilities: {}, protocolVersion: VERSION
  }).then(result => {
    host = result;
    dress(result.hostContext ?? {});
    send({ method: "ui/notifications/initialized", params: {} });
    measure();
  }).catch(problem => fill(node("article", {}, node("p", {}, problem.message))));
})();
