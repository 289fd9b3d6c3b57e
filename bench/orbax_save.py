"""One process of a job that saves one step through the real Orbax multi-tier client.

The benchmark keeps what two such processes wrote and gives copies of it to the agents, so that
every timed save has exactly the layout, file sizes and keys of the real thing. Runs in the Python
environment `jax`; the launcher's part (environment, jax-init-info.txt) is tierkeep_demo.job's.
"""

import argparse
import sys

from absl import flags
import numpy as np


def value(k, elements):
    """Random float32 values, which hardly compress, and no NaN among them."""
    draw = np.random.default_rng(k).integers(0, 2**32, elements, np.uint32)
    return (draw & np.uint32(0xBFFFFFFF)).view(np.float32)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--volume", required=True)
    p.add_argument("--slices", type=int, required=True)
    p.add_argument("--state-mib", type=int, required=True, help="bytes of the state a process")
    p.add_argument("--value-mib", type=int, required=True, help="size of each array")
    a = p.parse_args()
    flags.FLAGS([sys.argv[0]])
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    from etils import epath
    from orbax.checkpoint import args as ocp_args
    from orbax.checkpoint.experimental.emergency import replicator_checkpoint_manager as rcm
    from orbax.checkpoint.experimental.emergency.multi_tier_checkpointing import initialization
    volume = epath.Path(a.volume)
    initialization.initialize_multi_tier_checkpointing(
        volume, num_slices=a.slices, run_name="bench", data_parallelism=a.slices,
        backup_interval_minutes=30, jax_initialization_timeout_seconds=120)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(a.slices, -1), ("data", "model"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("model"))
    elements = a.value_mib * (1 << 20) // 4
    state = {}
    for k in range(a.state_mib // a.value_mib):
        host = value(k, elements)
        state[f"layer{k:04d}"] = jax.make_array_from_callback(
            host.shape, sharding, lambda i, host=host: host[i])
    manager = rcm.ReplicatorCheckpointManager(
        volume, options=rcm.ReplicatorCheckpointManagerOptions(save_interval_steps=1),
        global_mesh=mesh)
    if not manager.save(1, args=ocp_args.Composite(state=ocp_args.PyTreeSave(state))):
        raise RuntimeError("Orbax did not save")
    manager.wait_until_finished()
    manager.close()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
