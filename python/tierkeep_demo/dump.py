"""The whole state of a training process as plain bytes, and a comparison byte by byte.

`state.bin` holds every leaf's bytes one after the other in order of name; `state.json` says for
each its name, type, shape, place and SHA-256. Equal files mean equal states, bit for bit.
"""

import hashlib
import json
import os


def write_dump(directory, leaves):
    """`leaves`: {name: numpy array}. Returns the SHA-256 of all bytes together."""
    os.makedirs(directory, exist_ok=True)
    index, whole, at = [], hashlib.sha256(), 0
    with open(os.path.join(directory, "state.bin"), "wb") as out:
        for name in sorted(leaves):
            value = leaves[name]
            data = value.tobytes()
            index.append({"name": name, "type": str(value.dtype), "shape": list(value.shape),
                          "offset": at, "bytes": len(data),
                          "sha256": hashlib.sha256(data).hexdigest()})
            whole.update(name.encode() + b"\0" + data)
            out.write(data)
            at += len(data)
    digest = whole.hexdigest()
    with open(os.path.join(directory, "state.json"), "w", encoding="utf-8") as f:
        json.dump({"sha256": digest, "leaves": index}, f, indent=1)
    return digest


def read_index(directory):
    with open(os.path.join(directory, "state.json"), encoding="utf-8") as f:
        return json.load(f)


def compare_dumps(first, second):
    """Returns (bytes compared, names of leaves that differ); names or shapes that don't match
    count as differing leaves."""
    one, two = ({x["name"]: x for x in read_index(d)["leaves"]} for d in (first, second))
    different = sorted(set(one) ^ set(two))
    compared = 0
    with open(os.path.join(first, "state.bin"), "rb") as a, \
            open(os.path.join(second, "state.bin"), "rb") as b:
        for name in sorted(set(one) & set(two)):
            x, y = one[name], two[name]
            a.seek(x["offset"])
            b.seek(y["offset"])
            same_kind = (x["type"], x["shape"]) == (y["type"], y["shape"])
            if not same_kind or a.read(x["bytes"]) != b.read(y["bytes"]):
                different.append(name)
            compared += x["bytes"]
    return compared, different
