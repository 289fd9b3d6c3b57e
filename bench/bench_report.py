"""Turns result rows into the table: value, limit, ratio, pass or FAIL for every aim."""

import statistics

import bench_machine as machine

GIB = machine.GIB
# Pages are rounded up and directories take some: what the volume table allows on top of whole
# local checkpoint sizes.
ROUNDING = 1.02


class Table:
    """Rows of the verdict; `failed` counts what missed its aim."""

    def __init__(self):
        self.rows, self.failed = [], 0

    def at_most(self, what, value, limit, how, unit="s"):
        self._add(what, value, limit, how, unit, value <= limit)

    def at_least(self, what, value, limit, how, unit):
        self._add(what, value, limit, how, unit, value >= limit)

    def _add(self, what, value, limit, how, unit, good):
        self.failed += not good
        self.rows.append((what, f"{value:.3f} {unit}", f"{limit:.3f} {unit}",
                          f"{value / limit:.2f}" if limit else "-", "pass" if good else "FAIL",
                          how))

    def print(self):
        titles = ("what", "value", "limit", "ratio", "", "the limit is")
        widths = [max(len(r[i]) for r in [titles, *self.rows]) for i in range(6)]
        for row in [titles, *self.rows]:
            print("  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip())


class Series:
    """The timed rows of one line."""

    def __init__(self, rows, line):
        self.rows = [r for r in rows if r["line"] == line and not r["warmup"]]

    def __bool__(self):
        return bool(self.rows)

    def median(self, key):
        return statistics.median(r[key] for r in self.rows)

    def mean(self, key):
        return statistics.mean(r[key] for r in self.rows)

    def most(self, key):
        return max(r[key] for r in self.rows)


def _crossing(table, plain, encrypted, scale):
    if plain:
        table.at_most("plain files, rename to committed", plain.median("seconds"), 0.65 * scale,
                      "the aim")
        table.at_least("  both directions together", plain.median("gb_s"),
                       1.3 * max(plain.median("iperf_gb_s"), plain.median("iperf_bidir_gb_s")),
                       "1.3 x iperf3 -P 4, one way or --bidir, whichever is faster", "GB/s")
        table.at_most("  processor time of both agents", plain.median("cpu_s_per_gib"), 0.62,
                      "the aim", "CPU-s/GiB")
    if plain and encrypted:
        table.at_most("encrypted, rename to committed", encrypted.median("seconds"),
                      2.5 * plain.median("seconds"), "2.5 x not encrypted")


def _orbax(table, rows, scale):
    for value_mib in (32, 4):
        if series := Series(rows, f"orbax-{value_mib}"):
            table.at_most(f"Orbax save, values of {value_mib} MiB", series.median("seconds"),
                          0.3 * scale, "the aim")
            table.at_most("  against one pass", series.median("seconds"),
                          2.5 * series.median("hash_pass_s"), "2.5 x one XXH3 pass over the bytes")


def _restores(table, rows, plain):
    for line, what in (("restore", "last yaml to links, nothing lost"),
                       ("restore-lost", "last yaml to links, one node's RAM lost")):
        if not (series := Series(rows, line)):
            continue
        limit, how = 0.05 + series.median("hash_pass_s"), "50 ms + one verifying pass"
        if line == "restore-lost":
            if not plain:
                continue
            limit += 1.2 * series.median("bytes") / 1e9 / plain.median("gb_s")
            how += " + 1.2 x transfer at the rate above"
        table.at_most(what, series.median("seconds"), limit, how)


def _resources(table, rows, plain):
    if idle := Series(rows, "idle"):
        table.at_most("idle, the busier node", idle.mean("cpu_percent"), 0.02, "the aim", "% CPU")
        table.at_most("  anonymous + file memory", idle.most("rss_mib"), 40, "the aim", "MiB")
    for series, what, rest in ((plain, "one peer", 2),
                               (Series(rows, "orbax-32"), "data parallel", 1)):
        if series:
            table.at_most(f"volume, {what}, committed", series.most("resting_copies"),
                          rest * ROUNDING, "docs/ARCHITECTURE.md", "sizes")
            table.at_most(f"volume, {what}, next arriving", series.most("peak_copies"),
                          2 * rest * ROUNDING, "docs/ARCHITECTURE.md", "sizes")


def show(head, rows):
    """Prints the table; returns 0 if every line passes, else 1."""
    rows = [r for r in rows if "line" in r]
    table = Table()
    scale = head["size_mib"] / 1024  # the aims in seconds are for 1 GiB a node
    plain = Series(rows, "plain")
    _crossing(table, plain, Series(rows, "encrypted"), scale)
    _orbax(table, rows, scale)
    _restores(table, rows, plain)
    _resources(table, rows, plain)
    m = head["machine"]
    print(f"\n{head['nodes']} nodes, {head['size_mib']} MiB a node, medians of {head['runs']} runs, "
          f"{head['date'][:10]}, {m['cores']} x {m['processor']}, Linux {m['kernel']}\n")
    table.print()
    busy = [r["others_cores"] for r in rows if "others_cores" in r and not r["warmup"]]
    if busy and statistics.median(busy) > 0.3:
        left = (", with what was left to them" if head.get("cpu_priority") else
                ": these numbers are not worth much")
        print(f"\nOther programs used {statistics.median(busy):.1f} cores meanwhile{left}.")
    print(f"\n{len(table.rows) - table.failed} of {len(table.rows)} pass")
    return 1 if table.failed else 0
