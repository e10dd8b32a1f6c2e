"""tests/net/transcripts.py: what is replaced in a transcript, and what is said of one that differs."""

from __future__ import annotations

from pathlib import Path

from tests.net import transcripts
from tests.net.http_transcripts import exchanges
from tests.net.transcripts import normalised


def test_what_differs_in_each_run_becomes_a_word() -> None:
    for text, expected in {
        "Times: load 62.3 ms, build 99.7 ms (kernels 45 ms)": "Times: load QUANTITY, build QUANTITY (kernels QUANTITY)",
        "1,234 images/s": "RATE",
        '"decode_s": 0.125,': '"decode_s": NUMBER,',
        '"python": "3.11.7"': '"python": "TEXT"',
        "onnx 1.22.0, commit 4876fe70d": "onnx 1.22.0, COMMIT",
        "exit code 2": "exit code 2",
        "score 5.5234, 98.38 %": "score 5.5234, 98.38 %",
        "/tmp/x/photos/0.png": "FOLDER/photos/0.png",
        "│ fp32     │ a  │": "│ fp32  │ a  │",
    }.items():
        assert normalised(text, Path("/tmp/x")) == expected


def test_a_refusal_is_as_recorded() -> None:
    (found,) = (each for each in transcripts.transcripts() if each.name == "refused-command")
    text = transcripts.run(found)
    assert "exit code 2" in text
    assert transcripts.digest(text) == transcripts.recorded()["refused-command"]


def test_names_are_unique_and_recorded() -> None:
    names = [each.name for each in transcripts.transcripts()]
    names += [f"http-{name}" for name, _ in exchanges()]
    assert len(names) == len(set(names))
    assert transcripts.recorded().keys() == set(names)
