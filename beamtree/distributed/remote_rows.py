"""What one step reads of rows that lie on several ranks, and the way back for their gradients."""

import torch
from torch import Tensor

from beamtree.distributed.partition import Shard
from beamtree.scorers.table import Vectors


class SpreadVectors(Vectors):
    """The vectors that one step reads: those of the top, then all that were pulled, as they came.

    `place` finds nodes and says where in `values` they now are; all ranks must call it, in the same order. What was
    found once is not asked for again as long as it is the same tensor of nodes.
    """

    def __init__(self, shard: Shard, weight: Tensor, own: Tensor, learned: "list[Pulled] | None") -> None:
        """`own` are the vectors of this rank's rows; `learned` hears of gradients, where there are any."""
        self.shard, self.top = shard, own[: shard.num_top]
        self.pulled = Pulled(shard, own, learned)
        self.used = len(self.top)
        self._room = own.new_empty(2 * self.used, own.shape[1])
        self._room[: self.used] = self.top
        self._placed: dict[int, tuple[Tensor, Tensor]] = {}
        self._bounds = torch.tensor(shard.bounds, device=own.device)
        super().__init__(self.top, weight, None if learned is None else self.pulled)

    @property
    def kept(self) -> Tensor:
        return self.top

    @torch.no_grad()
    def place(self, found: list[tuple[int, Tensor]]) -> list[Tensor]:
        deep = [nodes for level, nodes in found if level > self.shard.cut]
        new = [nodes for nodes in {id(nodes): nodes for nodes in deep}.values() if id(nodes) not in self._placed]
        if new:
            places = self._pull(torch.cat([nodes.flatten() for nodes in new]))
            for nodes, place in zip(new, places.split([nodes.numel() for nodes in new]), strict=True):
                self._placed[id(nodes)] = nodes, place.view(nodes.shape)
        return [nodes if level <= self.shard.cut else self._placed[id(nodes)][1] for level, nodes in found]

    def place_levels(self, nodes: Tensor) -> Tensor:
        below = self.shard.below
        if not below:
            return nodes
        found = nodes.clone()
        found[below.start :] = self._pull(nodes[below.start :].flatten()).view(len(below), *nodes.shape[1:])
        return found

    def _pull(self, nodes: Tensor) -> Tensor:
        """Where nodes [n], PAD among them, are in `values`, after they were asked of their owners."""
        order = nodes.sort()
        first = torch.empty_like(order.values, dtype=torch.bool)
        first[:1] = order.values[:1] >= self.shard.num_top
        first[1:] = (order.values[1:] != order.values[:-1]) & (order.values[1:] >= self.shard.num_top)
        rank = first.cumsum(0).sub_(1)
        ids = order.values[first]
        place = self._ask(ids)
        found = torch.empty_like(nodes)
        low = order.values < self.shard.num_top  # of the top, and PAD: these are their own places
        found[order.indices] = torch.where(low, order.values, place[rank]) if len(ids) else order.values
        return found

    def _ask(self, ids: Tensor) -> Tensor:
        """The places of distinct nodes below the cut, in rising order."""
        shard, size = self.shard, self.shard.ranks.size
        cuts = torch.searchsorted(ids, self._bounds).tolist()
        runs = [
            (cuts[i], cuts[i + 1], i % size, shard.offsets[i]) for i in range(len(cuts) - 1) if cuts[i] < cuts[i + 1]
        ]
        asked: list[list[Tensor]] = [[] for _ in range(size)]  # of each rank, by the numbers of its rows
        sent = [0] * size
        for start, stop, owner, offset in runs:
            asked[owner].append(ids[start:stop] - offset)
            sent[owner] += stop - start
        at = [self.used + sum(sent[:owner]) for owner in range(size)]
        places = []
        for start, stop, owner, _ in runs:
            places.append(torch.arange(at[owner], at[owner] + stop - start, device=ids.device))
            at[owner] += stop - start
        rows = [torch.cat(each) if each else ids[:0] for each in asked]
        self._fill(self.pulled.ask(rows, self.used))
        return torch.cat(places) if places else ids

    def _fill(self, rows: list[Tensor]) -> None:
        """Add rows to `values`."""
        used = self.used + sum(map(len, rows))
        if used > len(self._room):
            room = self._room.new_empty(2 * used, self._room.shape[1])
            room[: self.used] = self._room[: self.used]
            self._room = room
        for each in rows:
            self._room.data[self.used : self.used + len(each)] = each  # .data: what was read before stays as it was
            self.used += len(each)
        self.values = self._room[: self.used]


class Pulled:
    """What one step asked of other ranks, and they of this one; and the gradients of what it read."""

    def __init__(self, shard: Shard, own: Tensor, learned: "list[Pulled] | None") -> None:
        self.shard, self.ranks, self.own, self.learned = shard, shard.ranks, own, learned
        self.read = shard.num_top  # rows of the top and of others that were read
        self.asked: list[list[range]] = [[] for _ in range(self.ranks.size)]  # of each rank: places of its rows here
        self.served: list[list[Tensor]] = [[] for _ in range(self.ranks.size)]  # rows of this rank that each asked for
        self._found: tuple[Tensor, Tensor] | None = None

    def ask(self, rows: list[Tensor], at: int) -> list[Tensor]:
        """The vectors of rows of each rank; they will be from place `at` on."""
        me = self.ranks.rank
        sent = [0 if owner == me else len(each) for owner, each in enumerate(rows)]
        received = self.ranks.counts(sent)
        others = torch.cat([rows[me][:0], *(each for owner, each in enumerate(rows) if owner != me)])
        others = self.ranks.exchange(others, sent, received)
        found = list(self.ranks.exchange(self.own.index_select(0, others), received, sent).split(sent))
        found[me] = self.own.index_select(0, rows[me])
        wanted = list(others.split(received))
        wanted[me] = rows[me]
        for rank in range(self.ranks.size):
            self.served[rank].append(wanted[rank])
            self.asked[rank].append(range(at, at + len(rows[rank])))
            at += len(rows[rank])
        self.read = at
        return found

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Where to add gradients of what was read, by place [used, dim], and where to mark it [used]."""
        if self._found is None:
            total = self.own.new_zeros(self.read, self.own.shape[1])
            self._found = total, torch.zeros(self.read, dtype=torch.uint8, device=total.device)
        return self._found

    def add(self, places: Tensor, grads: Tensor) -> None:
        total, touched = self.buffers()
        rows = places.clamp(min=0).flatten()
        total.index_add_(0, rows, grads.reshape(-1, total.shape[1]))
        touched.index_fill_(0, rows, 1)

    def finish(self) -> None:
        """All gradients of the step are here; they go to their owners when all ranks are ready."""
        if self.learned is not None:
            self.learned.append(self)

    def send_back(self, total: Tensor, marks: Tensor) -> None:
        """Add the gradients that all ranks found for this one's rows to their sum, and mark these rows."""
        grads, touched = self.buffers()
        self._found = None
        top, me = self.shard.num_top, self.ranks.rank
        total[:top] += grads[:top]
        marks[:top] |= touched[:top]
        for place, rows in zip(self.asked[me], self.served[me], strict=True):
            self._add(total, marks, rows, grads[place.start : place.stop], touched[place.start : place.stop])
        if not self.asked[me]:  # the top was enough
            return
        others = [owner for owner in range(self.ranks.size) if owner != me]
        places = [torch.arange(p.start, p.stop, device=grads.device) for owner in others for p in self.asked[owner]]
        at = torch.cat(places)
        sent = [0 if owner == me else sum(map(len, each)) for owner, each in enumerate(self.asked)]
        received = [0 if owner == me else sum(map(len, each)) for owner, each in enumerate(self.served)]
        found = torch.cat([grads[at], touched[at].to(grads).unsqueeze(1)], dim=1)
        theirs = self.ranks.exchange(found, sent, received)
        asked = torch.cat([rows for owner in others for rows in self.served[owner]])
        self._add(total, marks, asked, theirs[:, :-1], theirs[:, -1])

    @staticmethod
    def _add(total: Tensor, marks: Tensor, rows: Tensor, grads: Tensor, touched: Tensor) -> None:
        total.index_add_(0, rows, grads)
        marks.index_fill_(0, rows[touched > 0], 1)
