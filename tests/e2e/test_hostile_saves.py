"""What a hostile job may put into a save: it is taken as what it is, or refused and said, and
nothing else suffers. Needs root, as the agent does."""

import errno
import os
import random
import socket
import stat

import pytest

import hostile
import scripted_job

pytestmark = pytest.mark.timeout(240)


# ---- what can't be a save: refused, said, and the job goes on

def device(path):
    os.mknod(os.path.join(path, "null"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def block_device(path):
    os.mknod(os.path.join(path, "disk"), 0o600 | stat.S_IFBLK, os.makedev(7, 0))


def unix_socket(path):
    at = os.open(path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(f"/proc/self/fd/{at}/socket")
    os.close(at)


def sparse_giant(path):
    with open(os.path.join(path, "giant"), "wb") as f:
        f.truncate(4 << 40)


def many_sparse_files(path):
    """Each one within what one file may have, all together far beyond any memory."""
    for i in range(300):
        with open(os.path.join(path, f"hollow{i}"), "wb") as f:
            f.truncate(1 << 30)


def pipe(path):
    os.mkfifo(os.path.join(path, "pipe"))


def pipe_with_a_forged_name(path):
    os.mkdir(os.path.join(path, "d" + hostile.FORGED_NAME))
    os.mkfifo(os.path.join(path, "d" + hostile.FORGED_NAME, hostile.FORGED_NAME))


def one_level_too_deep(path):
    os.makedirs(os.path.join(path, "/".join(["d"] * 128)))
    with open(os.path.join(path, "/".join(["d"] * 128), "f"), "wb"):
        pass


def ten_thousand_levels(path):
    hostile.make_deep(path, 10_000)


def long_paths(path):
    # 16 names of 200 bytes: few levels, but longer than the limit of a path.
    at = os.open(path, os.O_RDONLY)
    for _ in range(16):
        os.mkdir("n" * 200, dir_fd=at)
        below = os.open("n" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


REFUSED = {
    "D13 pipe": (pipe, "pipe"), "D13 device": (device, "null"),
    "D13 block device": (block_device, "disk"), "D13 socket": (unix_socket, "socket"),
    "D13 sparse giant": (sparse_giant, "hole"), "D13 many sparse files": (many_sparse_files, "hole"),
    "D12 forged name": (pipe_with_a_forged_name, r"\x0a"),
    "D13 one level too deep": (one_level_too_deep, "deeper than 128 levels"),
    "D13 ten thousand levels": (ten_thousand_levels, "deeper than 128 levels"),
    "D13 long paths": (long_paths, "path of more than"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_d12_d13_what_no_save_may_hold_is_refused(make_world, case):
    build, words = REFUSED[case]
    world = make_world()
    world.hostile_save(2, build)
    said = world.outcome(2)
    print(said)
    assert said != "committed" and words in said
    assert "\x1b" not in said and len(said) < 4096
    world.check(3)


def test_d13_limits_are_settings_and_named_in_the_error(make_world):
    world = make_world(settings={"save-depth-max": 4, "save-entries-max": 50})
    world.hostile_save(2, lambda path: os.makedirs(os.path.join(path, "a/b/c/d/e")))
    assert "deeper than 4 levels" in world.outcome(2)

    def fill(path):
        for i in range(50):
            with open(os.path.join(path, str(i)), "wb"):
                pass

    world.hostile_save(3, fill)
    assert "over 50 entries" in world.outcome(3)
    world.check(4)


def test_d13_a_million_entries_too_many_cost_no_memory(make_world):
    """Names of one file: the kernel needs less for them than for a million files."""
    world = make_world(ram_mib=1024)
    before = world.memory()

    def fill(path):
        at = os.open(path, os.O_RDONLY)
        with open(os.path.join(path, "0"), "wb"):
            pass
        for i in range(1, 1_000_001):
            os.link("0", str(i), src_dir_fd=at, dst_dir_fd=at)
        os.close(at)

    world.hostile_save(2, fill)
    most = 0

    def refused():
        nonlocal most
        most = max(most, world.memory())
        return "step 2" in world.errors()

    world.cluster.wait_for(refused, 60, "the refusal")
    assert "over 1000000 entries" in world.errors()
    print(f"memory {before >> 20} MiB before, at most {most >> 20} MiB")
    assert most - before < 256 << 20
    world.check(3)


def test_d13_many_entries_within_the_limit_commit(make_world):
    world = make_world(ram_mib=1024)

    def fill(path):
        for d in range(20):
            os.mkdir(os.path.join(path, str(d)))
            for f in range(1000):
                with open(os.path.join(path, str(d), str(f)), "wb") as out:
                    out.write(b"%d" % f)

    world.allowed_steps.add(2)
    world.hostile_save(2, fill)
    assert world.outcome(2) == "committed"
    world.check(3)


# ---- what a save may hold, though it means harm: taken as what it is

def links_outside(world, path):
    os.symlink(world.secret, os.path.join(path, "token"))
    os.symlink(world.folder, os.path.join(path, "folder"))
    os.symlink("/", os.path.join(path, "root"))
    os.symlink("/proc/self/environ", os.path.join(path, "environ"))
    os.symlink("../" * 20 + world.secret[1:], os.path.join(path, "relative"))


def link_loops(world, path):
    os.symlink("a", os.path.join(path, "b"))
    os.symlink("b", os.path.join(path, "a"))
    os.symlink(".", os.path.join(path, "self"))
    os.mkdir(os.path.join(path, "down"))
    os.symlink("..", os.path.join(path, "down", "up"))


def odd_names(world, path):
    names = [b"\xff\xfe", b"\x01\x7f", os.fsencode(hostile.FORGED_NAME)[:250], b"a b", b"-rf", b"*",
             b"$(reboot)", b"`reboot`", b"%s%n", b"{}", b".hidden", b"replicator.failed",
             b"replicator.yaml", b"commit_success.txt.", b"n" * 255, "\u202e".encode()]
    for name in names:
        with open(os.path.join(os.fsencode(path), name), "wb") as f:
            f.write(name)


def odd_modes(world, path):
    for mode in (0o000, 0o777, 0o4755, 0o2755, 0o1777):
        name = os.path.join(path, f"f{mode:o}")
        with open(name, "wb") as f:
            f.write(b"x")
        os.chown(name, 1234, 5678)
        os.chmod(name, mode)
        os.mkdir(os.path.join(path, f"d{mode:o}"))
        os.chmod(os.path.join(path, f"d{mode:o}"), mode)


def names_from_outside(world, path):
    """A file that has another name outside the volume, and two names of one file inside."""
    outside = os.path.join(world.node.mount, "outside")
    with open(outside, "wb") as f:
        f.write(b"before" * 1000)
    os.link(outside, os.path.join(path, "shared"))
    with open(os.path.join(path, "one"), "wb") as f:
        f.write(b"two names")
    os.link(os.path.join(path, "one"), os.path.join(path, "two"))


def small_holes(world, path):
    with open(os.path.join(path, "hollow"), "wb") as f:
        f.truncate(5 << 20)
        f.seek(3 << 20)
        f.write(b"island")


def forged_store_files(world, path):
    """The names that the agent itself uses in its store."""
    for name in ("manifest", "state", "data", "store-id", "copy"):
        with open(os.path.join(path, name), "wb") as f:
            f.write(b"TKMF" + bytes(100))
    os.makedirs(os.path.join(path, "shards", "0" * 64, "data"))


TAKEN = {"D9 links outside": links_outside, "D9 link loops": link_loops, "D12 odd names": odd_names,
         "D13 odd modes": odd_modes, "D9 names from outside": names_from_outside,
         "D13 small holes": small_holes, "D14 forged store files": forged_store_files}


@pytest.mark.parametrize("case", sorted(TAKEN))
def test_d9_odd_but_legal_saves_are_taken_as_they_are(make_world, case):
    world = make_world()
    world.allowed_steps.add(2)
    want = {}

    def build(path):
        TAKEN[case](world, path)
        want.update(hostile.shape(path))

    world.hostile_save(2, build)
    assert world.outcome(2) == "committed"
    outside = os.path.join(world.node.mount, "outside")
    if os.path.exists(outside):  # whoever writes there must not reach the copy
        with open(outside, "wb") as f:
            f.write(b"after" * 1200)
        os.unlink(outside)
    (digest,) = [d for d, s in scripted_job.shards(world.node, 2).items() if s["rank"] == 0]
    for node in world.cluster.nodes:
        assert hostile.shape(scripted_job.shard_path(node, digest, "data")) == want, node.name
        if case.endswith("names from outside"):
            assert {os.lstat(scripted_job.shard_path(node, digest, "data", n)).st_nlink
                    for n in ("shared", "one", "two")} == {1}
    # And back: what is restored is that, too.
    assert world.job.start() == 2
    assert hostile.shape(os.path.realpath(world.job.volumes[0].restored_path(2))) == want
    world.check(3)


# ---- what stands at a save's name

def test_d9_a_link_at_a_saves_name_is_never_a_save(make_world):
    world = make_world()
    os.symlink(world.folder, world.at("5"))
    os.symlink(world.secret, world.at("6"))
    os.symlink("../store", world.at("7"))
    os.mkfifo(world.at("8"))
    with open(world.at("9"), "wb") as f:
        f.write(b"a file")
    os.rename(world.at("9"), world.at("10"))
    world.good_save(20)
    assert os.path.islink(world.at("5")) and os.path.islink(world.at("7"))
    world.check(21)
    assert [s["step"] for n in world.cluster.nodes for s in n.status()["store"]["shards"]
            if s["step"] in (5, 6, 7, 8, 9, 10)] == []


@pytest.mark.parametrize("inside", [False, True])
def test_d9_a_directory_is_exchanged_with_a_link_all_the_time(make_world, inside):
    """Between any two calls: the whole save, or a directory in it. The secret is never taken."""
    world = make_world()
    draw = random.Random(world.seed)
    for step in range(2, 12):
        save = world.at(f"step={step}")
        os.mkdir(save)
        os.mkdir(os.path.join(save, "sub"))
        for place in ("inner", "sub/inner"):
            with open(os.path.join(save, place), "wb") as f:
                f.write(draw.randbytes(100_000))
        where = os.open(save if inside else world.volume, os.O_RDONLY)
        name, planted = "sub" if inside else str(step), f"planted{step}"
        os.symlink(world.folder, planted, dir_fd=where)
        try:
            def once(_, name=name, planted=planted, where=where):
                os.rename(name, "swap", src_dir_fd=where, dst_dir_fd=where)
                os.rename(planted, name, src_dir_fd=where, dst_dir_fd=where)
                os.rename("swap", planted, src_dir_fd=where, dst_dir_fd=where)

            if not inside:
                os.rename(save, world.at(str(step)))
            with hostile.repeating(once):
                if inside:
                    os.rename(save, world.at(str(step)))
                world.cluster.wait_for(
                    lambda: not os.path.isdir(world.at(str(step))) or os.path.islink(
                        world.at(str(step))), 20, "the save to be taken or exchanged")
        finally:
            os.close(where)
    world.check(30)


# ---- what changes under the agent's hands

@pytest.mark.parametrize("how", ["grow", "shrink", "rewrite", "replace", "add and remove"])
def test_d13_files_that_change_while_hashed(make_world, how):
    """Through a descriptor of the directory, which goes along into the store. In the end the save
    is refused, or its copies fail since it no longer is what was hashed, or what the peer verified
    is committed; and never anything else."""
    world = make_world(ram_mib=1024)
    for rank, volume in world.job.volumes.items():
        with volume.save(2) as path:
            scripted_job.write_tree(path, world.job.data(2, rank))
            if rank == 0:
                for i in range(4):
                    with open(os.path.join(path, f"big{i}"), "wb") as f:
                        f.write(bytes(16 << 20))
                held = os.open(path, os.O_RDONLY)
    world.allowed_steps.add(2)

    def change(i):
        name = f"big{i % 4}"
        if how == "add and remove":
            os.close(os.open(f"new{i % 7}", os.O_CREAT | os.O_WRONLY, dir_fd=held))
            os.unlink(f"new{(i + 3) % 7}", dir_fd=held)
            return
        if how == "replace":
            os.unlink(name, dir_fd=held)
            os.symlink(world.secret, name, dir_fd=held)
            os.unlink(name, dir_fd=held)
        at = os.open(name, os.O_RDWR | os.O_CREAT, dir_fd=held)
        try:
            if how == "grow":
                os.ftruncate(at, (16 << 20) + i % 1000)
            elif how == "shrink":
                os.ftruncate(at, (16 << 20) - 1 - i % 1000)
            os.pwrite(at, b"%d" % i, 1 << 20)
        finally:
            os.close(at)

    try:
        with hostile.repeating(change):
            world.cluster.wait_for(
                lambda: any(x in world.node.log() for x in (
                    "once more", "replication for step 2", "globally for step 2")), 60,
                "the agent to notice")
        # Quiet now: it ends one way or the other.
        said = world.outcome(2, also="replication for step 2")
        print(said)
        if said == "committed":
            # The writer may have gone on in this node's own copy; the peer's is the one that was
            # committed, and a restore gives that one, everywhere.
            (digest,) = [d for d, s in scripted_job.shards(world.other, 2).items()
                         if s["rank"] == 0]
            want = hostile.shape(scripted_job.shard_path(world.other, digest, "data"))
            assert world.job.start() == 2
            assert hostile.shape(os.path.realpath(world.job.volumes[0].restored_path(2))) == want
    finally:
        os.close(held)
    world.check(3)


def test_d13_a_file_written_through_an_old_descriptor_after_the_commit(make_world):
    """A descriptor opened for reading and writing while the save was written may outlive it: the
    agent waits for it, then refuses the save."""
    world = make_world()
    held = []

    def build(path):
        held.append(os.open(os.path.join(path, "late"), os.O_RDWR | os.O_CREAT))
        os.write(held[0], b"x" * 100_000)

    world.hostile_save(2, build)
    try:
        assert "open for writing" in world.outcome(2)
    finally:
        os.close(held[0])
    world.check(3)


def test_d13_immutable_and_append_only_parts(make_world):
    """Flags that forbid renaming and removing: root's job can set them on what it saves."""
    world = make_world()
    probe = world.at("probe")
    with open(probe, "wb"):
        pass
    if not hostile.chattr("+i", probe):
        pytest.skip("needs a file system with the immutable flag, and the right to set it")
    assert hostile.chattr("-i", probe)
    os.unlink(probe)

    def build(path):
        for flag in ("i", "a"):
            os.mkdir(os.path.join(path, flag))
            with open(os.path.join(path, flag, "f"), "wb") as f:
                f.write(b"x")
            assert hostile.chattr(f"+{flag}", os.path.join(path, flag, "f"),
                                  os.path.join(path, flag))

    world.allowed_steps.add(2)
    world.hostile_save(2, build)
    print(world.outcome(2))
    # The save's own directory can't even be renamed.
    os.mkdir(world.at("step=3"))
    with open(world.at("step=3", "f"), "wb"):
        pass
    os.rename(world.at("step=3"), world.at("3"))
    hostile.chattr("+i", world.at("3"))
    world.check(4)
    # Nothing of it is left anywhere.
    assert not os.path.lexists(world.at("3"))
    for node in world.cluster.nodes:
        for part in ("staged", "trash", "incoming"):
            world.cluster.wait_for(lambda: os.listdir(os.path.join(node.store, part)) == [], 20,
                                   f"{node.name}'s {part} to be empty")


def test_d13_a_full_volume(make_world):
    """The job leaves no byte and no file free: its save is refused or taken, and the service
    starts all the same."""
    world = make_world(ram_mib=64)
    if not world.cluster.mounted:
        pytest.skip("needs a tmpfs of its own for each node, with a size")
    filler = world.at("filler")
    with open(filler, "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(1 << 20))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    world.node.kill()
    world.node.start()
    world.node.wait_ready()
    world.was_restarted()
    os.unlink(filler)
    world.check(3)


# ---- anything at all

def plant_anything(world, draw, top):
    """A tree of everything that a job can make, drawn; returns what of it no save may hold."""
    illegal = []
    directories = [top]
    names = [b"a", b"b b", b"\xff", b"new\nline", b"\x1b[31m", b"d" * 255, b"commit_success.txt",
             b"manifest.ocdbt", b"_CHECKPOINT_METADATA", b"-", b"~", b"x" * 100]
    for i in range(draw.randrange(1, 40)):
        where = draw.choice(directories)
        path = os.path.join(where, b"%d" % i + draw.choice(names)[:250])
        if len(path) > 3000:
            continue
        kind = draw.choices(
            ["file", "directory", "link", "second name", "pipe", "socket", "device", "hole",
             "giant", "deep"], [40, 20, 15, 8, 1, 1, 1, 4, 1, 1])[0]
        if kind == "directory":
            os.mkdir(path, draw.choice([0o755, 0o700, 0o000, 0o1777]))
            directories.append(path)
        elif kind == "link":
            os.symlink(draw.choice([world.secret, world.folder, "/", ".", "..", "a", "/proc/1/environ",
                                    "../" * 50 + "etc/shadow", "\n"]), path)
        elif kind == "second name":
            files = [p for p in os.scandir(where) if p.is_file(follow_symlinks=False)]
            if files:
                os.link(draw.choice(files).path, path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            os.mknod(path, 0o600 | stat.S_IFSOCK)
        elif kind == "device":
            os.mknod(path, 0o600 | draw.choice([stat.S_IFCHR, stat.S_IFBLK]), os.makedev(1, 5))
        else:
            with open(path, "wb") as f:
                f.write(draw.randbytes(draw.randrange(20_000)))
                if kind == "hole":
                    f.truncate(draw.randrange(1 << 20))
                elif kind == "giant":
                    f.truncate(1 << 42)
            os.chmod(path, draw.choice([0o644, 0o600, 0o000, 0o4755, 0o666]))
            if kind == "deep":
                os.mkdir(path + b"d")
                hostile.make_deep(path + b"d", 200)
        if kind in ("pipe", "socket", "device", "giant", "deep"):
            illegal.append(kind)
    return illegal


def test_d13_random_hostile_trees(make_world):
    """Each is committed as exactly what it is, or refused where it holds what no save may."""
    world = make_world()
    draw = random.Random(world.seed)
    outcomes = []
    for step in range(2, 27):
        found = {}

        def build(path):
            found["illegal"] = plant_anything(world, draw, os.fsencode(path))
            if not found["illegal"]:
                found["shape"] = hostile.shape(path)

        world.hostile_save(step, build)
        said = world.outcome(step)
        outcomes.append(said == "committed")
        print(step, found["illegal"], said[:200])
        assert (said == "committed") == (not found["illegal"]), (step, found["illegal"], said)
        if said != "committed":
            continue
        world.allowed_steps.add(step)
        (digest,) = [d for d, s in scripted_job.shards(world.other, step).items()
                     if s["rank"] == 0]
        got = hostile.shape(scripted_job.shard_path(world.other, digest, "data"))
        assert got == found["shape"], f"step {step} was committed as something else"
        world.job.saved = step
    assert True in outcomes and False in outcomes, outcomes
    world.check(100)
