// Helpers that all other files use: elements, numbers, colours.

const $ = (id) => document.getElementById(id);

// An element with attributes and children. Text is always put in as text, so a title can hold anything.
function h(tag, attributes, ...children) {
  const svg = ["svg", "g", "path", "rect", "circle", "line", "text", "polyline", "title"].includes(tag) &&
    attributes?.ns;
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key === "ns" || value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" && !svg) element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : clean(String(child)));
  }
  return element;
}
const s = (tag, attributes, ...children) => h(tag, { ns: true, ...attributes }, ...children);

// Control characters, and marks that reverse the direction of text, are removed from titles.
const clean = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, " ");

const fill = (element, ...children) => element.replaceChildren(...children.flat(3).filter(Boolean));
const integers = new Intl.NumberFormat("en");
const count = (n) => integers.format(n);
const percent = (share, digits = 0) => `${(share * 100).toFixed(digits)} %`;
const num = (x) => {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.01 || size === 0 ? 3 : 5;
  return (x < 0 ? "−" : "") + size.toFixed(digits);
};
const time = (ms) => `${ms >= 10 ? Math.round(ms) : ms.toFixed(1)} ms`;
const signed = (x) => (x > 0 ? "+" : "") + num(x);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const name = (item) => (item ? item.title || item.id : "nothing");
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const level0 = (arity, level) => (arity ** level - 1) / (arity - 1); // the first node of a level
const parentOf = (arity, node) => Math.floor((node - 1) / arity);

function meter(share) {
  const bar = h("span", { class: "meter" }, h("i", {}));
  bar.firstChild.style.width = `${clamp(share * 100, 1, 100)}%`;
  return bar;
}

// The outcome for an item: a sign and a word as well as a colour.
const OUTCOMES = {
  found: { sign: "●", word: "found" },
  below: { sign: "○", word: "in the last beam, ranked below m" },
  lost: { sign: "✕", word: "lost" },
  closed: { sign: "⊘", word: "not allowed" },
};
function outcomeOf(path, m) {
  if (!path.may_be_found) return "closed";
  if (path.rank === null) return "lost";
  return path.rank <= m ? "found" : "below";
}
function outcomeText(path, m, short) {
  const outcome = outcomeOf(path, m);
  if (outcome === "found") return short ? `rank ${path.rank}` : `found at rank ${path.rank}`;
  if (outcome === "below") return short ? `rank ${path.rank}` : `in the last beam at rank ${path.rank}, below m = ${m}`;
  if (outcome === "lost") return short ? `level ${path.lost.level}` : `lost on level ${path.lost.level}`;
  return "not allowed";
}
const mark = (outcome) => h("i", { class: `outcome ${outcome}`, "aria-label": OUTCOMES[outcome].word, role: "img" }, OUTCOMES[outcome].sign);

// Colours come from the style sheet, which defines them for light and dark.
let palette = {};
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = "ink muted faint line paper panel beam beam2 lost found below truth other hatch".split(" ");
  palette = Object.fromEntries(names.map((key) => [key, style.getPropertyValue(`--${key}`).trim()]));
}
const modelAt = (source) => Math.min(state.model, source.models.length - 1);
const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// Icons that look the same in every browser.
const ICONS = {
  play: "M5 3l8 5-8 5z", pause: "M4 3h3v10H4zM9 3h3v10H9z", back: "M3 3h2v10H3zM13 3v10L6 8z",
    next: "M11 3h2v10h-2zM3 3l7 5-7 5z",
  all: "M2 2h5v2H4v3H2zM14 14H9v-2h3V9h2z", link: "M2 5h7v2H4v5h5v-2h2v4H2zM6 2h8v8h-4V8h2V4H8v2H6z",
  save: "M7 2h2v6h3l-4 4-4-4h3zM2 13h12v1.500H2z",
    find: "M7 2a5 5 0 1 0 3 9l3.500 3.500 1-1L11 10a5 5 0 0 0-4-8zm0 1.500a3.500 3.500 0 1 1 0 7 3.500 3.500 0 0 1 0-7z",
  theme: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1zm0 1.500v11a5.500 5.500 0 0 1 0-11z",
};
const icon = (key) => s("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" },
  s("path", { d: ICONS[key] }));

// Drawing on a canvas: text that fits, and stripes.

function fit(pen, text, width) {
  text = clean(text);
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 2 ? `${text.slice(0, low)}…` : "";
}

function fitEnd(pen, text, width) { // of a category path, the last steps that fit
  const steps = text.split(" / ");
  for (let n = 0; n < steps.length - 1; n++) {
    const short = clean(steps.slice(n).join(" / "));
    if (pen.measureText(short).width <= width) return short;
  }
  return fit(pen, steps[steps.length - 1], width);
}

let hatching = {};
function hatch(pen) { // stripes, so that pruned nodes are recognised without colours
  if (hatching.colour !== palette.hatch) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.strokeStyle = palette.hatch;
    brush.lineWidth = 1.2;
    for (const shift of [-6, 0, 6]) { brush.moveTo(shift, 6); brush.lineTo(shift + 6, 0); }
    brush.stroke();
    hatching = { colour: palette.hatch, tile };
  }
  return pen.createPattern(hatching.tile, "repeat");
}
