"""What `kvtier demo` shows: a real engine reloading its prefixes, and a real agent trace replayed."""
