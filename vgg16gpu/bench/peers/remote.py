"""A peer as our process sees it: its contenders are asked in its own process, which is replaced once when it fails.

A peer that raises, hangs or dies is tried again in a fresh process; with a second failure at the same batch size it is
lost there, and said to be so. What takes part, it measures by itself: only figures come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from vgg16gpu.bench.measure.timing import Contender, LostError, Method
from vgg16gpu.bench.peers.base import OPENERS, PeerError, Setting
from vgg16gpu.bench.peers.messages import Built, Contend, Measure, Open, Release, Request, Scores, guilty_last
from vgg16gpu.bench.peers.process import PeerFailureError, PeerProcess
from vgg16gpu.compiler.graph.ops import Array

# Seconds to wait for one answer, the longest of which builds all ways: XLA compiles and tries, cuDNN tries.
PATIENCE = {"cuda": 150.0, "cpu": 900.0}
COMPILED_PATIENCE = 1800.0  # torch.compile takes minutes for each
_MOST_HANGS = 2  # in a run, before a peer is not asked any more

Note = Callable[[str], None]


class RemotePeer:
    """A peer in a process of its own. `note` gets a remark when it had to be tried again."""

    def __init__(self, name: str, note: Note) -> None:
        self.name = name
        self.unbuilt: Sequence[Built] = ()  # ways of the present batch that failed, with their reasons
        self._note = note
        self._process = PeerProcess(name, OPENERS[name])
        self._setting: Setting | None = None
        self._is_open = False
        self._batch: Contend | None = None
        self._first: PeerFailureError | None = None  # since the last `open` or `contenders`
        self._lost: LostError | None = None
        self._hangs = 0

    def start(self) -> None:
        """Begin to import the framework; waits for nothing."""
        self._process.start()

    def wait_until_ready(self) -> None:
        """Wait until the framework is imported. Raises PeerError when it does not load here, LostError."""
        self._begin()
        self._tried("when it was loaded", self._process.wait_until_ready, self._restart)

    def post(self, setting: Setting) -> None:
        """Begin to load the model, in place of another; `opened` waits for that. Raises LostError."""
        self._begin()
        self._setting, self._is_open = setting, False
        if not self._process.is_started:  # it was lost in another precision
            self._process.start()
        with suppress(PeerFailureError, PeerError):  # `opened` meets it again
            self._process.post(Open(setting))

    def opened(self) -> Sequence[str]:
        """Return the peer's notes, once the model is loaded. Raises PeerError when the peer refuses it, LostError."""
        notes: Sequence[str] = self._tried(f"in {self._precision}", self._collect_open, self._reopen)
        return notes

    @contextmanager
    def contenders(self, x: Array) -> Iterator[list[Contender]]:
        """Yield its ways to run the model on the inputs `x`, built. Raises LostError."""
        self._begin()
        self._batch = Contend(x)
        try:
            built = self._asked(self._build, self._rebuild)
            self.unbuilt = [each for each in built if each.reason]
            yield [_RemoteContender(self, each) for each in built if not each.reason]
            self._release()  # not after an interrupt: the process may be busy, and is ended
        finally:
            self._batch, self.unbuilt = None, ()

    def ask(self, request: Request) -> Any:
        """Return a contender's answer, if need be from a fresh process. Raises LostError."""

        def again() -> Any:
            self._rebuild()
            return self._ask(request)

        return self._asked(lambda: self._ask(request), again)

    def close(self) -> None:
        """End the process."""
        self._process.stop()

    @property
    def _precision(self) -> str:
        assert self._setting is not None  # opened
        return self._setting.precision

    def _asked(self, first: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """Call `_tried` in the present batch; a refusal raises LostError, too."""
        assert self._batch is not None  # inside of `contenders`
        try:
            return self._tried(f"in {self._precision}, batch {len(self._batch.x)}", first, again)
        except PeerError as error:
            raise LostError(str(error)) from error

    def _begin(self) -> None:
        """Allow a new try. Raises LostError for a peer that has hung twice."""
        self._first = self._lost = None
        if self._hangs >= _MOST_HANGS:
            raise LostError("not asked any more: it has hung twice")

    def _tried(self, where: str, first: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """Return `first()` or, when that fails for the first time, `again()` in a fresh process."""
        if self._lost is not None:
            raise self._lost
        try:
            return first()
        except PeerFailureError as error:
            failure = self._failed(error)
            if self._first is not None:
                raise self._lose(failure) from error
            self._first = failure
        try:
            found = again()
        except PeerFailureError as error:
            raise self._lose(self._failed(error)) from error
        except PeerError as error:
            raise self._lose(PeerFailureError(str(error))) from error
        self._note(f"{self.name} failed once {where} ({self._first}); what it shows there is of a fresh process")
        return found

    def _failed(self, error: PeerFailureError) -> PeerFailureError:
        self._hangs += error.hung
        return error

    def _lose(self, second: PeerFailureError) -> LostError:
        """Stop the process and return the error with both failures."""
        assert self._first is not None  # it has been tried before
        self._process.stop()
        self._is_open = False
        reasons = dict.fromkeys([str(self._first), str(second)])
        self._lost = LostError(f"failed twice: {'; then '.join(reasons)}", second.output or self._first.output)
        return self._lost

    def _restart(self) -> None:
        self._is_open = False
        self._process.start()
        self._process.wait_until_ready()

    def _reopen(self) -> Sequence[str]:
        assert self._setting is not None  # asked to open
        self._restart()
        notes: Sequence[str] = self._ask(Open(self._setting))
        self._is_open = True
        return notes

    def _collect_open(self) -> Sequence[str]:
        notes: Sequence[str] = self._process.collect(self._patience)
        self._is_open = True
        return notes

    def _build(self) -> Sequence[Built]:
        """Build every way of this batch. A way that fails is a failure at first, then a gap."""
        assert self._batch is not None  # it is what is built
        if not self._is_open:  # it was lost at another batch size
            self._reopen()
        built: Sequence[Built] = self._ask(self._batch)
        broken = [each for each in built if each.reason and not each.refused]
        if broken and (self._first is None or len(broken) == len(built)):
            self._batch = Contend(self._batch.x, guilty_last(built))
            raise PeerFailureError(f"{broken[0].variant}: {broken[0].reason}", self._process.output())
        return sorted(built, key=lambda each: each.number)

    def _rebuild(self) -> Sequence[Built]:
        self._reopen()
        return self._build()

    def _release(self) -> None:
        if self._is_open:
            try:
                self._ask(Release())
            except (PeerFailureError, PeerError):
                self._is_open = False

    def _ask(self, request: Request) -> Any:
        return self._process.ask(request, self._patience)

    @property
    def _patience(self) -> float:
        assert self._setting is not None  # nothing is asked before
        return COMPILED_PATIENCE if self._setting.compiled else PATIENCE[self._setting.kind]


class _RemoteContender:
    """A way of a peer, by its number in the other process."""

    def __init__(self, peer: RemotePeer, built: Built) -> None:
        self.name, self.variant = built.name, built.variant
        self.methods: Sequence[Method] = built.methods
        self.unchecked, self.tf32 = built.unchecked, built.tf32
        self._peer, self._number = peer, built.number

    def scores(self) -> Array:
        """Compute the first output in the other process."""
        scores: Array = self._peer.ask(Scores(self._number))
        return scores

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return seconds, measured in the other process."""
        seconds: list[float] = self._peer.ask(Measure(self._number, method, runs))
        return seconds
