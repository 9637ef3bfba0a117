"use strict";

// Asks how a paste is doing until that is known: 200 is ready, 503 is on its way, 404 of one that was accepted is failed.
async function watch(code, say) {
  for (let wait = 300; ; wait = Math.min(wait * 1.5, 2000)) {
    let answer = 0;
    try { answer = (await fetch("/raw/" + code, { method: "HEAD", cache: "no-store" })).status; } catch { /* asked again */ }
    if (answer === 200) return say("ready");
    if (answer === 404) return say("failed");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

const words = {
  uploading: "Uploading …",
  ready: "Ready:",
  failed: "The upload has failed. Nothing was kept; please paste it again.",
  removed: "Removed.",
};

function show(code, token) {
  const [result, status, link, remove] = ["result", "status", "link", "remove"].map((id) => document.getElementById(id));
  const say = (what) => {
    status.dataset.status = what;
    status.textContent = words[what];
    link.hidden = what === "failed" || what === "removed";
    remove.hidden = link.hidden;
  };
  link.href = "/" + code;
  link.textContent = location.origin + "/" + code;
  remove.onclick = async () => {
    const headers = { Authorization: "Bearer " + token };
    if ((await fetch("/api/v1/pastes/" + code, { method: "DELETE", headers })).ok) say("removed");
  };
  result.hidden = false;
  say("uploading");
  return watch(code, (what) => { if (status.dataset.status !== "removed") say(what); });
}

async function send(event) {
  event.preventDefault();
  const field = (id) => document.getElementById(id);
  const [problem, button] = [field("problem"), field("send")];
  problem.hidden = true;
  button.disabled = true;
  try {
    const ask = { content: field("content").value, expiryDays: Number(field("expiry").value) };
    if (field("alias").value) ask.customAlias = field("alias").value;
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch("/api/v1/pastes", { method: "POST", headers, body: JSON.stringify(ask) });
    const { data, error } = await answer.json();
    if (error) throw new Error(error.message);
    show(data.shortCode, data.ownerToken);
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  } finally {
    button.disabled = false;
  }
}

const form = document.getElementById("write");
if (form) form.addEventListener("submit", send);
// A page that says "not yet" becomes the paste when that is ready.
else if (location.pathname.length > 1) watch(location.pathname.slice(1), (what) => { if (what === "ready") location.reload(); });
