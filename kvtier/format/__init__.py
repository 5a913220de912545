"""Bytes <-> values, without any input or output."""
