// What the console adds for browsers that run scripts: pages that follow what happens, drawings that follow the fields,
// keys that lead somewhere. Every page works without it.
"use strict";

const page = document;
const one = (selector, from = page) => from.querySelector(selector);
const all = (selector, from = page) => [...from.querySelectorAll(selector)];

// ---- Live: parts of a page marked data-live are taken anew from the same address.

const REFRESH_MS = 1500;
let on = sessionStorage.getItem("live") !== "off";
let waiting = null;
let source = null;

async function refresh() {
  waiting = null;
  if (!on || page.hidden || one("dialog[open]")) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (!answer.ok || answer.redirected) return say("The page could not be brought up to date.");
    adopt(new DOMParser().parseFromString(await answer.text(), "text/html"));
    say("");
  } catch {
    say("The service does not answer; this page shows what was.");
  }
}

function adopt(fresh) {
  for (const old of all("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (!now || now.innerHTML === old.innerHTML) continue;
    // Nobody is interrupted in the middle of a field, and no choice is lost.
    const busy = page.activeElement;
    if (busy && old.contains(busy) && busy.matches("input:not([type=checkbox]), select, textarea")) continue;
    const chosen = new Set(all("input[type=checkbox]:checked", old).map((box) => box.value));
    const open = new Set(all("details[open]", old).map(summary));
    const focus = busy && old.contains(busy) ? trail(busy, old) : null;
    old.replaceChildren(...page.importNode(now, true).childNodes);
    for (const box of all("input[type=checkbox]", old)) box.checked = chosen.has(box.value);
    for (const details of all("details", old)) if (open.has(summary(details))) details.open = true;
    if (focus) find(focus, old)?.focus({ preventScroll: true });
  }
  choose();
  schedule();
}

const summary = (details) => one("summary", details)?.textContent;

// Where an element is, in a way that survives its replacement.
const trail = (element, root) => {
  const steps = [];
  for (let at = element; at !== root; at = at.parentElement) steps.unshift([...at.parentElement.children].indexOf(at));
  return steps;
};
const find = (steps, root) => steps.reduce((at, step) => at?.children[step], root);

function say(text) {
  const place = one("#live-state");
  if (place && place.textContent !== text) place.textContent = text;
}

const soon = () => { waiting ??= setTimeout(refresh, REFRESH_MS); };

// A page that says how often it wants to be looked at again is, whatever happens.
let clock = null;
function schedule() {
  clearTimeout(clock);
  const every = Math.min(...all("[data-every]").map((part) => Number(part.dataset.every)));
  if (on && Number.isFinite(every)) clock = setTimeout(() => { refresh().then(schedule); }, every);
}

function listen() {
  source?.close();
  source = null;
  if (!on || page.hidden || !one("[data-live]")) return;
  const only = one("[data-events]")?.dataset.events;
  source = new EventSource(only ? `/events?taskId=${encodeURIComponent(only)}` : "/events");
  for (const name of ["PENDING", "IN_FLIGHT", "SUCCEEDED", "EXHAUSTED", "CANCELLED", "lagged"]) source.addEventListener(name, soon);
}

function live() {
  const button = one("#live");
  if (!button || !one("[data-live]")) return;
  button.hidden = false;
  const show = () => {
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? "Live: on" : "Live: off";
  };
  button.addEventListener("click", () => {
    on = !on;
    sessionStorage.setItem("live", on ? "on" : "off");
    show(); listen(); schedule();
    if (on) refresh();
  });
  page.addEventListener("visibilitychange", () => { listen(); if (!page.hidden) soon(); });
  addEventListener("pagehide", () => source?.close());
  show(); listen(); schedule();
}

// ---- Selections: all on a page at once, and how many there are.

function choose() {
  for (const form of all("form[data-select]")) {
    const boxes = all("input[name=id]", form);
    const master = one("input[data-all]", form);
    const chosen = boxes.filter((box) => box.checked).length;
    for (const button of all("button[data-needs-choice]", form)) button.disabled = chosen === 0;
    const said = one("[data-chosen]", form);
    if (said) said.textContent = chosen === 0 ? "none selected" : `${chosen} selected`;
    if (master) {
      master.checked = chosen > 0 && chosen === boxes.length;
      master.indeterminate = chosen > 0 && chosen < boxes.length;
    }
  }
}

page.addEventListener("change", (event) => {
  const form = event.target.closest?.("form[data-select]");
  if (!form) return;
  if (event.target.matches("[data-all]")) for (const box of all("input[name=id]", form)) box.checked = event.target.checked;
  choose();
});

// ---- What cannot be undone is asked for twice.

page.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// ---- The designer: the service draws with the same code that decides, and the drawing follows the fields.

function design() {
  const form = one("form[data-design]");
  if (!form) return;
  let timer = null;
  let number = 0;
  const applies = () => {
    const backoff = one("[name=backoffType]", form).value;
    const jitter = one("[name=jitterType]", form).value;
    for (const part of all("[data-for]", form)) part.hidden = !part.dataset.for.split(" ").some((name) => name === backoff || name === jitter);
  };
  const draw = async (what) => {
    const mine = what === "preview" ? ++number : number;
    const place = one(`#${what}`);
    const answer = await fetch(`/console/policies/draw?part=${what}`, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    if (mine === number && place) {
      place.replaceChildren(...new DOMParser().parseFromString(await answer.text(), "text/html").body.childNodes);
      place.dataset.drawn = String(Number(place.dataset.drawn ?? 0) + 1);
    }
  };
  const follow = () => {
    applies();
    clearTimeout(timer);
    timer = setTimeout(() => { draw("preview").catch(() => say("The drawing could not be made.")); draw("replay").catch(() => {}); }, 250);
  };
  for (const event of ["input", "change"]) form.addEventListener(event, follow);
  applies();
  if (one("[data-unasked]")) draw("replay").catch(() => {});
}

// ---- Keys.

const writes = (element) => element.matches("input:not([type=checkbox]):not([type=radio]), select, textarea") || element.isContentEditable;
let leading = 0;

page.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || writes(event.target)) return;
  if (Date.now() - leading < 1500) {
    leading = 0;
    const link = all(".menu a").find((entry) => entry.dataset.key === event.key);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") leading = Date.now();
  if (event.key === "/") { const field = one("[data-filter]"); if (field) { event.preventDefault(); field.focus(); field.select?.(); } }
  if (event.key === "l") one("#live:not([hidden])")?.click();
  if (event.key === "?") location.assign("/console/help");
  if (event.key === "n") one("a[rel=next]")?.click();
});

live();
choose();
design();
