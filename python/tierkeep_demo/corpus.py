"""Training text: the Python language reference that ships inside every CPython."""

import numpy as np


def load():
    """The text as bytes 0..127 (a vocabulary of 128), in a fixed order."""
    from pydoc_data import topics
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


def batch(text, step, index, size, length):
    """Part `index` of the batch of `step`: (inputs, targets), each (size, length) of int32.

    A function of its arguments alone, so that a resumed run sees what it would have seen.
    """
    draw = np.random.default_rng((step, index))
    at = draw.integers(0, len(text) - length - 1, size)
    rows = np.stack([text[i:i + length + 1] for i in at]).astype(np.int32)
    return rows[:, :-1], rows[:, 1:]
