"""Named benchmarks: each answers one question, beside a reference measured in the same run.

`registry.py` lists them; `report.py` is what they return; one file each has the measurement.
"""
