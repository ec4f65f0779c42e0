"""What the agent that stays costs: `python -m tests.bench_daemon [--rescans 5000] [--idle 600]`.

Status 1 where a figure is above its limit; tests/cost.py says what is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests import cost


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_daemon")
    parser.add_argument("--rescans", type=int, default=5000, help="how many of them must not make it grow")
    parser.add_argument("--idle", type=float, default=60 if os.environ.get("CI") else 120, metavar="SECONDS")
    chosen = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        # An installed package has its byte code beside it; a checkout may be told to write none.
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/byte-code"
        for figure in cost.rescans(Path(folder), max(chosen.rescans, cost.WARM + cost.WINDOW)):
            print(figure, flush=True)
            figures.append(figure)
        with cost.idle(Path(folder)) as agent:
            figures += [agent.over(chosen.idle)[0], agent.memory()]
            print(*figures[-2:], sep="\n")
    sys.exit(not all(figure.good for figure in figures))


if __name__ == "__main__":
    main()
