"""The configuration: what can be set (`settings`), and how it is read (`load`)."""

from tarry.config.check import ConfigError
from tarry.config.load import Loaded, load
from tarry.config.settings import Config

__all__ = ["Config", "ConfigError", "Loaded", "load"]
