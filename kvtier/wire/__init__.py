"""Protobuf messages <-> values. The generated code in `_gen` is part of the wheel, not of the repository."""
