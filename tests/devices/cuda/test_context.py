"""devices/cuda/context.py: what needs no card."""

import threading

from vgg16gpu.devices.cuda.context import Guests


def test_closing_waits_for_threads_inside_and_not_for_its_own():
    guests, entered, leave, waited = Guests(), threading.Event(), threading.Event(), threading.Event()

    def visit():
        with guests.inside(), guests.inside():
            entered.set()
            leave.wait(10)

    def close():
        with guests.inside():
            guests.wait()
        waited.set()

    visitor, closer = threading.Thread(target=visit), threading.Thread(target=close)
    visitor.start()
    assert entered.wait(10)
    closer.start()
    assert not waited.wait(0.05)
    leave.set()
    assert waited.wait(10)
    visitor.join()
    closer.join()
    guests.wait()
