"""What the adapters share: nothing here knows an engine."""
