"""The most items under limits on two columns: a flow from the values of one column to those of the other, along items.

An item has a kind: its value in each column, -1 for none, which is not limited. A selection of items that keeps the
limits is a flow, and the largest one a maximum flow. Values and items that limit it are a minimum cut.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

Kind = tuple[int, ...]
Node = tuple[int, int]  # (0 or 1, a value) of the first or second column, or one of the next two
SOURCE, SINK = (2, 0), (3, 0)


class Flow:
    """The largest selection of some items, up to a number of them.

    Args:
        available: how many items there are of each kind.
        room: for each column, how many items values may have.
        limits: for each column, the same for values that `room` does not list.
        enough: where to stop.
    """

    def __init__(
        self, available: Mapping[Kind, int], room: Sequence[Mapping[int, int]], limits: Sequence[int], enough: int
    ) -> None:
        self._available = {kind: count for kind, count in available.items() if count > 0}
        self._total = sum(self._available.values())
        self._room, self._limits = room, limits
        self._kinds: tuple[dict[int, list[Kind]], ...] = defaultdict(list), defaultdict(list)
        for kind in self._available:
            for side in (0, 1):
                self._kinds[side][kind[side]].append(kind)
        self._chosen = Counter[Kind]()
        self._taken = Counter[int](), Counter[int]()
        self.number = 0
        for kind, count in self._available.items():  # most of them, before items are exchanged
            if self.number == enough:
                break
            count = min(count, enough - self.number, *(self._left(side, kind[side]) for side in (0, 1)))
            self._change(kind, count)
            self.number += count
        while self.number < enough and self._augment():
            self.number += 1

    def cut(self) -> tuple[set[int], set[int]]:
        """Values of both columns in a minimum cut: only items with none of these make a larger selection possible."""
        reached = self._reached()[0]
        left = {value for value in self._kinds[0] if (0, value) not in reached}
        return left - {-1}, {value for side, value in reached if side == 1} - {-1}

    def exchangeable(self) -> set[Kind]:
        """The kinds of which some selection of the same, largest number has an item.

        These are the kinds that are chosen, and those whose two values are on a cycle of the residual graph.
        """
        nodes = [SOURCE, SINK, *((side, value) for side in (0, 1) for value in self._kinds[side])]
        component = _components({node: list(self._residual(node)) for node in nodes})
        return {
            kind for kind in self._available if self._chosen[kind] or component[0, kind[0]] == component[1, kind[1]]
        }

    def _left(self, side: int, value: int) -> int:
        """How many more items may have a value."""
        if value < 0:
            return self._total
        return self._room[side].get(value, self._limits[side]) - self._taken[side][value]

    def _change(self, kind: Kind, count: int) -> None:
        self._chosen[kind] += count
        for side in (0, 1):
            self._taken[side][kind[side]] += count

    def _augment(self) -> bool:
        """Choose one item more, and exchange others if needed; whether that was possible."""
        reached, node = self._reached()
        if node is None:
            return False
        while (kind := reached[node]) is not None:
            self._change(kind, 1 if node[0] == 1 else -1)
            node = 1 - node[0], kind[1 - node[0]]
        return True

    def _reached(self) -> tuple[dict[Node, Kind | None], Node | None]:
        """The values that can be reached from those with room, each with the kind it is reached by.

        Also the first value of the second column with room, where the search ends.
        """
        reached: dict[Node, Kind | None] = {(0, value): None for value in self._kinds[0] if self._left(0, value) > 0}
        queue = deque(reached)
        while queue:
            side, value = queue.popleft()
            for kind in self._kinds[side][value]:
                other = 1 - side, kind[1 - side]
                if other in reached or not self._can_change(kind, side):
                    continue
                reached[other] = kind
                if side == 0 and self._left(*other) > 0:
                    return reached, other
                queue.append(other)
        return reached, None

    def _can_change(self, kind: Kind, side: int) -> bool:
        """Whether an item of a kind can be added, from the first column, or given back, from the second."""
        return self._chosen[kind] < self._available[kind] if side == 0 else self._chosen[kind] > 0

    def _residual(self, node: Node) -> Iterator[Node]:
        """The nodes that more flow can go to from a node."""
        if node == SOURCE:
            yield from ((0, value) for value in self._kinds[0] if self._left(0, value) > 0)
        elif node == SINK:
            yield from ((1, value) for value in self._kinds[1] if self._taken[1][value])
        else:
            side, value = node
            yield from ((1 - side, kind[1 - side]) for kind in self._kinds[side][value] if self._can_change(kind, side))
            if side == 0 and self._taken[0][value]:
                yield SOURCE
            if side == 1 and self._left(1, value) > 0:
                yield SINK


def _components(edges: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    """The strongly connected component of each node, by Tarjan's algorithm without recursion."""
    number, low, component = dict[Node, int](), dict[Node, int](), dict[Node, int]()
    open_nodes: list[Node] = []
    for root in edges:
        if root in number:
            continue
        path = [(root, iter(edges[root]))]
        number[root] = low[root] = len(number)
        open_nodes.append(root)
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    while True:
                        member = open_nodes.pop()
                        component[member] = number[node]
                        if member == node:
                            break
            elif following not in number:
                number[following] = low[following] = len(number)
                open_nodes.append(following)
                path.append((following, iter(edges[following])))
            elif following not in component:
                low[node] = min(low[node], number[following])
    return component
