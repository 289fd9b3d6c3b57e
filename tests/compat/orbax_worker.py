"""One process of a job that saves and restores through Orbax's unmodified multi-tier client.

The state is a function of the step, so that what was restored can be checked without any other
record of it. Reports with `@event` lines: `restored`, `training`, `save_begun`, `saved`,
`preempted`, `done`.
"""

import argparse
import sys

from absl import flags
from absl import logging
import numpy as np

from tierkeep_demo.events import tell


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--volume", required=True)
    p.add_argument("--job", required=True)
    p.add_argument("--slices", type=int, default=2)
    p.add_argument("--saves", type=int, default=2)
    p.add_argument("--every", type=int, default=5)
    p.add_argument("--state-mib", type=int, default=0, help="additional state for each process")
    p.add_argument("--until-preempted", action="store_true",
                   help="save nothing until JAX's preemption sync asks for it")
    return p.parse_args()


class State:
    """Arrays that are sharded within a slice and replicated over slices, of a given step."""

    def __init__(self, a, jax):
        self.jax = jax
        devices = np.array(jax.devices())
        self.mesh = jax.sharding.Mesh(devices.reshape(a.slices, -1), ("data", "model"))
        rows = 4 * len(devices)
        self.shapes = {"weights": (rows, 8), "bias": (8,), "step": ()}
        if a.state_mib:
            bytes_in_all = (a.state_mib << 20) * jax.process_count() // a.slices
            self.shapes |= {f"large{k}": (bytes_in_all // 8 // 4096, 1024) for k in range(8)}
        self.noise = np.random.default_rng(3).integers(0, 1 << 22, 1024, np.uint32)

    def host(self, name, step):
        shape = self.shapes[name]
        if name.startswith("large"):  # random bits: nothing for compression to gain
            row = self.noise ^ np.uint32((step * 40503 + int(name[5:]) * 977) & 0x3FFFFF)
            column = np.arange(shape[0], dtype=np.uint32)[:, None]
            return ((row[None, :] + column * 2654435) & 0x3FFFFF | 0x3F800000).view(np.float32)
        if name == "weights":
            return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1000 * step
        return np.full(shape, step, np.int32 if name == "step" else np.float32)

    def sharding(self, name):
        sharded = name == "weights" or name.startswith("large")
        spec = self.jax.sharding.PartitionSpec(*(["model"] if sharded else []))
        return self.jax.sharding.NamedSharding(self.mesh, spec)

    def put(self, step):
        out = {}
        for name, shape in self.shapes.items():
            value = self.host(name, step)
            out[name] = self.jax.make_array_from_callback(
                shape, self.sharding(name), lambda i, v=value: v[i])
        return out

    def wrong(self, got, step):
        """Names of the arrays that are not those of `step`."""
        return [name for name in self.shapes for shard in got[name].addressable_shards
                if not np.array_equal(self.host(name, step)[shard.index], np.asarray(shard.data))]


def restore(manager, state, step):
    from orbax.checkpoint import args
    from orbax.checkpoint import checkpoint_utils
    like = state.put(0)
    got = manager.restore(step, args=args.Composite(state=args.PyTreeRestore(
        item=like, restore_args=checkpoint_utils.construct_restore_args(like))))
    return state.wrong(got.state, step)


def save(manager, state, step):
    from orbax.checkpoint import args
    tell("save_begun", step=step)
    saved = manager.save(step, args=args.Composite(state=args.PyTreeSave(state.put(step))))
    manager.wait_until_finished()
    tell("saved", step=step, saved=bool(saved))


def train_until_preempted(manager, state, first):
    import time

    from orbax.checkpoint import args
    tell("training")
    for step in range(first + 1, first + 2000):
        time.sleep(0.03)  # a step's work
        if manager.save(step, args=args.Composite(state=args.PyTreeSave(state.put(step)))):
            manager.wait_until_finished()
            tell("preempted", step=step)
            return
    raise RuntimeError("SIGTERM never led to a save")


def main():
    a = parse()
    flags.FLAGS([sys.argv[0]])  # Orbax reads absl flags when it restores
    logging.set_verbosity(logging.INFO)
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    from etils import epath
    from orbax.checkpoint.experimental.emergency import replicator_checkpoint_manager as rcm
    from orbax.checkpoint.experimental.emergency.multi_tier_checkpointing import initialization
    volume = epath.Path(a.volume)
    initialization.initialize_multi_tier_checkpointing(
        volume, num_slices=a.slices, run_name=a.job, data_parallelism=a.slices,
        backup_interval_minutes=30, jax_initialization_timeout_seconds=90)
    state = State(a, jax)
    every = 10**6 if a.until_preempted else 1
    manager = rcm.ReplicatorCheckpointManager(
        volume, options=rcm.ReplicatorCheckpointManagerOptions(save_interval_steps=every),
        global_mesh=state.mesh)
    latest = manager.latest_step()
    wrong = restore(manager, state, latest) if latest is not None else []
    tell("restored", latest_step=latest, wrong=wrong, process=jax.process_index())
    first = latest or 0
    if a.until_preempted:
        train_until_preempted(manager, state, first)
    else:
        for k in range(1, a.saves + 1):
            save(manager, state, first + k * a.every)
    tell("done")
    manager.close()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
