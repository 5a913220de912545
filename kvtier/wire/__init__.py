"""Protobuf messages <-> values. The generated code in `_gen` is part of the wheel, never of the repository."""
