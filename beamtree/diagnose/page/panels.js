// The panels around the tree: the user, recommendations, items chosen next, and why an item was lost.

function showFacts(model) {
  const parts = model.parts.length ? ` · score: ${model.parts.join(" + ")}` : "";
  const kind = model.chained ? " · chained" : "";
  $("facts").textContent = clean(`${model.name} · ${count(model.items)} items · ${model.height} levels${kind}${parts}`);
  $("facts").title = $("facts").textContent;
}

function showWho(source, subject) {
  const box = $("who");
  if (source.live) {
    const typed = state.history ? "custom history" : subject.id ? `user ${subject.id}` : "none";
    fill(box, h("div", { class: "head" }, h("h2", {}, "User"), h("span", { class: "muted" }, typed)),
      h("button", { class: "wide-button", onclick: openFinder }, "Choose a user or add items …"),
      h("label", { class: "line" }, h("span", {}, "Hide the newest"),
        h("input", { type: "number", min: 0, max: 50, value: state.hide, id: "hide",
          "aria-label": "How many of the newest events are hidden",
          onchange: (event) => set({ hide: Number(event.target.value) }) }),
            h("span", {}, "events, to see whether they are found")));
    return;
  }
  const pick = h("select", { id: "user", "aria-label": "User",
    onchange: (event) => set({ user: event.target.value, item: null, from: 0, to: 1 }) },
    source.users.map((user) => h("option", { value: user.id, selected: user === subject }, clean(user.id))));
  const turn = (by) => { const n = source.users.length;
    set({ user: source.users[(subject.index + by + n) % n].id, item: null, from: 0, to: 1 }); };
  fill(box, h("div", { class: "head" }, h("h2", {}, "User"),
    h("span", { class: "muted" }, `${subject.index + 1} of ${source.users.length} recorded`)),
    h("div", { class: "row" }, h("button",
      { "aria-label": "Previous user", title: "Previous user ([)", onclick: () => turn(-1) }, "‹"), pick,
      h("button", { "aria-label": "Next user", title: "Next user (])", onclick: () => turn(1) }, "›")));
  box.turn = turn;
}

function itemRow(item, { sign, right, chosen, onclick, note, bar }) {
  return h("li", {}, h("button", { class: `item${chosen ? " chosen" : ""}`, "aria-pressed": chosen ? "true"
    : "false", onclick, title: clean(`${name(item)} (${item.id})`) },
    sign ?? null,
    h("span", { class: "text" }, h("span", { class: "name" }, name(item)), note ? h("span", { class: "note" }, note)
      : null, bar ?? null),
    right ? h("span", { class: "right" }, right) : null));
}
const noteOf = (item) => item.category || (item.title ? item.id : "");
const choose = (item) => set({ item: state.item === item.id ? null : item.id });

function showTruth(subject, search) {
  const paths = new Map(search.items.map((path) => [path.item.id, path]));
  const outcomes = subject.truth.map((item) => paths.get(item.id)).filter(Boolean).map((path) => outcomeOf(path, state.m));
  const found = outcomes.filter((outcome) => outcome === "found").length;
  fill($("truth"), h("div", { class: "head" }, h("h2", {}, "Chosen next"),
    h("span", { class: "muted" }, outcomes.length ? `${found} of ${outcomes.length} found` : "nothing is hidden")),
    h("ul", { class: "list" }, subject.truth.map((item) => {
      const path = paths.get(item.id);
      if (!path) return null;
      const outcome = outcomeOf(path, state.m);
      return itemRow(item, { sign: mark(outcome), right: outcomeText(path, state.m, true), note: noteOf(item),
        chosen: state.item === item.id, onclick: () => choose(item) });
    })));
}

function showHistory(source, subject) {
  const drop = (n) => { const events = [...subject.history].reverse().map((item) => item.id);
    events.splice(events.length - 1 - n, 1); set({ history: events.length ? events : null, user: null, hide: 0 }); };
  fill($("history"), h("div", { class: "head" }, h("h2", {}, "History"),
    h("span", { class: "muted" }, `${plural(subject.history.length, "event")}, newest first`)),
    h("ol", { class: "list plain" }, subject.history.slice(0, 69).map((item, n) =>
      h("li", { class: "past" }, h("span", { class: "name", title: clean(item.id) }, name(item)),
        h("span", { class: "note" }, noteOf(item)),
        source.live ? h("button", { class: "drop", "aria-label": `Remove ${clean(name(item))}`,
          onclick: () => drop(n) }, "×") : null))));
}

function showFound(subject, search) {
  const relevant = new Set(subject.truth.map((item) => item.id));
  const shown = search.found.slice(0, state.m), best = shown[0]?.score || 1;
  fill($("found"), h("div", { class: "head" }, h("h2", {}, "Recommendations"),
    h("span", { class: "muted" }, `${shown.length} items · ${time(search.ms)}`)),
    h("ol", { class: "list", id: "list" }, shown.map(({ rank, item, score }) => itemRow(item, {
      sign: h("span", { class: "rank" }, rank), note: noteOf(item), chosen: state.item === item.id,
        onclick: () => choose(item),
      right: [relevant.has(item.id) ? mark("found") : null, num(score)], bar: meter(score / best),
    }))));
}

// In words: where an item was lost, by what margin, to which node, and which part of the score was decisive.
function showWhy(searches) {
  const box = $("why"), several = searches.length > 1;
  box.hidden = false;
  document.body.dataset.item = state.item ? "chosen" : "";
  const close = h("button", { class: "plain", "aria-label": "Close", onclick: () => set({ item: null }) }, "×");
  const sides = searches.map((search, n) => [
    several ? h("b", { class: `badge ${n ? "beam2" : "beam"}` }, "AB"[n]) : null,
    whyCard(search),
  ]);
  fill(box, h("div", { class: "head" }, h("h2", {}, "Why"), state.item ? close : null), sides);
}

function whyCard(search) {
  const path = search.items.find((each) => each.item.id === state.item);
  const hit = search.found.find((each) => each.item.id === state.item);
  if (!path && !hit) {
    const text = "Select an item that the user chose next to see its path down the tree, and where it was lost.";
    return h("p", { class: "muted" }, state.item ? "It was not found." : text);
  }
  if (!path) {
    return [h("p", { class: "what" }, h("b", {}, name(hit.item))), h("p", {}, `Found at rank ${hit.rank}.`)];
  }
  const outcome = outcomeOf(path, state.m);
  return [
    h("p", { class: "what" }, mark(outcome), h("b", {}, name(path.item))),
    whyText(path, search, outcome),
    search.why?.reasons.length ? reasonTable(search.why.reasons) : null,
    path.steps.length ? marginChart(path) : null,
    path.lost?.parts.length ? partChart(path.lost) : null,
  ];
}

function whyText(path, search, outcome) {
  if (outcome === "closed") return h("p", {}, "A filter excludes it.");
  if (outcome !== "lost") {
    const tight = path.steps.filter((each) => search.levels.find((level) => level.level === each.level &&
      !level.passed)).reduce((a, b) => (a && a.margin <= b.margin ? a : b), null);
    return h("p", {}, `${outcome === "found" ? "Found" : "In the last beam"} at rank ${path.rank}`, outcome === "below"
      ? `, below m = ${state.m}. ` : ". ",
      tight ? `It was nearest to being pruned on level ${tight.level}: ${num(tight.margin)} above the last node kept.` : "");
  }
  const { lost } = path, level = search.levels.find((each) => each.level === lost.level);
  const part = lost.parts.find((each) => each.name === lost.decided);
  return h("p", {}, h("b", {}, `Lost on level ${lost.level}`), `: its subtree scored ${num(lost.score)}, `,
    h("b", { class: "lost" }, `${num(Math.abs(lost.margin))} below`),
    ` the last of ${count(level.kept)} nodes kept. ${plural(lost.before, "candidate")} of ${count(level.candidates)} ranked above it. It lost to the subtree of `,
    h("b", {}, name(lost.to.item)), lost.to.items > 1 ? ` and ${plural(lost.to.items - 1, "other item")}.` : ".",
    part ? [" Decisive part: ", h("b", {}, part.name), ` (${signed(part.difference)}).`] : null,
    ` By the score of its leaf, its rank would be ${path.would_rank}.`);
}

function showControls(source, subject, search) {
  const sizes = source.beamSizes, at = Math.max(0, sizes.indexOf(source.beamSize(state.k)));
  const most = Math.min(source.live ? source.limits.m ?? 100 : 50, 100, source.beamSize(state.k));
  const paths = new Map(search.items.map((path) => [path.item.id, path]));
  const hits = subject.truth.filter((item) => { const path = paths.get(item.id); return path &&
    path.rank !== null && path.rank <= state.m; }).length;
  const recall = subject.truth.length ? hits / subject.truth.length : null;
  const model = source.models[modelAt(source)];
  const slide = (id, label, value, attributes, text) => h("label", { class: "slide", for: id },
    h("span", {}, label, h("output", { for: id }, text)),
    h("input", { id, type: "range", value, ...attributes, "aria-valuetext": text }));
  const keep = document.activeElement?.id;
  const kSlide = source.live
    ? slide("k", "beam size k", Math.log2(state.k),
      { min: 0, max: 10, step: 0.25, oninput: (event) => { const k = Math.round(2 ** Number(event.target.value));
      set({ k, m: Math.min(state.m, k), level: null }); } }, count(source.beamSize(state.k)))
    : slide("k", "beam size k", at, { min: 0, max: sizes.length - 1, step: 1,
      oninput: (event) => { const k = sizes[Number(event.target.value)];
      set({ k, m: Math.min(state.m, k, 50), level: null }); } }, count(sizes[at]));
  const tile = (label, value, note) => h("div", { class: "tile" }, h("span", { class: "label" }, label),
    h("b", {}, value), h("span", { class: "note" }, note));
  const share = search.scored / model.items;
  fill($("controls"), h("div", { class: "slides" }, kSlide,
    slide("m", "items m", Math.min(state.m, most),
      { min: 1, max: most, step: 1, oninput: (event) => set({ m: Number(event.target.value) }) },
      String(Math.min(state.m, most)))),
    tile(`recall@${state.m}`, recall === null ? "–" : percent(recall),
      `${hits} of ${subject.truth.length} for this user`),
    tile("nodes scored", count(search.scored), `${percent(share, share < 0.1 ? 1 : 0)} of ${count(model.items)} items`),
    tile("time", time(search.ms), source.live ? "round trip" : "when recorded"),
    h("div", { class: "tile chart", id: "cost" }));
  if (keep === "k" || keep === "m") $(keep)?.focus();
}
