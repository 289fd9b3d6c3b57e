"""One process of a PyTorch training run that checkpoints through the volume protocol.

A small transformer learns the text of the Python language reference. Parameters and Adam's state
are sharded over the ranks as in FSDP: a rank keeps and updates only its part of the flattened
model, so no two ranks' checkpoints are alike and a lost one must come from a peer's copy. Each
rank writes its own volume with `torch.distributed.checkpoint` (`no_dist=True`, so that every
volume has its own metadata and can be read alone). The code around the volume is `volume.py`.
Deterministic: the same seed gives the same state after step N, bit for bit.
"""

import argparse
import os
import time

import numpy as np

from tierkeep_demo import bitflip
from tierkeep_demo import corpus
from tierkeep_demo import dump
from tierkeep_demo import volume as volume_lib
from tierkeep_demo.events import tell

VOCABULARY = 128


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--volume", required=True, help="the RAM volume of this process")
    p.add_argument("--job", required=True)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--save-every", type=int, default=10)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--batch", type=int, default=8, help="rows for each rank")
    p.add_argument("--dump", required=True, help="directory for the final state")
    p.add_argument("--flip-seed", type=int, default=None,
                   help="flip one bit of the restored state before training goes on")
    p.add_argument("--timeout", type=int, default=120)
    return p.parse_args(argv)


def build_model(a):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(a.width), nn.LayerNorm(a.width)
            self.qkv = nn.Linear(a.width, 3 * a.width)
            self.out = nn.Linear(a.width, a.width)
            self.up, self.down = nn.Linear(a.width, 4 * a.width), nn.Linear(4 * a.width, a.width)

        def forward(self, x):
            rows, length, width = x.shape
            q, k, v = (y.view(rows, length, 4, width // 4).transpose(1, 2)
                       for y in self.qkv(self.norm1(x)).chunk(3, -1))
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, a.width)
            self.place = nn.Parameter(torch.zeros(a.length, a.width))
            self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
            self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, VOCABULARY)

        def forward(self, inputs):
            x = nn.functional.dropout(self.embed(inputs) + self.place, 0.1, self.training)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    torch.manual_seed(a.seed)
    return Model()


class Run:
    """Model, this rank's shard of it, and the shard's optimizer."""

    def __init__(self, a, rank, ranks):
        import torch
        self.a, self.torch, self.rank, self.ranks = a, torch, rank, ranks
        self.model = build_model(a)
        self.parameters = list(self.model.parameters())
        whole = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.count = whole.numel()
        self.part = -(-self.count // ranks)
        padded = torch.nn.functional.pad(whole, (0, self.part * ranks - self.count))
        self.shard = torch.nn.Parameter(padded[rank * self.part:(rank + 1) * self.part].clone())
        self.optimizer = torch.optim.Adam([self.shard], lr=1e-3, betas=(0.9, 0.99))
        torch.manual_seed(1000 + rank)  # from here on: this rank's own dropout
        self.text = corpus.load()

    def _gather(self):
        """Puts all ranks' shards together into the model."""
        parts = [self.torch.empty_like(self.shard.data) for _ in range(self.ranks)]
        self.torch.distributed.all_gather(parts, self.shard.data)
        whole, at = self.torch.cat(parts), 0
        for p in self.parameters:
            p.data.copy_(whole[at:at + p.numel()].view_as(p))
            at += p.numel()

    def advance(self, step):
        """One step; returns the loss over all ranks."""
        torch = self.torch
        self._gather()
        inputs, targets = (torch.from_numpy(np.ascontiguousarray(x)).long() for x in corpus.batch(
            self.text, step, self.rank, self.a.batch, self.a.length))
        self.model.zero_grad(set_to_none=True)
        logits = self.model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in self.parameters])
        gradient = torch.nn.functional.pad(gradient, (0, self.part * self.ranks - self.count))
        torch.distributed.all_reduce(gradient)
        at = self.rank * self.part
        self.shard.grad = gradient[at:at + self.part] / self.ranks
        self.optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        return mean.item() / self.ranks

    def state(self, step):
        """What one rank saves: its shard, its part of Adam's state, its own random numbers."""
        adam = self.optimizer.state[self.shard]
        return {"shard": self.shard.data, "mean": adam["exp_avg"], "square": adam["exp_avg_sq"],
                "count": adam["step"], "random": self.torch.get_rng_state(),
                "step": self.torch.tensor(step)}

    def empty_state(self):
        torch = self.torch
        return {"shard": torch.zeros_like(self.shard.data),
                "mean": torch.zeros_like(self.shard.data),
                "square": torch.zeros_like(self.shard.data), "count": torch.tensor(0.0),
                "random": torch.get_rng_state(), "step": torch.tensor(0)}

    def save(self, path, step):
        import torch.distributed.checkpoint as dcp
        dcp.save(self.state(step), checkpoint_id=path, no_dist=True)

    def restore(self, path):
        """Loads this rank's state; returns the number of the step it was saved after."""
        import torch.distributed.checkpoint as dcp
        got = self.empty_state()
        dcp.load(got, checkpoint_id=path, no_dist=True)
        self.shard.data.copy_(got["shard"])
        self.optimizer.state[self.shard] = {
            "step": got["count"], "exp_avg": got["mean"], "exp_avg_sq": got["square"]}
        self.torch.set_rng_state(got["random"])
        return int(got["step"])

    def flip(self, seed):
        """Flips one bit of one weight in this rank's shard."""
        _, element, bit = bitflip.choose_float_bit(
            seed, ["shard"], lambda _: min(self.part, self.count - self.rank * self.part))
        bitflip.flip_bit_in_floats(self.shard.data.numpy(), element, bit)
        tell("flipped", leaf="shard", element=element, bit=bit)


def main(argv=None):
    a = parse(argv)
    started = time.time()
    import torch
    import torch.distributed.checkpoint  # slow to import: not within a timed phase
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank, ranks = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
    tell("imported", seconds=round(time.time() - started, 2))
    volume = volume_lib.TorchVolume(a.volume, limit=a.timeout)
    volume.configure(a.job, rank, ranks)
    volume.wait_released()
    latest = volume.wait_restored()
    print(f"volume client: checkpoint to restore: {latest}", flush=True)
    torch.distributed.init_process_group("gloo")
    tell("initialized", process=rank, processes=ranks)

    run = Run(a, rank, ranks)
    first = 0
    if latest is not None:
        # Saves are named by the last finished step's index, as NeMo does; counts begin at 1.
        first = run.restore(volume.restored_path(latest))
        print(f"volume client: restored {volume.restored_path(latest)}, {first} steps done",
              flush=True)
        if first != latest + 1:
            raise RuntimeError(f"the checkpoint named {latest} holds the state of step {first}")
    tell("restored", latest_step=latest, step=first)
    if latest is not None and a.flip_seed is not None and rank == 0:
        run.flip(a.flip_seed)

    for step in range(first + 1, a.steps + 1):
        volume.check_errors()
        loss = run.advance(step)
        tell("step", step=step, loss=loss)
        if step % a.save_every == 0:
            with volume.save(step - 1) as path:
                run.save(path, step)
            tell("save", step=step - 1)
    leaves = {k: v.numpy() for k, v in run.state(a.steps).items()}
    tell("finished", step=a.steps, state_bytes=sum(x.nbytes for x in leaves.values()),
         errors=volume.errors, sha256=dump.write_dump(a.dump, leaves))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
