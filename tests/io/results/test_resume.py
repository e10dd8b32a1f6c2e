"""--resume: the end equals one undisturbed run wherever the first one ended, and other files are refused untouched."""

import json
import re

import pytest

from tests.io.results.runs import (
    HOSTILE,
    WITH_RESUME,
    columns_of,
    names_of,
    record_of,
    run,
    write,
)
from tests.support import selection
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.results import list_digest, open_results, record_path

TEXT = ("csv", "jsonl")
ROWS = 24
STEP = 5 if selection.choice() == selection.REPRESENTATIVE else 1  # bytes between two ends of a torn file


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run_of(path):
    return json.loads(record_path(path).read_bytes())


@pytest.fixture
def killed(tmp_path):
    """A file with the record of a run that was killed, and what it would have become: (kind, size) -> path, whole."""

    def make(kind, size=None, **options):
        whole = tmp_path / f"whole.{kind}"
        if not whole.exists():
            run(whole, **{"count": ROWS, **options})
        path = tmp_path / f"killed.{kind}"
        path.write_bytes(whole.read_bytes()[:size])
        content = {**run_of(whole), "finished": None, "rows": None, "bytes": None, "crc32": None}
        record_path(path).write_text(json.dumps(content))
        return path, whole.read_bytes()

    return make


@pytest.mark.parametrize("kind", TEXT)
@pytest.mark.parametrize("top", [0, 1])
def test_torn_at_every_byte_of_the_last_rows(killed, kind, top):
    """Rows of names and errors with quotes and line breaks."""
    columns = columns_of(top=top, scores=False)
    _, whole = killed(kind, count=len(HOSTILE), columns=columns)
    first = whole.index(b"bytes-" if kind == "csv" else b'{"input": "tab')
    for size in range(first, len(whole) + 1, 4 * STEP - 3):
        path, _ = killed(kind, size)
        run(path, len(HOSTILE), columns, resume=True)
        assert path.read_bytes() == whole, size
    assert run_of(path)["finished"]


@pytest.mark.parametrize("kind", TEXT)
def test_torn_at_every_byte_of_the_beginning(killed, kind):
    _, whole = killed(kind)
    for size in range(0, 900, 7 * STEP):
        path, _ = killed(kind, size)
        done = run(path, ROWS, resume=True, block=100)
        assert path.read_bytes() == whole, size
        assert (done > 0) == (size > 500) or 100 < size <= 500


@pytest.mark.parametrize("kind", WITH_RESUME)
@pytest.mark.parametrize("stops", [[1], [5, 6, 17], [ROWS]])
def test_interrupted_several_times(tmp_path, kind, stops):
    path, whole = tmp_path / f"a.{kind}", tmp_path / f"whole.{kind}"
    run(whole, ROWS)
    for before, stop in zip([0, *stops], stops, strict=False):
        assert run(path, ROWS, resume=True, stop=stop, block=3) == before
        assert run_of(path)["finished"] is None
        assert run_of(path)["rows"] == stop
    started = run_of(path)["started"]
    assert run(path, ROWS, resume=True, block=4) == stops[-1]
    assert path.read_bytes() == whole.read_bytes()
    assert run_of(path)["started"] == started
    assert {file.name for file in tmp_path.iterdir()} == {
        f"{name}.{kind}{end}" for name in ("a", "whole") for end in ("", ".run.json")
    }


def test_an_empty_file_of_nobody_is_begun(tmp_path):
    (tmp_path / "a.csv").touch()
    assert run(tmp_path / "a.csv", ROWS, resume=True) == 0


OTHERS = {
    "model": ({"record": record_of(ROWS, model="cd" * 32)}, "the model file is another one; give"),
    "options": ({"record": record_of(ROWS, options={"precision": "fp16", "size": [8, 8]})}, "precision was 'fp32' and"),
    "option": ({"record": record_of(ROWS, options={"precision": "fp32"})}, "options: size was"),
    "list": ({"record": record_of(ROWS, list=list_digest(["x"]))}, "the list of inputs is another one; give"),
    "version": ({"record": record_of(ROWS, version="0.4.0")}, "version was '0.3.0' and is '0.4.0'"),
    "inputs": ({"record": record_of(ROWS, inputs=None)}, "inputs was 24 and is None"),
    "top": ({"columns": columns_of(top=1)}, "columns: top was 2 and is 1"),
    "scores": ({"columns": columns_of(scores=False)}, "columns: scores was"),
    "labels": ({"columns": columns_of(labels=list("abcde"))}, "the list of class names is another one; give"),
    "outputs": ({"columns": columns_of(outputs=("z",))}, "columns: outputs was"),
}


@pytest.mark.parametrize("kind", WITH_RESUME)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("stop", [None, 5])
def test_a_file_of_another_run_is_refused(tmp_path, kind, other, stop):
    run(tmp_path / f"a.{kind}", ROWS, stop=stop)
    before = contents(tmp_path)
    options, reason = OTHERS[other]
    with pytest.raises(InputError, match=r"of another run: .*without --resume") as caught:
        run(tmp_path / f"a.{kind}", ROWS, resume=True, **options)
    assert reason in str(caught.value)
    assert contents(tmp_path) == before


def test_columns_of_another_run_are_refused_without_its_record_saying_so(killed):
    """The header, or else the rows, are what they are."""
    for kind in TEXT:
        path, _ = killed(kind)
        content = run_of(path)
        content["run"]["columns"] = json.loads(json.dumps(columns_of(top=1).fields()))
        record_path(path).write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"columns are others|is none that this run"):
            run(path, ROWS, columns_of(top=1), resume=True)


@pytest.mark.parametrize("kind", TEXT)
@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text.replace(b"photos/17", b"photos/17,5"),
        lambda text: text.replace(b'"photos/17.jpg"', b"photos/17.jpg").replace(b"\nphotos/17", b'\n"photos/17'),
        lambda text: text.replace(b"photos/18.jpg", b'photos/1"8.jpg'),
        lambda text: text[: text.index(b"photos/16")] + b"\n" + text[text.index(b"photos/16") :],
        lambda text: text + b"\n",
        lambda text: text + b"done\n",
        lambda text: text.replace(b"input", b"Input"),
        lambda text: b"some other text\nof somebody\n" + text[:0],
        lambda text: text.replace(b"photos/18", b"photos/" + b"18" * 2000000),
        lambda text: b'{"some": 1}\n' + text[:0],
    ],
)
def test_a_file_that_somebody_changed_is_refused(killed, kind, edit):
    path, whole = killed(kind)
    path.write_bytes(edit(whole))
    assert path.read_bytes() != whole
    before = path.read_bytes()
    with pytest.raises(InputError, match="without --resume"):
        run(path, ROWS, resume=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", TEXT)
@pytest.mark.parametrize("stop", [None, 20])
def test_numbers_that_somebody_changed_are_refused(tmp_path, kind, stop):
    """A record that says how the run left the file knows each byte."""
    path = tmp_path / f"a.{kind}"
    run(path, ROWS, stop=stop)
    text = path.read_bytes()
    row = text.index(b"photos/16.jpg") + len("photos/16.jpg")
    *_, digit = re.compile(rb"[0-9](?=[]}]*\n)").search(text, row).span()  # the last of the row
    path.write_bytes(text[: digit - 1] + (b"4" if text[digit - 1 : digit] == b"3" else b"3") + text[digit:])
    with pytest.raises(InputError, match="has been changed since"):
        run(path, ROWS, resume=True)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"run": 1}', '{"run": {}, "started": "x"}', "\udcff"])
@pytest.mark.parametrize("kind", TEXT)
def test_without_its_record_a_file_is_refused(killed, kind, text):
    path, whole = killed(kind)
    record_path(path).unlink()
    if text is not None:
        record_path(path).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match="without --resume to replace"):
        run(path, ROWS, resume=True)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", WITH_RESUME)
def test_rows_of_other_inputs_are_refused(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    run(path, ROWS, stop=9)
    before = contents(tmp_path)
    names = names_of(ROWS)

    def resumed(*given):
        with open_results(path, columns_of(), record_of(ROWS), resume=True) as results:
            for some in given:
                results.skip(some)
            write(results, 9, ROWS)

    for given in ([[*names[:4], "x", *names[5:9]]], [names[:4], names[5:9]], [names[:10]]):
        with pytest.raises(InputError, match=r"'.*a\.\w+' (is of|has 9 rows)"):
            resumed(*given)
    with pytest.raises(InputError, match="9 inputs, and this run has 8"):
        resumed(names[:8])
    assert contents(tmp_path) == before
    resumed(names[:4], names[4:9])


@pytest.mark.parametrize("kind", WITH_RESUME)
@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_goes_while_it_is_written_is_told(tmp_path, kind, replaced):
    """The record of this run must not come to lie beside another file."""
    path = tmp_path / f"a.{kind}"
    there = path if kind != "parquet" else tmp_path / "a.parquet.partial"

    def disturbed():
        with open_results(path, columns_of(), record_of(ROWS)) as results:
            write(results, 0, ROWS)
            content = there.read_bytes()
            there.unlink()
            if replaced:
                there.write_bytes(content)
                record_path(path).write_text("of another run")
            results.finish()

    with pytest.raises(ModelError, match=r"removed or replaced it while|cannot be written"):
        disturbed()
    if replaced:
        assert record_path(path).read_text() == "of another run"
