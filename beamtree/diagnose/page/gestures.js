// Pointer, wheel and touch on the tree: hover shows a tooltip, click selects, wheel and pinch zoom, drag moves.

TreeView.prototype.listen = function () {
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
};

TreeView.prototype.point = function ([px, py], event) {
  const hit = this.nodeAt(px, py);
  this.canvas.style.cursor = hit ? "pointer" : "grab";
  if (this.hover !== (hit?.node ?? null)) { this.hover = hit?.node ?? null; this.draw(); }
  if (hit) showTip(event.clientX, event.clientY, this.tooltip(hit)); else hideTip();
};

TreeView.prototype.tooltip = function ({ node, row }) {
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
};

TreeView.prototype.choose = function (hit) {
  if (!hit) return;
  const leaf = hit.row === this.rows[this.rows.length - 1];
  if (leaf && hit.node.popular && this.onItem) this.onItem(hit.node.popular);
  else if (!leaf) this.enter(hit);
};

TreeView.prototype.enter = function (hit) { // zoom to a subtree, and out again
  if (!hit) return set({ from: 0, to: 1 });
  const [a, b] = state.layout === "scale" ? hit.node.scale : hit.node.beam;
  const room = (b - a) * 0.15, from = Math.max(0, a - room), to = Math.min(1, b + room);
  const there = Math.abs(from - state.from) < 1e-6 && Math.abs(to - state.to) < 1e-6;
  set(there || to - from > 0.98 ? { from: 0, to: 1 } : { from, to });
};

TreeView.prototype.zoom = function (factor, around = (state.from + state.to) / 2) {
  const wide = clamp((state.to - state.from) * factor, 1e-6, 1);
  const share = (around - state.from) / (state.to - state.from);
  const from = clamp(around - share * wide, 0, 1 - wide);
  set({ from, to: from + wide });
};

TreeView.prototype.pan = function (by) {
  const wide = state.to - state.from, from = clamp(state.from + by, 0, 1 - wide);
  set({ from, to: from + wide });
};

TreeView.prototype.morphTo = function (goal) { // from one layout to the other, so that the eye can follow
  cancelAnimationFrame(this.running);
  if (prefersReducedMotion()) { this.morph = goal; return this.draw(); }
  const move = () => {
    this.morph += (goal - this.morph) * 0.22;
    if (Math.abs(goal - this.morph) < 0.004) this.morph = goal;
    this.draw();
    if (this.morph !== goal) this.running = requestAnimationFrame(move);
  };
  move();
};

function showTip(x, y, lines) {
  const tip = $("tip");
  fill(tip, lines);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${clamp(x + 14, 6, innerWidth - box.width - 6)}px`;
  tip.style.top = `${clamp(y + 16, 6, innerHeight - box.height - 6)}px`;
}
const hideTip = () => { $("tip").hidden = true; };
