"""`infer --shard I/N --output DIR`: shards that lie in one folder are the rows of one plain run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.support.later import later
from tests.support.small_photos import small_photos
from vgg16gpu.cli import cli
from vgg16gpu.cluster.shards import ShardWorker

COUNT = 23
BROKEN = 17


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = small_photos(tmp_path_factory.mktemp("photos"), COUNT)
    (path / f"{BROKEN}.jpg").write_text("broken")
    return path


@pytest.fixture(scope="module")
def plain(folder, tmp_path_factory):
    """The rows of one plain run."""
    path = tmp_path_factory.mktemp("plain") / "rows.parquet"
    assert infer(folder, "--output", path).exit_code == 1
    return pq.read_table(path)


def command(*arguments):
    return [*map(str, ("infer", "--model", "digits", "--device", "cpu", "--batch", 4, "--top", 2, *arguments))]


def infer(*arguments):
    return CliRunner().invoke(cli, command(*arguments))


def shard(part, folder, output, *arguments):
    return infer("--shard", part, folder, "--output", output, *arguments)


def rows(output):
    return pa.concat_tables(pq.read_table(path) for path in sorted(output.glob("part-*.parquet")))


def computed(output):
    """The numbers of the shards that were computed, in the order of the logs."""
    return [json.loads(line)["shard"] for path in output.glob("_log/*") for line in path.read_text().splitlines()]


def test_three_processes_give_the_rows_of_one_run(folder, plain, tmp_path):
    output = tmp_path / "rows"
    for number, code in ((2, 0), (0, 0), (1, 1)):  # the last one ends the job, and tells of the broken picture
        result = shard(f"{number}/3", folder, output, "--shard-size", 5)
        assert result.exit_code == code, result.output
        assert (output / "_SUCCESS").exists() == (number == 1)
    assert [path.name for path in sorted(output.glob("part-*"))] == [f"part-0000{k}.parquet" for k in range(5)]
    assert rows(output).equals(plain.cast(rows(output).schema))
    assert pq.read_table(output).num_rows == COUNT  # the folder as one data set
    summary = json.loads((output / "_summary.json").read_text())
    counts = [summary[name] for name in ("inputs", "rows", "answered", "errors", "shards", "computed")]
    assert counts == [COUNT, COUNT, COUNT - 1, 1, 5, 5]
    assert not (output / "_temporary").exists()
    again = shard("0/1", folder, output)  # another number of processes, the same shards
    assert (again.exit_code, len(computed(output))) == (1, 5)
    assert f"{COUNT:,} inputs: {COUNT - 1:,} answered, 1 not; 5 shards in" in again.stdout


def test_another_job_list_or_folder_is_refused(folder, tmp_path):
    output = tmp_path / "rows"
    assert shard("0/9", folder, output, "--shard-size", 5).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    for arguments, words in (
        (("--model", "digits", "--top", 3), "columns: top was 2 and is 3"),
        (("--precision", "int8"), "precision was"),
        (("--shard-size", 11), "shard_size was 5 and is 11"),
        (("--batch", 2), "batch was 4 and is 2"),
    ):
        result = shard("1/9", folder, output, *arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "name a new folder" in result.stderr
        assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    result = shard("0/9", folder / "00.jpg", output)
    assert (result.exit_code, "the list of inputs is another one" in result.stderr) == (2, True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    result = shard("0/1", folder, tmp_path / "other")
    assert (result.exit_code, "holds 'mine.txt' and no job" in result.stderr) == (2, True)
    (tmp_path / "file").write_text("")
    assert "is a file; name a folder" in shard("0/1", folder, tmp_path / "file").stderr


def test_a_part_that_is_wrong_is_no_success(folder, tmp_path):
    output = tmp_path / "rows"
    assert shard("0/2", folder, output, "--shard-size", 5).exit_code == 0
    shutil.copy(output / "part-00000.parquet", output / "part-00001.parquet")
    result = shard("1/2", folder, output, "--shard-size", 5)
    assert result.exit_code == 2
    assert "part-00001.parquet: row 0 is of" in result.stderr
    assert "remove that file, and give the same command again" in result.stderr
    assert not (output / "_SUCCESS").exists()
    (output / "part-00001.parquet").unlink()
    assert shard("1/2", folder, output).exit_code == 1  # the cut is the job's
    assert (output / "_SUCCESS").exists()
    (output / "part-00002.parquet").write_bytes(b"torn")
    (output / "_SUCCESS").unlink()
    assert "part-00002.parquet: cannot be read" in shard("0/2", folder, output).stderr


def test_a_process_that_is_killed_loses_its_shard_alone(folder, plain, tmp_path):
    output = tmp_path / "rows"
    many = tmp_path / "list.txt"
    many.write_text("".join(f"{path}\n" for path in sorted(folder.iterdir())) * 4)
    words = command("--shard", "0/1", "--shard-size", 10, "--files-from", many, "--output", output, "--quiet")
    process = subprocess.Popen([sys.executable, "-m", "vgg16gpu", *words])
    deadline = time.monotonic() + 60
    while not list(output.glob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    first = set(output.glob("part-*"))
    assert 0 < len(first) < 10
    assert not (output / "_SUCCESS").exists()
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1, result.output
    assert sorted(computed(output)) == list(range(10))  # each once
    assert rows(output).equals(pa.concat_tables([plain] * 4).cast(rows(output).schema))


def test_a_list_in_a_parquet_file(folder, plain, tmp_path):
    files = [str(path) for path in sorted(folder.iterdir())]
    table = pa.table({"label": ["?"] * COUNT, "where": files, "bytes": [Path(file).read_bytes() for file in files]})
    pq.write_table(table, tmp_path / "list.parquet", row_group_size=7)
    of_list = ("--shard", "0/1", "--shard-size", 20, "--files-from", tmp_path / "list.parquet")
    by_path = infer(*of_list, "--column", "where", "--output", tmp_path / "paths")
    assert by_path.exit_code == 1, by_path.output
    assert rows(tmp_path / "paths").equals(plain.cast(rows(tmp_path / "paths").schema))
    assert not (tmp_path / "paths" / "_manifest.parquet").exists()
    by_bytes = infer(*of_list, "--column", "bytes", "--output", tmp_path / "bytes")
    assert by_bytes.exit_code == 1, by_bytes.output
    found = rows(tmp_path / "bytes")
    assert found.column("input").to_pylist() == [f"row {number}" for number in range(COUNT)]
    assert found.drop_columns(["input", "error"]).equals(
        plain.drop_columns(["input", "error"]).cast(found.drop_columns(["input", "error"]).schema)
    )


def test_lists_that_will_not_do(tmp_path):
    pq.write_table(pa.table({"a": ["x"], "b": ["y"], "c": [1]}), tmp_path / "list.parquet")
    of_list = ("--shard", "0/1", "--files-from", tmp_path / "list.parquet", "--output", tmp_path / "rows")
    unknown = "no column 'nothing' of paths (text) or encoded pictures (binary); there are: 'a', 'b'"
    for arguments, words in ((("--column", "nothing"), unknown), ((), "no column 'path'")):
        result = infer(*of_list, *arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert not (tmp_path / "rows").exists()


def test_options_that_do_not_go_together(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, said in {
        "--shard 3/3": "'3/3' is not I/N",
        "--shard 1": "'1' is not I/N",
        "--shard 0/1": "name it by --output DIR",
        "--shard 0/1 --output rows.csv": "give a folder",
        "--shard 0/1 --output rows --table": "goes without --table",
        "--shard 0/1 --output rows --column a": "--column is of a list that is a .parquet file",
        "--shard 0/1 --ray local": "give --ray or --shard",
        "--shard-size 9": "--shard-size is of a job",
        "--files-from x.parquet": "give --shard 0/1",
        "- --shard 0/1 --output rows": "standard input (-) cannot be shared",
        "--null": "--null is of a list of names",
    }.items():
        result = infer(folder, *words.split())
        assert result.exit_code == 2, words
        assert said in " ".join(result.stderr.split()), words


def test_a_shard_that_another_process_has_computed_meanwhile_is_left(folder, plain, tmp_path, monkeypatch):
    compute = ShardWorker.compute

    def both(worker, number, *rest):
        for each in (number, number + 1):
            compute(worker, each, *rest)

    monkeypatch.setattr(ShardWorker, "compute", both)
    assert shard("0/1", folder, tmp_path / "rows", "--shard-size", 6).exit_code == 1
    assert rows(tmp_path / "rows").equals(plain.cast(rows(tmp_path / "rows").schema))
    assert sorted(computed(tmp_path / "rows")) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "damage",
    ["replaced", *later("as replaced", "cut", "longer")],
)
def test_a_part_that_changes_after_the_end_is_told(folder, tmp_path, damage):
    output = tmp_path / "rows"
    assert shard("0/1", folder, output, "--shard-size", 5).exit_code == 1
    part = output / "part-00002.parquet"
    content = part.read_bytes()
    changed = {"cut": content[:-9], "replaced": (output / "part-00004.parquet").read_bytes(), "longer": content + b"x"}
    part.write_bytes(changed[damage])
    for _ in range(2):
        result = shard("0/1", folder, output)
        assert result.exit_code == 2
        assert "part-00002.parquet: has" in result.stderr
        assert "remove that file, and give the same command again" in result.stderr
    part.unlink()
    assert shard("0/1", folder, output).exit_code == 1
    assert part.read_bytes() == content


def test_a_summary_without_sizes_is_made_again(folder, tmp_path):
    """That of an older version, or one that somebody has changed."""
    output = tmp_path / "rows"
    assert shard("0/1", folder, output, "--shard-size", 5).exit_code == 1
    whole = json.loads((output / "_summary.json").read_text())
    del whole["finished"]
    for text in ("[]", "[" * 100_000, '{"part_bytes": [1]}'):
        (output / "_summary.json").write_text(text)
        assert shard("0/1", folder, output, "--json").exit_code == 1
        found = json.loads((output / "_summary.json").read_text())
        assert {key: found[key] for key in whole} == whole
    (output / "part-00001.parquet").write_bytes(b"cut")
    (output / "_summary.json").write_text("{}")
    assert "part-00001.parquet: cannot be read" in shard("0/1", folder, output).stderr


LISTS = {
    "large text": lambda names: pa.array([name and os.fsdecode(name) for name in names], pa.large_string()),
    "category": lambda names: pa.array([name and os.fsdecode(name) for name in names]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", ["large text", "category"])
def test_a_row_without_a_path_is_a_row(folder, plain, tmp_path, kind):
    files = sorted(map(os.fsencode, folder.iterdir()))[:20]
    names = [*files[:7], None, *files[7:], None]
    pq.write_table(pa.table({"path": LISTS[kind](names)}), tmp_path / "list.parquet", row_group_size=5)
    of_list = ("--shard", "0/1", "--shard-size", 6, "--files-from", tmp_path / "list.parquet")
    result = infer(*of_list, "--output", tmp_path / "rows")
    assert result.exit_code == 1, result.output
    found = rows(tmp_path / "rows")
    assert found.column("error").to_pylist()[7] == "'row 7' has no path: its row is null"
    assert found.column("error").to_pylist()[21] == "'row 21' has no path: its row is null"
    kept = found.filter(pa.array([name is not None for name in names]))
    assert kept.equals(plain.slice(0, 20).cast(kept.schema))


@pytest.mark.parametrize("category", [False, True])
def test_paths_that_are_no_utf8(folder, tmp_path, category):
    name = os.fsencode(tmp_path) + b"/gr\xfc\xdfe.jpg"
    Path(os.fsdecode(name)).write_bytes((folder / "00.jpg").read_bytes())
    names = [os.fsencode(folder / "01.jpg"), name, b"\xff", b"", b"a\0b"]
    column = pa.array(names, pa.binary())
    text = pa.StringArray.from_buffers(len(column), *column.buffers()[1:])  # as programs in other languages write it
    column = text.dictionary_encode() if category else text
    pq.write_table(pa.table({"path": column}), tmp_path / "list.parquet")
    result = infer("--shard", "0/1", "--files-from", tmp_path / "list.parquet", "--output", tmp_path / "rows")
    assert result.exit_code == 1, result.output
    found = rows(tmp_path / "rows")
    told = [f"{folder}/01.jpg", f"{tmp_path}/gr\\xfc\\xdfe.jpg", "\\xff", "", "a\0b"]
    assert found.column("input").to_pylist() == told
    assert [bool(error) for error in found.column("error").to_pylist()] == [False, False, True, True, True]


def test_categories_of_pictures_and_of_names(folder, tmp_path):
    pictures = [(folder / "00.jpg").read_bytes(), None, (folder / "00.jpg").read_bytes()]
    table = {"image": pa.array(pictures, pa.binary()).dictionary_encode(), "name": pa.array(["a", "b", None])}
    table["name"] = table["name"].dictionary_encode()
    pq.write_table(pa.table(table), tmp_path / "list.parquet")
    of_list = ("--shard", "0/1", "--files-from", tmp_path / "list.parquet", "--column", "image")
    result = infer(*of_list, "--output", tmp_path / "rows")
    assert result.exit_code == 1, result.output
    found = rows(tmp_path / "rows")
    assert found.column("input").to_pylist() == ["a", "b", "row 2"]
    assert found.column("error").to_pylist() == [None, "'b' has no picture: its row is null", None]


def test_a_list_that_is_damaged_is_one_line(folder, tmp_path):
    files = [str(path) for path in sorted(folder.iterdir())]
    pq.write_table(pa.table({"path": files}), tmp_path / "whole.parquet", compression="gzip")
    whole = (tmp_path / "whole.parquet").read_bytes()
    for place in range(4, len(whole), 211):
        (tmp_path / "list.parquet").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        output = tmp_path / f"rows{place}"
        result = infer("--shard", "0/1", "--files-from", tmp_path / "list.parquet", "--output", output, "--quiet")
        assert result.exit_code in (0, 1, 2)
        assert result.exception is None or isinstance(result.exception, SystemExit), place
        if result.exit_code == 2:
            assert result.stderr.count("\n") == 1 or "cannot be read" in result.stderr
