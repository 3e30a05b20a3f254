"""What goes wrong while tuning, as errors that a caller can act on."""

from superopt.errors import SuperoptError

__all__ = ["DeviceLostError", "KernelFaultError", "MeasurementError", "TuneError"]


class TuneError(SuperoptError):
    """Base of all errors of the tuner; what was measured before stays valid."""


class MeasurementError(TuneError):
    """A time that cannot be right, as one below what the device needs to move the data."""


class KernelFaultError(TuneError):
    """A kernel crashed, hung, or gave outputs of a wrong shape, or that are not finite."""


class DeviceLostError(TuneError):
    """A kernel left the device unusable for this process: nothing more can be measured in it."""
