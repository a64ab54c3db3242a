"""The rows of other ranks that one step reads, and the way back for their gradients."""

import torch
from torch import Tensor

from beamtree.distributed.partition import Shard
from beamtree.scorers.table import Gradients, Vectors


class ShardedVectors(Vectors):
    """The vectors that one step reads: those of the top, followed by those received from other ranks.

    `index` requests nodes and returns their rows in `values`; all ranks must call it, in the same order. The same
    tensor of nodes is not requested twice.
    """

    def __init__(self, shard: Shard, weight: Tensor, own: Tensor, learned: "list[RemoteRows] | None") -> None:
        """`own` are the vectors of this rank's rows; gradients are added to `learned`, where there are any."""
        self.shard, self.top = shard, own[: shard.num_top]
        self.remote = RemoteRows(shard, own, learned)
        self.used = len(self.top)
        self._room = own.new_empty(2 * self.used, own.shape[1])
        self._room[: self.used] = self.top
        self._requested: dict[int, tuple[Tensor, Tensor]] = {}
        self._bounds = torch.tensor(shard.bounds, device=own.device)
        super().__init__(self.top, weight, None if learned is None else self.remote)

    @torch.no_grad()
    def index(self, levels: list[tuple[int, Tensor]]) -> list[Tensor]:
        deep = [nodes for level, nodes in levels if level > self.shard.cut]
        new = [nodes for nodes in {id(nodes): nodes for nodes in deep}.values() if id(nodes) not in self._requested]
        if new:
            rows = self._request(torch.cat([nodes.flatten() for nodes in new]))
            for nodes, row in zip(new, rows.split([nodes.numel() for nodes in new]), strict=True):
                self._requested[id(nodes)] = nodes, row.view(nodes.shape)
        return [nodes if level <= self.shard.cut else self._requested[id(nodes)][1] for level, nodes in levels]

    def index_levels(self, nodes: Tensor) -> Tensor:
        below = self.shard.below
        if not below:
            return nodes
        rows = nodes.clone()
        rows[below.start :] = self._request(nodes[below.start :].flatten()).view(len(below), *nodes.shape[1:])
        return rows

    def _request(self, nodes: Tensor) -> Tensor:
        """The rows of nodes [n], PAD among them, in `values`, after they were requested from their ranks."""
        order = nodes.sort()
        first = torch.empty_like(order.values, dtype=torch.bool)
        first[:1] = order.values[:1] >= self.shard.num_top
        first[1:] = (order.values[1:] != order.values[:-1]) & (order.values[1:] >= self.shard.num_top)
        rank = first.cumsum(0).sub_(1)
        ids = order.values[first]
        row = self._request_distinct(ids)
        rows = torch.empty_like(nodes)
        low = order.values < self.shard.num_top  # of the top, and PAD: they keep their numbers
        rows[order.indices] = torch.where(low, order.values, row[rank]) if len(ids) else order.values
        return rows

    def _request_distinct(self, ids: Tensor) -> Tensor:
        """The rows in `values` of distinct nodes below the cut, in rising order."""
        shard, size = self.shard, self.shard.ranks.size
        cuts = torch.searchsorted(ids, self._bounds).tolist()
        runs = [
            (cuts[i], cuts[i + 1], i % size, shard.offsets[i]) for i in range(len(cuts) - 1) if cuts[i] < cuts[i + 1]
        ]
        wanted: list[list[Tensor]] = [[] for _ in range(size)]  # of each rank, by the numbers of its rows
        sent = [0] * size
        for start, stop, owner, offset in runs:
            wanted[owner].append(ids[start:stop] - offset)
            sent[owner] += stop - start
        at = [self.used + sum(sent[:owner]) for owner in range(size)]
        positions = []
        for start, stop, owner, _ in runs:
            positions.append(torch.arange(at[owner], at[owner] + stop - start, device=ids.device))
            at[owner] += stop - start
        rows = [torch.cat(each) if each else ids[:0] for each in wanted]
        self._append(self.remote.request(rows, self.used))
        return torch.cat(positions) if positions else ids

    def _append(self, rows: list[Tensor]) -> None:
        """Append rows to `values`."""
        used = self.used + sum(map(len, rows))
        if used > len(self._room):
            room = self._room.new_empty(2 * used, self._room.shape[1])
            room[: self.used] = self._room[: self.used]
            self._room = room
        for each in rows:
            self._room.data[self.used : self.used + len(each)] = each  # .data: what was read before stays as it was
            self.used += len(each)
        self.values = self._room[: self.used]


class RemoteRows(Gradients):
    """What one step requested from other ranks, and they from this one, and the gradients of what it read."""

    def __init__(self, shard: Shard, own: Tensor, learned: "list[RemoteRows] | None") -> None:
        self.shard, self.ranks, self.own, self.learned = shard, shard.ranks, own, learned
        self.read = shard.num_top  # rows of the top and of others that were read
        self.requested: list[list[range]] = [[] for _ in range(self.ranks.size)]  # of each rank: its rows in `values`
        self.served: list[list[Tensor]] = [[] for _ in range(self.ranks.size)]  # rows of this rank, for each other
        self._buffers: tuple[Tensor, Tensor] | None = None

    def request(self, rows: list[Tensor], at: int) -> list[Tensor]:
        """The vectors of rows of each rank; they will be in `values` from row `at` on."""
        me = self.ranks.rank
        sent = [0 if owner == me else len(each) for owner, each in enumerate(rows)]
        received = self.ranks.counts(sent)
        others = torch.cat([rows[me][:0], *(each for owner, each in enumerate(rows) if owner != me)])
        others = self.ranks.exchange(others, sent, received)
        vectors = list(self.ranks.exchange(self.own.index_select(0, others), received, sent).split(sent))
        vectors[me] = self.own.index_select(0, rows[me])
        wanted = list(others.split(received))
        wanted[me] = rows[me]
        for rank in range(self.ranks.size):
            self.served[rank].append(wanted[rank])
            self.requested[rank].append(range(at, at + len(rows[rank])))
            at += len(rows[rank])
        self.read = at
        return vectors

    def buffers(self) -> tuple[Tensor, Tensor]:
        """[rows of `values`, dim] and [rows of `values`]."""
        if self._buffers is None:
            total = self.own.new_zeros(self.read, self.own.shape[1])
            self._buffers = total, torch.zeros(self.read, dtype=torch.uint8, device=total.device)
        return self._buffers

    def finish(self) -> None:
        """All gradients of the step are collected; they are sent when all ranks are ready."""
        if self.learned is not None:
            self.learned.append(self)

    def send_gradients(self, total: Tensor, marks: Tensor) -> None:
        """Exchange gradients; those of this rank's rows are added to `total`, and their rows marked."""
        grads, touched = self.buffers()
        self._buffers = None
        top, me = self.shard.num_top, self.ranks.rank
        total[:top] += grads[:top]
        marks[:top] |= touched[:top]
        for span, rows in zip(self.requested[me], self.served[me], strict=True):
            self._add(total, marks, rows, grads[span.start : span.stop], touched[span.start : span.stop])
        if not self.requested[me]:  # the top was enough
            return
        others = [owner for owner in range(self.ranks.size) if owner != me]
        spans = [span for owner in others for span in self.requested[owner]]
        at = torch.cat([torch.arange(span.start, span.stop, device=grads.device) for span in spans])
        sent = [0 if owner == me else sum(map(len, each)) for owner, each in enumerate(self.requested)]
        received = [0 if owner == me else sum(map(len, each)) for owner, each in enumerate(self.served)]
        outgoing = torch.cat([grads[at], touched[at].to(grads).unsqueeze(1)], dim=1)
        theirs = self.ranks.exchange(outgoing, sent, received)
        served = torch.cat([rows for owner in others for rows in self.served[owner]])
        self._add(total, marks, served, theirs[:, :-1], theirs[:, -1])

    @staticmethod
    def _add(total: Tensor, marks: Tensor, rows: Tensor, grads: Tensor, touched: Tensor) -> None:
        total.index_add_(0, rows, grads)
        marks.index_fill_(0, rows[touched > 0], 1)
