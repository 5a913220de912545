"""The per-host daemon: lifecycle, control plane, health. Bytes and whatever happens per block are native."""
