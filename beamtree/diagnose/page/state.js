// The state of the view, all of it in the address, so that a link shows the same view.

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
  const result = { ...DEFAULTS };
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!(key in DEFAULTS)) continue;
    if (key === "history") result.history = value ? value.split("\t").slice(0, 200) : null;
    else if (NUMBERS.includes(key)) { if (Number.isFinite(Number(value))) result[key] = Number(value); }
    else result[key] = value;
  }
  return validate(result);
}

// Replace invalid values of an address.
function validate(result) {
  if (!TABS.some(([key]) => key === result.tab)) result.tab = "search";
  if (!["beam", "scale"].includes(result.layout)) result.layout = "beam";
  if (!["light", "dark", null].includes(result.theme)) result.theme = null;
  result.k = clamp(Math.round(result.k), 1, 4096);
  result.m = clamp(Math.round(result.m), 1, 200);
  result.hide = clamp(Math.round(result.hide), 0, 50);
  if (!(result.from >= 0 && result.to <= 1 && result.to - result.from > 1e-9)) [result.from, result.to] = [0, 1];
  for (const key of ["model", "other", "node"]) result[key] = Math.max(0, Math.round(result[key]));
  return result;
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
function writeAddress() {
  clearTimeout(pending);
  written = performance.now();
  document.documentElement.dataset.address = "written";
  if (location.hash !== address()) history.replaceState(null, "", address());
}
function set(changes) {
  state = validate({ ...state, ...changes });
  clearTimeout(pending);
  if (performance.now() - written > 250) writeAddress(); // browsers refuse addresses that change all the time
  else {
    document.documentElement.dataset.address = "pending";
    pending = setTimeout(writeAddress, 120);
  }
  listener(changes);
}
