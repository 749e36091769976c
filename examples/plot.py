# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Draws a sweep's table: utilisation against queueing delay, a mark for each controller and scenario.

pip install ".[results,sweep]"
python examples/plot.py runs/sweep/results.parquet --out runs/sweep.svg
"""

import argparse
import re
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pyarrow.parquet as pq


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", type=Path, help="results.parquet of python -m thalweg.sweep")
    parser.add_argument("--out", type=Path, required=True, help="picture: .svg, .png or .pdf")
    given = parser.parse_args()
    figures = ["queue_mean_us", "utilisation_percent"]
    table = pq.read_table(given.table, columns=["controller", "scenario", *figures])
    # Means over the seeds.
    means = table.group_by(["controller", "scenario"]).aggregate([(it, "mean") for it in figures])
    marks = dict(zip(sorted(set(means["scenario"].to_pylist())), "osD^vP*X" * 32))
    controllers = sorted(set(means["controller"].to_pylist()))
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for row in means.to_pylist():
        color = f"C{controllers.index(row['controller'])}"
        place = row["queue_mean_us_mean"], row["utilisation_percent_mean"]
        axes.plot(*place, marks[row["scenario"]], color=color)
    for number, controller in enumerate(controllers):
        axes.plot([], [], "_", color=f"C{number}", label=re.sub("model=[^,]*/", "", controller))
    for scenario, mark in marks.items():
        axes.plot([], [], mark, color="grey", label=scenario)
    axes.set(xscale="log", xlabel="mean queueing delay, µs", ylabel="utilisation, %")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out)


if __name__ == "__main__":
    main()
