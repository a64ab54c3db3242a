// Charts in SVG: recall against cost, margins by level, parts of a score, and the losses of `inspect`.

// Recall at m and nodes scored for every beam size, over the recorded users, or over this one when it is live.
function costPoints(source, model, m) {
  if (source.live) return null;
  return source.beamSizes.filter((size) => size >= m).map((size) => {
    let recall = 0, cost = 0;
    for (const user of source.users) {
      const search = source.at(user, model, size);
      const hits = search.items.filter((path) => path.rank !== null && path.rank <= m).length;
      recall += user.truth.length ? hits / user.truth.length : 0;
      cost += search.scored;
    }
    return { size, recall: recall / source.users.length, cost: cost / source.users.length };
  });
}

function costChart(points, k, onpick, label) {
  if (!points?.length) return null;
  const W = 200, H = 58, pad = { l: 30, r: 10, t: 8, b: 14 };
  const high = Math.max(...points.map((p) => p.recall), 0.01) * 1.12;
  const logs = points.map((p) => Math.log(p.cost)), least = Math.min(...logs), wide = Math.max(...logs) - least || 1;
  const x = (p) => pad.l + ((Math.log(p.cost) - least) / wide) * (W - pad.l - pad.r);
  const y = (p) => H - pad.b - (p.recall / high) * (H - pad.t - pad.b);
  const chart = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img",
    "aria-label": `${label}: ` + points.map((p) => `k ${p.size}: recall ${percent(p.recall, 1)}, ${count(Math.round(p.cost))} nodes`).join("; ") },
    s("text", { x: 2, y: pad.t + 6, class: "axis" }, percent(high / 1.12)),
    s("line", { x1: pad.l, x2: W - pad.r, y1: H - pad.b, y2: H - pad.b, class: "base" }),
    s("polyline", { points: points.map((p) => `${x(p)},${y(p)}`).join(" "), class: "curve" }));
  for (const p of points) {
    const on = p.size === k;
    chart.append(s("circle", { cx: x(p), cy: y(p), r: on ? 5 : 3, class: on ? "here" : "stop",
      onclick: () => onpick(p.size) },
      s("title", {}, `k = ${p.size}: recall ${percent(p.recall, 1)}, ${count(Math.round(p.cost))} nodes scored`)));
    if (on || p === points[0] || p === points[points.length - 1]) chart.append(s("text",
      { x: x(p), y: H - 3, class: "axis mid" }, p.size));
  }
  return chart;
}

function marginChart(path) {
  const W = 300, H = 74, steps = path.steps, wide = W / steps.length;
  const most = Math.max(...steps.map((each) => Math.abs(each.margin)), 1e-9);
  const chart = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "margins", role: "img",
    "aria-label": "Score above or below the last node kept, by level: " + steps.map((each) => `level ${each.level} ${signed(each.margin)}`).join(", ") });
  const middle = 34;
  steps.forEach((each, n) => {
    const tall = Math.max(1.5, (Math.abs(each.margin) / most) * 26), up = each.margin >= 0;
    const kind = each.kept ? "kept" : each.before === null ? "after" : "gone";
    chart.append(s("rect", { x: n * wide + wide * 0.18, width: wide * 0.64, y: up ? middle - tall : middle,
      height: tall, class: `margin ${kind}`, rx: 1.5 },
      s("title", {},
        `level ${each.level}: ${signed(each.margin)} from the last kept${each.before === null ? ", no longer a candidate" : `, ${each.before} ranked above it`}`)));
    chart.append(s("text", { x: (n + 0.5) * wide, y: H - 2, class: "axis mid" }, each.level));
    if (kind === "gone") chart.append(s("text",
      { x: (n + 0.5) * wide, y: up ? middle - tall - 2 : middle + tall + 9, class: "axis mid gone" }, "✕"));
  });
  chart.append(s("line", { x1: 0, x2: W, y1: middle, y2: middle, class: "base" }));
  return h("figure", {}, h("figcaption", {}, "Score above or below the last node kept, by level"), chart);
}

// What gives an item its score: the events that give most, the others together, and what no event gives.
function reasonTable(reasons, most = 5) {
  const first = reasons[0], places = [...new Set(reasons.map((row) => row.place).filter((place) => place))];
  const shown = places.length > most + 1 ? places.slice(0, most) : places, lines = new Map();
  for (const row of reasons) {
    const label = row.place === null ? (row.column ? `context: ${row.column}` : "no event") : shown.includes(row.place)
      ? row.event_title ?? row.event : plural(places.length - shown.length, "other event");
    const key = shown.includes(row.place) ? row.place : label;
    const line = lines.get(key) ?? { label, total: 0, parts: {}, last: typeof key === "string" };
    line.total += row.contribution;
    line.parts[row.part] = (line.parts[row.part] ?? 0) + row.contribution;
    lines.set(key, line);
  }
  const ordered = [...lines.values()].sort((a, b) => a.last - b.last);
  const notes = ({ parts }) => Object.entries(parts).map(([part, value]) => `${part} ${num(value)}`).join(" · ");
  return h("figure", {}, first.event !== null && first.total > 0
    ? h("p", {}, "Because of ", h("b", {}, first.event_title ?? first.event), ".") : null,
    h("figcaption", {}, "What gives the item its score"),
    h("table", { class: "parts", id: "reasons" }, h("tbody", {}, ordered.map((line) => h("tr", {},
      h("th", { scope: "row" }, line.label, h("div", { class: "note" }, notes(line))), h("td", {}, signed(line.total)))))));
}

function partChart(lost) {
  const most = Math.max(...lost.parts.map((part) => Math.abs(part.difference)), 1e-9);
  const rows = lost.parts.map((part) => {
    const bar = h("i", { class: part.difference < 0 ? "against" : "for" });
    bar.style.width = `${(Math.abs(part.difference) / most) * 50}%`;
    bar.style[part.difference < 0 ? "right" : "left"] = "50%";
    return h("tr", { class: part.name === lost.decided ? "decided" : "" }, h("th", { scope: "row" }, part.name),
      h("td", {}, num(part.item)), h("td", {}, num(part.kept)),
      h("td", { class: "diverge" }, bar), h("td", {}, signed(part.difference)));
  });
  const note = lost.together ? h("p", { class: "muted small" },
    `${lost.together.name} share one subtree maximum: together ${num(lost.together.item)} and ${num(lost.together.kept)}.`) : null;
  return h("figure", {}, h("figcaption", {},
    "The parts of the score, of the item’s subtree and of the last one kept"),
    h("table", { class: "parts" }, h("thead", {},
      h("tr", {}, ["part", "item’s", "kept", "", "difference"].map((word) => h("th", { scope: "col" }, word)))),
      h("tbody", {}, rows)), note);
}

// Where relevant items are lost at this beam size, in the form of `inspect`.
function lossesAt(searches, m) {
  const paths = searches.flatMap((search) => search.items.filter((path) => path.may_be_found));
  const all = paths.length || 1;
  let left = 1;
  const levels = (searches[0]?.levels ?? []).map((each, n) => {
    const gone = paths.filter((path) => path.lost && path.steps[n]?.level === path.lost.level);
    const lost = gone.length / all, avoidable = gone.filter((path) => path.would_rank <= m).length / all;
    left -= lost;
    return { level: each.level, lost, avoidable, survival: Math.max(0, left) };
  });
  const recall = paths.filter((path) => path.rank !== null && path.rank <= m).length / all;
  return { levels, cuts: [{ m, beam: recall, below: Math.max(0, left - recall) }], items: paths.length };
}

function lossChart(losses, note) {
  const last = losses.cuts[losses.cuts.length - 1];
  const bars = [...losses.levels.map((each) => ({ label: String(each.level), top: each.survival + each.lost,
    tall: each.lost, part: Math.min(each.avoidable, each.lost), kind: "lost" })),
    { label: `rank > ${last.m}`, top: last.beam + last.below, tall: last.below, kind: "below" },
      { label: "found", top: last.beam, tall: last.beam, kind: "found" }];
  const W = 720, H = 300, pad = { l: 44, r: 8, t: 14, b: 36 }, wide = (W - pad.l - pad.r) / bars.length;
  const y = (share) => pad.t + (1 - share) * (H - pad.t - pad.b);
  const chart = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", class: "loss",
    "aria-label": "Where relevant items go: " + bars.map((bar) => `${bar.label}: ${percent(bar.tall, 1)}`).join(", ") });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) chart.append(s("line",
    { x1: pad.l, x2: W - pad.r, y1: y(share), y2: y(share), class: "grid" }),
    s("text", { x: pad.l - 6, y: y(share) + 3, class: "axis end" }, percent(share)));
  bars.forEach((bar, n) => {
    const x = pad.l + n * wide + wide * 0.14, w = wide * 0.72;
    chart.append(s("rect", { x, width: w, y: y(bar.top), height: Math.max(0.8, y(bar.top - bar.tall) - y(bar.top)),
      class: `bar ${bar.kind}` }, s("title", {},
      `${bar.kind === "lost" ? `level ${bar.label}` : bar.label}: ${percent(bar.tall, 2)}`)));
    if (bar.part) chart.append(s("rect", { x, width: w, y: y(bar.top), height: y(bar.top - bar.part) - y(bar.top),
      class: "bar avoidable" }, s("title", {}, `avoidable: ${percent(bar.part, 2)}`)));
    if (n < bars.length - 2) chart.append(s("line",
      { x1: x + w, x2: x + wide + wide * 0.14 - w * 0.0, y1: y(bar.top - bar.tall), y2: y(bar.top - bar.tall),
      class: "step" }));
    const under = bar.kind === "lost" ? y(bar.top - bar.tall) + 12 : y(bar.top) - 4;
    if (bar.tall > 0.004) chart.append(s("text", { x: x + w / 2, y: under, class: "axis mid" },
      (bar.tall * 100).toFixed(1)));
    chart.append(s("text", { x: x + w / 2, y: H - 20, class: "axis mid" }, bar.label));
  });
  chart.append(s("text", { x: pad.l + (wide * losses.levels.length) / 2, y: H - 5, class: "axis mid" },
    "lost on level"));
  const key = (kind, text) => h("span", { class: "key" }, h("i", { class: `swatch ${kind}` }), text);
  return h("figure", { class: "wide" }, chart,
    h("figcaption", {}, key("lost", "not in the beam"), key("avoidable", note),
    key("below", `in the last beam, ranked below ${last.m}`), key("found", `found at ${last.m}`)));
}

function cutChart(losses) {
  const W = 330, H = 230, pad = { l: 40, r: 10, t: 12, b: 30 }, cuts = losses.cuts;
  const high = Math.max(...cuts.flatMap((cut) => [cut.beam, cut.brute_force]), 0.01) * 1.1;
  const x = (n) => pad.l + ((n + 0.5) / cuts.length) * (W - pad.l - pad.r),
    y = (share) => pad.t + (1 - share / high) * (H - pad.t - pad.b);
  const chart = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img",
    "aria-label": "Recall of the beam and of brute force: " + cuts.map((cut) => `m ${cut.m}: ${percent(cut.beam, 1)} and ${percent(cut.brute_force, 1)}`).join("; ") });
  for (const share of [0, 0.5, 1]) chart.append(s("line",
    { x1: pad.l, x2: W - pad.r, y1: y(share * high / 1.1), y2: y(share * high / 1.1), class: "grid" }),
    s("text", { x: pad.l - 5, y: y(share * high / 1.1) + 3, class: "axis end" }, percent(share * high / 1.1)));
  for (const [key, kind] of [["brute_force", "brute"], ["beam", "curve"]]) {
    chart.append(s("polyline", { points: cuts.map((cut, n) => `${x(n)},${y(cut[key])}`).join(" "), class: kind }));
    cuts.forEach((cut, n) => chart.append(key === "beam"
      ? s("circle", { cx: x(n), cy: y(cut.beam), r: 4, class: "stop" })
      : s("rect", { x: x(n) - 4, y: y(cut.brute_force) - 4, width: 8, height: 8, class: "square" })));
  }
  cuts.forEach((cut, n) => chart.append(s("text", { x: x(n), y: H - 14, class: "axis mid" }, cut.m)));
  chart.append(s("text", { x: (W + pad.l) / 2, y: H - 2, class: "axis mid" }, "m"));
  return h("figure", { class: "narrow" }, chart,
    h("figcaption", {}, h("span", { class: "key" }, h("i", { class: "swatch beam" }), "recall of the beam"),
    h("span", { class: "key" }, h("i", { class: "swatch brute" }), "of brute force over all leaves")));
}
