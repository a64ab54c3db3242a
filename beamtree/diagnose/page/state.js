// What is shown, all of it in the address, so that a link shows the same.

const TABS = [["search", "Search"], ["compare", "Compare"], ["losses", "Losses"], ["map", "Catalogue"]];
const DEFAULTS = {
  tab: "search", user: null, history: null, hide: 5, k: 100, m: 10, item: null, model: 0, other: 1, k2: null,
    level: null,
  layout: "beam", from: 0, to: 1, node: 0, paint: "beam", theme: null,
};
const NUMBERS = ["k", "m", "model", "other", "k2", "level", "from", "to", "node", "hide"];
let state = { ...DEFAULTS };
let listener = () => {};

function readAddress() {
  const found = { ...DEFAULTS };
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!(key in DEFAULTS)) continue;
    if (key === "history") found.history = value ? value.split("\t").slice(0, 200) : null;
    else if (NUMBERS.includes(key)) { if (Number.isFinite(Number(value))) found[key] = Number(value); }
    else found[key] = value;
  }
  return sound(found);
}

// An address may say anything: what cannot be is brought back to what can.
function sound(found) {
  if (!TABS.some(([key]) => key === found.tab)) found.tab = "search";
  if (!["beam", "scale"].includes(found.layout)) found.layout = "beam";
  if (!["light", "dark", null].includes(found.theme)) found.theme = null;
  found.k = clamp(Math.round(found.k), 1, 4096);
  found.m = clamp(Math.round(found.m), 1, 200);
  found.hide = clamp(Math.round(found.hide), 0, 50);
  if (!(found.from >= 0 && found.to <= 1 && found.to - found.from > 1e-9)) [found.from, found.to] = [0, 1];
  for (const key of ["model", "other", "node"]) found[key] = Math.max(0, Math.round(found[key]));
  return found;
}

function address() {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value === null || value === DEFAULTS[key]) continue;
    const text = key === "history" ? value.join("\t") : typeof value === "number" ? String(+value.toPrecision(8))
      : value;
    parts.set(key, text);
  }
  return `#${parts}`;
}

let pending = 0, written = -1e9;
function keepAddress() {
  clearTimeout(pending);
  written = performance.now();
  document.documentElement.dataset.address = "kept";
  if (location.hash !== address()) history.replaceState(null, "", address());
}
function set(changes) {
  state = sound({ ...state, ...changes });
  clearTimeout(pending);
  if (performance.now() - written > 250) keepAddress(); // browsers refuse addresses that change all the time
  else {
    document.documentElement.dataset.address = "late";
    pending = setTimeout(keepAddress, 120);
  }
  listener(changes);
}
