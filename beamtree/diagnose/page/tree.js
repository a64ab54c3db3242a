// The tree on a canvas: the beam as a band from the top down, pruned nodes striped, labels if there is room.

class TreeView {
  constructor(canvas, { small = false, colour = "beam", onItem = null, map = null } = {}) {
    Object.assign(this, { canvas, small, colour, onItem, map, morph: state.layout === "scale" ? 1 : 0, hover: null });
    this.gutter = small ? 74 : 106;
    this.foot = small ? 8 : 118;
    this.edge = small ? 8 : 44; // labels of the last leaves lean out there
    if (!small) this.listen();
  }
  show(search, paths) {
    this.search = search;
    this.rows = treeRows(search);
    this.paths = paths;
    this.draw();
  }
  // Measures
  size() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(120, box.width);
    this.height = Math.max(120, box.height);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return pen;
  }
  x(position) {
    const span = this.small ? 1 : state.to - state.from;
    const from = this.small ? 0 : state.from;
    return this.gutter + ((position - from) / span) * (this.width - this.gutter - this.edge);
  }
  span(node) {
    const t = this.morph;
    const left = node.beam[0] * (1 - t) + node.scale[0] * t, right = node.beam[1] * (1 - t) + node.scale[1] * t;
    const a = this.x(left), b = this.x(right);
    const gap = Math.min(1.5, (b - a) * 0.15);
    return b - a < 2 ? [(a + b) / 2 - 1, (a + b) / 2 + 1] : [a + gap, b - gap];
  }
  y(row) { // rows that the search passed over are low, the others share what is left
    const top = this.small ? 10 : 30;
    const passed = this.rows.filter((each) => each.passed).length, rest = this.rows.length - passed;
    const room = this.height - top - this.foot, low = Math.min(22, room / (this.rows.length + 1));
    const high = rest ? clamp((room - low * passed) / rest, 8, 92) : low;
    let y = top;
    for (let n = 0; n < row; n++) y += this.rows[n].passed ? low : high;
    return { top: y, box: clamp((this.rows[row].passed ? low : high) * 0.42, 4, this.small ? 9 : 17) };
  }
  depth() { // how many rows are shown
    if (this.small || state.level === null) return this.rows.length;
    return clamp(this.rows.findIndex((row) => row.level === state.level) + 1, 0, this.rows.length);
  }
  // Drawing
  draw() {
    if (!this.rows || !this.canvas.isConnected) return;
    const pen = (this.pen = this.size());
    pen.clearRect(0, 0, this.width, this.height);
    pen.save();
    const shown = this.depth();
    const last = shown === this.rows.length;
    this.gutters(shown);
    pen.beginPath();
    pen.rect(this.gutter - 4, 0, this.width - this.gutter + 4, this.height);
    pen.clip();
    this.root();
    for (let n = 0; n < shown; n++) this.links(n);
    if (this.morph > 0.5) for (let n = 0; n < shown; n++) if (!this.rows[n].passed) this.density(n);
    for (let n = 0; n < shown; n++) this.boxes(n, n === shown - 1 && !last);
    for (const path of this.paths.all) if (path !== this.paths.chosen) this.path(path, shown, false);
    if (this.paths.chosen) this.path(this.paths.chosen, shown, true);
    if (!this.small) {
      for (let n = 0; n < shown; n++) this.labels(n);
      if (last) this.leafLabels();
    }
    pen.restore();
    const text = this.search.levels.map((each) => `level ${each.level}: ${each.kept} of ${each.candidates} kept`).join("; ");
    this.canvas.setAttribute("aria-label", `The search, level by level. ${text}.`);
  }
  root() {
    if (this.small) return;
    const { pen } = this;
    const above = this.rows[0].level - 1;
    pen.fillStyle = palette.muted;
    pen.font = "11px system-ui, sans-serif";
    const items = count(this.map?.items?.[0] ?? 0);
    pen.fillText(above ? `root · ${items} items · levels 1 to ${above} are not searched` : `root · ${items} items`,
      this.gutter, 16);
  }
  gutters(shown) {
    const { pen } = this;
    pen.textBaseline = "middle";
    for (let n = 0; n < this.rows.length; n++) {
      const row = this.rows[n], { top, box } = this.y(n);
      const on = n < shown;
      pen.globalAlpha = on ? 1 : 0.35;
      pen.fillStyle = palette.ink;
      pen.font = `600 ${this.small ? 10 : 12}px system-ui, sans-serif`;
      pen.fillText(this.small ? `${row.level}` : `level ${row.level}`, 6, top + box / 2);
      pen.font = `${this.small ? 9 : 10.5}px system-ui, sans-serif`;
      pen.fillStyle = palette.muted;
      if (row.passed) { if (!this.small) pen.fillText("all kept", 58, top + box / 2); }
      else if (this.small) pen.fillText(`${row.kept}/${row.candidates}`, 24, top + box / 2);
      else if (on) pen.fillText(`${count(row.kept)} of ${count(row.candidates)} kept`, 6, top + box / 2 + 14);
      pen.globalAlpha = 1;
    }
    pen.textBaseline = "alphabetic";
  }
  links(n) {
    if (!n) return;
    const { pen } = this, above = this.y(n - 1), here = this.y(n);
    const y0 = above.top + above.box, y1 = here.top;
    for (const wanted of [false, true]) {
      for (const node of this.rows[n].list) {
        if (!node.parent || node.kept !== wanted || node.ghost) continue;
        const [a, b] = this.span(node), [p, q] = this.inside(node);
        if (b < this.gutter || a > this.width) continue;
        pen.beginPath();
        pen.moveTo(p, y0);
        pen.bezierCurveTo(p, (y0 + y1) / 2, a, (y0 + y1) / 2, a, y1);
        pen.lineTo(b, y1);
        pen.bezierCurveTo(b, (y0 + y1) / 2, q, (y0 + y1) / 2, q, y0);
        pen.fillStyle = node.kept ? palette[this.colour] : palette.hatch;
        pen.globalAlpha = node.kept ? 0.17 : 0.13;
        pen.fill();
      }
    }
    pen.globalAlpha = 1;
  }
  inside(node) { // the share of its parent's lower edge from which a node hangs
    const [p, q] = this.span(node.parent), [a, b] = this.span(node);
    return [clamp(a, p, q), clamp(b, p, q)];
  }
  boxes(n, undecided) {
    const { pen } = this, row = this.rows[n], { top, box } = this.y(n);
    const range = Math.max(1e-9, row.best - row.kth);
    for (const node of row.list) {
      const [a, b] = this.span(node);
      if (b < this.gutter - 2 || a > this.width) continue;
      if (node.ghost) continue;
      pen.beginPath();
      pen.roundRect(a, top, b - a, box, Math.min(3, (b - a) / 3));
      if (node.kept) {
        const strength = node.implied ? 0.3 : clamp((node.score - row.kth) / range, 0, 1);
        pen.globalAlpha = row.passed ? 0.45 : 0.5 + 0.5 * strength;
        pen.fillStyle = palette[this.colour];
        pen.fill();
      } else {
        pen.globalAlpha = undecided ? 0.9 : 0.5;
        pen.fillStyle = hatch(pen);
        pen.fill();
        pen.lineWidth = 1;
        pen.strokeStyle = palette.hatch;
        pen.stroke();
      }
      pen.globalAlpha = 1;
      if (this.hover === node) { pen.lineWidth = 2; pen.strokeStyle = palette.ink; pen.stroke(); }
    }
  }
  density(n) { // how many nodes lie in each stretch of the level, also of those that are not drawn
    const { pen } = this, row = this.rows[n], { top, box } = this.y(n);
    const bins = row.spread.candidates.length;
    pen.fillStyle = palette.hatch;
    const y = top + box + 2, most = Math.max(...row.spread.candidates, 1);
    for (const [counts, colour, alpha] of [[row.spread.candidates, "hatch", 0.35],
      [row.spread.kept, this.colour, 0.6]]) {
      pen.fillStyle = palette[colour];
      counts.forEach((each, bin) => {
        if (!each) return;
        pen.globalAlpha = alpha * (this.morph - 0.5) * 2;
        const tall = 1.5 + 6 * (Math.log1p(each) / Math.log1p(most));
        const a = this.x(bin / bins), b = this.x((bin + 1) / bins);
        pen.fillRect(a + 0.5, y, Math.max(1, b - a - 1), tall);
      });
    }
    pen.globalAlpha = 1;
  }
  path(path, shown, chosen) {
    const { pen } = this, outcome = outcomeOf(path, state.m);
    const points = path.steps.slice(0, shown).map((each, n) => {
      const node = this.rows[n].at.get(each.node), { top, box } = this.y(n);
      const [a, b] = this.span(node);
      return { x: (a + b) / 2, y: top + box / 2, kept: each.kept };
    });
    if (!points.length) return;
    const at = points.findIndex((each) => !each.kept);
    const solid = at < 0 ? points : points.slice(0, at + 1);
    const line = (list, dash, colour, wide) => {
      if (list.length < 2) return;
      pen.beginPath();
      pen.moveTo(list[0].x, list[0].y);
      for (let n = 1; n < list.length; n++) {
        const middle = (list[n - 1].y + list[n].y) / 2;
        pen.bezierCurveTo(list[n - 1].x, middle, list[n].x, middle, list[n].x, list[n].y);
      }
      pen.setLineDash(dash);
      pen.lineWidth = wide;
      pen.strokeStyle = colour;
      pen.stroke();
      pen.setLineDash([]);
    };
    const colour = palette[outcome];
    pen.globalAlpha = chosen ? 1 : 0.55;
    if (chosen) line(solid, [], palette.panel, 7);
    line(solid, [], colour, chosen ? 3 : 1.4);
    if (at >= 0) line(points.slice(at), [2, 4], colour, chosen ? 2 : 1);
    const end = at < 0 ? points[points.length - 1] : points[at];
    if (at >= 0) this.cross(end, chosen ? 6 : 3.5, colour, chosen);
    else if (shown === this.rows.length) this.dot(end, chosen ? 6 : 4, colour, outcome === "found");
    pen.globalAlpha = 1;
  }
  cross({ x, y }, r, colour, chosen) {
    const { pen } = this;
    if (chosen) { pen.beginPath(); pen.arc(x, y, r + 4, 0, 7); pen.fillStyle = palette.panel; pen.fill(); }
    pen.beginPath();
    pen.moveTo(x - r, y - r); pen.lineTo(x + r, y + r); pen.moveTo(x + r, y - r); pen.lineTo(x - r, y + r);
    pen.lineWidth = chosen ? 3 : 2;
    pen.strokeStyle = colour;
    pen.stroke();
  }
  dot({ x, y }, r, colour, full) {
    const { pen } = this;
    pen.beginPath();
    pen.arc(x, y, r, 0, 7);
    pen.fillStyle = full ? colour : palette.panel;
    pen.fill();
    pen.lineWidth = 2;
    pen.strokeStyle = full ? palette.panel : colour;
    pen.stroke();
  }
  labels(n) {
    const { pen } = this, row = this.rows[n], { top, box } = this.y(n);
    if (box < 11 || n === this.rows.length - 1) return;
    pen.font = "10.5px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const node of row.list) {
      if (node.ghost) continue;
      const span = this.span(node), a = Math.max(span[0], this.gutter), b = Math.min(span[1], this.width);
      if (b - a < 34) continue;
      const text = fitEnd(pen, nodeName(node, this.map), b - a - 6);
      if (!text) continue;
      pen.fillStyle = node.kept ? palette.paper : palette.muted;
      pen.fillText(text, (a + b) / 2 - pen.measureText(text).width / 2, top + box / 2 + 0.5);
    }
    pen.textBaseline = "alphabetic";
  }
  leafLabels() {
    const { pen } = this, n = this.rows.length - 1, { top, box } = this.y(n);
    const chosen = this.paths.chosen?.steps[n]?.node;
    const free = [];
    const order = [...this.rows[n].list].sort((a, b) => (b.node === chosen) - (a.node === chosen) ||
      (a.rank ?? 1e9) - (b.rank ?? 1e9));
    for (const node of order) {
      if (!node.popular || node.implied) continue;
      const [a, b] = this.span(node), x = (a + b) / 2;
      if (x < this.gutter || x > this.width || free.some((other) => Math.abs(other - x) < 13)) continue;
      free.push(x);
      const found = node.kept && node.rank <= state.m;
      pen.save();
      pen.translate(x + 4, top + box + 10);
      pen.rotate(0.96);
      pen.font = `${found ? 600 : 400} 11px system-ui, sans-serif`;
      pen.fillStyle = node.node === chosen ? palette[outcomeOf(this.paths.chosen, state.m)] : found ? palette.ink
        : palette.muted;
      pen.fillText(fit(pen, `${found ? `${node.rank}  ` : ""}${name(node.popular)}`, this.foot * 1.12), 0, 4);
      pen.restore();
    }
  }
  // What is under the pointer
  nodeAt(px, py) {
    for (let n = 0; n < this.depth(); n++) {
      const { top, box } = this.y(n);
      const below = n === this.rows.length - 1 ? this.foot : 5;
      if (py < top - 5 || py > top + box + below) continue;
      let best = null, least = 7;
      for (const node of this.rows[n].list) {
        if (node.ghost) continue;
        const [a, b] = this.span(node);
        const far = px < a ? a - px : px > b ? px - b : 0;
        if (far < least) [best, least] = [node, far];
      }
      if (best) return { node: best, row: this.rows[n] };
    }
    return null;
  }
  // Pointer, wheel and touch on the tree: hover shows a tooltip, click selects, wheel and pinch zoom, drag moves.
  listen() {
    const { canvas } = this, fingers = new Map();
    let moved = 0, pinch = null;
    const local = (event) => { const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top]; };
    const position = (px) => state.from + ((px - this.gutter) / (this.width - this.gutter - this.edge)) * (state.to - state.from);

    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.pan((event.deltaX / this.width) * (state.to - state.from));
      this.zoom(Math.exp(event.deltaY * 0.0022), position(local(event)[0]));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, local(event));
      moved = 0;
      if (fingers.size === 2) pinch = [...fingers.values()];
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId), now = local(event);
      if (!before) return this.point(now, event);
      fingers.set(event.pointerId, now);
      moved += Math.abs(now[0] - before[0]);
      if (fingers.size === 2 && pinch) {
        const [a, b] = [...fingers.values()];
        const was = Math.abs(pinch[0][0] - pinch[1][0]), is = Math.abs(a[0] - b[0]);
        if (was > 10 && is > 10) this.zoom(was / is, position((a[0] + b[0]) / 2));
        pinch = [a, b];
      } else if (moved > 3) {
        canvas.setPointerCapture(event.pointerId);
        this.pan(((before[0] - now[0]) / (this.width - this.gutter)) * (state.to - state.from));
      }
    });
    const lift = (event) => { fingers.delete(event.pointerId); pinch = null; };
    canvas.addEventListener("pointerup", (event) => {
      lift(event);
      if (moved <= 3) this.choose(this.nodeAt(...local(event)));
    });
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => { this.hover = null; hideTip(); this.draw(); });
    canvas.addEventListener("dblclick", (event) => this.enter(this.nodeAt(...local(event))));
  }
  point([px, py], event) {
    const hit = this.nodeAt(px, py);
    this.canvas.style.cursor = hit ? "pointer" : "grab";
    if (this.hover !== (hit?.node ?? null)) { this.hover = hit?.node ?? null; this.draw(); }
    if (hit) showTip(event.clientX, event.clientY, this.tooltip(hit)); else hideTip();
  }
  tooltip({ node, row }) {
    const lines = [h("b", {}, nodeName(node, this.map))];
    if (node.popular?.category && node.items === 1) lines.push(h("span", {}, node.popular.category));
    const outcome = row.passed ? "kept, like the whole level" : node.kept ? "kept" : "pruned";
    lines.push(h("span", {},
      `level ${row.level} · ${plural(node.items ?? 0, "item")} · ${node.implied ? "kept, not listed" : outcome}`));
    if (!node.implied) {
      lines.push(h("span", {}, `rank ${count(node.rank)} of ${count(row.candidates)} · score ${num(node.score)}`));
      lines.push(h("span", {}, `${signed(node.score - row.kth)} from the last kept (${num(row.kth)})`));
    }
    return lines;
  }
  choose(hit) {
    if (!hit) return;
    const leaf = hit.row === this.rows[this.rows.length - 1];
    if (leaf && hit.node.popular && this.onItem) this.onItem(hit.node.popular);
    else if (!leaf) this.enter(hit);
  }
  enter(hit) { // zoom to a subtree, and out again
    if (!hit) return set({ from: 0, to: 1 });
    const [a, b] = state.layout === "scale" ? hit.node.scale : hit.node.beam;
    const room = (b - a) * 0.15, from = Math.max(0, a - room), to = Math.min(1, b + room);
    const there = Math.abs(from - state.from) < 1e-6 && Math.abs(to - state.to) < 1e-6;
    set(there || to - from > 0.98 ? { from: 0, to: 1 } : { from, to });
  }
  zoom(factor, around = (state.from + state.to) / 2) {
    const wide = clamp((state.to - state.from) * factor, 1e-6, 1);
    const share = (around - state.from) / (state.to - state.from);
    const from = clamp(around - share * wide, 0, 1 - wide);
    set({ from, to: from + wide });
  }
  pan(by) {
    const wide = state.to - state.from, from = clamp(state.from + by, 0, 1 - wide);
    set({ from, to: from + wide });
  }
  morphTo(goal) { // from one layout to the other, so that the eye can follow
    cancelAnimationFrame(this.running);
    if (prefersReducedMotion()) { this.morph = goal; return this.draw(); }
    const move = () => {
      this.morph += (goal - this.morph) * 0.22;
      if (Math.abs(goal - this.morph) < 0.004) this.morph = goal;
      this.draw();
      if (this.morph !== goal) this.running = requestAnimationFrame(move);
    };
    move();
  }
}

function showTip(x, y, lines) {
  const tip = $("tip");
  fill(tip, lines);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${clamp(x + 14, 6, innerWidth - box.width - 6)}px`;
  tip.style.top = `${clamp(y + 16, 6, innerHeight - box.height - 6)}px`;
}
const hideTip = () => { $("tip").hidden = true; };

// The positions of nodes. Two layouts: `scale`, in which a subtree is as wide as its share of the leaves, and `beam`,
// in which the nodes that the search visited take all the width.

const WEIGHT = { kept: 1, pruned: 0.5 };

// Rows of nodes with a position from 0 to 1 in both layouts. Nodes that are not listed but lie above listed ones are added.
function treeRows(search) {
  const { arity } = search;
  const rows = search.levels.map((level) => ({
    ...level, at: new Map(level.nodes.map((node) => [node.node, { ...node, children: [] }])),
  }));
  for (const path of search.items) {
    path.steps.forEach((each, n) => { // ancestors that were never candidates: where a lost item would have gone on
      if (!rows[n].at.has(each.node)) rows[n].at.set(each.node,
        { node: each.node, score: each.score, ghost: true, kept: false, children: [] });
    });
  }
  for (let n = rows.length - 1; n > 0; n--) {
    for (const node of [...rows[n].at.values()]) {
      const above = parentOf(arity, node.node);
      if (!rows[n - 1].at.has(above)) rows[n - 1].at.set(above,
        { node: above, kept: true, implied: true, children: [] });
      rows[n - 1].at.get(above).children.push(node);
      node.parent = rows[n - 1].at.get(above);
    }
  }
  const top = [...rows[0].at.values()].sort((a, b) => a.node - b.node);
  top.forEach(weigh);
  spreadOut(top, 0, 1);
  rows.forEach((row) => {
    const start = level0(arity, row.level), size = arity ** row.level;
    row.list = [...row.at.values()].sort((a, b) => a.node - b.node);
    for (const node of row.list) node.scale = [(node.node - start) / size, (node.node - start + 1) / size];
  });
  return rows;
}

function weigh(node) {
  node.children.sort((a, b) => a.node - b.node);
  node.children.forEach(weigh);
  const weight = node.ghost ? 0.35 : node.kept ? WEIGHT.kept : WEIGHT.pruned;
  node.weight = Math.max(weight, node.children.reduce((sum, each) => sum + each.weight, 0));
}

function spreadOut(nodes, from, to) {
  const sum = nodes.reduce((total, each) => total + each.weight, 0);
  let x = from;
  for (const node of nodes) {
    const width = ((to - from) * node.weight) / sum;
    node.beam = [x, x + width];
    spreadOut(node.children, x, x + width);
    x += width;
  }
}

// What a subtree is called: by its category or most popular items where the map knows it, else by its most popular item.
function nodeName(node, map) {
  if (node.items === 1 && node.popular) return name(node.popular);
  const label = map?.names?.[node.node];
  if (label) return label;
  if (!node.popular) return `node ${count(node.node)}`;
  return node.items > 1 ? `${name(node.popular)} +${count(node.items - 1)}` : name(node.popular);
}
