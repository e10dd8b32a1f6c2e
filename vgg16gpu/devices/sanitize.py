"""`python -m vgg16gpu.devices.sanitize`: devices/cpu/sanitize.py by the name that people know."""

import sys

from vgg16gpu.devices.cpu.sanitize import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
