"""One process of a JAX training run that checkpoints through Orbax's multi-tier client.

A small transformer learns the text of the Python language reference. The mesh has two slices
(data parallel) of two devices (parameters and optimizer state sharded); each process has one
device and one volume, as one host of a real job would. The client is the unmodified one from
PyPI: `initialize_multi_tier_checkpointing()`, then `ReplicatorCheckpointManager`. A run is
deterministic: with the same seed the state after step N is the same, bit for bit, however often
the run was stopped and restored on the way.

What a platform does is the launcher's part: `jax-init-info.txt` in the volume, and the Open MPI
variables that tell JAX the number of processes, which on TPU the hardware tells (`job.py`).
"""

import argparse
import functools
import sys
import time

from absl import flags
from absl import logging
import numpy as np

from tierkeep_demo import bitflip
from tierkeep_demo import corpus
from tierkeep_demo import dump
from tierkeep_demo.events import tell

VOCABULARY = 128


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--volume", required=True, help="the RAM volume of this process")
    p.add_argument("--job", required=True)
    p.add_argument("--slices", type=int, default=2)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--save-every", type=int, default=10)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--batch", type=int, default=8, help="rows for each slice")
    p.add_argument("--dump", required=True, help="directory for the final state")
    p.add_argument("--flip-seed", type=int, default=None,
                   help="flip one bit of the restored state before training goes on")
    p.add_argument("--timeout", type=int, default=120)
    return p.parse_args(argv)


# ---- the model: plain functions of a flat dictionary of arrays


def shapes(a):
    """{name: (shape, dimension that is sharded within a slice or None)}."""
    out = {"embed": ((VOCABULARY, a.width), 1), "place": ((a.length, a.width), 1),
           "norm": ((a.width,), None), "head": ((a.width, VOCABULARY), 1)}
    for i in range(a.layers):
        out |= {f"{i}.norm1": ((a.width,), None), f"{i}.norm2": ((a.width,), None),
                f"{i}.qkv": ((a.width, 3 * a.width), 1), f"{i}.out": ((a.width, a.width), 0),
                f"{i}.up": ((a.width, 4 * a.width), 1), f"{i}.down": ((4 * a.width, a.width), 0)}
    return out


def first_parameters(a):
    draw = np.random.default_rng(a.seed)
    out = {}
    for name, (shape, _) in shapes(a).items():
        if len(shape) == 1:
            out[name] = np.ones(shape, np.float32)
        else:
            scale = shape[0]**-0.5 if name not in ("embed", "place") else 0.02
            out[name] = (draw.standard_normal(shape) * scale).astype(np.float32)
    return out


def loss_of(parameters, inputs, targets, layers, heads=4):
    import jax
    import jax.numpy as jnp

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    p = parameters
    rows, length = inputs.shape
    x = p["embed"][inputs] + p["place"]
    width = x.shape[-1]
    mask = jnp.tril(jnp.ones((length, length), bool))
    for i in range(layers):
        qkv = norm(x, p[f"{i}.norm1"]) @ p[f"{i}.qkv"]
        q, k, v = (y.reshape(rows, length, heads, width // heads) for y in jnp.split(qkv, 3, -1))
        weights = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads)**-0.5
        weights = jax.nn.softmax(jnp.where(mask, weights, -1e9), -1)
        seen = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(rows, length, width)
        x = x + seen @ p[f"{i}.out"]
        x = x + jax.nn.gelu(norm(x, p[f"{i}.norm2"]) @ p[f"{i}.up"]) @ p[f"{i}.down"]
    logits = norm(x, p["norm"]) @ p["head"]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -jnp.mean(picked)


def train_step(state, inputs, targets, layers, rate=1e-3, b1=0.9, b2=0.99):
    """One step of Adam; returns (state, loss)."""
    import jax
    import jax.numpy as jnp
    loss, gradient = jax.value_and_grad(loss_of)(state["params"], inputs, targets, layers)
    count = state["step"] + 1
    t = count.astype(jnp.float32)
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["mean"], gradient)
    square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state["square"], gradient)

    def moved(p, m, v):
        return p - rate * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + 1e-8)

    params = jax.tree.map(moved, state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square, "step": count}, loss


# ---- the run


class Run:
    """The state's placement, its restore and its steps."""

    def __init__(self, a):
        import jax
        self.a, self.jax = a, jax
        devices = np.array(jax.devices())
        self.mesh = jax.sharding.Mesh(devices.reshape(a.slices, -1), ("data", "model"))
        self.text = corpus.load()
        place = {}
        for name, (shape, sharded) in shapes(a).items():
            spec = [None] * len(shape)
            if sharded is not None:
                spec[sharded] = "model"
            place[name] = self.sharding(*spec)
        self.placement = {"params": place, "mean": place, "square": place,
                          "step": self.sharding()}
        self.advance = jax.jit(
            functools.partial(train_step, layers=a.layers),
            out_shardings=(self.placement, self.sharding()), donate_argnums=0)

    def sharding(self, *spec):
        return self.jax.sharding.NamedSharding(self.mesh, self.jax.sharding.PartitionSpec(*spec))

    def put(self, value, sharding):
        return self.jax.make_array_from_callback(value.shape, sharding, lambda i: value[i])

    def fresh(self):
        params = first_parameters(self.a)
        zeros = {k: np.zeros_like(v) for k, v in params.items()}
        host = {"params": params, "mean": zeros, "square": zeros, "step": np.array(0, np.int32)}
        return self.jax.tree.map(self.put, host, self.placement)

    def restore(self, manager, step, like):
        from orbax.checkpoint import args
        from orbax.checkpoint import checkpoint_utils
        got = manager.restore(step, args=args.Composite(state=args.PyTreeRestore(
            item=like, restore_args=checkpoint_utils.construct_restore_args(like))))
        self.jax.block_until_ready(got.state)
        return got.state

    def flip(self, state, seed):
        """Flips one bit of one weight, on every process that holds it."""
        sizes = {k: int(np.prod(v.shape)) for k, v in state["params"].items()}
        name, element, bit = bitflip.choose_float_bit(seed, sizes, sizes.get)
        leaf = state["params"][name]
        at = np.unravel_index(element, leaf.shape)
        parts = []
        for shard in leaf.addressable_shards:
            part = np.array(shard.data)
            inside = [(i - (s.start or 0), n)
                      for i, s, n in zip(at, shard.index, part.shape, strict=True)]
            if all(0 <= i < n for i, n in inside):
                flat = np.ravel_multi_index([i for i, _ in inside], part.shape)
                bitflip.flip_bit_in_floats(part, flat, bit)
            parts.append(self.jax.device_put(part, shard.device))
        state["params"][name] = self.jax.make_array_from_single_device_arrays(
            leaf.shape, leaf.sharding, parts)
        tell("flipped", leaf=name, element=element, bit=bit)
        return state

    def batch(self, step):
        rows = self.a.batch * self.a.slices
        inputs, targets = corpus.batch(self.text, step, 0, rows, self.a.length)
        sharding = self.sharding("data")
        return self.put(inputs, sharding), self.put(targets, sharding)

    def leaves(self, state):
        """Every leaf's bytes on this process; the name says which part of the array it is."""
        out = {}
        for path, leaf in self.jax.tree_util.tree_leaves_with_path(state):
            name = self.jax.tree_util.keystr(path, simple=True, separator="/")
            for shard in leaf.addressable_shards:
                where = ",".join(f"{s.start or 0}:{n if s.stop is None else s.stop}"
                                 for s, n in zip(shard.index, leaf.shape, strict=True))
                out[f"{name}[{where}]"] = np.asarray(shard.data)
        return out


def main(argv=None):
    a = parse(argv)
    flags.FLAGS([sys.argv[0]])  # Orbax reads absl flags when it restores
    logging.set_verbosity(logging.INFO)
    started = time.time()
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    from etils import epath
    from orbax.checkpoint import args as ocp_args
    from orbax.checkpoint.experimental.emergency import replicator_checkpoint_manager as rcm
    from orbax.checkpoint.experimental.emergency.multi_tier_checkpointing import initialization
    volume = epath.Path(a.volume)
    tell("imported", seconds=round(time.time() - started, 2))
    initialization.initialize_multi_tier_checkpointing(
        volume, num_slices=a.slices, run_name=a.job, data_parallelism=a.slices,
        backup_interval_minutes=30, jax_initialization_timeout_seconds=a.timeout)
    tell("initialized", process=jax.process_index(), processes=jax.process_count())

    run = Run(a)
    manager = rcm.ReplicatorCheckpointManager(
        volume, options=rcm.ReplicatorCheckpointManagerOptions(save_interval_steps=a.save_every),
        global_mesh=run.mesh)
    state = run.fresh()
    first = 0
    if (latest := manager.latest_step()) is not None:
        state = run.restore(manager, latest, state)
        first = int(np.asarray(state["step"].addressable_shards[0].data))
    tell("restored", latest_step=latest, step=first)
    if latest is not None and first != latest:
        raise RuntimeError(f"the checkpoint named {latest} holds the state of step {first}")
    if latest is not None and a.flip_seed is not None:
        state = run.flip(state, a.flip_seed)

    for step in range(first + 1, a.steps + 1):
        state, loss = run.advance(state, *run.batch(step))
        tell("step", step=step, loss=float(loss))
        if manager.save(step, args=ocp_args.Composite(state=ocp_args.PyTreeSave(state))):
            tell("save", step=step)
    manager.wait_until_finished()
    size = sum(x.nbytes for x in run.leaves(state).values())
    tell("finished", step=a.steps, state_bytes=size,
         sha256=dump.write_dump(a.dump, run.leaves(state)))
    manager.close()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
