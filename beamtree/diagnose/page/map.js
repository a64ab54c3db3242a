// The map of the catalogue: every rectangle is a subtree, with an area proportional to its number of items.

const SMALLEST = 7000; // square pixels, below which a subtree is not divided
const HEADING = 17;
const PAINTS = [["beam", "where this user's beam went"], ["events", "events per item"], ["items", "plain"]];

function showMap(source, search) {
  const map = source.models[0].map;
  const view = $("view");
  if (!map) return fill(view, h("p", { class: "muted" }, "There is no map of this model."));
  const { arity } = source.models[0];
  const node = state.node < map.items.length ? state.node : 0;
  const path = [];
  for (let at = node; at >= 0; at = at ? parentOf(arity, at) : -1) path.unshift(at);
  const canvas = h("canvas", { class: "map", tabindex: 0, role: "img",
    "aria-label": `Map of ${count(map.items[node])} items below ${clean(map.names[node])}` });
  fill(view, h("div", { class: "head" }, h("h2", {}, "Catalogue"),
    h("nav", { class: "crumbs", "aria-label": "Path to this subtree" },
      path.map((at, n) => [n ? " › " : "",
      h("button", { class: "plain", "aria-current": at === node ? "location" : null,
      onclick: () => set({ node: at }) }, at ? cut(clean(map.names[at]), 26) : "all items")])),
    h("label", { class: "line" }, "colour: ",
      h("select", { id: "paint", onchange: (event) => set({ paint: event.target.value }) },
      PAINTS.map(([key, word]) => h("option", { value: key, selected: key === state.paint }, word))))), canvas);
  const boxes = drawMap(canvas, map, node, arity, search);
  const hit = (event) => { const box = canvas.getBoundingClientRect(), x = event.clientX - box.left,
    y = event.clientY - box.top; return boxes.findLast((each) => x >= each.x && x < each.x + each.w &&
    y >= each.y && y < each.y + each.h); };
  canvas.addEventListener("pointermove", (event) => {
    const at = hit(event);
    if (!at) return hideTip();
    showTip(event.clientX, event.clientY,
      [h("b", {}, map.names[at.node]), h("span", {},
      `level ${at.level} · ${plural(map.items[at.node], "item")} · ${plural(map.events[at.node], "event")}`),
      at.heat ? h("span", {}, `about ${count(Math.round(at.heat))} leaves of the last beam`) : null].filter(Boolean));
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => { const at = hit(event);
    if (at) { hideTip(); set({ node: enterChild(at.node, node, arity) }); } });
}

function enterChild(at, from, arity) { // two levels at a time, towards what was clicked
  const path = [];
  for (let n = at; n > from; n = parentOf(arity, n)) path.unshift(n);
  return path[Math.min(path.length - 1, arity === 2 ? 1 : 0)] ?? from;
}

// How many leaves of the last beam lie in each node's stretch, from the counts by stretch.
function heatOf(search, arity) {
  const { spread } = search.levels[search.levels.length - 1], bins = spread.kept.length;
  return (node, level) => {
    const size = arity ** level, a = ((node - level0(arity, level)) / size) * bins, b = a + bins / size;
    let sum = 0;
    for (let bin = Math.floor(a); bin < Math.min(bins, Math.ceil(b));
      bin++) sum += spread.kept[bin] * (Math.min(b, bin + 1) - Math.max(a, bin));
    return sum;
  };
}

function drawMap(canvas, map, root, arity, search) {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const heat = heatOf(search, arity), boxes = [];
  const levelOf = (node) => { let level = 0; while (level0(arity, level + 1) <= node) level++; return level; };
  const visit = (node, level, x, y, w, high, depth, heading) => {
    if (!map.items[node] || w < 1 || high < 1) return;
    const children = [];
    for (let n = arity * node + 1; n <= arity * node + arity; n++) if (map.items[n]) children.push(n);
    const each = { node, level, x, y, w, h: high, depth, under: heading, heat: heat(node, level) };
    boxes.push(each);
    each.leaf = !children.length || w * high < SMALLEST || depth > 12;
    if (each.leaf) return;
    if (depth > 0 && (depth % 2 === 0 || arity > 2) && w > 150 && high > 110 && map.names[node] !== heading) {
      each.heading = true;
      [y, high, heading] = [y + HEADING, high - HEADING, map.names[node]];
    }
    const gap = clamp(5 - depth, 0, 3), sum = children.reduce((total, n) => total + map.items[n], 0);
    let at = 0;
    for (const n of children) {
      const share = map.items[n] / sum;
      if (w >= high) visit(n, level + 1, x + at * w, y, share * w - gap * (n !== children[children.length - 1]),
        high, depth + 1, heading);
      else visit(n, level + 1, x, y + at * high, w, share * high - gap * (n !== children[children.length - 1]),
        depth + 1, heading);
      at += share;
    }
  };
  visit(root, levelOf(root), 0, 0, box.width, box.height, 0, map.names[root]);
  headings(pen, boxes, map);
  const leaves = boxes.filter((each) => each.leaf);
  const value = (each) => (state.paint === "beam" ? each.heat / map.items[each.node] : state.paint === "events"
    ? Math.log1p(map.events[each.node] / map.items[each.node]) : 0.25);
  const most = Math.max(...leaves.map(value), 1e-9);
  for (const each of leaves) {
    pen.fillStyle = palette.faint;
    pen.fillRect(each.x, each.y, each.w - 1, each.h - 1);
    const strength = value(each) / most;
    pen.globalAlpha = 0.04 + 0.8 * strength;
    pen.fillStyle = palette.beam;
    pen.fillRect(each.x, each.y, each.w - 1, each.h - 1);
    pen.globalAlpha = 1;
    if (each.w < 46 || each.h < 22) continue;
    const lines = wrap(pen, withoutHeading(map.names[each.node], each.under), each.w - 12, Math.floor((each.h - 8) / 14));
    pen.font = "11.5px system-ui, sans-serif";
    pen.fillStyle = strength > 0.55 ? palette.paper : palette.ink;
    lines.forEach((line, n) => pen.fillText(line, each.x + 6, each.y + 16 + n * 14));
    if (each.h > 30 + lines.length * 14) { pen.globalAlpha = 0.75; pen.font = "10px system-ui, sans-serif";
      pen.fillText(plural(map.items[each.node], "item"), each.x + 6, each.y + 17 + lines.length * 14);
      pen.globalAlpha = 1; }
  }
  return boxes;
}

// A category without the steps that the heading above it shows.
function withoutHeading(text, heading) {
  const steps = text.split(" / "), headingSteps = heading.split(" / ");
  let same = 0;
  while (same < steps.length - 1 && steps[same] === headingSteps[same]) same++;
  return steps.slice(same).join(" / ");
}

function headings(pen, boxes, map) {
  pen.font = "600 11px system-ui, sans-serif";
  pen.fillStyle = palette.muted;
  for (const each of boxes) if (each.heading) pen.fillText(fit(pen, map.names[each.node], each.w - 12), each.x + 2,
    each.y + 12);
}

function wrap(pen, text, width, most) {
  pen.font = "11.5px system-ui, sans-serif";
  const lines = [];
  let line = "";
  for (const word of clean(text).split(/\s+/)) {
    const longer = line ? `${line} ${word}` : word;
    if (pen.measureText(longer).width <= width) { line = longer; continue; }
    if (line) lines.push(line);
    line = fit(pen, word, width);
    if (lines.length >= most) break;
  }
  if (line) lines.push(line);
  return lines.slice(0, Math.min(most, 4));
}
