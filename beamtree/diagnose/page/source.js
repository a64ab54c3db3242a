// Where searches come from: a recording in this page, or requests to the server.
// Both return objects of the same form, that of /v1/explain.

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
      index: n,
      history: user.history.map((at) => this.items[at]),
      truth: user.truth.map((at) => this.items[at]),
    }));
    this.models = data.models;
    this.beamSizes = data.beam_sizes;
    this.cache = new Map();
  }
  beamSize(k) { // the recorded size nearest to k
    return this.beamSizes.reduce((best, size) => (Math.abs(size - k) < Math.abs(best - k) ? size : best));
  }
  find(user) {
    return this.users.find((each) => each.id === user) ?? this.users[0];
  }
  at(user, model, k) {
    const size = this.beamSize(k);
    const key = `${user.index} ${model} ${size}`;
    if (!this.cache.has(key)) {
      const pack = this.models[model].searches[user.index][this.beamSizes.indexOf(size)];
      this.cache.set(key, unpack(pack, this.models[model], size, this.items));
    }
    return this.cache.get(key);
  }
  async search({ user, model, k }) {
    return this.at(this.find(user), model, k);
  }
  async subject({ user }) {
    return this.find(user);
  }
  async lookUp(text) {
    const query = text.trim().toLowerCase();
    const has = (item) => [item.title, item.id].some((word) => word && word.toLowerCase().includes(query));
    const users = this.users.filter((user) => user.id.toLowerCase().includes(query));
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
  const index = levels.findIndex((each) => each.level === level);
  const part = ([label, ours, theirs]) => ({ name: label, item: ours, kept: theirs, difference: ours - theirs });
  return {
    ...step(level, steps[index][0], steps[index][1], levels[index].kth, steps[index][2], false),
    to: { node, item: items[item], items: below }, decided,
    parts: parts.map(part), together: together && part(together),
  };
}

// The server that this page came from; errors that it returns are shown.
class Live {
  constructor() {
    this.live = true;
    this.users = [];
    this.beamSizes = [10, 20, 50, 100, 200, 400];
    this.itemsById = new Map();
    this.cache = new Map();
  }
  async open() {
    const model = { parts: [], ...(await fetchJson("/v1/model")) };
    model.map = await fetchJson("/v1/map").catch(() => null);
    this.models = [model, ...without(model)];
    this.limits = model.limits ?? {};
    return this;
  }
  beamSize(k) {
    return clamp(Math.round(k), 1, Math.min(this.limits.beam_size ?? 4096, this.models[0].items));
  }
  item(value) { // from an object of the server, or an id
    if (value === null || value === undefined) return null;
    const fields = typeof value === "object" ? value : { item: value };
    const id = String(fields.item);
    const item = this.itemsById.get(id) ?? { id, title: null, category: null };
    item.title = fields.title ?? item.title;
    item.category = fields.category ?? item.category;
    this.itemsById.set(id, item);
    return item;
  }
  async subject({ user, history, hide }) {
    const key = JSON.stringify(["subject", user, history]);
    if (!this.cache.has(key)) this.store(key, await this.eventsOf(user, history));
    const events = this.cache.get(key); // oldest first
    const hidden = clamp(hide, 0, Math.max(0, events.length - 1));
    const last = events.slice(events.length - hidden);
    const truth = [...new Map(last.map((item) => [item.id, item])).values()];
    return { id: user ?? "", history: events.slice(0, events.length - hidden).reverse(), truth };
  }
  async eventsOf(user, history) {
    if (history?.length) return this.itemsOf(history);
    if (!user) return [];
    const { history: events } = await fetchJson(`/v1/users/${encodeURIComponent(user)}`);
    return events.map((each) => this.item(each));
  }
  async itemsOf(ids) { // with titles
    const request = (id) => fetchJson(`/v1/items/${encodeURIComponent(id)}`).catch(() => id);
    const missing = [...new Set(ids)].filter((id) => !this.itemsById.has(id)).slice(-69);
    (await Promise.all(missing.map(request))).forEach((item) => this.item(item));
    return ids.map((id) => this.item(id));
  }
  async search(query) {
    const { model, k, m, item } = query;
    const subject = await this.subject(query);
    const items = [...new Set([...subject.truth.map((each) => each.id), ...(item ? [item] : [])])];
    const part = this.models[model].without;
    const history = subject.history.map((each) => each.id).reverse();
    const leave = part ? { without: part } : {};
    const body = { history, beam_size: Math.max(k, m), m, items, reasons: false, ...leave };
    const key = JSON.stringify(body);
    if (!this.cache.has(key)) this.store(key, this.normalize(await fetchJson("/v1/explain", body)));
    const why = item ? await this.reasons({ history, beam_size: 1, m: 1, items: [item], ...leave }) : null;
    return { ...this.cache.get(key), why };
  }
  async reasons(body) { // what each event gives to one item
    const key = JSON.stringify(body);
    if (!this.cache.has(key)) this.store(key, (await fetchJson("/v1/explain", body)).explanation.items[0] ?? null);
    return this.cache.get(key);
  }
  store(key, value) {
    this.cache.set(key, value);
    if (this.cache.size > 400) this.cache.delete(this.cache.keys().next().value);
  }
  normalize({ explanation, milliseconds }) {
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
    const query = encodeURIComponent(text.trim());
    const [users, items] = await Promise.all([
      fetchJson(`/v1/users?query=${query}&limit=12`),
      text.trim() ? fetchJson(`/v1/items?query=${query}&limit=20`) : { items: [] },
    ]);
    return { users: users.users.map((id) => ({ id: String(id) })), items: items.items.map((item) => this.item(item)) };
  }
}
function without(model) { // the same model without each part of its score, where the server can leave one out
  if (model.parts.length < 2) return [];
  return model.parts.map((part) => ({ ...model, name: `${model.name} without ${part}`, without: part }));
}
