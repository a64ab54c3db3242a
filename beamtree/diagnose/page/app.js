// From the state to the view: every change draws all of it, and the newest change wins.

let source, view, latest = 0, shown = {}, playing = null;

async function show() {
  const request = ++latest;
  $("main").setAttribute("aria-busy", "true");
  const k = source.beamSize(state.k), m = Math.min(state.m, k);
  const model = modelAt(source);
  const query = { user: state.user, history: state.history, hide: state.hide, model, k, m: source.live ? m
    : state.m, item: state.item };
  try {
    const subject = await source.subject(query);
    if (source.live && !subject.history.length) return welcome(subject);
    const search = await source.search(query);
    const drawCompare = state.tab === "compare" ? await showCompare(source, query, subject, search) : null;
    if (request !== latest) return;
    shown = { subject, search, query };
    $("error").hidden = true;
    draw(subject, search, drawCompare);
  } catch (error) {
    if (request === latest) showError(error);
  } finally {
    if (request === latest) $("main").setAttribute("aria-busy", "false");
  }
}

function draw(subject, search, drawCompare) {
  document.body.dataset.tab = state.tab;
  showTabs();
  showFacts(source.models[modelAt(source)]);
  showWho(source, subject);
  showTruth(subject, search);
  showHistory(source, subject);
  showControls(source, subject, search);
  showCosts(subject);
  showFound(subject, search);
  showWhy([search]);
  if (!search.levels.length) fill($("view"), h("p", { class: "muted" }, "No item is allowed."));
  else if (state.tab === "search") showTree(search);
  else if (state.tab === "losses") showLosses(subject, search);
  else if (state.tab === "map") showMap(source, search);
  else drawCompare?.();
  $("status").textContent = clean(`${search.found.length} recommendations, ${count(search.scored)} nodes scored, beam size ${search.beam_size}`);
}

function welcome(subject) {
  showTabs();
  showFacts(source.models[0]);
  showWho(source, subject);
  for (const id of ["truth", "history", "controls", "found"]) fill($(id));
  $("why").hidden = true;
  fill($("view"), h("div", { class: "welcome" }, h("h2", {}, "Watch a search"),
    h("p", {}, "Choose a user of the log, or enter a history: ids or titles of items."),
    h("button", { class: "wide-button", onclick: openFinder }, "Search users and items …")));
}

async function showCosts(subject) {
  const request = latest, model = modelAt(source);
  let points = costPoints(source, model, Math.min(state.m, source.beamSize(state.k)));
  let label = `recall and cost, ${source.users.length} users`;
  if (source.live && subject.truth.length) {
    label = "recall and cost, this user";
    points = [];
    for (const size of source.beamSizes.filter((each) => each >= state.m)) {
      const search = await source.search({ ...shown.query, k: size, item: null }).catch(() => null);
      if (request !== latest) return;
      if (search) points.push({ size, cost: search.scored,
        recall: search.items.filter((path) => path.rank !== null &&
        path.rank <= state.m).length / subject.truth.length });
    }
  }
  const chart = costChart(points, source.beamSize(state.k), (k) => set({ k }), label);
  if ($("cost") && chart) fill($("cost"), h("span", { class: "label" }, label), chart);
}

function showTabs() {
  fill($("tabs"), TABS.map(([key, word], n) => h("button",
    { role: "tab", id: `tab-${key}`, "aria-selected": String(state.tab === key), tabindex: state.tab === key ? 0
    : -1, title: `${word} (${n + 1})`, onclick: () => set({ tab: key }) }, word)));
}

// The tree and its controls

function showTree(search) {
  const same = view?.canvas.isConnected;
  if (!same) {
    const canvas = h("canvas", { class: "tree", id: "tree", tabindex: 0, role: "img" });
    const button = (id, sign, label, onclick) => h("button", { id, title: label, "aria-label": label, onclick }, sign);
    fill($("view"), h("div", { class: "head tools-row" }, h("h2", {}, "The search, level by level"),
      h("div", { class: "group", role: "group", "aria-label": "Replay" },
        button("back", icon("back"), "Previous level (↑)", () => stepLevel(-1)),
        button("play", icon("play"), "Replay (space)", replay),
        button("next", icon("next"), "Next level (↓)", () => stepLevel(1))),
      h("div", { class: "group", role: "group", "aria-label": "Zoom" },
        button("in", "+", "Zoom in (+)", () => view.zoom(0.6)),
        button("out", "−", "Zoom out (−)", () => view.zoom(1 / 0.6)),
        button("all", icon("all"), "Show all (0)", () => set({ from: 0, to: 1 }))),
      h("button", { id: "layout", title: "Show the visited nodes only, or the whole catalogue to scale (l)",
        onclick: toggleLayout }, ""), legend()),
      h("div", { class: "scene" }, canvas),
        h("details", { class: "levels" }, h("summary", {}, "Levels as a table"), h("div", { id: "levels" })));
    view = new TreeView(canvas, { onItem: choose, map: source.models[0].map });
    new ResizeObserver(() => view.draw()).observe(canvas);
  }
  $("layout").textContent = state.layout === "scale" ? "to scale" : "beam only";
  fill($("play"), icon(playing ? "pause" : "play"));
  view.map = source.models[0].map;
  view.show(search, { all: search.items.filter((path) => path.steps.length),
    chosen: search.items.find((path) => path.item.id === state.item && path.steps.length) ?? pathOfFound(search) });
  const goal = state.layout === "scale" ? 1 : 0;
  if (view.morph !== goal) view.morphTo(goal);
  fill($("levels"), h("table", { class: "outcomes" },
    h("thead", {}, h("tr", {}, ["level", "candidates", "kept", "best", "last kept",
    "worst"].map((word) => h("th", { scope: "col" }, word)))),
    h("tbody", {}, search.levels.map((each) => h("tr", {},
      [each.level, count(each.candidates), each.passed ? "all, unscored" : count(each.kept), num(each.best),
      num(each.kth), num(each.worst)].map((text) => h("td", {}, text)))))));
}

// The path of a recommended item, which the search does not follow: up from its leaf.
function pathOfFound(search) {
  const hit = search.found.find((each) => each.item.id === state.item), last = search.levels[search.levels.length - 1];
  const leaf = hit && last.nodes.find((node) => node.rank === hit.rank && node.kept);
  if (!leaf) return null;
  const steps = [];
  let node = leaf.node;
  for (let n = search.levels.length - 1; n >= 0; n--) {
    const at = search.levels[n].nodes.find((each) => each.node === node);
    steps.unshift({ level: search.levels[n].level, node, kept: true, score: at?.score ?? NaN,
      kth: search.levels[n].kth, margin: (at?.score ?? NaN) - search.levels[n].kth });
    node = parentOf(search.arity, node);
  }
  return { item: hit.item, may_be_found: true, rank: hit.rank, steps, lost: null };
}

const legend = () => h("div", { class: "legend", "aria-hidden": "true" },
  h("span", { class: "key" }, h("i", { class: "swatch beam" }), "kept"),
  h("span", { class: "key" }, h("i", { class: "swatch pruned" }), "pruned"),
  ["found", "below", "lost"].map((outcome) => h("span", { class: "key" }, mark(outcome), outcome === "below"
    ? "ranked below m" : `chosen next, ${outcome}`)));
const toggleLayout = () => set({ layout: state.layout === "scale" ? "beam" : "scale", from: 0, to: 1 });

function stepLevel(by) {
  const levels = shown.search?.levels.map((each) => each.level) ?? [];
  if (!levels.length) return;
  const at = state.level === null ? levels.length - 1 : levels.indexOf(state.level);
  const next = clamp(at + by, 0, levels.length - 1);
  set({ level: next === levels.length - 1 ? null : levels[next] });
}
function stop() { clearInterval(playing); playing = null; if ($("play")) fill($("play"), icon("play")); }
function replay() {
  if (playing) return stop();
  if (state.tab !== "search") set({ tab: "search" });
  const levels = shown.search?.levels.map((each) => each.level) ?? [];
  let n = 0;
  const tick = () => { if (n >= levels.length) return stop();
    set({ level: n === levels.length - 1 ? null : levels[n] }); n += 1; };
  playing = setInterval(tick, 800);
  tick();
}

function showLosses(subject, search) {
  const model = modelAt(source), inspected = source.models[model].losses;
  if (source.live && model === 0 && inspected === undefined && !source.counting) askLosses();
  const pieces = source.live && source.counting ? [h("p", { class: "muted" }, "Counting over users of the log …")] : [];
  if (inspected) {
    pieces.push(h("div", { class: "head" }, h("h2", {}, "Where relevant items are lost"),
      h("span", { class: "muted" },
      `${count(inspected.users)} users, k = ${inspected.beam_size}, counted as in beamtree inspect`)),
      h("div", { class: "pair" }, lossChart(inspected, `of these, brute force finds at ${inspected.cuts.at(-1).m}`),
        cutChart(inspected)), h("p", { class: "advice" }, inspected.advice));
    if (inspected.note) pieces.push(h("p", { class: "muted" }, inspected.note));
  }
  const searches = source.live ? [search] : source.users.map((user) => source.at(user, model, state.k));
  const losses = lossesAt(searches, state.m);
  const whose = source.live ? "this user" : `the ${source.users.length} recorded users`;
  pieces.push(h("div", { class: "head" },
    h("h2", {}, `${source.live ? "This user" : "The recorded users"} at k = ${source.beamSize(state.k)}`),
    h("span", { class: "muted" }, `${plural(losses.items, "item")} that ${whose} chose next; the sliders change it`)),
    losses.items ? lossChart(losses, `of these, among the first ${state.m} by the score of the leaf`)
      : h("p", { class: "muted" }, "Nothing is hidden: hide some events first."));
  fill($("view"), h("div", { class: "losses" }, pieces));
}

async function askLosses() {
  source.counting = true;
  const model = source.models[0];
  model.losses = await fetchJson("/v1/losses").catch(() => null);
  source.counting = false;
  if (state.tab === "losses" && modelAt(source) === 0) show();
}

async function start() {
  const data = await readData();
  source = data.live ? await new Live().open() : new Recorded(data);
  state = readAddress();
  listener = (changes) => {
    if ("theme" in changes) theme();
    const only = Object.keys(changes);
    if (view?.canvas.isConnected && only.every((key) => ["from", "to"].includes(key))) return view.draw();
    show();
  };
  theme();
  addEventListener("hashchange", () => { state = readAddress(); theme(); show(); });
  addEventListener("keydown", onKey);
  addEventListener("resize", () => { if (state.tab !== "search" && shown.search) show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(); show(); });
  for (const button of document.querySelectorAll("[data-icon]")) button.prepend(icon(button.dataset.icon));
  $("find").onclick = openFinder; $("help").onclick = openManual; $("share").onclick = share;
  $("save").onclick = save; $("theme").onclick = () => theme(true);
  $("skip").onclick = (event) => { event.preventDefault(); $("stage").focus(); };
  await show();
  document.documentElement.dataset.ready = "true";
}
start().catch(showError);
