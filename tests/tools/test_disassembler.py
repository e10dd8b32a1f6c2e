"""tools/disassembler.py: where a disassembler is looked for, and one that fails."""

import disassembler
import pytest

from vgg16gpu.devices.cuda.probe import Toolkit


def program(path, text="#!/bin/sh\nexit 0\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def toolkit(folder):
    return Toolkit(folder / "bin" / "nvcc", folder / "include", (13, 0), (), "PATH")


def find(tmp_path):
    return disassembler.find(toolkit(tmp_path / "cuda"), str(tmp_path / "path"), [str(tmp_path / "site")])


def test_places_in_their_order(tmp_path):
    assert find(tmp_path) is None
    packaged = program(tmp_path / "site/nvidia/cu13/bin/nvdisasm")
    assert find(tmp_path) == packaged
    on_path = program(tmp_path / "path/nvdisasm")
    assert find(tmp_path) == on_path
    beside = program(tmp_path / "cuda/bin/nvdisasm")
    assert find(tmp_path) == beside


def test_a_file_that_cannot_be_started_is_none(tmp_path):
    program(tmp_path / "cuda/bin/nvdisasm").chmod(0o644)
    assert find(tmp_path) is None


def test_what_it_prints(tmp_path):
    echo = program(tmp_path / "nvdisasm", '#!/bin/sh\necho "$@"\n')
    assert disassembler.disassemble(echo, tmp_path / "k.cubin") == f"-c {tmp_path / 'k.cubin'}\n"


def test_one_that_fails(tmp_path):
    failing = program(tmp_path / "nvdisasm", "#!/bin/sh\necho no cubin >&2\nexit 3\n")
    with pytest.raises(RuntimeError, match="nvdisasm fails with 3: no cubin"):
        disassembler.disassemble(failing, tmp_path / "k.cubin")
