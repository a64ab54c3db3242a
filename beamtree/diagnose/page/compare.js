// Two searches of one user side by side: another model, the model without a part, or another beam size.

async function showCompare(source, query, subject, search) {
  const sizes = source.beamSizes;
  const other = Math.min(state.other, source.models.length - 1);
  const second = { model: other, k: state.k2 ?? state.k };
  const theirs = await source.search({ ...query, ...second, m: Math.min(state.m, second.k) });
  return () => {
    const model = (key, value, label) => h("select",
      { id: key, "aria-label": label, onchange: (event) => set({ [key]: Number(event.target.value) }) },
      source.models.map((each, n) => h("option", { value: n, selected: n === value }, clean(each.name))));
    const beam = (key, value, label) => h("select",
      { id: `beam-${key}`, "aria-label": label,
      onchange: (event) => set({ [key]: Number(event.target.value),
      ...(key === "k" ? { k2: state.k2 ?? state.k } : {}) }) },
      [...new Set([...sizes, value])].sort((a, b) => a - b).map((size) => h("option",
        { value: size, selected: size === value }, `k = ${size}`)));
    const sides = [{ search, pick: model("model", modelAt(source), "First model"),
      size: beam("k", source.beamSize(state.k), "First beam size"), sign: "A", colour: "beam" },
      { search: theirs, pick: model("other", other, "Second model"),
        size: beam("k2", source.beamSize(second.k), "Second beam size"), sign: "B", colour: "beam2" }];
    const view = h("div", { class: "compare" });
    fill($("view"), h("div", { class: "head" }, h("h2", {}, "The same user, searched twice"),
      h("span", { class: "muted" }, overlap(sides))), view);
    sides.forEach((side, n) => view.append(column(side, sides[1 - n], subject, source)));
    $("view").append(outcomeTable(sides, subject));
    showWhy([search, theirs]);
    for (const side of sides) side.tree.show(side.search,
      { all: side.search.items, chosen: side.search.items.find((path) => path.item.id === state.item) });
  };
}

function overlap([a, b]) {
  const ours = new Set(a.search.found.slice(0, state.m).map((each) => each.item.id));
  const shared = b.search.found.slice(0, state.m).filter((each) => ours.has(each.item.id)).length;
  return `${shared} of ${state.m} items are the same`;
}

function column(side, other, subject, source) {
  const { search, sign, colour } = side;
  const otherRank = new Map(other.search.found.slice(0, state.m).map((each) => [each.item.id, each.rank]));
  const relevant = new Set(subject.truth.map((item) => item.id));
  const hits = search.items.filter((path) => relevant.has(path.item.id) && path.rank !== null &&
    path.rank <= state.m).length;
  const canvas = h("canvas", { class: "small-tree", role: "img" });
  side.tree = new TreeView(canvas, { small: true, colour });
  const list = search.found.slice(0, state.m).map(({ rank: position, item, score }) => {
    const there = otherRank.get(item.id), by = there === undefined ? null : there - position;
    const move = by === null ? h("span", { class: "only" }, `only ${sign}`)
      : h("span", { class: "same" }, by === 0 ? "=" : by > 0 ? `▲ ${by}` : `▼ ${-by}`);
    return itemRow(item, { sign: h("span", { class: "rank" }, position), note: noteOf(item),
      right: [relevant.has(item.id) ? mark("found") : null, move], chosen: state.item === item.id,
      onclick: () => choose(item), bar: null });
  });
  return h("section", { class: `column ${colour}`, "aria-label": `Search ${sign}` },
    h("div", { class: "row" }, h("b", { class: `badge ${colour}` }, sign), side.pick, side.size),
    h("p", { class: "stats" },
      `recall@${state.m} ${subject.truth.length ? percent(hits / subject.truth.length) : "–"} · ${count(search.scored)} nodes scored · ${time(search.ms)}`),
    canvas, h("ol", { class: "list" }, list));
}

function outcomeTable(sides, subject) {
  const [a, b] = sides.map(({ search }) => new Map(search.items.map((path) => [path.item.id, path])));
  const cell = (path) => (path ? h("td", { class: outcomeOf(path, state.m) }, mark(outcomeOf(path, state.m)),
    ` ${outcomeText(path, state.m, true)}`, path.lost?.decided
    ? h("span", { class: "muted" }, ` by ${path.lost.decided}`) : null) : h("td", {}, "–"));
  if (!subject.truth.length) return h("p", { class: "muted" },
    "Nothing is hidden: hide some events to see which search finds them.");
  return h("table", { class: "outcomes" }, h("thead", {},
    h("tr", {}, ["chosen next", "A", "B"].map((word) => h("th", { scope: "col" }, word)))),
    h("tbody", {}, subject.truth.map((item) => h("tr", { class: state.item === item.id ? "chosen" : "" },
      h("th", { scope: "row" }, h("button", { class: "plain", onclick: () => choose(item) }, name(item))),
      cell(a.get(item.id)), cell(b.get(item.id))))));
}
