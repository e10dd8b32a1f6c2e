"""A device for tests of who gives back what."""


class Counting:
    """A device that knows how much of it is in use: memory and what is bound."""

    def __init__(self, device):
        self._device = device
        self.used = set()
        self.bound = set()

    def __getattr__(self, name):
        return getattr(self._device, name)

    def allocate(self, nbytes):
        address = self._device.allocate(nbytes)
        self.used.add(address)
        return address

    def free(self, address):
        self.used.remove(address)
        self._device.free(address)

    def pinned(self, nbytes):
        buffer = self._device.pinned(nbytes)
        self.used.add(buffer.ctypes.data)
        return buffer

    def unpin(self, buffer):
        self.used.remove(buffer.ctypes.data)
        self._device.unpin(buffer)

    def bind(self, steps, bases):
        launch = self._device.bind(steps, bases)
        self.bound.add(launch)
        return launch

    def round_trip(self, upload, launch, download):
        run = self._device.round_trip(upload, launch, download)
        self.bound.add(run)
        return run

    def unbind(self, launch):
        self.bound.remove(launch)
        self._device.unbind(launch)
