"""`python -m vgg16gpu`."""

from vgg16gpu.cli import main

if __name__ == "__main__":
    main()
