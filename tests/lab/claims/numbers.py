"""Made-up numbers for claims, and what becomes of these."""

from vgg16gpu_lab.claims.judge import Verdict
from vgg16gpu_lab.claims.table import judge
from vgg16gpu_lab.claims.times import Entry, Times, published_times

HOLDS, DOES_NOT, CANNOT_TELL = Verdict.HOLDS, Verdict.DOES_NOT, Verdict.CANNOT_TELL
NOTHING = Times({}, "not run")
ALL = {each.claim.number: each for each in judge(NOTHING)}


def times(values, **options):
    """Numbers, or entries, by key."""
    return Times({name: v if isinstance(v, Entry) else Entry(v) for name, v in values.items()}, "not run", **options)


def made_up(number, values):
    """1 ms for every name, but for those with a size, method, part or parameter in `values`."""

    def value(name):
        parts = (name[2], name[3], f"{name[3]} {name[4]}".strip(), name[4], *name[4].split())
        return next((values[part] for part in values if part in parts), 1.0)

    return times({name: value(name) for name in ALL[number].claim.judge.keys})


def found(number, values, **options):
    """Verdict and figure."""
    finding = ALL[number].claim.judge.find(times(values, **options))
    return finding.verdict, finding.figure


def check_published(number, verdict, figure):
    """What their own table says."""
    assert ALL[number].theirs.verdict is verdict
    assert figure in ALL[number].theirs.figure


def check_both(number, right, wrong):
    """Numbers that a claim holds for, others that it does not, and none."""
    judge_of = ALL[number].claim.judge
    for values, expected in ((right, HOLDS), (wrong, DOES_NOT)):
        finding = judge_of.find(made_up(number, values))
        assert finding.verdict is expected, finding
        assert 0 <= finding.holds <= finding.cases > 0
    assert ALL[number].ours.verdict is CANNOT_TELL
    assert ALL[number].ours.figure.startswith(("not run", "no numbers"))


def check_theirs_as_ours(numbers):
    """Their times as ours get their verdicts."""
    judged = {each.claim.number: each for each in judge(published_times())}
    for number in numbers:
        if judged[number].claim.theirs is None:
            assert judged[number].ours == judged[number].theirs, number
