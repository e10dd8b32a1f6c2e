"""`python -m vgg16gpu.cuda_setup`: devices/cuda/install/setup.py by the name that people know."""

import sys

from vgg16gpu.devices.cuda.install.setup import main

if __name__ == "__main__":
    sys.exit(main())
