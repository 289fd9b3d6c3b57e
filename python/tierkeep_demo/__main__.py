"""python -m tierkeep_demo jax|torch|negative [options of demo.py]"""

import sys

from tierkeep_demo import demo

KINDS = {"jax": [], "torch": ["--torch"], "negative": ["--negative"]}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in KINDS:
        print(__doc__, file=sys.stderr)
        return 2
    return demo.main(KINDS[sys.argv[1]] + sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
