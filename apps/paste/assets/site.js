"use strict";

// Polls the status of a paste until it is final: 200 means ready, 503 uploading, and 404 failed, because the paste was accepted.
async function watch(code, report) {
  for (let wait = 300; ; wait = Math.min(wait * 1.5, 2000)) {
    let status = 0;
    try { status = (await fetch("/raw/" + code, { method: "HEAD", cache: "no-store" })).status; } catch { /* polls again */ }
    if (status === 200) return report("ready");
    if (status === 404) return report("failed");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

const messages = {
  uploading: "Uploading …",
  ready: "Ready:",
  failed: "The upload failed and nothing was stored. Please paste it again.",
  removed: "Removed.",
};

function show(code, token) {
  const [result, status, link, remove] = ["result", "status", "link", "remove"].map((id) => document.getElementById(id));
  const setStatus = (name) => {
    status.dataset.status = name;
    status.textContent = messages[name];
    link.hidden = name === "failed" || name === "removed";
    remove.hidden = link.hidden;
  };
  link.href = "/" + code;
  link.textContent = location.origin + "/" + code;
  remove.onclick = async () => {
    const headers = { Authorization: "Bearer " + token };
    if ((await fetch("/api/v1/pastes/" + code, { method: "DELETE", headers })).ok) setStatus("removed");
  };
  result.hidden = false;
  setStatus("uploading");
  return watch(code, (name) => { if (status.dataset.status !== "removed") setStatus(name); });
}

async function send(event) {
  event.preventDefault();
  const field = (id) => document.getElementById(id);
  const [problem, button] = [field("problem"), field("send")];
  problem.hidden = true;
  button.disabled = true;
  try {
    const request = { content: field("content").value, expiryDays: Number(field("expiry").value) };
    if (field("alias").value) request.customAlias = field("alias").value;
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("/api/v1/pastes", { method: "POST", headers, body: JSON.stringify(request) });
    const { data, error } = await response.json();
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
// The page of an unfinished paste reloads when the paste is ready.
else if (location.pathname.length > 1) watch(location.pathname.slice(1), (name) => { if (name === "ready") location.reload(); });
