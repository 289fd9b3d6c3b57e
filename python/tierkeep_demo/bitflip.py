"""Flips one bit: of a file on disk, or of an array. Everything follows from a seed.

  python -m tierkeep_demo.bitflip FILE --seed N
"""

import argparse
import array
import fcntl
import os
import random

_FS_IOC_GETFLAGS = 0x80086601
_FS_IOC_SETFLAGS = 0x40086602
_FS_IMMUTABLE_FL = 0x10


def _change_flags(descriptor, clear=0, add=0):
    """Returns the file's inode flags from before the change; 0 where there are none."""
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, flags)
        before = flags[0]
        flags[0] = (before & ~clear) | add
        if flags[0] != before:
            fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, flags)
        return before
    except OSError:
        return 0


def flip_bit_in_file(path, seed):
    """Flips one seed-chosen bit of `path` in place and returns (byte offset, bit).

    Size and times stay as they were, as with a real memory fault, and so does the immutable
    flag, which is taken off for the moment of the write. Works through a hard link: whoever
    shares the inode sees the change.
    """
    before = os.stat(path)
    if before.st_size == 0:
        raise ValueError(f"{path} is empty: there is no bit to flip")
    draw = random.Random(seed)
    offset, bit = draw.randrange(before.st_size), draw.randrange(8)
    reader = os.open(path, os.O_RDONLY)
    try:
        flags = _change_flags(reader, clear=_FS_IMMUTABLE_FL)
        writer = os.open(path, os.O_RDWR)
        try:
            old = os.pread(writer, 1, offset)[0]
            os.pwrite(writer, bytes([old ^ (1 << bit)]), offset)
        finally:
            os.close(writer)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        _change_flags(reader, add=flags & _FS_IMMUTABLE_FL)
    finally:
        os.close(reader)
    return offset, bit


def choose_float_bit(seed, names, size_of):
    """Chooses (name, element, bit) of a 32-bit float among `names`.

    The bit is one of the upper mantissa bits: the value changes by between a 4096th and a half of
    itself, so the difference can't be lost in the rounding of the very next step.
    """
    draw = random.Random(seed)
    name = draw.choice(sorted(names))
    return name, draw.randrange(size_of(name)), draw.randrange(11, 23)


def flip_bit_in_floats(values, element, bit):
    """Flips one bit of a numpy float32 array in place; `element` counts in C order."""
    values.reshape(-1).view("uint32")[element] ^= 1 << bit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    offset, bit = flip_bit_in_file(options.file, options.seed)
    print(f"{options.file}: flipped bit {bit} of byte {offset}")


if __name__ == "__main__":
    main()
