"""The two training runs of the demo: what is started, and how its log is to be read."""

import dataclasses
import importlib.metadata
import random
import re


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One kind of training job and its sizes."""

    framework: str  # "jax" or "torch"
    nodes: int
    steps: int
    save_every: int
    width: int
    layers: int

    @property
    def title(self):
        version = importlib.metadata.version
        if self.framework == "jax":
            return (f"JAX {version('jax')} with Orbax {version('orbax-checkpoint')}'s own "
                    f"multi-tier client: 4 processes, two slices of two, gloo on CPU")
        return (f"PyTorch {version('torch').split('+')[0]} with torch.distributed.checkpoint: "
                f"{self.nodes} processes, gloo on CPU, state sharded over them")

    @property
    def note(self):
        if self.framework == "jax":
            return ("The slices are data parallel: a node's state has an equal twin in the other "
                    "slice.")
        return ("Framework pytorch.distributed. NeMo is not used: the code around the volume is "
                "this project's own (tierkeep_demo/volume.py). No two ranks' states are alike, "
                "so copies really cross between the nodes.")

    def arguments(self, job, seed, dump, flip_seed=None):
        """A function of (node, rank): the arguments of the training process."""
        def command(node, rank):
            out = ["-m", f"tierkeep_demo.train_{self.framework}", "--volume", node.volume,
                   "--job", job, "--steps", str(self.steps), "--save-every", str(self.save_every),
                   "--seed", str(seed), "--width", str(self.width), "--layers", str(self.layers),
                   "--dump", f"{dump}/rank{rank}"]
            return out + (["--flip-seed", str(flip_seed)] if flip_seed is not None else [])
        return command

    def save_name(self, steps_done):
        """The number that a save after `steps_done` steps has in the volume."""
        return steps_done if self.framework == "jax" else steps_done - 1

    def steps_done(self, save_name):
        return save_name if self.framework == "jax" else save_name + 1

    def resumed_from(self, log_text):
        """The checkpoint that the client's own log says it was given; None if it does not."""
        found = re.search(
            r"Found a restore directory at step (\d+) and renamed it" if self.framework == "jax"
            else r"volume client: restored \S+/step=(\d+),", log_text)
        return int(found[1]) if found else None


def choose(framework, quick):
    if framework == "jax":
        return Scenario("jax", 4, 24 if quick else 60, 6 if quick else 10, 128, 2)
    return Scenario("torch", 2, 40 if quick else 120, 10 if quick else 20, 192, 3)


@dataclasses.dataclass(frozen=True)
class Misfortune:
    """Which node is lost, and after which step of training."""

    node: int
    step: int


def draw_misfortune(scenario, seed):
    """Somewhere in the middle of the run, between two saves."""
    draw = random.Random(seed)
    saves = scenario.steps // scenario.save_every
    after = draw.randrange(saves // 3 + 1, 2 * saves // 3 + 1) * scenario.save_every
    gap = draw.randrange(scenario.save_every // 3, scenario.save_every - 1)
    return Misfortune(draw.randrange(scenario.nodes), after + max(1, gap))
