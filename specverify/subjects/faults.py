# SPDX-License-Identifier: Apache-2.0
"""Call code that cannot be trusted: it may raise, hang or print."""

from __future__ import annotations

import contextlib
import io
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TypeVar

_OUTPUT_LIMIT = 400
_RING_AGAIN = 0.2
_HERE = Path(__file__).parent
_T = TypeVar("_T")


class SubjectFault(Exception):  # noqa: N818 - the subject's fault, reported as a finding
    """The subject broke its contract; the message says how, in one sentence.

    Attributes
    ----------
    printed
        What it wrote while it was called, cut.
    """

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed[-_OUTPUT_LIMIT:].strip()

    def __str__(self) -> str:
        """Message, and what the subject printed."""
        message = super().__str__()
        return f"{message}; it printed: {self.printed}" if self.printed else message


class SubjectHung(SubjectFault):
    """A call did not return in time; the subject is not called again."""


class _Timeout(BaseException):
    """Raised inside the subject; no ``except Exception`` there can swallow it."""


def guarded(call: Callable[[], _T], seconds: float) -> _T:
    """Return what `call` returns, or raise `SubjectFault`.

    Parameters
    ----------
    call
        Calls the subject.
    seconds
        Time limit.

    Raises
    ------
    SubjectFault
        It raised. The message gives exception and place, never our own frames.
    SubjectHung
        It did not return within `seconds`.
    """
    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            return _timed(call, seconds)
    except _Timeout:
        msg = f"a call did not return within {seconds:g} s"
        raise SubjectHung(msg, printed.getvalue()) from None
    except SubjectFault:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SubjectFault(_describe(error), printed.getvalue()) from error


def _describe(error: BaseException) -> str:
    ours = {str(_HERE / name) for name in ("faults.py", "rig.py", "scripted.py")}
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if frame.filename not in ours]
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - not even its message can be trusted
        said = "(its message cannot be read)"
    text = f"it raised {type(error).__name__}: {said}".splitlines()[0]
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({Path(last.filename).name}:{last.lineno} in {last.name})"


def _timed(call: Callable[[], _T], seconds: float) -> _T:
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and hasattr(signal, "setitimer"):
        with _alarm(seconds):
            return call()
    return _in_thread(call, seconds)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupt the block with a signal; the host's own handler and timer survive."""
    rang = False

    def ring(_signum: int, _frame: FrameType | None) -> None:
        nonlocal rang
        rang = True
        raise _Timeout

    handler = signal.signal(signal.SIGALRM, ring)
    # Rings again and again: what is called may swallow an interruption.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _RING_AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, handler)
    if rang:
        raise _Timeout


def _in_thread(call: Callable[[], _T], seconds: float) -> _T:
    """Run in a daemon thread; a call that hangs is left behind with it."""
    returned: list[_T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        raise _Timeout
    return returned[0]
