"""The outlet for `matrix://` destinations: due events are sent to a homeserver as their users."""

from tarry.outlets.matrix.homeserver import Homeserver, HomeserverSettings
from tarry.outlets.matrix.outlet import MatrixOutlet

__all__ = ["Homeserver", "HomeserverSettings", "MatrixOutlet"]
