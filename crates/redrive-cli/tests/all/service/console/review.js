// Finds accessibility problems: controls without a name, images without a text alternative, headings out of order, text
// with low contrast. Returns one sentence for each problem.
const problems = [];
const report = (what, element) => problems.push(`${what}: ${element.outerHTML.replace(/\s+/g, " ").slice(0, 140)}`);
const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);

if (!document.documentElement.lang) problems.push("the page has no language");
if (!document.title.trim()) problems.push("the page has no title");
if (all("h1").length !== 1) problems.push(`the page has ${all("h1").length} headings of level 1`);
if (all("main").length !== 1) problems.push("the page does not have exactly one main element");
let level = 0;
for (const heading of all("h1, h2, h3, h4, h5, h6")) {
  const own = Number(heading.tagName[1]);
  if (own > level + 1) report(`a heading of level ${own} follows one of level ${level}`, heading);
  level = own;
}

const named = (control) => {
  const labels = [...(control.labels ?? [])].map((label) => label.textContent.trim()).join("");
  const by = (control.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
  const own = control.matches("button, a, summary") ? control.textContent.trim() : "";
  return [control.getAttribute("aria-label")?.trim(), by.trim(), labels, own].some((name) => name);
};
for (const control of all("input:not([type=hidden]), select, textarea, button, a[href], summary, progress, [role=region], nav"))
  if (!named(control)) report("a control has no name", control);
for (const picture of all("img")) if (!picture.hasAttribute("alt")) report("an image has no alternative text", picture);
for (const drawing of all("svg"))
  if (drawing.getAttribute("aria-hidden") !== "true" && !(drawing.getAttribute("role") === "img" && drawing.getAttribute("aria-label"))) report("a drawing has no label", drawing);
for (const head of all("th")) if (!head.hasAttribute("scope")) report("a table header has no scope", head);
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of new Set(ids.filter((id, place) => ids.indexOf(id) !== place))) problems.push(`two elements have the id ${id}`);

// Contrast, calculated as WCAG 2 defines it.
const rgba = (text) => { const parts = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0]; return [...parts.slice(0, 3), parts[3] ?? 1]; };
const over = (top, below) => top.slice(0, 3).map((part, place) => part * top[3] + below[place] * (1 - top[3]));
const luminance = (colour) => {
  const [r, g, b] = colour.map((part) => { const c = part / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = new Set();
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.textContent.trim() || seen.has(element) || !shown(element) || element.closest("title, .hidden, .skip")) continue;
  seen.add(element);
  const style = getComputedStyle(element);
  const ink = rgba(element.closest("svg") ? style.fill : style.color);
  const back = background(element.closest("svg")?.parentElement ?? element);
  const [high, low] = [luminance(over(ink, back)), luminance(back)].sort((a, b) => b - a);
  const contrast = (high + 0.05) / (low + 0.05);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (contrast < (large ? 3 : 4.5)) report(`the contrast is only ${contrast.toFixed(2)}`, element);
}
return problems;
