"""Lets the open PyTorch client's protocol file (resiliency/high_scale_ckpt_utils.py) start a job of
two processes on two real agents, cold and again after a save. Started by client_own_tests.py.

Its savers need NeMo and Megatron; the save is the script's of tierkeep_demo.volume.
"""

import os
import random
import subprocess
import sys

from tierkeep_demo import cluster as cluster_lib
from tierkeep_demo import volume as volume_lib

NODES, STEP, LIMIT = 2, 7, 240


def be_a_process(volume):
    from resiliency import high_scale_ckpt_utils as client
    client.init_high_scale_ckpt(volume, "own-torch", peers_per_node=1)
    restored = client.block_and_proces_restore_dir(volume)
    print("RESTORED", restored, flush=True)


def start(cluster, folder):
    """The job's processes; what each says it restored."""
    processes = []
    for rank, node in enumerate(cluster.nodes):
        env = dict(os.environ, NODE_RANK=str(rank), NNODES=str(NODES), RANK=str(rank),
                   WORLD_SIZE=str(NODES), LOCAL_RANK="0")
        processes.append(subprocess.Popen([sys.executable, __file__, folder, node.volume], env=env,
                                          stdout=subprocess.PIPE, text=True))
    said = []
    for process in processes:
        out, _ = process.communicate(timeout=LIMIT)
        if process.returncode:
            raise SystemExit(f"a process ended with {process.returncode}")
        said.append(next(x[9:] for x in out.splitlines() if x.startswith("RESTORED ")))
    return said


def main(folder):
    binary = os.environ.get("TIERKEEP_BIN", "build/release/src/tierkeep")
    with cluster_lib.Cluster(NODES, binary, ram_mib=128) as cluster:
        cluster.start()
        said = start(cluster, folder)
        if said != ["None"] * NODES:
            raise SystemExit(f"restored from nothing: {said}")
        for rank, node in enumerate(cluster.nodes):
            with volume_lib.TorchVolume(node.volume).save(STEP) as path:
                with open(os.path.join(path, "__0_0.distcp"), "wb") as f:
                    f.write(random.Random(rank).randbytes(100_000))
        cluster.wait_committed(STEP)
        said = start(cluster, folder)
        for rank, (node, path) in enumerate(zip(cluster.nodes, said)):
            if path != os.path.join(node.volume, f"step={STEP}"):
                raise SystemExit(f"rank {rank} restored {path}")
            with open(os.path.join(path, "__0_0.distcp"), "rb") as f:
                if f.read() != random.Random(rank).randbytes(100_000):
                    raise SystemExit(f"rank {rank} got other bytes")
        print(f"restored step {STEP} on {NODES} nodes, byte for byte")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        be_a_process(sys.argv[2])
    else:
        main(sys.argv[1])
