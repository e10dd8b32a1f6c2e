"""Write a CUDA kernel of your own and see it beside others: right or wrong, and how fast.

python examples/own_kernel.py [FOLDER]

The first run writes a convolution that works to FOLDER/mine.cu, as `vgg16gpu lab new mine` does. Change it and run this
again. Without a GPU the same file is compiled for the CPU. FOLDER/test_mine.py is its test, for pytest.
"""

import subprocess
import sys
from pathlib import Path

from vgg16gpu_lab.own.template import write_template

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/own_kernel")
if not (folder / "mine.cu").exists():
    write_template(folder, "mine")

# Each is checked against float64, on a size that is no multiple of a block, before it is timed; yours at first in a
# process of its own, so that an endless loop or a wild pointer costs a message.
others = ["direct-rows", "direct-chw"]
options = ["--dir", folder, "--output", folder / "results", "--size", "33", "--blocks", "16", "--quick"]
command = [sys.executable, "-m", "vgg16gpu", "lab", "run", "mine", *others, *options]
sys.exit(subprocess.run(list(map(str, command)), check=False).returncode)
