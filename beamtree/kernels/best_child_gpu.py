"""ẑ (Eq. 15) on a GPU: labels go up from the leaves of one user, all levels in one program."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr


@triton.jit
def pass_up_rows(
    nodes,
    logits,
    labels,
    levels,
    targets,
    ARITY: constexpr,
    PADDED: constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, PADDED)
    real = index < targets
    nodes += row * levels * targets
    labels += row * levels * targets
    logits += row * (levels - 1) * targets * ARITY
    below = tl.load(nodes + (levels - 1) * targets + index, mask=real, other=-1).to(tl.int32)
    label = below >= 0
    tl.store(labels + (levels - 1) * targets + index, label.to(tl.int8), mask=real)
    for up in range(1, levels):
        level = levels - 1 - up
        node = tl.load(nodes + level * targets + index, mask=real, other=-1).to(tl.int32)
        relevant = tl.where(label, below, -2)  # never a child
        best = tl.full([PADDED], float("-inf"), tl.float32)
        result = tl.zeros([PADDED], tl.int32)
        for j in tl.static_range(ARITY):
            child = node * ARITY + 1 + j
            rival = tl.max((child[:, None] == relevant[None, :]).to(tl.int32), axis=1)
            logit = tl.load(logits + (level * targets + index) * ARITY + j, mask=real, other=float("-inf"))
            wins, stays = (logit >= best).to(tl.int32), (best >= logit).to(tl.int32)
            result = (result & stays) | (rival & wins)
            best = tl.maximum(best, logit)
        label = (result != 0) & (node >= 0)
        tl.store(labels + level * targets + index, label.to(tl.int8), mask=real)
        below = node


def pass_up(nodes: Tensor, logits: Tensor, arity: int) -> Tensor:
    """ẑ of positive nodes [B, L, P], leaves last, from the logits of the children of all but the leaves [B, L-1, Pb].

    Leaves have label 1, PAD 0; above, a node takes the label of its highest-scored child, a tie goes to the relevant.
    """
    batch, levels, targets = nodes.shape
    labels = torch.empty(nodes.shape, dtype=torch.int8, device=nodes.device)
    pass_up_rows[(batch,)](
        nodes.contiguous(), logits.contiguous(), labels, levels, targets,
        ARITY=arity, PADDED=max(16, triton.next_power_of_2(targets)), num_warps=4,
    )  # fmt: skip
    return labels.view(torch.bool)
