"""tools/recording/steps.py: what is run, for how long, and what is said of it."""

import os
import re
import sys
import time
from pathlib import Path

from recording import steps
from recording.steps import Step, run_all, table


def python(name, code, seconds=0.1, **more):
    return Step(name, (sys.executable, "-c", code), seconds, **more)


def test_a_step_that_makes_its_record(tmp_path):
    path = tmp_path / "records" / "tests-x.json"
    (ended,) = run_all(
        [python("tests", f"open({str(path)!r}, 'w').write('{{\"tests\": {{\"passed\": 3}}}}')", makes=(path,))],
        60,
        tmp_path,
    )
    assert (ended.status, ended.is_well) == ("done", True)
    assert re.fullmatch(r"tests +0 +\d+\.\d  done +tests-x\.json: 3 passed", ended.line())
    assert table([ended]).splitlines()[1] == ended.line()


def test_what_a_step_prints_goes_to_its_log(tmp_path, capsys):
    (ended,) = run_all([python("speaks", "import sys; print('one'); print('two', file=sys.stderr)")], 60, tmp_path)
    assert sorted(ended.log.read_text().split()) == ["one", "two"]
    assert "one\n" not in capsys.readouterr().out


def test_what_a_step_prints_may_be_the_record(tmp_path):
    path = tmp_path / "new" / "out.json"
    (ended,) = run_all(
        [python("prints", "import sys; print('{}'); sys.stderr.write('said')", makes=(path,), stdout=path)],
        60,
        tmp_path,
    )
    assert (ended.status, path.read_text(), ended.log.read_text()) == ("done", "{}\n", "said")


def test_a_failed_step_shows_its_end_and_the_next_one_runs(tmp_path, capsys):
    code = f"print('\\n'.join(map(str, range({steps.TAIL + 5})))); raise SystemExit(3)"
    failed, fine = run_all([python("fails", code), python("fine", "pass")], 60, tmp_path)
    assert (failed.status, failed.is_well, fine.status) == ("exit code 3", False, "done")
    shown = capsys.readouterr().out.splitlines()
    assert "5" in shown
    assert "4" not in shown


def test_an_old_record_is_none(tmp_path):
    path = tmp_path / "old.json"
    path.write_text("{}")
    (ended,) = run_all([python("makes nothing", "pass", makes=(path,))], 60, tmp_path)
    assert (ended.status, ended.is_well) == ("no record", False)
    assert "old.json" not in ended.line()


def test_a_step_that_fails_may_have_its_record(tmp_path):
    """As tests have that ran to their end."""
    path = tmp_path / "tests-x.json"
    write = f"open({str(path)!r}, 'w').write('{{\"tests\": {{\"failed\": 1}}}}'); raise SystemExit(1)"
    (ended,) = run_all([python("tests", write, makes=(path,))], 60, tmp_path)
    assert re.search(r"exit code 1 +tests-x\.json: 1 failed$", ended.line())


def test_a_program_that_is_not_there(tmp_path, capsys):
    (ended,) = run_all([Step("absent", ("/nowhere/program",), 1)], 60, tmp_path)
    assert ended.status == "exit code 127"
    assert "/nowhere/program" in capsys.readouterr().out


def test_time_is_kept(tmp_path):
    """A step beyond the limit is stopped with what it has started; one that does not fit is not begun."""
    child = "import subprocess, sys, time; "
    child += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    child += f"open({str(tmp_path / 'child')!r}, 'w').write(str(p.pid)); time.sleep(60)"
    started = time.monotonic()
    late, large, small = run_all(
        [python("late", child), python("large", "pass", 50), python("small", "pass")], 6, tmp_path
    )
    assert time.monotonic() - started < 30
    assert [each.status for each in (late, large, small)] == ["stopped", "no time left", "no time left"]
    assert not any(each.is_well for each in (late, large, small))
    assert not is_running(int((tmp_path / "child").read_text()))


def is_running(process):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":  # nobody has asked yet
                return False
        except OSError:
            return False
        time.sleep(0.05)
    return True


def test_what_is_left_out(tmp_path):
    there = tmp_path / "there"
    there.touch()
    absent, made = run_all(
        [
            python("absent", "raise SystemExit(1)", needs=("sys", "no_such_package")),
            python("made", "raise SystemExit(1)", once=there),
        ],
        60,
        tmp_path,
    )
    assert (absent.status, absent.is_well) == ("no_such_package not installed", True)
    assert (made.status, made.is_well) == ("made before", True)


def test_folder_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SET_BEFORE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    code = "import os; print(os.getcwd(), os.environ.get('SET_BEFORE'), os.environ['MINE'], os.environ['PYTHONPATH'])"
    step = python("where", code, cwd=tmp_path, environ={"SET_BEFORE": None, "MINE": "a b"})
    (ended,) = run_all([step], 60, tmp_path / "logs")
    assert ended.log.read_text().rstrip() == f"{tmp_path} None a b {tmp_path}{os.pathsep}/elsewhere"
    assert step.shown().startswith(f"cd {tmp_path} && env -u SET_BEFORE MINE='a b' python -c ")
