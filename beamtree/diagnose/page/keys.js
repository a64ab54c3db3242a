// Dialogs: search and help. And the keyboard.

function openFinder() {
  const box = $("finder");
  const list = h("div", { class: "results" });
  const field = h("input", { type: "search", id: "query", placeholder: source.live ? "A user, an item, or a title"
    : "A recorded user, or an item in their events", "aria-label": "Search", autocomplete: "off" });
  let latest = 0;
  const update = async () => {
    const request = ++latest, results = await source.lookUp(field.value).catch((error) => { showError(error);
      return { users: [], items: [] }; });
    if (request !== latest) return;
    fill(list, results.users.map((user) => h("button",
      { class: "item", onclick: () => { box.close();
      set({ user: user.id, history: null, item: null, from: 0, to: 1 }); } }, h("span", { class: "rank" }, "user"),
      h("span", { class: "name" }, user.id))),
      results.items.map((item) => h("button", { class: "item", onclick: () => { box.close(); addItem(item); } },
        h("span", { class: "rank" }, "+"),
        h("span", { class: "text" }, h("span", { class: "name" }, name(item)),
        h("span", { class: "note" }, noteOf(item))))),
      results.users.length + results.items.length ? null : h("p", { class: "muted" }, "No match."));
  };
  field.addEventListener("input", update);
  field.addEventListener("keydown", (event) => {
    const first = () => list.querySelector("button");
    if (event.key === "Enter") update().then(() => first()?.click());
    else if (event.key === "ArrowDown") first()?.focus();
    else return;
    event.preventDefault(); // else the same key press would also press the button that gets the focus
  });
  fill(box, h("form", { method: "dialog", onsubmit: (event) => event.preventDefault() }, field), list);
  box.showModal();
  update();
}
function addItem(item) { // to the end of the history, as if the user chose it now
  const events = shown.subject ? [...[...shown.subject.history].reverse(),
    ...shown.subject.truth].map((each) => each.id) : [];
  set({ history: [...events, item.id].slice(-200), user: null, hide: 0, item: null });
}

const KEYS = [["↑ ↓", "one level up or down in the replay"], ["space", "replay level by level"],
  ["← →", "the previous or next item chosen next"], ["[ ]", "the previous or next user"],
  ["+ − 0", "zoom in, out, show all"], ["l", "beam only, or to scale"],
  ["1 2 3 4", "search, compare, losses, catalogue"], ["/", "search"], ["c", "copy a link to this view"],
    ["d", "light or dark"], ["?", "this help"]];
function openManual() {
  fill($("manual"), h("div", { class: "head" }, h("h2", {}, "How to read it"),
    h("button", { class: "plain", "aria-label": "Close", onclick: () => $("manual").close() }, "×")),
    h("p", {},
      "Items are the leaves of a tree. A search walks down: on every level it scores the children of the nodes it kept and keeps the best k, the beam. Striped nodes were pruned, with all items below them. An item is results if all of its ancestors were kept."),
    h("p", {},
      "Hover over a node for its score, click it to zoom, click a leaf or an item in a list to follow its path. The address contains the view: copy it to share it."),
    h("table", { class: "keys" }, h("tbody", {},
      KEYS.map(([key, text]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, text))))));
  $("manual").showModal();
}

function nextItem(by) {
  const list = shown.subject?.truth ?? [];
  if (!list.length) return;
  const at = list.findIndex((item) => item.id === state.item);
  set({ item: list[(at < 0 ? (by > 0 ? 0 : list.length - 1) : at + by + list.length) % list.length].id });
}
function theme(flipIt) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = state.theme ?? (dark ? "dark" : "light");
  if (flipIt) set({ theme: now === "dark" ? "light" : "dark" });
  document.documentElement.dataset.theme = state.theme ?? (dark ? "dark" : "light");
  readPalette();
}
async function share() {
  writeAddress();
  try { await navigator.clipboard.writeText(location.href); announce("The link is copied.");
    } catch { announce("Copy the address of this page: it contains the view."); }
}
function announce(text) { $("status").textContent = text; $("share").dataset.message = text;
  setTimeout(() => delete $("share").dataset.message, 1600); }
function save() {
  const link = h("a", { href: URL.createObjectURL(new Blob([JSON.stringify({ state, ...shown }, null, 1)],
    { type: "application/json" })), download: "search.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest?.("input, select, textarea");
  if (typing && !(event.key === "/" && event.target.type === "range")) return;
  const act = {
    ArrowUp: () => stepLevel(-1), ArrowDown: () => stepLevel(1), ArrowLeft: () => nextItem(-1),
      ArrowRight: () => nextItem(1), "[": () => $("who").turn?.(-1), "]": () => $("who").turn?.(1),
    "+": () => view?.zoom(0.6), "=": () => view?.zoom(0.6), "-": () => view?.zoom(1 / 0.6),
      0: () => set({ from: 0, to: 1, node: 0 }), l: toggleLayout, "/": openFinder, "?": openManual, c: share,
      d: () => theme(true),
    Escape: () => set({ item: null, from: 0, to: 1, node: 0 }), 1: () => set({ tab: "search" }),
      2: () => set({ tab: "compare" }), 3: () => set({ tab: "losses" }), 4: () => set({ tab: "map" }),
    " ": () => { if (event.target.closest?.("button")) return false; return replay(); },
  }[event.key];
  if (act && act() !== false) event.preventDefault();
}
