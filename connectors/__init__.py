"""Adapters between engines and kvtier, one package per engine; none imports another."""
