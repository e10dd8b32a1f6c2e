"""Every sentence of the five reports that can be tested, judged twice: by their own tables and by what was run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vgg16gpu.lab import claims_s1, claims_s2, claims_s3, claims_s4, claims_s5
from vgg16gpu.lab.claims_judge import ABOUT, MARGIN, Claim, Finding, Verdict
from vgg16gpu.lab.claims_records import Record, our_times
from vgg16gpu.lab.claims_times import Times, published_times
from vgg16gpu.lab.record import write_pair

SCHEMA: Final = 1
NAME: Final = "claims"
METHOD: Final = (
    f"a claim holds if every comparison says so and does not if one speaks against it; times that differ by less than "
    f"{MARGIN:.0%}, or whose samples overlap (least to 95th percentile), are too close to be different; 'about' is "
    f"within a factor of {ABOUT:g}; cannot tell: rows are missing, or times are too close"
)
CPU_NOTE: Final = "Times of a CPU: ours are verdicts about this CPU, not about a GPU."


@dataclass(frozen=True)
class Judged:
    """A claim and what became of it on both sides."""

    number: str  # S2.3
    claim: Claim
    theirs: Finding
    ours: Finding


def claims() -> tuple[Claim, ...]:
    """All, in the order of the reports."""
    return tuple(claim for seed in (claims_s1, claims_s2, claims_s3, claims_s4, claims_s5) for claim in seed.CLAIMS)


def judge(ours: Times, theirs: Times | None = None) -> tuple[Judged, ...]:
    """A verdict on every claim by the numbers of a run and, without `theirs`, by the published ones."""
    numbers: dict[str, int] = {}
    found = []
    for claim in claims():
        numbers[claim.seed] = numbers.get(claim.seed, 0) + 1
        said = claim.theirs or claim.judge.find(theirs or published_times())
        found.append(Judged(f"{claim.seed}.{numbers[claim.seed]}", claim, said, claim.judge.find(ours)))
    return tuple(found)


def counts(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    """How many claims have which verdict, on both sides."""
    return {
        side: {verdict.value: sum(getattr(each, side).verdict is verdict for each in judged) for verdict in Verdict}
        for side in ("theirs", "ours")
    }


def content(records: Sequence[Record]) -> dict[str, Any]:
    """Everything that is printed, and where the numbers come from."""
    judged = judge(our_times(records))
    return {
        "schema": SCHEMA,
        "method": METHOD,
        "records": [
            {
                "file": record.path.name,
                "experiment": record.experiment,
                "model": record.model,
                "device": record.device,
                "kind": record.kind,
                "date": record.date,
                "quick": record.quick,
            }
            for record in records
        ],
        "counts": counts(judged),
        "claims": [_row(each) for each in judged],
    }


def write_claims(folder: Path, found: dict[str, Any]) -> tuple[Path, Path]:
    """The paths of claims.csv and claims.json; each is whole or not there. Raises ModelError for want of a place."""
    return write_pair(folder, NAME, found["claims"], found)


def _row(judged: Judged) -> dict[str, str]:
    claim = judged.claim
    return {
        "number": judged.number,
        "seed": claim.seed,
        "claim": claim.text,
        "origin": claim.origin,
        "test": claim.test,
        "theirs": judged.theirs.figure,
        "theirs_verdict": judged.theirs.verdict.value,
        "ours": judged.ours.figure,
        "verdict": judged.ours.verdict.value,
    }
