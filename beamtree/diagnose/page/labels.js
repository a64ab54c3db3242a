// The page of a classifier: a document, its labels, and why a label has its score.

let takesText = true, asked = null, latest = 0, explained = 0; // the numbers of the newest requests

const titleOf = (each) => each.name || each.label;
const followScheme = (dark) => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };

function documentFields() { // what is sent of the document
  if (takesText) return { text: $("document").value };
  let features = null;
  try { features = JSON.parse($("document").value); } catch { /* the next line says what is wrong */ }
  if (!features || typeof features !== "object" || Array.isArray(features)) {
    throw new Error('features are JSON, from number to value: {"3": 0.5, "17": 1}');
  }
  return { features };
}

async function find() {
  const request = ++latest;
  explained += 1;
  try {
    const given = documentFields(), [m, k] = [$("m").valueAsNumber, $("k").valueAsNumber];
    const body = { ...(takesText ? given : { features: [given.features] }), ...(m && { m }), ...(k && { beam_size: k }) };
    const answer = await fetchJson("/v1/labels", body);
    if (request !== latest) return;
    asked = given;
    $("error").hidden = true;
    showLabels(takesText ? answer : answer.results[0]);
  } catch (error) {
    if (request === latest) showError(error);
  }
}

function showLabels({ labels, known_features: known }) {
  const highest = Math.max(...labels.map((each) => each.score), 1e-9);
  fill($("why"));
  fill($("found"), labels.map((each, index) => h("li", {},
    h("button", { class: "item", "aria-pressed": "false", onclick: (event) => explain(each, event.currentTarget) },
      h("span", { class: "rank" }, index + 1),
      h("span", { class: "text" }, h("span", { class: "name" }, titleOf(each)),
        each.name && h("span", { class: "note" }, each.label), meter(each.score / highest)),
      h("span", { class: "right" }, num(each.score))))));
  $("note").textContent = known ? `${plural(known, "known feature")}; choose a label to see why`
    : "no known feature: these are the most frequent labels";
  $("status").textContent = clean(`${plural(labels.length, "label")}, the first is ${labels.length ? titleOf(labels[0]) : "none"}`);
}

async function explain(each, button) {
  const request = ++explained;
  for (const other of $("found").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
  try {
    const why = await fetchJson("/v1/explain", { ...asked, label: each.label });
    if (request !== explained) return;
    $("error").hidden = true;
    fill($("why"), h("div", { class: "head" }, h("h2", {}, `Why ${titleOf(each)}?`),
      h("span", { class: "muted" }, `score without a beam ${num(why.score)}`)),
      table("part", "gives", Object.entries(why.parts).map(([part, value]) => [part, num(value)])),
      table("feature", "adds", why.features.map(({ feature, weight }) => [feature, signed(weight)])),
      table("similar training document with this label", "similarity",
        why.documents.map((near) => [`document ${count(near.document)}`, num(near.similarity)])));
  } catch (error) {
    if (request === explained) showError(error);
  }
}

function table(name, value, rows) {
  if (!rows.length) return h("p", { class: "muted" }, `No ${name}.`);
  return h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, name), h("th", {}, value))),
    h("tbody", {}, rows.map(([head, cell]) => h("tr", {}, h("th", { scope: "row" }, head), h("td", {}, cell)))));
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  followScheme(dark);
  dark.addEventListener("change", followScheme);
  $("form").onsubmit = (event) => { event.preventDefault(); find(); };
  $("document").onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit(); };
  try {
    const model = await fetchJson("/v1/model");
    takesText = model.text;
    $("k").placeholder = model.beam_size;
    $("document").placeholder = takesText ? "A text" : '{"3": 0.5, "17": 1}';
    $("facts").textContent = clean(`${model.name} · ${plural(model.labels, "label")}, ${plural(model.documents, "document")}`);
  } catch (error) {
    showError(error);
  }
  document.documentElement.dataset.ready = "";
}
start();
