"""What a hostile job may plant in the volume: at names that the agent reads, writes or removes,
while it runs and before it starts. Needs root, as the agent does."""

import os
import random
import re
import socket
import stat
import subprocess
import time

import pytest

import hostile
import scripted_job
from tierkeep_demo import cluster as cluster_lib

pytestmark = pytest.mark.timeout(240)

H = "D" + "a" * 64 + ".data"


def plants(world):
    """{kind: function that puts it at a path}"""

    def put_socket(path):
        where = os.open(os.path.dirname(path), os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"/proc/self/fd/{where}/{os.path.basename(path)}")
        os.close(where)

    def put_file(path):
        with open(path, "wb") as f:
            f.write(b"planted")

    def put_directory(path):
        os.makedirs(os.path.join(path, "d"))
        put_file(os.path.join(path, "d", "f"))

    def put_name_from_outside(path):
        outside = os.path.join(world.node.mount, "outside")
        if not os.path.exists(outside):
            with open(outside, "wb") as f:
                f.write(b"outside the volume")
        os.link(outside, path)

    def put_immutable(path):
        put_file(path)
        hostile.chattr("+i", path)

    def put_loop(path):
        os.symlink(os.path.basename(path), path)

    return {
        "link to a file": lambda path: os.symlink(world.victim, path),
        "link to a directory": lambda path: os.symlink(world.folder, path),
        "link to nowhere": lambda path: os.symlink(os.path.join(world.folder, "new"), path),
        "link to itself": put_loop, "pipe": os.mkfifo, "socket": put_socket,
        "device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)),
        "directory": put_directory, "name of a file outside": put_name_from_outside,
        "immutable file": put_immutable, "sparse giant": lambda path: sparse(path, 1 << 40),
    }


def sparse(path, size):
    with open(path, "wb") as f:
        f.truncate(size)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        cluster_lib.remove_tree(path)
    elif os.path.lexists(path):
        hostile.chattr("-i", path)
        os.unlink(path)


def names_written(step):
    return ["replicator.prerestore", "replicator.errors", "replicator.failed", H,
            f"e2e-s{step}-n0-w0.restore", "e2e-s0-n0-w0.restore", f"e2e-s{step}-n0-w0.meta",
            f"e2e-s{step}-n1-w0.meta"]


KINDS = ["link to a file", "link to a directory", "link to nowhere", "link to itself", "pipe",
         "socket", "device", "directory", "name of a file outside", "immutable file",
         "sparse giant"]


@pytest.mark.parametrize("kind", KINDS)
def test_d8_links_planted_at_every_name(make_world, kind):
    """In mid-run, before a start of the agent, and before a start of the job."""
    world = make_world()
    plant = plants(world)[kind]
    for name in names_written(2):
        remove(world.at(name))
        plant(world.at(name))
    # The agent writes meta and, for a save that it refuses, errors.
    world.good_save(2)
    with open(world.at("e2e-s2-n0-w0.meta"), "rb") as f:
        assert re.fullmatch(rb"D?[0-9a-z]{64}", f.read())
    assert os.lstat(world.at("e2e-s2-n0-w0.meta")).st_nlink == 1
    world.hostile_save(3, lambda path: os.mkfifo(os.path.join(path, "pipe")))
    assert "pipe" in world.outcome(3)
    (real,) = {s["digest"] for s in world.node.status()["store"]["shards"]
               if s["rank"] == 0 and s["own"]}
    for name in [*names_written(2), f"D{real}.data", f"{real}.data"]:
        remove(world.at(name))
        plant(world.at(name))
    world.job.restart()
    for name in names_written(4):
        remove(world.at(name))
        plant(world.at(name))
    world.check(4)
    outside = os.path.join(world.node.mount, "outside")
    if os.path.exists(outside):
        with open(outside, "rb") as f:
            assert f.read() == b"outside the volume"
        assert os.lstat(outside).st_nlink == 1


def test_d8_links_planted_again_and_again(make_world):
    """Somebody races with every write of the agent."""
    world = make_world()
    draw = random.Random(world.seed)
    todo = [plants(world)[k] for k in ("link to a file", "link to nowhere", "directory", "pipe")]

    def once(_):
        name = draw.choice(["replicator.errors", "replicator.prerestore", "e2e-s2-n0-w0.meta",
                            "e2e-s3-n0-w0.meta"])
        swap = world.at(f"swap{draw.randrange(1 << 30)}")
        draw.choice(todo)(swap)
        try:
            os.rename(swap, world.at(name))
        finally:
            remove(swap)

    with hostile.repeating(once):
        for step in (2, 3):
            world.good_save(step)
            world.hostile_save(step + 100, lambda path: os.mkfifo(os.path.join(path, "pipe")))
            world.cluster.wait_for(lambda: world.node.log().count("pipe") >= step - 1, 20,
                                   "the refusal")
    for name in ("replicator.errors", "replicator.prerestore"):
        remove(world.at(name))
    world.check(4)


def test_d8_the_restore_is_raced(make_world):
    """While the agent cleans, links and announces, its names are taken again and again. Either the
    job gets what it saved, or it is told that it can't start; then it starts again undisturbed."""
    world = make_world()
    draw = random.Random(world.seed)
    (shard,) = [s for s in world.node.status()["store"]["shards"] if s["rank"] == 0 and s["own"]]
    names = ["replicator.prerestore", "e2e-s1-n0-w0.restore", f"D{shard['digest']}.data"]

    def once(_):
        swap = world.at(f"swap{draw.randrange(1 << 30)}")
        os.symlink(draw.choice([world.victim, world.folder]), swap)
        name = world.at(draw.choice(names))
        if os.path.isdir(name) and not os.path.islink(name):
            os.rename(name, swap + "d")
        os.rename(swap, name)

    for _ in range(3):
        with hostile.repeating(once):
            runs = {n.name: n.status()["run"] for n in world.cluster.nodes}
            finish = world.job.begin(limit=40)

            def ended(status):
                return status["phase"] == "failed" or (
                    status["phase"] == "running" and status["run"] != runs[status["node"]])

            world.cluster.wait_for(
                lambda: all(ended(n.status()) for n in world.cluster.nodes), 60,
                "the start to end")
        for run in finish.runs:
            run.exception(60)  # whatever the clients made of it
        for name in os.listdir(world.volume):
            if name.startswith("swap"):
                remove(world.at(name))
        for name in names:
            if os.path.islink(world.at(name)):
                os.unlink(world.at(name))
    world.job.restart()
    world.check(4)


def plant_odd_names(world):
    os.symlink("/nowhere/at/all", world.at("x.meta"))
    os.mkdir(world.at("y.meta"))
    os.mkfifo(world.at("z.meta"))
    os.symlink(world.secret, world.at("link.meta"))
    for name in ("replicator.a b", "replicator.yaml.tmp", ".hidden", "-rf", "*", "$(id)", " ",
                 hostile.FORGED_NAME, "replicator.x\n" + hostile.FORGED_LINE, "n" * 255):
        with open(world.at(name), "wb") as f:
            f.write(hostile.FORGED_LINE.encode())
    with open(os.path.join(os.fsencode(world.volume), b"\xff\xfe"), "wb"):
        pass
    hostile.make_deep(world.volume, 3000)
    os.symlink(world.secret, world.at("jax-init-info.txt"))
    os.symlink("..", world.at("up"))
    os.symlink("../store", world.at("into the store"))
    sparse(world.at("1.save"), 1 << 40)
    os.mknod(world.at("2"), 0o600 | stat.S_IFCHR, os.makedev(1, 9))


@pytest.mark.parametrize("agent", ["up", "down"])
def test_b10_odd_names_stop_no_start(make_world, agent):
    world = make_world()
    if agent == "down":
        world.node.kill()
    plant_odd_names(world)
    if agent == "down":
        world.node.start()
        world.node.wait_ready()
        world.was_restarted()
    world.job.restart()
    left = {n for n in os.listdir(world.volume)
            if not re.fullmatch(r"step=1|replicator\.prerestore|e2e-s1-n0-w0\.meta|D?[0-9a-z]{64}\.data", n)}
    assert left == {"jax-init-info.txt"}, "not all was cleaned"
    os.unlink(world.at("jax-init-info.txt"))
    world.check(2)


def test_d14_forged_markers_and_metas(make_world):
    """A marker, its data and its meta of a step that was never saved: nobody believes them, now or
    after a restart of agent and job."""
    world = make_world()
    step = hostile.FORGED_STEP

    def forge():
        os.makedirs(world.at(H))
        with open(world.at(H, "forged"), "wb") as f:
            f.write(b"forged")
        os.symlink(H, world.at(f"e2e-s{step}-n0-w0.restore"))
        for rank in (0, 1):
            with open(world.at(f"e2e-s{step}-n{rank}-w0.meta"), "w", encoding="ascii") as f:
                f.write(H)
        with open(world.at("replicator.prerestore"), "w", encoding="ascii") as f:
            f.write(f"restore-step: {step}\n")
        os.symlink(H, world.at(f"step={step}"))
        for name in (f"e2e-s1-n0-w0.meta", f"e2e-s1-n1-w0.meta"):  # paths instead of digests
            remove(world.at(name))
            with open(world.at(name), "w", encoding="ascii") as f:
                f.write("../../store/shards")

    forge()
    world.job.restart()
    forge_left = [n for n in os.listdir(world.volume) if str(step) in n or n == H]
    assert forge_left == []
    world.node.kill()
    forge()
    world.node.start()
    world.node.wait_ready()
    world.was_restarted()
    world.job.restart()
    world.check(2)
    assert all(s["step"] != step for n in world.cluster.nodes
               for s in n.status()["store"]["shards"])


def test_d14_the_restored_tree_is_attacked(make_world):
    """The job writes into, takes apart and renames what was restored to it: the copy behind it is
    never restored changed."""
    world = make_world()
    world.job.restart()
    path = os.path.realpath(world.job.volumes[0].restored_path(1))
    for where, _, names in os.walk(path):
        for name in names:
            hostile.chattr("-i", os.path.join(where, name))
            with open(os.path.join(where, name), "ab") as f:
                f.write(b"changed by the job")
    world.job.restart()
    path = os.path.realpath(world.job.volumes[0].restored_path(1))
    os.rename(path, world.at("moved"))
    os.symlink(world.folder, path)
    world.job.restart()
    # Parts of it in the next save, by hard link: never shared with the copy.
    path = os.path.realpath(world.job.volumes[0].restored_path(1))
    links = []

    def build(save):
        for name in os.listdir(path):
            full = os.path.join(path, name)
            if os.path.isfile(full):
                try:
                    os.link(full, os.path.join(save, "of-" + name))
                    links.append(name)
                except PermissionError:  # immutable
                    hostile.chattr("-i", full)
                    os.link(full, os.path.join(save, "of-" + name))
                    links.append(name)

    world.allowed_steps.add(2)
    world.hostile_save(2, build)
    print(world.outcome(2), links)
    assert links
    world.check(3)


def test_a6_a_save_in_the_instant_of_the_release(make_world):
    """Both nodes' next save is made ready beside the volume, and moved in the moment the marker
    appears."""
    world = make_world()
    for _ in range(5):
        step = max(world.allowed_steps) + 1
        world.allowed_steps.add(step)
        restored = world.job.begin_by_hand()
        waiting = {}
        for rank, node in enumerate(world.cluster.nodes):
            ready = os.path.join(node.mount, "ready")
            scripted_job.write_tree(ready, world.job.data(step, rank))
            waiting[rank] = (ready, node.volume)
            world.job.configure(rank)
        end = time.monotonic() + 60
        while waiting:
            for rank, (ready, volume) in list(waiting.items()):
                if os.path.lexists(os.path.join(
                        volume, f"e2e-s{world.job.saved}-n{rank}-w0.restore")):
                    os.rename(ready, os.path.join(volume, str(step)))
                    del waiting[rank]
            assert time.monotonic() < end, "no release"
        assert restored() == world.job.saved
        world.job.committed(step)
        scripted_job.check_copies(world.job, step, nodes_each=2)
    world.check(max(world.allowed_steps) + 1)


def test_d21_deleted_errors_are_in_the_log_and_the_status(make_world):
    world = make_world()
    world.hostile_save(2, lambda path: os.mkfifo(os.path.join(path, "pipe")))

    def hide(_):
        os.unlink(world.at("replicator.errors"))

    with hostile.repeating(hide):
        world.cluster.wait_for(lambda: "pipe" in str(world.node.status()["last_error"]), 20,
                               "the status to say it")
    world.cluster.wait_for_log([world.node], "pipe")
    world.check(3)


# ---- replicator.yaml

GOOD = ("job-name: e2e\nframework: pytorch.distributed\nnode-rank: 0\nnodes: 2\npeers-per-node: 1\n"
        "backup-interval-minutes: 30\n")


def write(path, data):
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


YAMLS = {
    "D11 link to a secret": lambda w, p: os.symlink(w.secret, p),
    "D11 link to a directory": lambda w, p: os.symlink(w.folder, p),
    "D11 link to nowhere": lambda w, p: os.symlink("/nowhere/at/all", p),
    "D11 link to itself": lambda w, p: os.symlink("replicator.yaml", p),
    "D13 pipe": lambda w, p: os.mkfifo(p),
    "D13 device": lambda w, p: os.mknod(p, 0o666 | stat.S_IFCHR, os.makedev(1, 5)),
    "D13 directory": lambda w, p: os.mkdir(p),
    "D13 sparse giant": lambda w, p: sparse(p, 1 << 40),
    "D13 two megabytes": lambda w, p: write(p, GOOD + "# " + "x" * (2 << 20)),
    "D13 just over the limit": lambda w, p: write(p, GOOD + "#" * (65537 - len(GOOD))),
    "D13 deep nesting": lambda w, p: write(p, "a: " + "[" * 30_000),
    "D13 deep maps": lambda w, p: write(p, "".join(" " * i + "a:\n" for i in range(300))),
    "D13 laughs": lambda w, p: write(p, "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)) + GOOD),
    "D13 zero bytes": lambda w, p: write(p, bytes(60_000)),
    "D13 noise": lambda w, p: write(p, random.Random(7).randbytes(60_000)),
    "D12 forged line": lambda w, p: write(
        p, GOOD.replace("job-name: e2e", f'job-name: "x\\n{hostile.FORGED_LINE}\\n"')),
    "D5 a name that leaves": lambda w, p: write(p, GOOD.replace("e2e", "../../../etc")),
    "D15 a pattern for a name": lambda w, p: write(p, GOOD.replace("e2e", "e2e*")),
    "D16 a command for a name": lambda w, p: write(p, GOOD.replace("e2e", "$(reboot)")),
    "D11 the agent's environment": lambda w, p: write(p, GOOD.replace("e2e", "$TK_TEST_TOKEN")),
    "D13 numbers beyond all bounds": lambda w, p: write(
        p, GOOD.replace("nodes: 2", "nodes: 999999999999999999999999")),
    "D13 many peers": lambda w, p: write(
        p, GOOD.replace("peers-per-node: 1", "peer-ranks: [" + "1," * 20_000 + "1]")),
    "D13 tags": lambda w, p: write(p, GOOD.replace("nodes: 2", "nodes: !!binary aGVsbG8=")),
}


@pytest.mark.parametrize("case", sorted(YAMLS))
def test_d5_d11_d15_hostile_yaml_is_answered_without_its_contents(make_world, monkeypatch, case):
    monkeypatch.setenv("TK_TEST_TOKEN", "in-the-agents-environment")
    world = make_world()
    path = world.at("replicator.yaml")
    YAMLS[case](world, path)
    world.cluster.wait_for(lambda: not os.path.lexists(path), 30, "the yaml to go")
    with open(world.at("replicator.failed"), "rb") as f:
        text = f.read()
    print(text)
    assert 0 < len(text) < 2000 and text.decode().isprintable() is False  # it ends a line
    assert re.fullmatch(r"[^\x00-\x1f\x7f]+\n", text.decode()), "not one printable line"
    assert world.token not in text and b"in-the-agents-environment" not in text
    assert f"step {hostile.FORGED_STEP}" not in text.decode() or text.count(b"\n") == 1
    world.check_alive()
    world.job.restart()
    world.check(2, restart_agent=False)


def test_d11_yaml_that_is_another_name_of_a_file_outside(make_world):
    """Its text is nobody's to show; removing it removes the name only."""
    world = make_world()
    outside = os.path.join(world.node.mount, "outside")
    write(outside, b"for no job's eyes: " + world.token)
    os.link(outside, world.at("replicator.yaml"))
    world.cluster.wait_for(lambda: not os.path.lexists(world.at("replicator.yaml")), 30,
                           "the yaml to go")
    with open(world.at("replicator.failed"), "rb") as f:
        assert world.token not in f.read()
    with open(outside, "rb") as f:
        assert world.token in f.read()
    os.unlink(outside)
    world.job.restart()
    world.check(2, restart_agent=False)


def test_d11_yaml_that_never_stands_still(make_world):
    """Written in place without an end: the agent neither spins nor fills its log."""
    world = make_world()
    before = len(world.node.log())
    draw = random.Random(world.seed)

    def once(_):
        write(world.at("replicator.yaml"), GOOD[:draw.randrange(len(GOOD))])

    with hostile.repeating(once):
        world.cluster.wait_for(lambda: world.node.status()["uptime_seconds"] > 10, 30,
                               "a few seconds to pass")
    grown, took = len(world.node.log()) - before, world.node.status()["uptime_seconds"]
    print(f"the log grew by {grown} bytes in {took} s")
    assert grown < took * 5_000
    remove(world.at("replicator.yaml"))
    for name in ("replicator.failed", "replicator.errors"):
        remove(world.at(name))
    world.job.restart()
    world.check(2)


# ---- floods

def test_d13_a_flood_of_names(make_world):
    """Two hundred thousand entries in the volume itself, made while the job runs and cleaned at its
    next start: within the clients' waits, with bounded memory."""
    world = make_world(ram_mib=1024)
    before = world.memory()
    at = os.open(world.volume, os.O_RDONLY)
    write(world.at("first"), b"")
    for i in range(200_000):
        os.link("first", f"junk{i}", src_dir_fd=at, dst_dir_fd=at)
    os.close(at)
    world.good_save(2)
    world.job.restart(limit=60)
    assert [n for n in os.listdir(world.volume) if n.startswith("junk")] == []
    print(f"memory {before >> 20} MiB before, {world.memory() >> 20} MiB after")
    assert world.memory() - before < 64 << 20
    world.check(3)


@pytest.mark.parametrize("framework", ["pytorch.distributed", "orbax"])
def test_d13_a_flood_of_half_made_saves(make_world, framework):
    """Directories that could become saves, made in place: they cost the agent neither threads nor
    descriptors, and a real save among them is taken."""
    world = make_world(framework=framework)
    threads, files = (f(world.node.agent.pid) for f in (hostile.threads, hostile.descriptors))
    made = [str(i) for i in range(1000, 3000)]
    for name in made:
        os.mkdir(world.at(name))
    world.good_save(2)
    now = [f(world.node.agent.pid) for f in (hostile.threads, hostile.descriptors)]
    print("threads, descriptors:", (threads, files), "then", now)
    assert now[0] <= threads + 40 and now[1] <= files + 60
    for name in made:
        if os.path.isdir(world.at(name)):
            os.rmdir(world.at(name))
    world.check(4)


def test_d13_a_flood_of_saves(make_world):
    """One node saves thousands of steps that the others don't have; the next common one commits and
    the others go."""
    world = make_world()
    before = world.memory()
    for i in range(500):
        os.mkdir(world.at("making"))
        os.rename(world.at("making"), world.at(str(10_000 + i)))
    world.good_save(2)
    world.good_save(3)
    world.cluster.wait_for(lambda: os.listdir(os.path.join(world.node.store, "staged")) == [], 60,
                           "what nobody else has to go")
    print(f"memory {before >> 20} MiB before, {world.memory() >> 20} MiB after")
    assert world.memory() - before < 64 << 20
    world.check(4)


def test_d13_a_flood_of_saves_before_a_start(make_world):
    """The same while the agent is down: the start takes over what it can and is not held up."""
    world = make_world()
    world.node.kill()
    for i in range(500):
        os.mkdir(world.at(str(10_000 + i)))
    world.node.start()
    world.node.wait_ready()
    world.was_restarted()
    world.job.restart(limit=60)
    world.check(2)


# ---- the volume itself

def test_b10_the_volume_can_not_be_changed(make_world):
    """The job makes its own volume immutable: the agent starts all the same."""
    world = make_world()
    world.node.kill()
    if not hostile.chattr("+i", world.volume):
        pytest.skip("needs a file system with the immutable flag, and the right to set it")
    world.node.start()
    world.node.wait_ready()
    world.was_restarted()
    hostile.chattr("-i", world.volume)
    world.job.restart()
    os.chmod(world.volume, 0)
    world.check(2)


def test_b10_no_file_can_be_made(make_world):
    """The job has used up every file of the mount; the agent starts, and the next start of the job
    cleans."""
    world = make_world()
    world.node.kill()
    mounted = subprocess.run(["mount", "-o", "remount,nr_inodes=2000", world.node.mount],
                             capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs a tmpfs of its own for each node, with a limit of files")
    with pytest.raises(OSError):
        for i in range(3000):
            write(world.at(f"junk{i}"), b"")
    world.node.start()
    world.node.wait_ready()
    world.was_restarted()
    os.unlink(world.at("junk0"))  # a file for the yaml
    world.job.restart()
    world.check(2)
