"""Time `infer` of one picture in fresh processes of a checkout's package: for `tools/record.py compare`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

from vgg16gpu.bench.measure.cold_start import median_parts, one_start, with_byte_code
from vgg16gpu.bench.measure.environment import commit, environment
from vgg16gpu.devices import open_device


def main(arguments: Sequence[str] | None = None) -> None:
    """Start it once untimed, then `--runs` times; write every sample, the medians and their parts, in seconds."""
    parser = argparse.ArgumentParser(prog="tools/recording/starts.py", description="Time the start of infer.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("model")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    # -P: the folder in which this runs is a checkout, too, and must not come before the one that is asked for.
    command = [sys.executable, "-P", "-u", "-m", "vgg16gpu", "-v", "infer", str(options.picture.resolve())]
    command += ["--model", options.model, "--device", options.device]
    others = filter(None, [os.environ.get("PYTHONPATH")])
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        environ = with_byte_code(folder)
        environ["PYTHONPATH"] = os.pathsep.join([str(options.checkout.resolve()), *others])
        starts = [one_start(command, environ) for _ in range(1 + options.runs)][1:]
    results, exits = [start.result_s for start in starts], [start.exit_s for start in starts]
    found = {"to_result_s": median(results), "to_exit_s": median(exits), "results_s": results, "exits_s": exits}
    found["parts_s"] = median_parts(starts)
    with closing(open_device(options.device).device) as device:  # now that nothing is timed any more
        found["environment"] = {**environment(device), "commit": commit(options.checkout.resolve())}
    options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
