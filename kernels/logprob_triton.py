"""One block of logits on the GPU: its statistics, their merge, its coefficients (formulas: logprob_sweep.py).

The matrix products are cuBLAS's: a token's hidden row, up to 8,192 numbers, and its gradient do not fit into registers
beside a tile of logits, and a product at full speed into a bounded buffer costs one write and two reads of the block,
little beside its 2 H operations a number. Around the products stand three streaming kernels:

    partials      a program per token and part of the block's vocabulary, so that a few tokens fill the GPU too:
                  maximum, sum and entropy sum of the part, from one read
    merge         a program per block of tokens: the parts in their order onto the running statistics
    coefficients  a program per token and part: e, or C, in the dtype of the next product

Per block of logits these are four launches and one or two products; nothing waits for the device. The order of every
sum is fixed; cuBLAS gives the same bits for the same shapes on one GPU.

Halves: products of halves accumulate in float32 and the logits are float32; e and C are rounded to the half dtype
for the second product, as the tensor cores want them. float32 products follow torch's own switch
(``torch.set_float32_matmul_precision``, by default exact); nothing here turns TF32 on.
"""

import torch

from rtmc.kernels.backend import cdiv, jit, launch, next_power_of_2, tl
from rtmc.kernels.logprob_sweep import Blocks

__all__ = ["TritonBlocks"]

_INF = tl.constexpr(float("inf"))
_NOTHING = tl.constexpr(-1000.0)  # logprob_sweep._NOTHING


@jit
def _load_logits(z_ptr, bias_ptr, scale_ptr, row, column, columns, BIAS: tl.constexpr):
    """(z + bias) / temperature of part of a row; minus infinity past its end."""
    inside = column < columns
    z = tl.load(z_ptr + row * columns + column, mask=inside, other=-_INF)
    if BIAS:
        z += tl.load(bias_ptr + column, mask=inside, other=0.0)
    return tl.where(inside, z * tl.load(scale_ptr), -_INF)


@jit
def _whole_vectors(columns, ALIGNED: tl.constexpr):
    """``columns`` in int64, known as a multiple of 16 where it is one: 128-bit accesses need to know."""
    columns = tl.cast(columns, tl.int64)
    if ALIGNED:
        columns = tl.multiple_of((columns // 16) * 16, 16)
    return columns


@jit
def _logprob_partials_kernel(
    z_ptr, bias_ptr, scale_ptr, partial_ptr, columns,
    BIAS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """partial (3, parts, rows): maximum, sum e, sum e (z - maximum) of columns part * BLOCK on."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    rows = tl.num_programs(0).to(tl.int64)
    parts = tl.num_programs(1).to(tl.int64)
    columns = _whole_vectors(columns, ALIGNED)
    column = part * BLOCK + tl.arange(0, BLOCK)
    z = _load_logits(z_ptr, bias_ptr, scale_ptr, row, column, columns, BIAS)
    # A maximum on one device skips NaN, on another not; e is NaN either way, and so is the sum.
    top = tl.max(tl.where(z == z, z, -_INF), 0)
    difference = z - tl.where(top == -_INF, 0.0, top)
    e = tl.exp(difference)
    # Past the end and at masked entries: 0 times an infinity must not be formed.
    difference = tl.where(difference < _NOTHING, _NOTHING, difference)
    out = partial_ptr + part * rows + row
    tl.store(out, top)
    tl.store(out + parts * rows, tl.sum(e, 0))
    tl.store(out + 2 * parts * rows, tl.sum(e * difference, 0))


@jit
def _logprob_merge_kernel(
    z_ptr, bias_ptr, scale_ptr, local_ptr, partial_ptr, running_ptr, shrink_ptr, rows, columns, parts, pitch,
    BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The parts of each row, in order, onto running (4, pitch): m, s, q, target logit; shrink = exp(old m - new m)."""
    rows = tl.cast(rows, tl.int64)
    columns = tl.cast(columns, tl.int64)
    parts = tl.cast(parts, tl.int64)
    pitch = tl.cast(pitch, tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    at = running_ptr + row
    before = tl.load(at, mask=inside, other=-_INF)
    m = before
    s = tl.load(at + pitch, mask=inside, other=0.0)
    q = tl.load(at + 2 * pitch, mask=inside, other=0.0)
    for part in range(0, parts):
        from_part = partial_ptr + part * rows + row
        top = tl.load(from_part, mask=inside, other=-_INF)
        more = tl.load(from_part + parts * rows, mask=inside, other=0.0)
        more_q = tl.load(from_part + 2 * parts * rows, mask=inside, other=0.0)
        new = tl.maximum(m, top)
        shift = tl.where(new == -_INF, 0.0, new)
        old_moved = tl.where(m == -_INF, 0.0, m - shift)
        top_moved = tl.where(top == -_INF, 0.0, top - shift)
        old_shrink = tl.exp(m - shift)
        top_shrink = tl.exp(top - shift)
        q = (q + s * old_moved) * old_shrink + (more_q + more * top_moved) * top_shrink
        s = s * old_shrink + more * top_shrink
        m = new
    tl.store(at, m, mask=inside)
    tl.store(at + pitch, s, mask=inside)
    tl.store(at + 2 * pitch, q, mask=inside)
    tl.store(shrink_ptr + row, tl.exp(before - tl.where(m == -_INF, 0.0, m)), mask=inside)
    local = tl.load(local_ptr + row, mask=inside, other=-1)
    here = inside & (local >= 0) & (local < columns)
    z_y = tl.load(z_ptr + row * columns + local, mask=here, other=0.0)
    if BIAS:
        z_y += tl.load(bias_ptr + local, mask=here, other=0.0)
    tl.store(at + 3 * pitch, z_y * tl.load(scale_ptr), mask=here)


@jit
def _logprob_coefficients_kernel(
    z_ptr, bias_ptr, scale_ptr, local_ptr, table_ptr, out_ptr, columns, pitch,
    BIAS: tl.constexpr, ALIGNED: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = e; with GRADIENT out = C from table (4, pitch): m, alpha, beta, g."""
    row = tl.program_id(0).to(tl.int64)
    columns = _whole_vectors(columns, ALIGNED)
    pitch = tl.cast(pitch, tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = _load_logits(z_ptr, bias_ptr, scale_ptr, row, column, columns, BIAS)
    top = tl.load(table_ptr + row)
    difference = z - tl.where(top == -_INF, 0.0, top)
    value = tl.exp(difference)
    if GRADIENT:
        difference = tl.where(difference < _NOTHING, _NOTHING, difference)
        value *= tl.load(table_ptr + pitch + row) + tl.load(table_ptr + 2 * pitch + row) * difference
        value += tl.where(column == tl.load(local_ptr + row), tl.load(table_ptr + 3 * pitch + row), 0.0)
    tl.store(out_ptr + row * columns + column, value.to(out_ptr.dtype.element_ty), mask=column < columns)


class TritonBlocks(Blocks):
    """The steps of ``Blocks`` by Triton's kernels and cuBLAS; on CPU tensors, by the interpreter and torch."""

    # Large enough that a product fills the GPU, small beside its memory.
    BUDGET = 256 * 2**20
    TOKENS = 4096
    HOLDS_WEIGHT = False

    def __init__(self, hidden: torch.Tensor, temperature: float) -> None:
        super().__init__(hidden, temperature)
        self.narrow = hidden.dtype
        self.most = 2048 if self.wide == torch.float64 else 4096  # numbers a program holds in its registers
        # As a tensor: a scalar argument of a kernel would be rounded to float32.
        self.scale = torch.full((1,), 1 / temperature, dtype=self.wide, device=hidden.device)

    def operand(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self.narrow == self.wide:
            return torch.mm(a, b)
        if self.device.type == "cuda":
            return torch.mm(a, b, out_dtype=self.wide)
        return torch.mm(a.to(self.wide), b.to(self.wide))  # torch's CPU product of halves gives halves

    def product(self, a: torch.Tensor, b: torch.Tensor, onto: torch.Tensor) -> None:
        if self.narrow == self.wide:
            onto.addmm_(a, b)
        else:
            onto.add_(self._product(a, b))

    def logits(self, h: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        """Without bias and temperature, which every kernel adds as it reads."""
        if self.narrow == self.wide:
            return torch.mm(h, w.t(), out=self.buffer("logits", h.shape[0], w.shape[0]))
        return self._product(h, w.t())

    def _part(self, columns: int) -> int:
        return min(max(next_power_of_2(columns), 256), self.most)

    def _launch(self, kernel, z, b, *args, **constexprs) -> None:
        block = self._part(z.shape[1])
        parts = cdiv(z.shape[1], block)
        aligned = z.shape[1] % 16 == 0 and (b is None or b.data_ptr() % 16 == 0)
        bias = self.scale if b is None else b  # a pointer that BIAS keeps from being read
        launch(
            kernel, (z.shape[0], parts), z, bias, self.scale, *args,
            BIAS=b is not None, ALIGNED=aligned, BLOCK=block, num_warps=8, **constexprs,
        )  # fmt: skip

    def absorb(
        self, z: torch.Tensor, b: torch.Tensor | None, local: torch.Tensor, running: torch.Tensor, entropy: bool
    ) -> torch.Tensor:
        rows, columns = z.shape
        parts = cdiv(columns, self._part(columns))
        partial = torch.empty(3, parts, rows, dtype=self.wide, device=self.device)
        shrink = torch.empty(rows, dtype=self.wide, device=self.device)
        self._launch(_logprob_partials_kernel, z, b, partial, columns)
        launch(
            _logprob_merge_kernel, (cdiv(rows, 128),), z, self.scale if b is None else b, self.scale,
            local.contiguous(), partial, running, shrink, rows, columns, parts, running.stride(0),
            BIAS=b is not None, BLOCK=128,
        )  # fmt: skip
        return shrink

    def _coefficients(self, z, b, local, table, gradient: bool) -> torch.Tensor:
        half = self.narrow != self.wide
        out = torch.empty(z.shape, dtype=self.narrow, device=self.device) if half else z
        self._launch(
            _logprob_coefficients_kernel, z, b, local, table, out, z.shape[1], table.stride(0), GRADIENT=gradient
        )
        return out

    def weights(self, z: torch.Tensor, b: torch.Tensor | None, running: torch.Tensor) -> torch.Tensor:
        return self._coefficients(z, b, running, running, gradient=False)

    def coefficients(
        self, z: torch.Tensor, b: torch.Tensor | None, local: torch.Tensor, table: torch.Tensor, entropy: bool
    ) -> torch.Tensor:
        return self._coefficients(z, b, local.contiguous(), table, gradient=True)
