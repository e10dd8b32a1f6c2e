"""Every sentence of the five reports that can be tested, judged twice: by their own tables and by what was run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vgg16gpu_lab.claims import s1 as claims_s1
from vgg16gpu_lab.claims import s2 as claims_s2
from vgg16gpu_lab.claims import s3 as claims_s3
from vgg16gpu_lab.claims import s4 as claims_s4
from vgg16gpu_lab.claims import s5 as claims_s5
from vgg16gpu_lab.claims.judge import ABOUT, LAUNCHES, MARGIN, Claim, Finding, Verdict
from vgg16gpu_lab.claims.records import Record, our_times
from vgg16gpu_lab.claims.times import Times, published_times
from vgg16gpu_lab.experiments.record import write_pair

SCHEMA: Final = 1
NAME: Final = "claims"
METHOD: Final = (
    f"a claim that says every holds if all comparisons that count say so and does not if one speaks against it; most: "
    f"more than half; some: one; times that differ by less than {MARGIN:.0%}, or whose samples overlap (least to 95th "
    f"percentile), are too close to be different; a comparison with a time below {LAUNCHES} empty launches of the same "
    f"device (95th percentile) counts for nothing, published times apart; 'about' is within a factor of {ABOUT:g}; "
    f"cannot tell: rows are missing, or times too close or too short; cuDNN's time is that of its best plan for planes "
    f"(NCHW), as the reports give it images: one for channels side by side counts where one channel goes in and out"
)
BETWEEN: Final = "; "  # labels of cases in a cell
NO_FLOOR: Final = "none of their times is too short to count."
CPU_NOTE: Final = "Times of a CPU: ours are verdicts about this CPU, not about a GPU."


@dataclass(frozen=True)
class Judged:
    """A claim and what became of it on both sides."""

    claim: Claim
    theirs: Finding
    ours: Finding


def claims() -> tuple[Claim, ...]:
    """Return all claims, in the order of the reports."""
    return tuple(claim for seed in (claims_s1, claims_s2, claims_s3, claims_s4, claims_s5) for claim in seed.CLAIMS)


def judge(ours: Times, theirs: Times | None = None) -> tuple[Judged, ...]:
    """Judge every claim by the numbers of a run and, without `theirs`, by the published ones."""
    published = theirs or published_times()
    return tuple(
        Judged(claim, claim.theirs or claim.judge.find(published), claim.judge.find(ours)) for claim in claims()
    )


def counts(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    """Count the claims by verdict, on both sides."""
    return {
        side: {verdict.value: sum(getattr(each, side).verdict is verdict for each in judged) for verdict in Verdict}
        for side in ("theirs", "ours")
    }


def content(records: Sequence[Record]) -> dict[str, Any]:
    """Return everything that is printed, and where the numbers come from."""
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
                "floor_ms": record.floor,
            }
            for record in records
        ],
        "counts": counts(judged),
        "claims": [_row(each) for each in judged],
    }


def write_claims(folder: Path, found: dict[str, Any]) -> tuple[Path, Path]:
    """Write claims.csv and claims.json, each whole or not at all; return the paths. Raises ModelError."""
    return write_pair(folder, NAME, found["claims"], found)


def notes(found: dict[str, Any]) -> list[str]:
    """Return what a reader of `content` must know of its records: times of a CPU, no empty launch."""
    records = found["records"]
    lacking = [record["experiment"] for record in records if record["floor_ms"] is None and not record["model"]]
    return [
        *([CPU_NOTE] if any(record["kind"] == "cpu" for record in records) else []),
        *([f"No empty launch is in the records of {', '.join(lacking)}: {NO_FLOOR}"] if lacking else []),
    ]


def share_text(claim: Mapping[str, Any]) -> str:
    """Return in which cases a claim holds, and which are too short; "" where that is all or none."""
    is_part = 0 < claim["holds"] < claim["cases"]
    parts = [f"Holds in: {claim['which']}"] if is_part and claim["which"] else []
    return ". ".join((*parts, *([f"Too short: {claim['short']}"] if claim["short"] else [])))


def _row(judged: Judged) -> dict[str, Any]:
    claim, theirs, ours = judged.claim, judged.theirs, judged.ours
    return {
        "number": claim.number,
        "seed": claim.seed,
        "section": claim.section,
        "kind": claim.kind,
        "claim": claim.text,
        "test": claim.test,
        "theirs": theirs.figure,
        "theirs_verdict": theirs.verdict.value,
        "theirs_holds": theirs.holds,
        "theirs_cases": theirs.cases,
        "ours": ours.figure,
        "verdict": ours.verdict.value,
        "holds": ours.holds,
        "cases": ours.cases,
        "short": BETWEEN.join(ours.short),
        "which": BETWEEN.join(ours.which),
    }
