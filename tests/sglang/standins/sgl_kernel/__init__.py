"""Stands in for SGLang's kernels, of which there is no build for plain CPUs."""

from absent_package import pretend

__version__ = "0.4.10"
pretend(__name__)
