"""What Nsight Compute looks at: one run of a variant.

python -m vgg16gpu_lab.measure.profile_target TASK    TASK is a JSON file that `profile.profile` writes
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.devices import open_device
from vgg16gpu.errors import Error
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants import variants


def main() -> None:
    """Run the variant of the task once, and write down where."""
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    own = own_variants(Path(task["folder"])) if task["folder"] else ()
    variant = next(found for found in (*variants(), *own) if found.name == task["variant"])
    device, _ = open_device(task["device"])
    try:
        with Trial(device, variant, Problem(**task["problem"])) as trial:
            trial.run()
        Path(task["environment"]).write_text(json.dumps(environment(device)), encoding="utf-8")
    finally:
        device.close()


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit(str(error))
