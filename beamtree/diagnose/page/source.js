// Where searches come from: recorded in this file, or asked from the server.
// Both give the same shape, that of /v1/explain.

async function readData() {
  const bytes = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

class Recorded {
  constructor(data) {
    this.live = false;
    this.data = data;
    const { id, title, category } = data.items;
    this.items = id.map((key, n) => ({ id: key, title: title[n], category: category[n] }));
    this.users = data.users.map((user, n) => ({
      id: user.id,
      place: n,
      history: user.history.map((at) => this.items[at]),
      truth: user.truth.map((at) => this.items[at]),
    }));
    this.models = data.models;
    this.beamSizes = data.beam_sizes;
    this.kept = new Map();
  }
  stop(k) { // the recorded size nearest to k
    return this.beamSizes.reduce((best, size) => (Math.abs(size - k) < Math.abs(best - k) ? size : best));
  }
  find(user) {
    return this.users.find((each) => each.id === user) ?? this.users[0];
  }
  at(user, model, k) {
    const size = this.stop(k);
    const key = `${user.place} ${model} ${size}`;
    if (!this.kept.has(key)) {
      const pack = this.models[model].searches[user.place][this.beamSizes.indexOf(size)];
      this.kept.set(key, unpack(pack, this.models[model], size, this.items));
    }
    return this.kept.get(key);
  }
  async search({ user, model, k }) {
    return this.at(this.find(user), model, k);
  }
  async subject({ user }) {
    return this.find(user);
  }
  async lookUp(text) {
    const asked = text.trim().toLowerCase();
    const has = (item) => [item.title, item.id].some((word) => word && word.toLowerCase().includes(asked));
    const users = this.users.filter((user) => user.id.toLowerCase().includes(asked));
    const by = this.users.filter((user) => !users.includes(user) && [...user.truth, ...user.history].some(has));
    return { users: [...users, ...by].slice(0, 40), items: [] };
  }
}

function unpack(pack, model, size, items) {
  const levels = pack.levels.map((each) => unpackLevel(each, items));
  const paths = pack.paths.map(([item, may, rank, would, score, steps, lost]) => ({
    item: items[item], may_be_found: !!may, rank, would_rank: would, score,
    steps: steps.map(([node, value, before, kept], n) => step(levels[n].level, node, value, levels[n].kth, before,
      !!kept)),
    lost: lost ? unpackLoss(lost, steps, levels, items) : null,
  }));
  return {
    beam_size: size, arity: model.arity, height: model.height, scored: pack.scored, ms: pack.ms, levels, items: paths,
    found: pack.found.map(([item, score], n) => ({ rank: n + 1, item: items[item], score })),
  };
}
function unpackLevel([level, candidates, kept, passed, ...others], items) {
  const [best, kth, worst, nodes, ranks, below, popular, scores, a, b] = others;
  const power = (digit) => (digit === "0" ? 0 : 2 ** (parseInt(digit, 36) - 1));
  const counts = (text) => [...text].map(power);
  const node = (id, n) => ({
    node: id, rank: ranks[n], score: scores[n], kept: ranks[n] <= kept, items: below[n], popular: items[popular[n]],
  });
  return {
    level, candidates, kept, passed: !!passed, best, kth, worst, nodes: nodes.map(node),
    spread: { kept: counts(a), candidates: counts(b) },
  };
}
const step = (level, node, score, kth, before,
  kept) => ({ level, node, score, kth, before, kept, margin: score - kth });
function unpackLoss([level, node, item, below, decided, parts, together], steps, levels, items) {
  const place = levels.findIndex((each) => each.level === level);
  const part = ([label, ours, theirs]) => ({ name: label, item: ours, kept: theirs, difference: ours - theirs });
  return {
    ...step(level, steps[place][0], steps[place][1], levels[place].kth, steps[place][2], false),
    to: { node, item: items[item], items: below }, decided,
    parts: parts.map(part), together: together && part(together),
  };
}

// The server this page came from. What it may not be asked it refuses, in words that are shown.
class Live {
  constructor() {
    this.live = true;
    this.users = [];
    this.beamSizes = [10, 20, 50, 100, 200, 400];
    this.known = new Map();
    this.kept = new Map();
  }
  async open() {
    const model = { parts: [], ...(await this.ask("/v1/model")) };
    model.map = await this.ask("/v1/map").catch(() => null);
    this.models = [model, ...without(model)];
    this.most = model.limits ?? {};
    return this;
  }
  stop(k) {
    return clamp(Math.round(k), 1, Math.min(this.most.beam_size ?? 4096, this.models[0].items));
  }
  item(value) { // what the server says of an item, or its id alone
    if (value === null || value === undefined) return null;
    const given = typeof value === "object" ? value : { item: value };
    const id = String(given.item);
    const item = this.known.get(id) ?? { id, title: null, category: null };
    item.title = given.title ?? item.title;
    item.category = given.category ?? item.category;
    this.known.set(id, item);
    return item;
  }
  async ask(path, body) {
    const headers = { ...(body && { "content-type": "application/json" }), ...token() };
    const reply = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
    const told = await reply.json().catch(() => ({}));
    if (reply.ok) return told;
    const error = new Error([told.error ?? `${path} answered ${reply.status}`, told.hint].filter(Boolean).join(": "));
    error.status = reply.status;
    throw error;
  }
  async subject({ user, history, hide }) {
    const key = JSON.stringify(["who", user, history]);
    if (!this.kept.has(key)) this.keep(key, await this.past(user, history));
    const past = this.kept.get(key); // oldest first
    const hidden = clamp(hide, 0, Math.max(0, past.length - 1));
    const last = past.slice(past.length - hidden);
    const truth = [...new Map(last.map((item) => [item.id, item])).values()];
    return { id: user ?? "", history: past.slice(0, past.length - hidden).reverse(), truth };
  }
  async past(user, history) {
    if (history?.length) return this.named(history);
    if (!user) return [];
    const told = await this.ask(`/v1/users/${encodeURIComponent(user)}`);
    return told.history.map((each) => this.item(each));
  }
  async named(ids) { // titles of what was typed
    const ask = (id) => this.ask(`/v1/items/${encodeURIComponent(id)}`).catch(() => id);
    const missing = [...new Set(ids)].filter((id) => !this.known.has(id)).slice(-69);
    (await Promise.all(missing.map(ask))).forEach((told) => this.item(told));
    return ids.map((id) => this.item(id));
  }
  async search(asked) {
    const { model, k, m, item } = asked;
    const subject = await this.subject(asked);
    const items = [...new Set([...subject.truth.map((each) => each.id), ...(item ? [item] : [])])];
    const part = this.models[model].without;
    const history = subject.history.map((each) => each.id).reverse();
    const body = { history, beam_size: Math.max(k, m), m, items, ...(part ? { without: part } : {}) };
    const key = JSON.stringify(body);
    if (!this.kept.has(key)) this.keep(key, this.normal(await this.ask("/v1/explain", body)));
    return this.kept.get(key);
  }
  keep(key, value) {
    this.kept.set(key, value);
    if (this.kept.size > 400) this.kept.delete(this.kept.keys().next().value);
  }
  normal({ explanation, milliseconds }) {
    const to = (lost) => ({ ...lost, to: { ...lost.to, item: this.item(lost.to.item) } });
    const items = explanation.items.map((path) => ({
      ...path, item: this.item(path.item), lost: path.lost && to(path.lost),
    }));
    const levels = explanation.levels.map((each) => ({
      ...each, nodes: each.nodes.map((node) => ({ ...node, popular: this.item(node.popular) })),
    }));
    const found = explanation.found.map((each) => ({ ...each, item: this.item(each.item) }));
    return { ...explanation, items, levels, found, ms: milliseconds };
  }
  async lookUp(text) {
    const asked = encodeURIComponent(text.trim());
    const [users, items] = await Promise.all([
      this.ask(`/v1/users?query=${asked}&limit=12`),
      text.trim() ? this.ask(`/v1/items?query=${asked}&limit=20`) : { items: [] },
    ]);
    return { users: users.users.map((id) => ({ id: String(id) })), items: items.items.map((item) => this.item(item)) };
  }
}
function without(model) { // the same model without each part of its score, where the server can leave one out
  if (model.parts.length < 2) return [];
  return model.parts.map((part) => ({ ...model, name: `${model.name} without ${part}`, without: part }));
}
function token() {
  const kept = sessionStorage.getItem("token");
  return kept ? { authorization: `Bearer ${kept}` } : {};
}
