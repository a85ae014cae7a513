"""How well simulated steps predict published training runs of MPT models on 8 to 512 GPUs.

    python -m tests.benchmarks.published_throughput [../shared/data/published_fsdp_throughput.csv]

Every row becomes a plan with the row's choices on a cluster from the catalog, priced by an estimated profile, and is
simulated as ``cephalo simulate`` does. Prints relative errors of tokens a second by GPU, model, sequence length and
number of GPUs, and what the simulator says of memory: all these runs fitted. Of everything the cost model knows,
only `catalog`'s bfloat16 coefficients were fitted on such runs, one set a GPU type (`fit_throughput`, which also prints
the errors on models and lengths that a fit has not seen).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from cephalo_cli.quantities import format_bytes
from cephalo_cli.simulator import simulate
from tests.benchmarks.published_runs import DATA, Run, read

MEDIAN, NINE_TENTHS, FITTING = 0.04, 0.15, 0.95


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A row and what the simulator says of it."""

    run: Run
    error: float
    """Simulated tokens a second over measured ones, less one."""
    memory_bytes: int
    limit_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the simulator lets it run in 90 % of the memory."""
        return self.memory_bytes <= self.limit_bytes


def outcome(run: Run) -> Outcome:
    """Plan and simulate one row."""
    plan = run.plan()
    report = simulate(plan).report
    part = plan.ranks[0].memory
    return Outcome(
        run=run,
        error=report.tokens_per_s / run.num_gpus / run.tokens_per_s - 1,
        memory_bytes=max(part.total_bytes, *(rank.peak_memory_bytes or 0 for rank in report.ranks)),
        limit_bytes=part.limit_bytes,
    )


def nine_tenths(outcomes: Sequence[Outcome]) -> float:
    """The error that nine tenths stay within."""
    errors = sorted(abs(each.error) for each in outcomes)
    return quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0]


def middle(outcomes: Sequence[Outcome]) -> float:
    """The median absolute error."""
    return median(abs(each.error) for each in outcomes)


def print_by(title: str, outcomes: Sequence[Outcome], key: Callable[[Run], str | int]) -> None:
    """Print one line for each value of a key."""
    print(f"\n{title:16}{'rows':>5}{'median':>9}{'90 %':>8}{'bias':>8}{'fit':>6}")
    for value in sorted({key(each.run) for each in outcomes}):
        some = [each for each in outcomes if key(each.run) == value]
        bias = median(each.error for each in some)
        fit = sum(each.fits for each in some)
        print(f"{value!s:16}{len(some):5}{middle(some):9.1%}{nine_tenths(some):8.1%}{bias:+8.1%}{fit:6}")


def main(path: Path) -> int:
    """Print the tables; the exit code says whether the targets are met."""
    if not path.exists():
        print(f"{path} is not here: nothing to compare with")
        return 0
    outcomes = [outcome(run) for run in read(path)]
    print(
        "Errors of tokens a second: median and 90th percentile of absolute values, median with its sign; rows that fit"
    )
    print_by("GPU", outcomes, lambda run: run.gpu)
    print_by("precision", outcomes, lambda run: run.precision)
    print_by("model", outcomes, lambda run: run.model_name)
    print_by("sequence", outcomes, lambda run: run.seq_len)
    print_by("GPUs", outcomes, lambda run: run.num_gpus)
    print_by("recompute", outcomes, lambda run: str(run.recompute))
    print_by("all", outcomes, lambda _: "")
    print("\nfurthest off")
    for each in sorted(outcomes, key=lambda each: -abs(each.error))[:8]:
        run = each.run
        print(
            f"{each.error:+7.1%}  {run.model_name}, {run.num_gpus} x {run.gpu}, {run.seq_len} tokens, {run.precision}"
        )
    for each in outcomes:
        if not each.fits:
            print(f"out of memory: {each.run.model_name} on {each.run.gpu}, {format_bytes(each.memory_bytes)}")
    fitting = sum(each.fits for each in outcomes) / len(outcomes)
    met = middle(outcomes) <= MEDIAN and nine_tenths(outcomes) <= NINE_TENTHS and fitting >= FITTING
    print(
        f"\nmedian {middle(outcomes):.1%} (at most {MEDIAN:.0%}), nine tenths within {nine_tenths(outcomes):.1%} ",
        end="",
    )
    print(f"({NINE_TENTHS:.0%}), {fitting:.1%} fit ({FITTING:.0%}): {'met' if met else 'NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA))
