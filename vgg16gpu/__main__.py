"""`python -m vgg16gpu`, and the program `vgg16gpu`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Ctrl-C is one line from here on: importing it takes a tenth of a second."""
    try:
        from vgg16gpu.cli import main as run  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:  # a checkout, and another Python than that of its environment
        if error.name in ("click", "numpy", "onnx", "rich"):
            sys.exit(
                f"vgg16gpu: {error.name} is not installed for {sys.executable}: "
                "`. .venv/bin/activate` after `make demo`"
            )
        raise
    except KeyboardInterrupt:
        print("vgg16gpu: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
