"""The version that was installed."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("kvtier")
