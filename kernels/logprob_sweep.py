"""The sweep over blocks of logits: a block of tokens times a block of the vocabulary at a time, never more.

Forward, for the running maximum m, sum s, and sum q of a token (z the block's logits over the temperature):

    m' = max(m, max z)                      c  = exp(m - m')
    s' = c s + sum e,  e = exp(z - m')      q' = c (q + s (m - m')) + sum e (z - m')
    logprob = (z_y - m) - log s             entropy = log s - q / s

With ``weights`` it also carries a' = c a + e @ weight, so that a / s is the mean of the vocabulary's rows under
the distribution, and (weight_y - a / s) / temperature is the gradient of the logprob to its hidden row: attention of
the hidden states over the vocabulary with ``weight`` as keys and values. Backward without it: the block's logits again,

    C = e (alpha + beta (z - m)), plus g at the target;   alpha = -(g + h (entropy - log s)) / s,  beta = -h / s

for the upstream gradients g (logprob) and h (entropy), then C @ weight, C^T @ hidden and the sum of C over tokens, all
over the temperature.

Memory: one block of logits within ``BUDGET`` bytes whatever the number of tokens and the vocabulary (and as
much again for the block's coefficients, where they are not made in place, and for the block of ``weight`` in the
accumulation dtype), plus vectors and (tokens, hidden) matrices. The outer loop runs over the vocabulary, so a block
of ``weight`` is read, and converted, once.

Not here: argument checks, which tokens count (logprob.py); the Triton kernels (logprob_triton.py).
"""

import math
from collections.abc import Iterator

import torch

__all__ = ["Blocks", "backward_sweep", "forward_sweep"]

_INF = math.inf
# exp of it is 0 in float64 too, and 0 times it is 0, which an infinity would not give.
_NOTHING = -1000.0


class Blocks:
    """What is done to one block, in plain torch, in place: the CPU's. ``TritonBlocks`` replaces each step.

    Rows of ``running`` (4, n): m, s, q and the target's logit.
    """

    # Stays in the last cache together with a block of ``weight``.
    BUDGET = 8 * 2**20
    TOKENS = 1024
    # Whether a block of ``weight`` keeps to the budget too: it is converted, or stays in the cache for two products.
    HOLDS_WEIGHT = True

    def __init__(self, hidden: torch.Tensor, temperature: float) -> None:
        self.wide = torch.promote_types(hidden.dtype, torch.float32)
        self.device = hidden.device
        self.temperature = temperature
        self._held: dict[str, torch.Tensor] = {}

    def of(self, size: int, block: int) -> Iterator[tuple[int, int]]:
        return ((at, min(at + block, size)) for at in range(0, size, block))

    def sizes(self, tokens: int, vocabulary: int, width: int) -> tuple[int, int]:
        """(tokens, vocabulary) of a block: the block of logits, and ``width`` numbers a word, keep to the budget."""
        numbers = self.BUDGET // self.wide.itemsize
        rows = max(min(tokens, self.TOKENS), 1)
        columns = max(min(vocabulary, numbers // max(rows, width)), 1)
        # Blocks start and end at whole vectors, the last alone ends where the vocabulary does.
        return rows, columns if columns < 16 else columns // 16 * 16

    def operand(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` as it enters a matrix product."""
        return x.to(self.wide)

    def product(self, a: torch.Tensor, b: torch.Tensor, onto: torch.Tensor) -> None:
        """onto += a @ b."""
        onto.addmm_(a, b)

    def buffer(self, name: str, rows: int, columns: int) -> torch.Tensor:
        held = self._held.get(name)
        if held is None or held.numel() < rows * columns:
            self._held[name] = held = torch.empty(rows * columns, dtype=self.wide, device=self.device)
        return held[: rows * columns].view(rows, columns)

    def logits(self, h: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        z = self.buffer("logits", h.shape[0], w.shape[0])
        if b is not None:
            return torch.addmm(b, h, w.t(), beta=1 / self.temperature, alpha=1 / self.temperature, out=z)
        torch.mm(h, w.t(), out=z)
        return z if self.temperature == 1 else z.div_(self.temperature)

    def absorb(
        self, z: torch.Tensor, b: torch.Tensor | None, local: torch.Tensor, running: torch.Tensor, entropy: bool
    ) -> torch.Tensor:
        """``running`` goes on over the block; returns c, by which what was summed so far shrinks.

        ``local`` (rows,): the target's column in this block, or one outside it. ``z`` becomes e.
        """
        m, s, q, z_y = running
        inside = (local >= 0) & (local < z.shape[1])
        at = local.clamp(0, z.shape[1] - 1)[:, None]
        z_y.copy_(torch.where(inside, z.gather(1, at)[:, 0], z_y))
        top = torch.maximum(m, z.amax(1))
        shift = finite_shift(top)
        shrink = (m - shift).exp()
        z.sub_(shift[:, None])
        if entropy:
            moved = torch.where(m == -_INF, 0.0, m - shift)
            e = torch.exp(z, out=self.buffer("weights", *z.shape))
            q.add_(s * moved).mul_(shrink).add_(z.clamp_(min=_NOTHING).mul_(e).sum(1))
            total = e.sum(1)
        else:
            total = z.exp_().sum(1)
        s.mul_(shrink).add_(total)
        m.copy_(top)
        return shrink

    def weights(self, z: torch.Tensor, b: torch.Tensor | None, running: torch.Tensor) -> torch.Tensor:
        """e of the block that was absorbed last."""
        return z

    def coefficients(
        self, z: torch.Tensor, b: torch.Tensor | None, local: torch.Tensor, table: torch.Tensor, entropy: bool
    ) -> torch.Tensor:
        """C of the block; ``table`` (4, rows): m, alpha, beta, g."""
        shift, alpha, beta, hit = table
        z.sub_(shift[:, None])
        if entropy:
            e = torch.exp(z, out=self.buffer("weights", *z.shape))
            z.clamp_(min=_NOTHING).mul_(beta[:, None]).add_(alpha[:, None]).mul_(e)
        else:
            z.exp_().mul_(alpha[:, None])
        inside = (local >= 0) & (local < z.shape[1])
        at = local.clamp(0, z.shape[1] - 1)[:, None]
        return z.scatter_add_(1, at, torch.where(inside, hit, 0.0)[:, None])


def finite_shift(top: torch.Tensor) -> torch.Tensor:
    """The maximum that is subtracted; 0 for minus infinity, so that a masked entry stays minus infinity."""
    return top.masked_fill(top == -_INF, 0.0)


def _block_of(x: torch.Tensor | None, begin: int, end: int) -> torch.Tensor | None:
    return None if x is None else x[begin:end]


def forward_sweep(
    blocks: Blocks,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None,
    entropy: bool,
    weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(running (4, n), direction (n, H) or None) of n tokens that all count; direction is d logprob / d hidden."""
    n, wide = targets.shape[0], blocks.wide
    running = torch.zeros(4, n, dtype=wide, device=hidden.device)
    running[0] = running[3] = -_INF
    mean = torch.zeros(n, hidden.shape[1], dtype=wide, device=hidden.device) if weights else None
    h = blocks.operand(hidden)
    bias = None if bias is None else bias.to(wide).contiguous()
    rows, columns = blocks.sizes(n, weight.shape[0], weight.shape[1] if blocks.HOLDS_WEIGHT else 1)
    for v0, v1 in blocks.of(weight.shape[0] if n else 0, columns):
        w, b = blocks.operand(weight[v0:v1]), _block_of(bias, v0, v1)
        for t0, t1 in blocks.of(n, rows):
            z = blocks.logits(h[t0:t1], w, b)
            shrink = blocks.absorb(z, b, targets[t0:t1] - v0, running[:, t0:t1], entropy)
            if mean is not None:
                onto = mean[t0:t1].mul_(shrink[:, None])
                blocks.product(blocks.weights(z, b, running[:, t0:t1]), w, onto)
            del z  # or, where it is a tensor of its own, the next would stand beside it
    if mean is not None:
        mean.div_(-running[1][:, None])
        for t0, t1 in blocks.of(n, rows):
            mean[t0:t1].add_(weight[targets[t0:t1]])
        mean.div_(blocks.temperature)
    return running, mean


def backward_sweep(
    blocks: Blocks,
    grads: tuple[torch.Tensor, torch.Tensor | None],
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None,
    stats: torch.Tensor,
    entropy: torch.Tensor | None,
    needs: tuple[bool, bool, bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of hidden (n, H) in the accumulation dtype, weight and bias in their own; None where not needed.

    ``grads``: g (n,) and, for a gradient through the entropy, h (n,). ``stats`` (2, n): m, s.
    """
    n, wide = targets.shape[0], blocks.wide
    (maximum, total), (g, through_entropy) = stats, grads
    if through_entropy is None:
        table = torch.stack([finite_shift(maximum), -g / total, torch.zeros_like(g), g])
    else:
        alpha = -(g + through_entropy * (entropy - total.log())) / total
        table = torch.stack([finite_shift(maximum), alpha, -through_entropy / total, g])
    grad_hidden = torch.zeros(n, hidden.shape[1], dtype=wide, device=hidden.device) if needs[0] else None
    grad_weight = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device) if needs[1] else None
    grad_bias = torch.zeros(weight.shape[0], dtype=wide, device=weight.device) if needs[2] else None
    h = blocks.operand(hidden)
    wide_bias = None if bias is None else bias.to(wide).contiguous()
    rows, columns = blocks.sizes(n, weight.shape[0], weight.shape[1] if blocks.HOLDS_WEIGHT or needs[1] else 1)
    for v0, v1 in blocks.of(weight.shape[0] if n else 0, columns):
        w, b = blocks.operand(weight[v0:v1]), _block_of(wide_bias, v0, v1)
        of_block = torch.zeros(w.shape, dtype=wide, device=w.device) if needs[1] else None
        for t0, t1 in blocks.of(n, rows):
            z = blocks.logits(h[t0:t1], w, b)
            local = targets[t0:t1] - v0
            c = blocks.coefficients(z, b, local, table[:, t0:t1], through_entropy is not None)
            if grad_hidden is not None:
                blocks.product(c, w, grad_hidden[t0:t1])
            if of_block is not None:
                blocks.product(c.t(), h[t0:t1], of_block)
            if grad_bias is not None:
                grad_bias[v0:v1].add_(c.sum(0, dtype=wide))
            del z, c
        if grad_weight is not None and of_block is not None:
            grad_weight[v0:v1] = of_block.div_(blocks.temperature)
    if grad_hidden is not None:
        grad_hidden.div_(blocks.temperature)
    if grad_bias is not None:
        grad_bias = grad_bias.div_(blocks.temperature).to(weight.dtype)
    return grad_hidden, grad_weight, grad_bias
