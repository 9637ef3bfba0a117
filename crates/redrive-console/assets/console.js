// Adds live updates, a preview of policies while typing, and keyboard shortcuts. Every page works without this script.
"use strict";

const page = document;
const one = (selector, from = page) => from.querySelector(selector);
const all = (selector, from = page) => [...from.querySelectorAll(selector)];

// ---- Live updates: elements with data-live are replaced by their current version from the same address.

const REFRESH_MS = 1500;
let isLive = sessionStorage.getItem("live") !== "off";
let refreshTimer = null;
let source = null;

async function refresh() {
  refreshTimer = null;
  if (!isLive || page.hidden || one("dialog[open]")) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (!answer.ok || answer.redirected) return showStatus("The page could not be updated.");
    replaceLiveParts(new DOMParser().parseFromString(await answer.text(), "text/html"));
    showStatus("");
  } catch {
    showStatus("The service does not answer. This page shows an earlier state.");
  }
}

function replaceLiveParts(fresh) {
  for (const old of all("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (!now || now.innerHTML === old.innerHTML) continue;
    // A field that the user is editing is not replaced, and selected rows stay selected.
    const focused = page.activeElement;
    if (focused && old.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea")) continue;
    const chosen = new Set(all("input[type=checkbox]:checked", old).map((box) => box.value));
    const open = new Set(all("details[open]", old).map(summary));
    const focusPath = focused && old.contains(focused) ? pathTo(focused, old) : null;
    old.replaceChildren(...page.importNode(now, true).childNodes);
    for (const box of all("input[type=checkbox]", old)) box.checked = chosen.has(box.value);
    for (const details of all("details", old)) if (open.has(summary(details))) details.open = true;
    if (focusPath) elementAt(focusPath, old)?.focus({ preventScroll: true });
  }
  updateSelection();
  scheduleRefresh();
}

const summary = (details) => one("summary", details)?.textContent;

// The position of an element, to find it again after its replacement.
const pathTo = (element, root) => {
  const steps = [];
  for (let at = element; at !== root; at = at.parentElement) steps.unshift([...at.parentElement.children].indexOf(at));
  return steps;
};
const elementAt = (steps, root) => steps.reduce((at, step) => at?.children[step], root);

function showStatus(text) {
  const place = one("#live-state");
  if (place && place.textContent !== text) place.textContent = text;
}

const refreshSoon = () => { refreshTimer ??= setTimeout(refresh, REFRESH_MS); };

// Elements with data-every are refreshed at that interval, in milliseconds.
let intervalTimer = null;
function scheduleRefresh() {
  clearTimeout(intervalTimer);
  const every = Math.min(...all("[data-every]").map((part) => Number(part.dataset.every)));
  if (isLive && Number.isFinite(every)) intervalTimer = setTimeout(() => { refresh().then(scheduleRefresh); }, every);
}

function listen() {
  source?.close();
  source = null;
  if (!isLive || page.hidden || !one("[data-live]")) return;
  const only = one("[data-events]")?.dataset.events;
  source = new EventSource(only ? `/v1/events?taskId=${encodeURIComponent(only)}` : "/v1/events");
  for (const name of ["pending", "retrying", "running", "waiting", "succeeded", "dead", "cancelled", "lagged"]) source.addEventListener(name, refreshSoon);
}

function startLiveUpdates() {
  const button = one("#live");
  if (!button || !one("[data-live]")) return;
  button.hidden = false;
  const show = () => {
    button.setAttribute("aria-pressed", String(isLive));
    button.textContent = isLive ? "Live: on" : "Live: off";
  };
  button.addEventListener("click", () => {
    isLive = !isLive;
    sessionStorage.setItem("live", isLive ? "on" : "off");
    show(); listen(); scheduleRefresh();
    if (isLive) refresh();
  });
  page.addEventListener("visibilitychange", () => { listen(); if (!page.hidden) refreshSoon(); });
  addEventListener("pagehide", () => source?.close());
  show(); listen(); scheduleRefresh();
}

// ---- Selection of rows: select all, and the number of selected rows.

function updateSelection() {
  for (const form of all("form[data-select]")) {
    const boxes = all("input[name=id]", form);
    const master = one("input[data-all]", form);
    const chosen = boxes.filter((box) => box.checked).length;
    for (const button of all("button[data-needs-choice]", form)) button.disabled = chosen === 0;
    const label = one("[data-chosen]", form);
    if (label) label.textContent = chosen === 0 ? "none selected" : `${chosen} selected`;
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
  updateSelection();
});

// ---- Confirmation of actions that cannot be undone.

page.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// ---- The policy designer: the preview follows the fields.

function startDesigner() {
  const form = one("form[data-design]");
  if (!form) return;
  let timer = null;
  let number = 0;
  const showApplicableFields = () => {
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
  const drawSoon = () => {
    showApplicableFields();
    clearTimeout(timer);
    timer = setTimeout(() => { draw("preview").catch(() => showStatus("The preview could not be updated.")); draw("replay").catch(() => {}); }, 250);
  };
  for (const event of ["input", "change"]) form.addEventListener(event, drawSoon);
  showApplicableFields();
  if (one("[data-not-requested]")) draw("replay").catch(() => {});
}

// ---- Keyboard shortcuts.

const acceptsText = (element) => element.matches("input:not([type=checkbox]):not([type=radio]), select, textarea") || element.isContentEditable;
// When the key g was pressed, which starts a shortcut of two keys.
let prefixPressedAt = 0;

page.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || acceptsText(event.target)) return;
  if (Date.now() - prefixPressedAt < 1500) {
    prefixPressedAt = 0;
    const link = all(".menu a").find((entry) => entry.dataset.key === event.key);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") prefixPressedAt = Date.now();
  if (event.key === "/") { const field = one("[data-filter]"); if (field) { event.preventDefault(); field.focus(); field.select?.(); } }
  if (event.key === "l") one("#live:not([hidden])")?.click();
  if (event.key === "?") location.assign("/console/help");
  if (event.key === "n") one("a[rel=next]")?.click();
});

startLiveUpdates();
updateSelection();
startDesigner();
