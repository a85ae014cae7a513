"""What a rank remembers of its steps."""

from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.executor.journal import StepTimes
from cephalo_cli.executor.options import TrainOptions
from cephalo_cli.executor.summary import Records, summarise
from cephalo_cli.timeline import Event, MemorySample


def times(seconds: float) -> StepTimes:
    return StepTimes(
        step_s=seconds,
        forward_s=seconds / 4,
        backward_s=seconds / 2,
        optimizer_s=0.0,
        exposed_gather_s=0.0,
        exposed_reduce_s=0.0,
        exposed_copy_s=0.0,
        events=(Event(rank=0, lane="compute", name="forward", start_s=0.0, end_s=seconds),),
        memory=(MemorySample(rank=0, time_s=seconds, bytes_by_term={"allocated": 1}),),
    )


def test_only_the_last_of_many_steps_keeps_its_events() -> None:
    records = Records()
    for number, seconds in enumerate((9.0, 1.0, 3.0, 2.0), start=1):
        records.add(StepReport(step=number, tokens=1, step_s=seconds), times(seconds), (number, 2 * number))
    assert [len(step.events) + len(step.memory) for step in records.times] == [0, 0, 0, 2]
    summary = summarise(records, 100, TrainOptions(data="random", num_steps=4))
    assert (summary.step_s, summary.forward_s, summary.wait_s) == (2.0, 0.5, 0.5)
    assert (summary.gathered_bytes, summary.reduced_bytes, summary.peak_memory_bytes) == (4, 8, 100)
    assert [event.end_s for event in summary.last_events] == [2.0]
    assert [sample.time_s for sample in summary.last_memory] == [2.0]
