"""The engine's side: attach, hold a session, look up, lease, reserve. The public names are in `kvtier`."""
