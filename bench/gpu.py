"""What only a GPU can show, in one run of under six minutes: ``python bench/gpu.py`` in a checkout, nothing installed.

The parts, each within its own time, one that fails printing its traceback while the others go on:

    cases      the kernel cases of tests/ on the device, one line for each that fails
    rtmc       RTMC of 64 groups x 8 rollouts x 50 steps: how many launches, how long
    broadcast  GB/s of the token broadcast at 1 GB of output, beside the card's own copy
    loss       GB/s of the policy loss, forward and with its gradient, beside the same; how many launches
    logprob    token_logprobs and the policy loss beside whole logits (and Liger, where installed): time, peak memory
    compile    every op beside torch.compile of its reference; where that does not compile, of the plain-torch peer of
               bench/ops; and where neither does, beside that peer as it is
    step       a training step in bfloat16 against the same in float64

Where the project has set a figure to reach, the line has it as ``target``, and whether it is met as ``reached``.
One JSON line a result goes to $OUT/gpu.jsonl, or to bench/results.jsonl. Exit status: 0, 1 where a part failed, 2
without CUDA. ``--device cpu --quick`` walks the same road at small sizes, for its test; launches are not counted there.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import measure  # noqa: E402  (found through the line above)
import torch  # noqa: E402  (found as the line above)
from deadline import limit  # noqa: E402  (beside this file)

Lines = Iterator[dict[str, Any]]


class Place(NamedTuple):
    device: str
    quick: bool

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 11


def launches(place: Place, work: Callable[[], Any]) -> dict[str, Any]:
    """How many kernels ``work`` starts on the device, ours by name; copies and fills are counted apart."""
    if not place.cuda:
        return {"launches": None, "skipped": "launches are counted on CUDA alone"}
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    names = [e.name for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    moves = [name for name in names if name.startswith(("Memcpy", "Memset"))]
    kernels = [name for name in names if name not in moves]
    ours = [name for name in kernels if name.endswith("_kernel") and name.startswith("_")]
    return {
        "launches": len(kernels),
        "copies_and_fills": len(moves),
        "of_ours": ours,
        "others": len(kernels) - len(ours),
    }


def timed(place: Place, name: str, candidates: dict[str, Callable[[], Any]], moved: int = 0, **more: Any) -> Lines:
    yield from measure.measure(measure.Case(name, candidates, place.device, moved, **more), place.rounds)


# --- the parts ----------------------------------------------------------------------------------------------


def cases(place: Place) -> Lines:
    from tests import kernel_cases

    saved: list[tuple[Any, str, Any]] = []

    def poison(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    bodies = kernel_cases.all_cases()
    if place.quick:
        bodies = [case for case in bodies if case[0].startswith(("returns:", "broadcast:"))][:8]
    failed = 0
    kernel_cases.poison_fresh_memory(poison)
    try:
        for name, body in bodies:
            try:
                body(place.device)
            except TimeoutError:
                raise
            except Exception:
                failed += 1
                yield {"case": name, "error": traceback.format_exc()[-3000:]}
    finally:
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)
    yield {"cases": len(bodies), "failed": failed}
    if failed:
        raise AssertionError(f"{failed} of {len(bodies)} kernel cases fail on {place.device}")


def rtmc(place: Place) -> Lines:
    from rtmc.kernels.rollout_tree import rollout_tree_advantages

    groups, steps = (4, 4 * 8 * 50) if place.quick else (64, 64 * 8 * 50)
    g = torch.Generator().manual_seed(0)
    offsets = torch.arange(0, steps + 1, 50)
    count = groups * 8
    arguments = (
        torch.randn(steps, generator=g),
        torch.randint(0, 2, (count,), generator=g).float(),
        offsets,
        torch.arange(count) // 8,
        torch.randint(0, 100, (steps,), generator=g) + 100 * torch.arange(groups).repeat_interleave(400),
        torch.randint(0, 5, (steps,), generator=g),
    )
    arguments = tuple(a.to(place.device) for a in arguments)

    def work() -> Any:
        return rollout_tree_advantages(*arguments, gamma=0.99, prior_visits=2.0, prior="success_rate")

    counted = launches(place, work)
    reached = len(counted["of_ours"]) == 1 if place.cuda else None
    yield {"case": f"RTMC, {groups} groups x 8 x 50", **counted, "target": "one launch of ours", "reached": reached}
    yield from timed(place, f"RTMC, {groups} groups x 8 x 50", {"rollout_tree_advantages": work})


def copy_of(place: Place, numbers: int) -> tuple[Callable[[], Any], int]:
    """The card's own copy of as many float32, and the bytes it moves."""
    source, target = (torch.zeros(numbers, device=place.device) for _ in range(2))
    return lambda: target.copy_(source), numbers * 8


def beside_copy(place: Place, name: str, work: Callable[[], Any], moved: int, target: float) -> Lines:
    """``target``: the share of the copy's bandwidth that is to be reached, of large tensors on a GPU."""
    copy, copied = copy_of(place, 2**16 if place.quick else 2**28)
    (theirs,) = timed(place, "copy of 1 GB" if not place.quick else "copy", {"torch copy_": copy}, copied)
    (ours,) = timed(place, name, {"ours": work}, moved)
    yield theirs
    share = ours["gb_per_s"] / theirs["gb_per_s"]
    reached = share >= target if place.cuda and not place.quick else None
    yield {**ours, "of_copy_bandwidth": share, "target": target, "reached": reached}


def broadcast(place: Place) -> Lines:
    from rtmc.kernels.broadcast import broadcast_to_tokens

    tokens = 2**16 if place.quick else 2**28
    step = torch.arange(tokens, device=place.device) // 64
    values = torch.randn(tokens // 64, device=place.device)
    assert torch.equal(broadcast_to_tokens(values, step), values.repeat_interleave(64))
    moved = tokens * 12 + values.numel() * 4
    name = f"broadcast, {tokens:,} tokens"
    yield from beside_copy(place, name, lambda: broadcast_to_tokens(values, step), moved, target=0.8)


def loss(place: Place) -> Lines:
    from rtmc.kernels.policy_loss import policy_loss

    tokens = 2**16 if place.quick else 2**26
    g = torch.Generator(place.device).manual_seed(0)
    old = torch.randn(tokens, generator=g, device=place.device)
    logprob = (old + 0.2 * torch.randn(tokens, generator=g, device=place.device)).requires_grad_()
    step = torch.arange(tokens, device=place.device) // 64
    rollout = step // 64
    advantage = torch.randn(tokens // 64, generator=g, device=place.device)

    def forward() -> torch.Tensor:
        return policy_loss(logprob, old, advantage, step, rollout)[0]

    def both() -> torch.Tensor:
        return torch.autograd.grad(forward(), logprob)[0]

    yield {"case": "policy loss, forward", **launches(place, forward)}
    yield {"case": "policy loss and its gradient", **launches(place, both)}
    # Read: two log-probabilities and two ids; written: the gradient. The backward pass reads and writes it once more.
    yield from beside_copy(place, f"policy loss, {tokens:,} tokens, forward", forward, tokens * 28, target=0.7)
    yield from beside_copy(place, f"policy loss, {tokens:,} tokens, with its gradient", both, tokens * 36, target=0.7)


def logprob(place: Place) -> Lines:
    from peers import largest

    from rtmc.kernels.logprob import token_logprobs
    from rtmc.kernels.policy_loss import policy_loss

    words = 1000 if place.quick else 151_936
    dtype = torch.bfloat16 if place.cuda else torch.float32
    shapes = [(128, 64)] if place.quick else [(t, h) for t in (2048, 8192) for h in (896, 2048)]
    for tokens, size in shapes:
        g = torch.Generator().manual_seed(0)
        hidden = torch.randn(tokens, size, generator=g).to(place.device, dtype).requires_grad_()
        weight = (torch.randn(words, size, generator=g) / size**0.5).to(place.device, dtype)
        targets = torch.randint(0, words, (tokens,), generator=g).to(place.device)
        rollout = torch.arange(tokens, device=place.device) // (tokens // 4)
        advantage = torch.randn(4, generator=g).to(place.device)
        with torch.no_grad():
            old = token_logprobs(hidden, weight, targets)[0] + 0.01

        def run(score: Callable[[], torch.Tensor], hidden=hidden, old=old, advantage=advantage, rollout=rollout) -> Any:
            value, _ = policy_loss(score(), old, advantage, rollout, rollout, per="rollout")
            return value.detach(), torch.autograd.grad(value, hidden)[0]

        def ours(run=run, hidden=hidden, weight=weight, targets=targets) -> Any:
            return run(lambda: token_logprobs(hidden, weight, targets)[0])

        def whole(run=run, hidden=hidden, weight=weight, targets=targets) -> Any:
            return run(lambda: (hidden @ weight.t()).float().log_softmax(-1).gather(1, targets[:, None])[:, 0])

        name = f"logprob, loss, gradient: {tokens:,} tokens, {words:,} words, hidden {size}"
        candidates = {"token_logprobs": ours, "whole logits": whole}
        bound = 2e-2 if dtype == torch.bfloat16 else 1e-4
        yield from timed(place, name, candidates, agree=largest, bound=bound, memory=True)
        if place.cuda:
            try:
                theirs = liger(hidden, weight, targets, old, advantage)
                yield from timed(
                    place, name, {"token_logprobs": ours, "Liger": theirs}, agree=largest, bound=bound, memory=True
                )
            except Exception as error:  # absent, or of a release that is called otherwise
                yield {"case": name, "candidate": "Liger", "skipped": f"{type(error).__name__}: {error}"[:500]}


def liger(hidden: Any, weight: Any, targets: Any, old: Any, advantage: Any) -> Callable[[], Any]:
    """Liger's fused GRPO loss on four sequences of equal length, as a mean over tokens without a KL term."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    fused = LigerFusedLinearGRPOLoss(beta=0.0, epsilon_low=0.2, epsilon_high=0.2, loss_type="bnpo", use_ref_model=False)
    rows = advantage.numel()
    mask = torch.ones(rows, targets.numel() // rows, device=targets.device)

    def run() -> Any:
        value = fused(
            hidden.view(rows, -1, hidden.shape[1]), weight, targets.view(rows, -1), mask, advantage,
            old_per_token_logps=old.view(rows, -1),
        )[0]  # fmt: skip
        return value.detach(), torch.autograd.grad(value, hidden)[0]

    return run


def compile_references(place: Place) -> Lines:
    """The inputs are those of bench/ops, recorded from our own candidate at the small size."""
    import bench_kernels
    from torch.utils._python_dispatch import TorchDispatchMode

    from rtmc.kernels.backend import registered_ops

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "rtmc" and not kwargs:
                calls[func.name().split("::")[1].split(".")[0]] = args
            return func(*args, **(kwargs or {}))

    calls: dict[str, tuple[Any, ...]] = {}
    found: dict[str, measure.Case] = {}  # the case of bench/ops in which an op was called
    for stem in ["broadcast", "returns"] if place.quick else bench_kernels.OPS:
        try:
            with limit(20):
                case = next(bench_kernels.module_of(stem).cases(True, place.device))
                before = set(calls)
                with Recorder():
                    next(iter(case.candidates.values()))()
                found |= dict.fromkeys(set(calls) - before, case)
        except Exception as error:
            yield {"case": stem, "skipped": f"no inputs: {type(error).__name__}: {error}"[:500]}
    ops = registered_ops()
    told: set[str] = set()  # cases whose peers have been timed
    for name in sorted(calls):
        args = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in calls[name])
        label = f"{name} beside torch.compile of its reference"
        try:
            with limit(20), torch.no_grad():
                # dynamo keeps what it compiled by code object: each op starts anew.
                torch._dynamo.reset()
                fast = torch.compile(ops[name].reference, fullgraph=True)
                fast(*args)
        except Exception as error:  # a reference may loop over numbers it has to see
            why = f"does not compile: {type(error).__name__}: {str(error)[:300]}"
            yield {"case": label, "instead": found[name].name, "why": why}
            if found[name].name not in told:
                told.add(found[name].name)
                yield from beside_peer(place, found[name])
            continue
        with torch.no_grad():
            overload = ops[name].overload
            candidates = {
                "op": lambda overload=overload, args=args: overload(*args),
                "torch.compile of the reference": lambda fast=fast, args=args: fast(*args),
            }
            yield from timed(place, label, candidates)


def beside_peer(place: Place, case: measure.Case) -> Lines:
    """Ours beside torch.compile of the case's peer in plain torch, or beside the peer itself where that fails."""
    (ours, work), *others = case.candidates.items()
    plain = [(name, peer) for name, peer in others if "torch" in name and "compile" not in name]
    if not plain:
        raise AssertionError(f"{case.name}: no candidate in plain torch among {list(case.candidates)}")
    name, peer = plain[0]
    try:
        with limit(20):
            torch._dynamo.reset()
            fast, label = torch.compile(peer), f"torch.compile of {name}"
            fast()
    except Exception as error:
        yield {"case": case.name, "candidate": name, "why": f"not compiled: {type(error).__name__}: {str(error)[:300]}"}
        fast, label = peer, name
    yield from measure.measure(case._replace(candidates={ours: work, label: fast}, memory=False), place.rounds)


def step(place: Place) -> Lines:
    """Embedding, a hidden layer and a head, one plain gradient: bfloat16 through our ops, float64 through torch's."""
    from rtmc.kernels.logprob import token_logprobs
    from rtmc.kernels.policy_loss import policy_loss

    words, size, tokens = 512, 64, 300
    g = torch.Generator().manual_seed(0)
    shapes = ((words, size), (size, size), (words, size))
    start = [(torch.randn(shape, generator=g) / size**0.5).bfloat16() for shape in shapes]
    inputs, targets = (torch.randint(0, words, (tokens,), generator=g).to(place.device) for _ in range(2))
    rows = torch.arange(tokens, device=place.device) // 50
    rows[::7] = -1
    advantage = torch.randn(6, generator=g).to(place.device)

    def gradients(dtype: torch.dtype, score: Callable[..., torch.Tensor], loss_of: Callable[..., Any]) -> Any:
        params = [p.to(place.device, dtype, copy=True).requires_grad_() for p in start]
        states = torch.tanh(params[0][inputs] @ params[1])
        value = loss_of(score(states, params[2]))
        value.backward()
        return value.detach().double(), [p.grad.double() for p in params]

    def plain(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return (states @ head.t()).log_softmax(-1).gather(1, targets[:, None])[:, 0]

    with torch.no_grad():
        wide = [p.double().to(place.device) for p in start]
        old = plain(torch.tanh(wide[0][inputs] @ wide[1]), wide[2]) + 0.05

    def plain_loss(new: torch.Tensor) -> torch.Tensor:
        a, r = advantage.double()[rows.clamp(min=0)], (new - old).exp()
        each = torch.maximum(-a * r, -a * r.clamp(0.8, 1.2))
        return each[rows >= 0].mean()

    value, grads = gradients(
        torch.bfloat16,
        lambda states, head: token_logprobs(states, head, targets)[0],
        lambda new: policy_loss(new, old, advantage, rows, rows)[0],
    )
    expected, truth = gradients(torch.float64, plain, plain_loss)
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(grads, truth, strict=True)]
    yield {
        "case": "one step in bfloat16",
        "loss": value.item(),
        "in_float64": expected.item(),
        "gradient_errors": errors,
    }
    # bfloat16 keeps 8 bits: 0.4 % a rounding, and three layers of them.
    if abs(value - expected) > 0.02 * expected.abs() + 0.01 or max(errors) > 0.05:
        raise AssertionError(f"the bfloat16 step is off: loss {value} for {expected}, gradients by {errors}")


PARTS: dict[str, tuple[Callable[[Place], Lines], float]] = {
    "cases": (cases, 100),
    "rtmc": (rtmc, 30),
    "broadcast": (broadcast, 20),
    "loss": (loss, 30),
    "logprob": (logprob, 80),
    "compile": (compile_references, 70),
    "step": (step, 20),
}


def run_part(name: str, place: Place, write: Callable[[dict[str, Any]], None]) -> bool:
    """Whether the part held; what it found and how it ended is written either way."""
    work, budget = PARTS[name]
    if not place.cuda:
        budget *= 6  # the CPU code is compiled here first, maybe on a busy machine
    print(f"\n{name}:", flush=True)
    began, error = time.perf_counter(), None
    try:
        with limit(budget):
            for line in work(place):
                write({"part": name, **line})
    except Exception:
        error = traceback.format_exc()
        print(error, file=sys.stderr, flush=True)
    seconds = round(time.perf_counter() - began, 2)
    write({"part": name, "held": error is None, "seconds": seconds, "error": error})
    return error is None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench/gpu.py", description="What only a GPU can show.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    args = parser.parse_args(argv)
    unknown = [name for name in args.parts if name not in PARTS]
    if unknown:
        print(f"bench/gpu.py: no part {unknown[0]!r}; there are: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if args.device == "cuda" and not torch.cuda.is_available():
        print("bench/gpu.py: torch sees no CUDA device; --device cpu --quick walks the same road", file=sys.stderr)
        return 2
    if not (ROOT / "rtmc" / "kernels").is_dir():
        print(f"bench/gpu.py: {ROOT / 'rtmc' / 'kernels'} is no folder: git's links are needed", file=sys.stderr)
        return 2
    path = Path(os.environ["OUT"]) / "gpu.jsonl" if os.environ.get("OUT") else measure.RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps({"bench": "gpu", **line}) + "\n")
            file.flush()
            shown = {k: v for k, v in line.items() if v is not None and k not in ("part", "error")}
            print("  " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()))

        write({"part": "where", **measure.surroundings()})
        held = [run_part(name, Place(args.device, args.quick), write) for name in args.parts or PARTS]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
