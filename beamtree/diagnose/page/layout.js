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
