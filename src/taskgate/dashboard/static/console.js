// Live updates of the console. Every page works without this script; with it, an open page updates itself.
// The event stream names only the topics that changed; the page then fetches itself again and applies the differences.
"use strict";
(() => {
  const body = document.body;
  const topics = new Set((body.dataset.topics || "").split(" ").filter(Boolean));
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("taskgate", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const parse = (text) => new DOMParser().parseFromString(policy.createHTML(text), "text/html");

  // Times in the user's time zone and language.
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const dayAndHour = new Intl.DateTimeFormat(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const clockOnly = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  const hourOnly = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const span = (s) =>
    s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min`
    : s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 86400)} day${s < 172800 ? "" : "s"}`;
  const updateTimes = (root) => {
    const now = Date.now();
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      const exact = full.format(at);
      const past = (now - at) / 1000;
      const text = "ago" in time.dataset ? (past >= 0 ? `${span(past)} ago` : `in ${span(-past)}`) : "clock" in time.dataset ? clockOnly.format(at) : exact;
      if (time.textContent !== text) time.textContent = text;
      if (time.title !== exact) time.title = exact;
    }
    for (const time of root.querySelectorAll("time[data-axis]")) {
      const at = Number(time.dataset.axis);
      const text = ("days" in time.dataset ? dayAndHour : hourOnly).format(at);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // What expires within a minute is marked; once it has expired it can no longer be approved, as the gateway would refuse it.
  const SOON_MS = 60000;
  const updateDeadlines = () => {
    const now = Date.now();
    for (const card of document.querySelectorAll("[data-deadline]")) {
      const left = Date.parse(card.dataset.deadline) - now;
      card.classList.toggle("soon", left < SOON_MS);
      for (const control of card.querySelectorAll("[data-until-deadline]")) control.disabled = left <= 0;
    }
  };

  // Apply differences element by element, so that focus, selection, open details and partly filled forms are kept.
  const keyOf = (node) => (node.nodeType === 1 && node.id ? `#${node.id}` : null);
  const sameElement = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const copyAttributes = (old, fresh) => {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name) && !(name === "open" && old.tagName === "DETAILS") && name !== "data-at") old.removeAttribute(name);
  };
  const patch = (old, fresh) => {
    if (old.nodeType !== 1) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old.tagName === "TIME") {
      copyAttributes(old, fresh);
      return;
    }
    if (["INPUT", "TEXTAREA", "SELECT", "OUTPUT"].includes(old.tagName) || ("search" in old.dataset && old.textContent === fresh.textContent)) return;
    copyAttributes(old, fresh);
    const known = new Map();
    for (const child of old.childNodes) if (keyOf(child)) known.set(keyOf(child), child);
    const kept = new Set([...fresh.childNodes].map(keyOf));
    for (const [key, child] of known) if (!kept.has(key)) child.remove();
    let place = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const key = keyOf(child);
      const same = key ? known.get(key) : place && !keyOf(place) && sameElement(place, child) ? place : null;
      if (same && sameElement(same, child)) {
        if (same !== place) old.insertBefore(same, place);
        else place = place.nextSibling;
        patch(same, child);
        known.delete(key);
      } else {
        old.insertBefore(document.importNode(child, true), place);
      }
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  };

  // A list in use (hovered, focused or selected) updates its rows in place; additions and removals wait for a click.
  const inUse = (region) =>
    region.matches(":hover") || region.contains(document.activeElement) ||
    (!getSelection().isCollapsed && region.contains(getSelection().anchorNode));
  const hold = (region, fresh) => {
    const kept = new Set();
    for (const row of fresh.children) {
      const own = row.id && document.getElementById(row.id);
      if (own && region.contains(own)) {
        patch(own, row);
        kept.add(own.id);
      }
    }
    let waiting = [...fresh.children].filter((row) => row.id && !kept.has(row.id)).length;
    for (const row of region.children) {
      if (!row.id || kept.has(row.id)) continue;
      row.classList.add("gone");
      for (const control of row.querySelectorAll("button")) control.disabled = true;
      waiting += 1;
    }
    showPending(region, waiting);
  };
  const showPending = (region, waiting) => {
    let button = document.getElementById(`${region.id}-pending`);
    if (!waiting) {
      if (button) button.remove();
      return;
    }
    if (!button) {
      button = document.createElement("button");
      button.id = `${region.id}-pending`;
      button.type = "button";
      button.className = "pending";
      button.addEventListener("click", () => reload(true));
      region.before(button);
    }
    button.textContent = `Show ${waiting} ${waiting === 1 ? "change" : "changes"}`;
  };
  const refresh = (page, now) => {
    if (document.title !== page.title) document.title = page.title;
    for (const fresh of page.querySelectorAll("[data-live][id]")) {
      const old = document.getElementById(fresh.id);
      if (!old) continue;
      if ("hold" in old.dataset && !now && inUse(old)) hold(old, fresh);
      else {
        showPending(old, 0);
        patch(old, fresh);
      }
    }
    updateTimes(document);
    updateDeadlines();
    search(0);
    notify(page);
  };

  // One reload at a time; a change during a reload causes one more.
  const line = document.getElementById("connection");
  const showStatus = (text, link) => {
    line.hidden = !text;
    line.textContent = text;
    if (link) {
      const a = document.createElement("a");
      a.href = link.href;
      a.textContent = link.text;
      line.append(" ", a);
    }
  };
  let loading = false, again = false, last = 0, stopped = false, unreachable = false;
  const PAUSE_MS = 100;
  const assets = (page) => [...page.querySelectorAll("script[src], link[rel=stylesheet]")].map((one) => one.getAttribute("src") || one.getAttribute("href")).join(" ");
  const own = assets(document);
  // After an upgrade of the gateway the page reloads itself, unless a form has unsaved input or it reloaded within the last minute.
  const written = () => [...document.querySelectorAll("input:not([type=hidden]), textarea")].some((field) => field.value !== field.defaultValue);
  const upgraded = () => {
    stopped = true;
    stop();
    showStatus("The gateway was upgraded.", { href: location.href, text: "Reload this page" });
    const before = Number(sessionStorage.getItem("taskgate-loaded-again") || 0);
    if (written() || Date.now() - before < 60000) return;
    sessionStorage.setItem("taskgate-loaded-again", String(Date.now()));
    location.reload();
  };
  const reload = async (now) => {
    if (stopped) return;
    if (loading) {
      again = true;
      return;
    }
    const wait = now ? 0 : Math.max(0, last + PAUSE_MS - Date.now());
    loading = true;
    if (wait) await new Promise((done) => setTimeout(done, wait));
    last = Date.now();
    try {
      // After a change the pages of all open consoles are rendered a few at a time; after an action of the user, at once.
      const live = now ? {} : { "x-live-update": "1" };
      const reply = await fetch(location.href, { headers: { accept: "text/html", ...live }, cache: "no-store" });
      const page = parse(await reply.text());
      if (unreachable) showStatus("");
      unreachable = false;
      if (reply.redirected && new URL(reply.url).pathname === "/login") ended("Your session has ended.");
      else if (reply.status === 403) ended(page.querySelector("main p")?.textContent || "You no longer have access to this page.");
      else if (reply.status === 404) showStatus("This item no longer exists.");
      else if (reply.ok) {
        const theirs = assets(page);
        if (theirs && theirs !== own) upgraded();
        else {
          refresh(page, now);
          body.dataset.version = page.body.dataset.version || "";
        }
      }
    } catch {
      unreachable = true;
      showStatus("The gateway is unreachable. Retrying automatically.");
    } finally {
      loading = false;
      if (again) {
        again = false;
        reload(false);
      }
    }
  };
  const ended = (text) => {
    stopped = true;
    stop();
    showStatus(text, { href: `/login?next=${encodeURIComponent(location.pathname + location.search)}`, text: "Log in" });
  };

  // The event stream; without one, the page polls every five seconds.
  let source = null, failures = 0, poll = 0, closeTimer = 0;
  const stop = () => {
    source?.close();
    source = null;
    clearInterval(poll);
    poll = 0;
  };
  const startPolling = () => {
    if (!poll) poll = setInterval(() => { if (!document.hidden) reload(false); }, 5000);
  };
  const subscribe = () => {
    if (stopped || source) return;
    if (!window.EventSource) return startPolling();
    // Sends the version of this page, so that the stream immediately reports changes made since it was rendered.
    source = new EventSource(`/api/v1/events?after=${encodeURIComponent(body.dataset.version || "")}`);
    source.addEventListener("open", () => {
      if (failures) reload(true);
      failures = 0;
      clearInterval(poll);
      poll = 0;
      body.dataset.live = "yes";
      showStatus("");
    });
    source.addEventListener("change", (event) => {
      const changed = JSON.parse(event.data).topics;
      if (changed.some((topic) => topics.has(topic) || topic === body.dataset.menuTopic)) reload(false);
    });
    source.addEventListener("ended", () => reload(true));
    source.addEventListener("error", () => {
      failures += 1;
      body.dataset.live = "no";
      if (failures > 1) reload(true);
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        startPolling();
        setTimeout(subscribe, Math.min(15000, 1000 * failures));
      }
      if (failures > 3) startPolling();
    });
  };

  // Browser notification for a new inbox entry, if permitted.
  let notifiedCount = null;
  const countOf = (page) => Number(/^\((\d+)\)/.exec(page.title)?.[1] || 0);
  const notify = (page) => {
    const count = countOf(page);
    if (notifiedCount !== null && count > notifiedCount && document.hidden && window.Notification && Notification.permission === "granted")
      new Notification("Taskgate", { body: `${count} waiting in the inbox`, tag: "taskgate-inbox" });
    notifiedCount = count;
  };

  // Copy buttons, dialogs and keyboard shortcuts.
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  document.addEventListener("click", async (event) => {
    const target = event.target.closest("[data-copy], [data-copy-of], [data-notify], [data-close]");
    if (!target) return;
    const text = document.getElementById(target.dataset.copyOf);
    if (text && !navigator.clipboard) getSelection().selectAllChildren(text);
    else if (text || target.dataset.copy) {
      await navigator.clipboard.writeText(text ? text.textContent : target.dataset.copy);
      target.textContent = "Copied";
    } else if ("notify" in target.dataset) {
      target.hidden = (await Notification.requestPermission()) !== "default";
    } else target.closest("dialog")?.close();
  });
  for (const button of document.querySelectorAll("[data-notify]"))
    button.hidden = !window.Notification || Notification.permission !== "default";
  const cards = () => [...document.querySelectorAll("[data-card]:not(.gone)")];
  const move = (by) => {
    const all = cards();
    const at = all.findIndex((card) => card.contains(document.activeElement));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
    if (next) {
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  };
  const press = (what) => {
    const card = document.activeElement?.closest("[data-card]");
    const control = card?.querySelector(`[data-key="${what}"]`);
    const empty = what === "a" && [...(control?.form?.querySelectorAll(".field input, .field textarea") || [])].find((field) => !field.value && !field.closest("details"));
    if (empty) empty.focus();
    else if (control) control.click();
  };
  const keys = { j: () => move(1), k: () => move(-1), a: () => press("a"), d: () => press("d"), o: () => press("o") };
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "k" && !event.altKey) {
      openFind(event);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const help = document.getElementById("keys");
    if (event.key === "/") openFind(event);
    else if (event.key === "?" && help) help.open ? help.close() : help.showModal();
    else if (help && keys[event.key] && !help.open) keys[event.key]();
    else return;
    event.preventDefault();
  });

  // Search in arguments and results. Highlights leave the text as it is, so live updates keep them. Without this the form asks the gateway,
  // as it does if only a part of the text is here.
  let matches = [], current = -1;
  const search = (step) => {
    const form = document.querySelector(".within"), sought = form?.elements.find.value;
    if (!form || !CSS.highlights) return;
    const pattern = new RegExp(sought.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "gi");
    matches = [];
    for (const text of sought ? document.querySelectorAll("[data-search]") : []) {
      if (text.childElementCount) text.textContent = text.textContent;
      for (const found of text.textContent.matchAll(pattern)) {
        if (matches.length === 1000) break;
        const range = new Range();
        range.setStart(text.firstChild, found.index);
        range.setEnd(text.firstChild, found.index + found[0].length);
        matches.push(range);
      }
    }
    const all = matches.length;
    current = !all ? -1 : current < 0 ? 0 : (current + step + all) % all;
    CSS.highlights.set("found", new Highlight(...matches));
    CSS.highlights.set("current", new Highlight(...matches.slice(current, current + 1)));
    const shown = !sought ? "" : all ? `${current + 1} of ${all}${all === 1000 ? " or more" : ""}` : "No match";
    const count = form.querySelector("output");
    const text = shown && "partial" in form.dataset ? `${shown}; Enter searches everything` : shown;
    if (count.textContent !== text) count.textContent = text;
    if (!step || !all) return;
    const box = matches[current].startContainer.parentElement, topOf = (one) => one.getBoundingClientRect().top;
    box.scrollTop += topOf(matches[current]) - topOf(box) - box.clientHeight / 3;
    const top = topOf(matches[current]);
    if (top < 120 || top > innerHeight - 60) scrollBy(0, top - innerHeight / 2);
  };
  const stepping = (event, back) => {
    const form = event.target.closest?.(".within");
    if (!form || !CSS.highlights || "partial" in form.dataset) return;
    event.preventDefault();
    search(back ? -1 : 1);
  };
  document.addEventListener("input", (event) => {
    if (!event.target.closest(".within")) return;
    current = -1;
    search(1);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.name === "find") stepping(event, event.shiftKey); });
  document.addEventListener("submit", (event) => stepping(event, event.submitter?.value === "back"));

  // The field in the header as a palette: results while typing, chosen with the arrow keys. Without a script it leads to /find.
  const find = document.getElementById("find"), results = document.getElementById("results"), counted = document.getElementById("found-count");
  const openFind = (event) => {
    if (!find) return;
    event.preventDefault();
    find.focus();
    find.select();
  };
  if (find && results) {
    find.setAttribute("role", "combobox");
    find.setAttribute("aria-autocomplete", "list");
    find.setAttribute("aria-controls", "results");
    let chosen = -1, asking = null, timer = 0, asked = null;
    const options = () => [...results.children];
    const choose = (place) => {
      const all = options();
      chosen = all.length ? (place + all.length) % all.length : -1;
      all.forEach((option, at) => option.setAttribute("aria-selected", String(at === chosen)));
      if (chosen < 0) find.removeAttribute("aria-activedescendant");
      else {
        find.setAttribute("aria-activedescendant", all[chosen].id);
        all[chosen].scrollIntoView({ block: "nearest" });
      }
    };
    const close = () => {
      results.hidden = true;
      asked = null;
      find.setAttribute("aria-expanded", "false");
      find.removeAttribute("aria-activedescendant");
    };
    const part = (tag, text, name) => {
      const made = document.createElement(tag);
      made.textContent = text;
      if (name) made.className = name;
      return made;
    };
    const show = (rows) => {
      results.replaceChildren(...rows.map((row, at) => {
        const option = document.createElement("li");
        option.id = `result-${at}`;
        option.setAttribute("role", "option");
        option.dataset.address = row.address;
        const name = document.createElement("span");
        name.append(part("b", row.name));
        if (row.detail) name.append(" ", part("small", row.detail));
        option.append(part("span", row.kind, "kind"), name);
        return option;
      }));
      results.hidden = !rows.length;
      find.setAttribute("aria-expanded", String(Boolean(rows.length)));
      counted.textContent = rows.length === 1 ? "1 result" : `${rows.length} results`;
      choose(0);
    };
    const ask = async () => {
      if (asked === find.value) return;
      asked = find.value;
      asking?.abort();
      asking = new AbortController();
      try {
        const reply = await fetch(`/api/v1/find?text=${encodeURIComponent(find.value)}`, { signal: asking.signal });
        if (reply.ok && document.activeElement === find) show(await reply.json());
      } catch { /* a newer request replaced it, or the gateway is unreachable, which the connection line shows */ }
    };
    const go = (option) => { if (option?.dataset.address?.startsWith("/")) location.assign(option.dataset.address); };
    find.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(ask, 80);
    });
    find.addEventListener("focus", ask);
    find.addEventListener("blur", () => setTimeout(() => { if (document.activeElement !== find) close(); }, 150));
    find.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
      else if (event.key === "Escape" && !results.hidden) close();
      else if (event.key === "Enter" && !results.hidden && chosen >= 0 && asked === find.value) go(options()[chosen]);
      else return;
      event.preventDefault();
    });
    results.addEventListener("mousedown", (event) => {
      event.preventDefault();
      go(event.target.closest("li"));
    });
    find.setAttribute("aria-expanded", "false");
  }

  // Arguments of the last try of a tool, kept for this tab only: they may be confidential.
  const remembered = document.querySelector("form[data-remember]");
  if (remembered) {
    const named = () => [...remembered.elements].filter((field) => field.name?.startsWith("f.") || field.name === "whole-json");
    const valueOf = (field) => (field.multiple ? [...field.selectedOptions].map((one) => one.value) : field.value);
    remembered.addEventListener("submit", () => {
      const kept = Object.fromEntries(named().map((field) => [field.name, valueOf(field)]));
      try { sessionStorage.setItem(remembered.dataset.remember, JSON.stringify(kept)); } catch { /* storage is full or disabled */ }
    });
    const kept = JSON.parse(sessionStorage.getItem(remembered.dataset.remember) || "{}");
    for (const field of named()) {
      const value = kept[field.name];
      if (Array.isArray(value)) for (const option of field.options || []) option.selected = value.includes(option.value);
      else if (value !== undefined && !field.value) field.value = value;
    }
  }

  // Dragging across the waterfall zooms its time axis.
  const drawing = document.querySelector(".spans[data-begin]");
  if (drawing) {
    const [begin, end] = [Number(drawing.dataset.begin), Number(drawing.dataset.end)];
    const axis = () => drawing.querySelector("svg").getBoundingClientRect();
    const placeOf = (event) => Math.min(1, Math.max(0, (event.clientX - axis().left) / axis().width));
    const timeOf = (place) => (begin + place * (end - begin)).toFixed(1);
    let from = null, band = null;
    const drop = () => {
      band?.remove();
      from = band = null;
    };
    drawing.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch" || event.target.closest("a")) return;
      event.preventDefault();
      from = placeOf(event);
      band = document.createElement("div");
      band.className = "band";
      drawing.parentElement.append(band);
      drawing.setPointerCapture(event.pointerId);
    });
    drawing.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = placeOf(event), { left, width } = axis();
      band.style.left = `${left - drawing.parentElement.getBoundingClientRect().left + Math.min(from, to) * width}px`;
      band.style.width = `${Math.abs(to - from) * width}px`;
    });
    drawing.addEventListener("pointercancel", drop);
    drawing.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [low, high] = [from, placeOf(event)].sort((a, b) => a - b);
      drop();
      if ((high - low) * axis().width < 4) return;
      const there = new URL(location.href);
      there.searchParams.set("from", timeOf(low));
      there.searchParams.set("to", timeOf(high));
      location.assign(there);
    });
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") drop(); });
  }

  updateTimes(document);
  updateDeadlines();
  search(1);
  setInterval(updateDeadlines, 1000);
  setInterval(() => updateTimes(document), 5000);
  notifiedCount = countOf(document);
  if (body.dataset.formToken) {
    subscribe();
    if ("every" in body.dataset) setInterval(() => { if (!document.hidden) reload(false); }, Number(body.dataset.every) * 1000);
    // A hidden page closes its stream after a minute; it reconnects and reloads when it becomes visible.
    document.addEventListener("visibilitychange", () => {
      clearTimeout(closeTimer);
      if (document.hidden && !(window.Notification && Notification.permission === "granted"))
        closeTimer = setTimeout(stop, 60000);
      else if (!source && !stopped) {
        subscribe();
        reload(true);
      }
    });
  }
})();
