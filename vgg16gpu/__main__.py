"""`python -m vgg16gpu`."""

import sys

try:
    from vgg16gpu.cli import main
except ModuleNotFoundError as error:  # a checkout, and another Python than that of its environment
    if error.name in ("click", "numpy", "onnx", "rich"):
        sys.exit(
            f"vgg16gpu: {error.name} is not installed for {sys.executable}: `. .venv/bin/activate` after `make demo`"
        )
    raise

if __name__ == "__main__":
    main()
