"""What the demo claims, checked one by one against logs, counters and bytes."""

import dataclasses
import os

from tierkeep_demo import dump


@dataclasses.dataclass
class Check:
    claim: str
    holds: bool
    detail: str


def check_resume(scenario, job, committed):
    """The client's own logs: every rank was given the last committed step, or a newer one that
    was complete though not yet committed, which the design prefers."""
    given = {w.rank: scenario.resumed_from(w.log.text()) for w in job.workers}
    steps = set(given.values())
    only = steps.pop() if len(steps) == 1 else None
    holds = only is not None and only >= max(committed, 1)
    found = ", ".join(sorted({str(x) for x in given.values()}))
    newer = " (complete, though not yet committed)" if holds and only > committed else ""
    return only, Check("every rank's own log says it resumed from the last committed step",
                       holds, f"committed {committed}, resumed from {found}{newer}")


def check_steps(scenario, job, resumed):
    """Each rank ran exactly the steps that remained."""
    want = list(range(scenario.steps_done(resumed) + 1, scenario.steps + 1))
    ran = {w.rank: [e["step"] for e in job.events("step", w.rank)] for w in job.workers}
    wrong = [r for r, steps in ran.items() if steps != want]
    return Check("each rank ran only the steps that remained", not wrong,
                 f"steps {want[0]} to {want[-1]}" if not wrong else
                 f"ranks {wrong} ran something else: {ran[wrong[0]]}")


def check_wiped(leftover, restored_size):
    return Check("the lost node's RAM was empty when its agent started again", leftover == 0,
                 f"{leftover} bytes left; {restored_size} bytes restored there")


def check_pulled(pulled, restored_size):
    """Bytes must have crossed to the lost node, and as many as it was given back."""
    return Check("what the lost node was given back came over the network",
                 pulled > 0 and restored_size > 0 and pulled >= restored_size,
                 f"pulled {pulled} bytes, restored {restored_size}")


@dataclasses.dataclass
class Comparison:
    """Final states of two runs, all ranks."""

    bytes_compared: int
    different: list  # "rank N: leaf"
    leaves: int

    @property
    def identical(self):
        return self.bytes_compared > 0 and not self.different


def compare_runs(first, second, ranks):
    total, different, leaves = 0, [], 0
    for rank in range(ranks):
        one, two = (os.path.join(d, f"rank{rank}") for d in (first, second))
        compared, names = dump.compare_dumps(one, two)
        total += compared
        leaves += len(dump.read_index(one)["leaves"])
        different += [f"rank {rank}: {n}" for n in names]
    return Comparison(total, different, leaves)


def check_flipped(job):
    """The negative control is only one if a bit was really flipped."""
    flips = job.events("flipped")
    return Check("one bit of the restored state was flipped", bool(flips),
                 f"{flips[0]['leaf']}, element {flips[0]['element']}, bit {flips[0]['bit']}"
                 if flips else "no process says so")
