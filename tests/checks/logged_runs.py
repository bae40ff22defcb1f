"""Logs of a plan's run as trainers print them: timers take what the plan predicts for their spans, faults aside."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.diagnose.logged import LoggedSpan, predicted_spans
from layoutopt.optimizer.diagnose.predicted import expectation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.ask.planned import Planned


@dataclass(frozen=True, kw_only=True)
class LoggedJob:
    """A plan's run: seconds of every span, and how much longer the slowest rank's passes take."""

    planned: Planned
    spans_s: dict[LoggedSpan, float]
    slow_rank: tuple[int, float] = (0, 1.0)
    changed: Mapping[str, int] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """The step."""
        return sum(self.spans_s.values())

    def scaled(self, **factors: float) -> LoggedJob:
        """Return the run with some spans longer."""
        longer = {span: s * factors.get(span.value, 1.0) for span, s in self.spans_s.items()}
        return replace(self, spans_s=longer)

    def added(self, **seconds: float) -> LoggedJob:
        """Return the run with seconds more in some spans."""
        return replace(
            self, spans_s={span: s + seconds.get(span.value, 0.0) for span, s in self.spans_s.items()}
        )


def logged_job(planned: Planned) -> LoggedJob:
    """Return the run that the plan predicts."""
    return LoggedJob(planned=planned, spans_s=predicted_spans(expectation(planned.cost, planned.layout)))


def megatron_log(job: LoggedJob, *, level: int = 2, option: str = "minmax") -> str:
    """Write the header, iterations and timer blocks of Megatron-LM."""
    layout, batch = job.planned.layout, job.planned.cost.training.global_batch
    sizes = {
        "n_gpus": layout.gpus,
        "dp": layout.dp,
        "cp": layout.cp,
        "tp": layout.tp,
        "pp": layout.pp,
        **job.changed,
    }
    lines = [
        f"using world size: {sizes['n_gpus']}, data-parallel size: {sizes['dp']}, context-parallel size: {sizes['cp']}, "
        f"tensor-model-parallel size: {sizes['tp']}, pipeline-model-parallel size: {sizes['pp']}"
    ]
    for step in range(1, 5):
        ms = 1e3 * job.step_s * (9 if step == 1 else 1)
        lines.append(
            f" [2026-04-06 02:55:4{step}] iteration        {step}/     100 | consumed samples:          {batch * step} | "
            f"elapsed time per iteration (ms): {ms:.1f} | learning rate: 4.000000E-07 | global batch size:   {batch} | "
            "lm loss: 2.021530E+00 | loss scale: 1.0 | grad norm: 6.895 |"
        )
        lines += _timer_block(_megatron_timers(job, level), option, job) if level else []
    return "\n".join(lines) + "\n"


def _megatron_timers(job: LoggedJob, level: int) -> dict[str, float]:
    s = job.spans_s
    passes = s[LoggedSpan.FORWARD] + s[LoggedSpan.DATA] + s[LoggedSpan.BACKWARD]
    found = {
        "forward-backward": passes + s[LoggedSpan.PIPELINE] + s[LoggedSpan.GRADIENTS] / 2,
        "all-grads-sync": s[LoggedSpan.GRADIENTS] / 2,
        "params-all-gather": s[LoggedSpan.GRADIENTS] / 2,
        "optimizer-inner-step": s[LoggedSpan.OPTIMIZER] / 2,
        "optimizer": s[LoggedSpan.OPTIMIZER] + s[LoggedSpan.GRADIENTS] / 2,
    }
    if level > 1:
        found |= {
            "forward-compute": s[LoggedSpan.FORWARD] + s[LoggedSpan.DATA],
            "batch-generator": s[LoggedSpan.DATA],
            "backward-compute": s[LoggedSpan.BACKWARD],
            "forward-recv": s[LoggedSpan.PIPELINE] / 2,
        }
    return found


def _timer_block(timers: dict[str, float], option: str, job: LoggedJob) -> list[str]:
    """Write a block; the slow rank's passes are longer by its factor, those of the others a bit shorter."""
    ranks, (slow, factor) = job.planned.layout.gpus, job.slow_rank
    others = (ranks - factor) / (ranks - 1)
    heads = {
        "minmax": "(min, max) time across ranks (ms):",
        "max": "max time across ranks (ms):",
        "all": "times across ranks (ms):",
    }
    lines = [heads[option]]
    for name, seconds in timers.items():
        if not seconds:
            continue
        slower = name == "forward-compute"
        each = [
            1e3 * seconds * ((factor if rank == slow else others) if slower else 1.0) for rank in range(ranks)
        ]
        if option == "all":
            lines += [f"  {name}:", *(f"     rank {rank:2d}: {ms:.2f}" for rank, ms in enumerate(each))]
            continue
        text = f"({min(each):.2f}, {max(each):.2f})" if option == "minmax" else f"{max(each):.2f}"
        lines.append(f"    {(name + ' ').ljust(48, '.')}: {text}")
    return lines


def deepspeed_log(job: LoggedJob, *, rates: bool = True) -> str:
    """Write DeepSpeed's throughput timer and the timers of ``wall_clock_breakdown``."""
    s, batch = job.spans_s, job.planned.cost.training.global_batch
    lines = []
    for step in range(1, 5):
        forward_ms, backward_ms = 250 * s[LoggedSpan.FORWARD], 250 * s[LoggedSpan.BACKWARD]
        micro = f"time (ms) | fwd_microstep: {forward_ms:.2f} | bwd_microstep: {backward_ms:.2f}"
        timers = {
            "fwd": s[LoggedSpan.FORWARD], "bwd": s[LoggedSpan.BACKWARD] + s[LoggedSpan.GRADIENTS] / 2,
            "bwd_inner": s[LoggedSpan.BACKWARD],
            "bwd_allreduce": s[LoggedSpan.GRADIENTS] / 2, "step": s[LoggedSpan.OPTIMIZER] + s[LoggedSpan.GRADIENTS] / 2,
        }  # fmt: skip
        words = " | ".join(f"{name}: {1e3 * seconds:.2f}" for name, seconds in timers.items())
        lines += [
            f"[2025-06-01 10:00:0{step},000] [INFO] [logging.py:107:log_dist] [Rank 0] {micro}",
            f"time (ms) | {words}",
        ]
        if rates:
            rate = batch / job.step_s
            lines.append(
                f"[2025-06-01 10:00:0{step},001] [INFO] [timer.py:264:stop] epoch=0/micro_step=8/global_step={step}, "
                f"RunningAvgSamplesPerSec={rate:.6f}, CurrSamplesPerSec={rate:.6f}, MemAllocated=22.5GB, "
                "MaxMemAllocated=61.2GB"
            )
    return "\n".join(lines) + "\n"


def torchtitan_log(job: LoggedJob) -> str:
    """Write torchtitan's lines, in colours."""
    rate = job.planned.cost.training.tokens_per_step / job.step_s / job.planned.layout.gpus
    line = (
        "[rank0]:[titan] 2026-01-01 00:00:00,000 - root - INFO - \x1b[31mstep: {step}  \x1b[32mloss: 10.90000  "
        "\x1b[36mmemory: 41.50GiB(52.46%)  \x1b[34mtps: {tps:,.0f}  \x1b[36mtflops: 359.00  \x1b[35mmfu: 36.30%\x1b[39m"
    )
    return (
        "\n".join(line.format(step=10 * step, tps=rate / (9 if step == 1 else 1)) for step in range(1, 5))
        + "\n"
    )


def nanotron_log(job: LoggedJob) -> str:
    """Write nanotron's lines, whose numbers have three digits."""
    line = (
        "01/01/2026 00:00:00 [INFO|DP=0|PP=0|TP=0|host1]: iteration: {step} / 1000 | consumed_tokens: 20.9M | "
        "time_per_iteration_ms: {ms} | tokens_per_sec: 998K | global_batch_size: 2.1M | lm_loss: 8.1 | lr: 1e-05 | "
    )
    ms = job.step_s * 1e3
    text = f"{ms:.3g}" if ms < 1000 else f"{ms / 1e3:.3g}K"
    return "\n".join(line.format(step=step, ms=text) for step in range(10, 14)) + "\n"
