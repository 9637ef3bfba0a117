// Finds what keeps people out of a page: controls without a name, pictures without words, headings out of order, text
// that is hard to read. Returns sentences; none when all is well.
const problems = [];
const say = (what, element) => problems.push(`${what}: ${element.outerHTML.replace(/\s+/g, " ").slice(0, 140)}`);
const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);

if (!document.documentElement.lang) problems.push("the page names no language");
if (!document.title.trim()) problems.push("the page has no title");
if (all("h1").length !== 1) problems.push(`the page has ${all("h1").length} first headings`);
if (all("main").length !== 1) problems.push("the page has no single main part");
let level = 0;
for (const heading of all("h1, h2, h3, h4, h5, h6")) {
  const own = Number(heading.tagName[1]);
  if (own > level + 1) say(`a heading of level ${own} follows one of level ${level}`, heading);
  level = own;
}

const named = (control) => {
  const labels = [...(control.labels ?? [])].map((label) => label.textContent.trim()).join("");
  const by = (control.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
  const own = control.matches("button, a, summary") ? control.textContent.trim() : "";
  return [control.getAttribute("aria-label")?.trim(), by.trim(), labels, own].some((name) => name);
};
for (const control of all("input:not([type=hidden]), select, textarea, button, a[href], summary, progress, [role=region], nav"))
  if (!named(control)) say("a control has no name", control);
for (const picture of all("img")) if (!picture.hasAttribute("alt")) say("a picture has no words", picture);
for (const drawing of all("svg"))
  if (drawing.getAttribute("aria-hidden") !== "true" && !(drawing.getAttribute("role") === "img" && drawing.getAttribute("aria-label"))) say("a drawing has no words", drawing);
for (const head of all("th")) if (!head.hasAttribute("scope")) say("a heading of a table has no scope", head);
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of new Set(ids.filter((id, place) => ids.indexOf(id) !== place))) problems.push(`two elements are called ${id}`);

// Contrast, as WCAG 2 reckons it.
const rgba = (text) => { const parts = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0]; return [...parts.slice(0, 3), parts[3] ?? 1]; };
const over = (top, below) => top.slice(0, 3).map((part, place) => part * top[3] + below[place] * (1 - top[3]));
const light = (colour) => {
  const [r, g, b] = colour.map((part) => { const c = part / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
};
const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = new Set();
while (words.nextNode()) {
  const element = words.currentNode.parentElement;
  if (!words.currentNode.textContent.trim() || seen.has(element) || !shown(element) || element.closest("title, .hidden, .skip")) continue;
  seen.add(element);
  const style = getComputedStyle(element);
  const ink = rgba(element.closest("svg") ? style.fill : style.color);
  const back = ground(element.closest("svg")?.parentElement ?? element);
  const [high, low] = [light(over(ink, back)), light(back)].sort((a, b) => b - a);
  const contrast = (high + 0.05) / (low + 0.05);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (contrast < (large ? 3 : 4.5)) say(`a contrast of ${contrast.toFixed(2)}`, element);
}
return problems;
