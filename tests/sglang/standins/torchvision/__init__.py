"""Stands in for torchvision, whose wheels ask for a CUDA build of torch."""

from absent_package import pretend

__version__ = "0.28.0"
pretend(__name__)
