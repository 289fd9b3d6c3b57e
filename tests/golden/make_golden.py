"""Writes the golden OCDBT stores of tests/golden/ocdbt with TensorStore and Orbax themselves.

    python3 -m venv ~/.cache/tierkeep/venv
    ~/.cache/tierkeep/venv/bin/pip install orbax-checkpoint jax absl-py blake3
    ~/.cache/tierkeep/venv/bin/python tests/golden/make_golden.py

Each store is a directory NAME/ beside NAME.json, which says what TensorStore reads from it:
{"databases": {"DIR": {"name": ..., "entries": [{"key": hex, "length": n, "blake3": hex}]}}}, DIR
being relative to NAME/ ("" for the directory itself) and "name" the content name that the
reference stack would give it. Object names are random, so running this again changes the files but
not what the tests check. Tested with Python 3.11, tensorstore 0.1.86, orbax-checkpoint 0.12.8 and
jax 0.10.2.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

import blake3
import tensorstore as ts

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "ocdbt")
ZSTD = {"id": "zstd", "level": 3}


# ------------------------------------------------------------- what must come out
def describe(directory):
    """One database as TensorStore lists it."""
    kv = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{directory}/"}).result()
    keys = sorted(kv.list().result())
    entries, lines = [], []
    for key in keys:
        value = kv[key]
        digest = blake3.blake3(value).hexdigest()
        entries.append({"key": key.hex(), "length": len(value), "blake3": digest})
        lines.append(f"{key}\t{digest}\n")
    name = "D" + blake3.blake3("".join(lines).encode()).hexdigest()
    return {"name": name, "entries": entries}


def expect(name, databases):
    """Writes NAME.json for the databases (directories relative to the store) of a store."""
    root = os.path.join(OUT, name)
    found = {d: describe(os.path.join(root, d) if d else root) for d in databases}
    with open(root + ".json", "w") as f:
        json.dump({"databases": found}, f, indent=1, sort_keys=True)
        f.write("\n")
    size = sum(os.path.getsize(os.path.join(r, x)) for r, _, fs in os.walk(root) for x in fs)
    counts = {d: len(v["entries"]) for d, v in found.items()}
    print(f"{name}: {size} bytes, keys {counts}")


# ------------------------------------------------------------- TensorStore alone
def create(name, **config):
    path = os.path.join(OUT, name)
    return ts.KvStore.open(
        {"driver": "ocdbt", "base": f"file://{path}/", "config": config}).result()


def write(kv, pairs):
    txn = ts.Transaction()
    for key, value in pairs:
        kv.with_transaction(txn)[key] = value
    txn.commit_sync()


def noise(seed, n):
    """n bytes that do not compress, the same in every run."""
    return blake3.blake3(str(seed).encode()).digest(length=n)


ODD_KEYS = [
    b"it's", b'b"\'', b'say "x"', b"back\\slash", b"tab\tlf\ncr\r", b"p\xc3\xa9", b"\x00\x01\x7f\xff",
    b"params.w/c/0/0", b"params.w/zarr.json", b"", b"k" * 300,
]


def make_plain():
    """Inline and indirect values, odd keys, overwritten and deleted ones, zstd, one node."""
    kv = create("plain", compression=ZSTD, max_inline_value_bytes=64)
    write(kv, [(k, noise(k, 10 + 20 * i)) for i, k in enumerate(ODD_KEYS)])
    write(kv, [(b"params.w/c/0/0", noise("new", 700)), (b"empty", b""), (b"gone", noise(1, 100))])
    kv.delete_range(ts.KvStore.KeyRange(b"gone", b"gone\x00")).result()
    expect("plain", [""])


def make_raw():
    """No compression, nodes of 300 bytes: a tall tree whose every byte a test can change."""
    kv = create("raw", compression=None, max_inline_value_bytes=16, max_decoded_node_bytes=300)
    write(kv, [(b"layer.%03d/c/%d" % (i, i % 3), noise(i, 5 + i % 30)) for i in range(60)])
    expect("raw", [""])


def make_tall():
    """Many keys in small compressed nodes, added in several generations."""
    kv = create("tall", compression=ZSTD, max_inline_value_bytes=24, max_decoded_node_bytes=400)
    for g in range(4):
        write(kv, [(b"params.block_%02d.w%d/c/0/%d" % (i, g, i % 7), noise((g, i), 8 + i % 40))
                   for i in range(100)])
    expect("tall", [""])


def make_versions():
    """More generations than inline versions fit: version nodes of several heights."""
    kv = create("versions", compression=ZSTD, max_inline_value_bytes=16, version_tree_arity_log2=1)
    for g in range(20):
        kv[b"k%02d" % (g % 12)] = noise(("v", g), 12 + g)
    expect("versions", [""])


def make_numbered():
    """Numbered manifests, several generations."""
    kv = create("numbered", manifest_kind="numbered", compression=ZSTD, max_inline_value_bytes=16,
                version_tree_arity_log2=1)
    for g in range(5):
        write(kv, [(b"n%d-%02d" % (g, i), noise(("n", g, i), 4 * i)) for i in range(8)])
    expect("numbered", [""])


def make_empty():
    """A database whose only key was deleted, and one that nothing was ever committed to."""
    kv = create("emptied", compression=ZSTD)
    kv[b"a"] = b"1"
    del kv[b"a"]
    expect("emptied", [""])
    kv = create("never", manifest_kind="numbered")
    kv.delete_range(ts.KvStore.KeyRange(b"a", b"b")).result()
    if not os.path.exists(os.path.join(OUT, "never", "manifest.ocdbt")):
        kv[b"a"] = b"1"
    for f in os.listdir(os.path.join(OUT, "never")):  # as if the first commit had not finished
        if f not in ("manifest.ocdbt", "d"):
            os.unlink(os.path.join(OUT, "never", f))
    shutil.rmtree(os.path.join(OUT, "never", "d"), ignore_errors=True)
    expect("never", [""])


# ------------------------------------------------------------- Orbax, two processes
def worker(a):
    """One JAX process with two CPU devices: the mesh is (data 2, model 2)."""
    from absl import flags
    flags.FLAGS([sys.argv[0]])
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(a.coordinator, 2, a.worker)
    import numpy as np
    import orbax.checkpoint as ocp
    from etils import epath
    from orbax.checkpoint import args as ocp_args
    from orbax.checkpoint._src.multihost import multihost
    from orbax.checkpoint.experimental.emergency import replicator_checkpoint_manager as rcm

    multihost.initialize_runtime_to_distributed_ids()
    multihost.initialize_distributed_to_device_ids()
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    spec = jax.sharding.PartitionSpec

    def put(value, *axes):
        sharding = jax.sharding.NamedSharding(mesh, spec(*axes))
        return jax.make_array_from_callback(value.shape, sharding, lambda i: value[i])

    rng = np.random.default_rng(7)
    def state(data_axis):
        return {
            "params": {
                "w": put(rng.standard_normal((32, 128)).astype(np.float32), data_axis, "model"),
                "it's \u00e9": put(np.arange(16, dtype=np.float32)),
            },
            "opt": [put(np.full((64,), i, np.float32), "model") for i in range(3)],
            "step": put(np.array(5, np.int32)),
        }

    # The layout of multi-tier checkpointing: each process a directory of its own, a replica each.
    manager = rcm.ReplicatorCheckpointManager(
        epath.Path(f"{a.root}/node{a.worker}"),
        options=rcm.ReplicatorCheckpointManagerOptions(save_interval_steps=1), global_mesh=mesh)
    manager.save(5, args=ocp_args.Composite(state=ocp_args.PyTreeSave(state(None))))
    manager.wait_until_finished()
    manager.close()
    # Orbax as usual: both processes write parts of one directory, merged at the end.
    manager = ocp.CheckpointManager(f"{a.root}/joint")
    manager.save(5, args=ocp_args.Composite(state=ocp_args.PyTreeSave(state("data"))))
    manager.wait_until_finished()
    manager.close()
    jax.distributed.shutdown()


def make_orbax():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="golden-") as root:
        for d in ("node0", "node1", "joint"):
            os.mkdir(os.path.join(root, d))
        env = dict(os.environ, JAX_PLATFORMS="cpu",
                   XLA_FLAGS="--xla_force_host_platform_device_count=2")
        args = [sys.executable, __file__, "--root", root, "--coordinator", f"127.0.0.1:{port}"]
        workers = [subprocess.Popen(args + ["--worker", str(i)], env=env) for i in range(2)]
        if any([w.wait(timeout=300) for w in workers]):
            raise SystemExit("an Orbax worker failed")
        for source, name in (("node0", "replica0"), ("node1", "replica1"), ("joint", "merged")):
            shutil.copytree(os.path.join(root, source, "5"), os.path.join(OUT, name))
    expect("replica0", ["state", "state/ocdbt.process_0"])
    expect("replica1", ["state", "state/ocdbt.process_1"])
    expect("merged", ["state"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", type=int)
    parser.add_argument("--root")
    parser.add_argument("--coordinator")
    a = parser.parse_args()
    if a.worker is not None:
        worker(a)
        return
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    for make in (make_plain, make_raw, make_tall, make_versions, make_numbered, make_empty,
                 make_orbax):
        make()


if __name__ == "__main__":
    main()
