"""The start of the deep scorer: its layers as a product of history and node."""

import torch
from torch import Tensor, nn

SLOPE = 0.25  # of the PReLUs at the start
RANDOM_SHARE = 0.3  # what is left of random weights beside the product
START_LOGIT = -2.0  # what is said where history and node have nothing to do with each other


@torch.no_grad()
def start_as_product(
    of_user: nn.Linear, of_node: nn.Linear, layers: list[nn.Linear], windows: int, dim: int, like: Tensor
) -> None:
    """Give the layers weights that compute Σ |u + n| - |u - n| over `dim` dimensions.

    A network of these layers finds out only slowly that rows are to be multiplied. But since
    |u + n| - |u - n| is 2 min(|u|, |n|) where u and n agree in sign and -2 min(|u|, |n|) where they do not,
    and |z| is made of PReLU(z) + PReLU(-z), it can say so from the first step: four units for each dimension of
    the first layer, two of the second, one of the third. The other units stay as they were drawn, but small.
    """
    one = torch.eye(dim, device=like.device)
    pairs = one[::2] + one[1::2]  # [dim / 2, dim]
    for layer in (of_user, of_node, *layers):
        layer.weight.mul_(RANDOM_SHARE)
    # u + n, -(u + n), u - n, -(u - n), where u is the mean of the windows
    user_weight = of_user.weight.view(len(of_user.weight), windows, -1)
    user_weight[: 4 * dim] = 0
    user_weight[: 4 * dim, :, :dim] = torch.cat([one, -one, one, -one]).unsqueeze(1) / windows
    of_node.weight[: 4 * dim] = 0
    of_node.weight[: 4 * dim, :dim] = torch.cat([one, -one, -one, one])
    of_user.bias[: 4 * dim] = 0
    # |u + n| - |u - n| of each dimension, and the same with the other sign; then of pairs of them; then of all
    absolute = torch.cat([one, one, -one, -one], dim=1) / (1 - SLOPE)
    joined = torch.cat([pairs, -pairs], dim=1) / (1 + SLOPE)  # z is made of PReLU(z) - PReLU(-z)
    total = torch.cat([torch.ones(1, dim // 2), -torch.ones(1, dim // 2)], dim=1).to(like) / (1 + SLOPE)
    for layer, block in zip(layers, (absolute, joined, total), strict=True):
        block = torch.cat([block, -block]) if len(block) > 1 else block
        layer.weight[: len(block)] = 0
        layer.weight[: len(block), : block.shape[1]] = block
        layer.bias[: len(block)] = 0
    layers[-1].bias.fill_(START_LOGIT)
