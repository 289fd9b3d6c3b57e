"""The demo's verdict is only worth what its parts can tell apart."""

import dataclasses
import os
import random

import numpy as np
import pytest

from tierkeep_demo import bitflip
from tierkeep_demo import dump
from tierkeep_demo import events
from tierkeep_demo import proof
from tierkeep_demo import scenario as scenario_lib


def leaves():
    draw = np.random.default_rng(5)
    return {"params/a": draw.standard_normal((7, 5)).astype(np.float32),
            "mean/a": np.zeros((3,), np.float32), "step": np.array(4, np.int32)}


@pytest.mark.parametrize("seed", range(20))
def test_one_flipped_bit_of_one_array_is_found_and_named(tmp_path, seed):
    first, second = leaves(), leaves()
    dump.write_dump(tmp_path / "rank0", first)
    name, element, bit = bitflip.choose_float_bit(seed, ["params/a", "mean/a"],
                                                  lambda n: first[n].size)
    bitflip.flip_bit_in_floats(second[name], element, bit)
    assert sum(np.count_nonzero(first[n] != second[n]) for n in first) == 1
    dump.write_dump(tmp_path / "other", second)
    assert dump.compare_dumps(tmp_path / "rank0", tmp_path / "other") == (
        sum(x.nbytes for x in first.values()), [name])


def test_equal_states_compare_equal_and_a_missing_leaf_does_not(tmp_path):
    dump.write_dump(tmp_path / "a", leaves())
    dump.write_dump(tmp_path / "b", leaves())
    assert dump.compare_dumps(tmp_path / "a", tmp_path / "b")[1] == []
    less = leaves()
    del less["step"]
    dump.write_dump(tmp_path / "c", less)
    assert dump.compare_dumps(tmp_path / "a", tmp_path / "c")[1] == ["step"]


def test_nothing_compared_is_not_identical():
    assert not proof.Comparison(0, [], 0).identical
    assert not proof.Comparison(10, ["rank 0: step"], 1).identical
    assert proof.Comparison(10, [], 1).identical


@pytest.mark.parametrize("seed", range(10))
def test_flip_in_a_file_changes_one_bit_and_no_time(tmp_path, seed):
    path = tmp_path / "data"
    before = random.Random(seed).randbytes(1000)
    path.write_bytes(before)
    times = os.stat(path).st_mtime_ns
    offset, bit = bitflip.flip_bit_in_file(path, seed)
    after = path.read_bytes()
    changed = [i for i in range(1000) if before[i] != after[i]]
    assert changed == [offset] and before[offset] ^ after[offset] == 1 << bit
    assert os.stat(path).st_mtime_ns == times
    assert bitflip.flip_bit_in_file(path, seed) == (offset, bit)
    assert path.read_bytes() == before


@pytest.mark.parametrize("framework", ["jax", "torch"])
@pytest.mark.parametrize("quick", [True, False])
def test_the_node_is_lost_between_two_saves_in_the_middle(framework, quick):
    scenario = scenario_lib.choose(framework, quick)
    drawn = [scenario_lib.draw_misfortune(scenario, seed) for seed in range(300)]
    assert {m.node for m in drawn} == set(range(scenario.nodes))
    for m in drawn:
        assert scenario.save_every < m.step < scenario.steps - scenario.save_every / 2
        assert m.step % scenario.save_every, "at a save, not between two"


@dataclasses.dataclass
class FakeWorker:
    rank: int
    log: object


class FakeJob:
    """What proof.py reads of a job."""

    def __init__(self, texts, steps):
        text = dataclasses.make_dataclass("Log", ["value"], namespace={"text": lambda s: s.value})
        self.workers = [FakeWorker(r, text(t)) for r, t in enumerate(texts)]
        self._steps = steps

    def events(self, kind, rank=None):
        assert kind == "step"
        return [{"step": s} for s in self._steps[rank]]


FOUND = "INFO Found a restore directory at step {} and renamed it to /x/{}."


@pytest.mark.parametrize("texts, committed, holds", [
    ([FOUND.format(20, 20)] * 2, 20, True),
    ([FOUND.format(30, 30)] * 2, 20, True),  # complete, though not yet committed
    ([FOUND.format(10, 10)] * 2, 20, False),  # older than what was promised
    ([FOUND.format(20, 20), FOUND.format(10, 10)], 20, False),  # not one decision
    ([FOUND.format(20, 20), "started from scratch"], 20, False),
    (["started from scratch"] * 2, 0, False),
])
def test_resuming_is_read_from_the_clients_own_log(texts, committed, holds):
    scenario = scenario_lib.choose("jax", quick=True)
    assert proof.check_resume(scenario, FakeJob(texts, {}), committed)[1].holds == holds


@pytest.mark.parametrize("steps, holds", [
    (range(13, 25), True), (range(1, 25), False), (range(14, 25), False), (range(13, 24), False),
    ([], False)])
def test_only_the_remaining_steps_count(steps, holds):
    scenario = scenario_lib.choose("jax", quick=True)
    job = FakeJob(["", ""], {0: list(range(13, 25)), 1: list(steps)})
    assert proof.check_steps(scenario, job, 12).holds == holds


@pytest.mark.parametrize("pulled, size, holds", [
    (0, 100, False), (99, 100, False), (100, 100, True), (0, 0, False), (5, 0, False)])
def test_bytes_must_have_crossed(pulled, size, holds):
    assert proof.check_pulled(pulled, size).holds == holds


def test_events_are_read_whole_from_a_growing_log(tmp_path):
    path = tmp_path / "log"
    log = events.EventLog(path)
    assert log.read() == []
    path.write_text('noise\n@event {"event": "step", "t": 1, "step": 1}\n@event {"eve')
    assert [e["step"] for e in log.read()] == [1]
    with open(path, "a", encoding="utf-8") as f:
        f.write('nt": "step", "t": 2, "step": 2}\n')
    assert [e["step"] for e in log.read()] == [2]
    assert len(log.events) == 2
