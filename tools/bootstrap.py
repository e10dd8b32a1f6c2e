"""Make and keep up to date the environment that `make` runs in: `python3 tools/bootstrap.py .venv [test]`.

With `--in-place` it installs nothing: it tells the user's own environment which commands serving/ and lab/ have.

Standard library only, and readable by Python 3.6, so that one too old can say so (hence the quoted annotations).
A stamp in the environment holds what was installed; while it is true nothing is done, in a fraction of a second.
"""

import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
BESIDE = ("serving", "lab")  # folders of packages that bring further commands
STAMP = "vgg16gpu-setup.json"
OWN_ENVIRONMENT = "make VENV= PYTHON=python3"
PERIOD = 5.0  # seconds of silence between two lines about what pip is at


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def check_machine(system: str, machine: str, version: "tuple[int, ...]") -> None:
    """Raise SetupError unless this system, processor and Python are supported."""
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise SetupError(
            f"{system} on {machine} is not supported: vgg16gpu runs on Linux, x86-64 or aarch64 "
            "(on Windows, inside WSL 2)."
        )
    if version[:2] < OLDEST:
        raise SetupError(
            f"Python {version[0]}.{version[1]} is too old, {OLDEST[0]}.{OLDEST[1]} or newer is needed. "
            "If there is one, name it: make PYTHON=python3.12"
        )


def check_compiler(chosen: str, search_path: str) -> None:
    """Raise SetupError if there is no C++ compiler: the cpu device compiles the kernels, and so does nvcc."""
    names = chosen.split()[:1] or ["g++", "clang++", "c++"]
    if not any(shutil.which(name, path=search_path) for name in names):
        raise SetupError(
            f"No C++ compiler ({' or '.join(names)}): apt install g++, or dnf install gcc-c++, or set CXX."
        )


def check_venv(modules: "tuple[str, ...]" = ("venv", "ensurepip")) -> None:
    """Raise SetupError if this Python cannot make environments (Debian keeps that in a package of its own)."""
    for module in modules:
        try:
            __import__(module)
        except ImportError as error:
            raise SetupError(
                f"This Python has no module {module}: apt install python3-venv, or run in an environment of your own: "
                + OWN_ENVIRONMENT
            ) from error


def driver_version(library: str = "libcuda.so.1") -> int:
    """What the NVIDIA driver answers (13000 is CUDA 13.0), 0 without a driver."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return number.value


def wanted_state(extras: "list[str]", driver: int) -> "dict[str, object]":
    """What a finished set-up depends on; the stamp holds it."""
    folders = [ROOT] + [ROOT / name for name in BESIDE]
    files = b"".join((folder / "pyproject.toml").read_bytes() for folder in folders)
    project = hashlib.sha256(files).hexdigest()
    return {"root": str(ROOT), "project": project, "extras": extras, "driver": driver}


def read_stamp(venv: Path) -> "dict[str, object]":
    """What was installed, or {} if nothing or not known."""
    try:
        state = json.loads((venv / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_stamp(venv: Path, state: "dict[str, object]") -> None:
    """Note what was installed; whole or not at all."""
    partial = venv / f"{STAMP}.partial"
    partial.write_text(json.dumps(state, indent=1), encoding="utf-8")
    partial.replace(venv / STAMP)


def stamped_extras(stamp: "dict[str, object]") -> "set[str]":
    """The extras that a stamp names."""
    extras = stamp.get("extras")
    return {str(extra) for extra in extras} if isinstance(extras, list) else set()


def is_current(stamp: "dict[str, object]", wanted: "dict[str, object]") -> bool:
    """Whether an environment has all that is wanted; one with more extras has."""
    same = all(stamp.get(key) == wanted[key] for key in ("root", "project", "driver"))
    return same and stamped_extras(wanted) <= stamped_extras(stamp)


def works(python: Path, module: str) -> bool:
    """Whether an environment's Python starts and finds a module."""
    command = [str(python), "-c", f"import {module}"]
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def make_venv(venv: Path) -> Path:
    """Create the environment unless there is one; one that is there is never emptied. Returns its Python."""
    python = venv / "bin" / "python"
    if works(python, "pip"):
        return python
    if venv.is_dir() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        raise SetupError(f"{venv} is not a Python environment: name another folder, make VENV=...")
    print(f"Making the environment {venv} with Python {platform.python_version()}", flush=True)
    subprocess.call([sys.executable, "-m", "venv", str(venv)])
    if not works(python, "pip"):
        raise SetupError(f"The environment {venv} cannot be made or mended: remove it (rm -r {venv}) and repeat.")
    return python


def pip_stage(line: str) -> str:
    """What pip is at, from a line that it prints; "" for a line that does not tell."""
    found = re.match(r"(?:Collecting |Processing (?:\S*/)?)([A-Za-z0-9_.]+(?:-[A-Za-z_]+)*)", line)
    if found:
        return f"collecting {found.group(1)}"
    found = re.match(r"\s*Downloading (?:\S+/)?([^\s-]+)-\S+ (\(.+\))", line)
    if found:
        return f"downloading {found.group(1)} {found.group(2)}"
    found = re.match(r"Installing collected packages: (.+)", line)
    return f"installing {len(found.group(1).split(','))} packages" if found else ""


def run_pip(command: "list[str]") -> int:
    """Run pip and say every few seconds what it is at, while it is silent; its exit status."""
    started, stage, finished = time.monotonic(), "starting", threading.Event()

    def tell() -> None:
        while not finished.wait(PERIOD):
            print(f"pip: {stage}, {time.monotonic() - started:.0f} s", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    with subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True, errors="replace") as process:
        for line in process.stdout or ():
            stage = pip_stage(line) or stage
    finished.set()
    teller.join()
    return process.returncode


def install(venv: Path, wanted: "dict[str, object]") -> None:
    """Install the project into the environment, and PyCUDA if there is an NVIDIA driver."""
    python = make_venv(venv)
    extras = sorted(stamped_extras(wanted) | stamped_extras(read_stamp(venv)))
    suffix = f"[{','.join(extras)}]" if extras else ""
    print(f"Installing vgg16gpu{suffix} and what it needs into {venv}", flush=True)
    cuda_setup = [str(python), "-m", "vgg16gpu.cuda_setup"]
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    # PyCUDA takes longest, on one core at the end. It is made beside, into the cache, and installed after all else.
    wheel = subprocess.Popen([*cuda_setup, "--wheel"], cwd=str(ROOT)) if wanted["driver"] else None
    try:
        # As a path: a finder in its place comes after sys.path, where beside a clone its folder hides the package.
        tested = {name: "[test]" if name == "serving" and "test" in extras else "" for name in BESIDE}
        packages = [f"{ROOT}{suffix}"] + [f"{ROOT / name}{extra}" for name, extra in tested.items()]
        editable = [word for package in packages for word in ("--editable", package)]
        status = run_pip([*pip, "--config-settings=editable_mode=compat", *editable])
    finally:
        if wheel:
            wheel.wait()
    if status != 0:
        raise SetupError(
            "pip could not install the packages, its message is above. Without a network, run in an environment that "
            f"has them: {OWN_ENVIRONMENT}"
        )
    if wheel and subprocess.call(cuda_setup) != 0:
        print("To try the GPU again later: make cuda", flush=True)
    write_stamp(venv, {**wanted, "extras": extras})


def write_entry_points(folder: Path) -> None:
    """Write the metadata by which Python finds a package's commands where its folder is only in PYTHONPATH."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    name = re.search(r'^name = "(.+)"$', text, re.MULTILINE)
    version = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    points = re.findall(r'^\[project\.entry-points\."(.+)"\]\n((?:.+\n)+)', text, re.MULTILINE)
    if not (name and version and points):
        raise SetupError(f"{folder / 'pyproject.toml'} names no version or no commands")
    metadata = folder / f"{name.group(1).replace('-', '_')}.egg-info"
    metadata.mkdir(exist_ok=True)
    groups = [f"[{group}]\n{lines}" for group, lines in points]
    (metadata / "entry_points.txt").write_text("".join(groups).replace('"', ""), encoding="utf-8")
    header = f"Metadata-Version: 2.1\nName: {name.group(1)}\nVersion: {version.group(1)}\n"
    (metadata / "PKG-INFO").write_text(header, encoding="utf-8")


def main(arguments: "list[str]") -> int:
    """Bring `arguments[0]` (a folder) up to date with the extras in `arguments[1:]`; 1 and one line if that fails."""
    try:
        if arguments[:1] == ["--in-place"]:
            for name in BESIDE:
                write_entry_points(ROOT / name)
            return 0
        check_machine(platform.system(), platform.machine(), tuple(sys.version_info[:3]))
        check_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", os.defpath))
        check_venv()
        venv = Path.cwd() / arguments[0]
        wanted = wanted_state(sorted(arguments[1:]), driver_version())
        if not (is_current(read_stamp(venv), wanted) and works(venv / "bin" / "python", "vgg16gpu")):
            install(venv, wanted)
    except SetupError as error:
        print(f"make: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
