"""`kvtier bench sglang` at a size that shows that it runs."""

import json
import subprocess
import sys


def test_it_measures_beside_sglangs_own_backend() -> None:
    code = "from kvtier.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", "sglang", "--json", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    cases = {result["case"].partition(",")[0] for result in record["results"]}
    assert cases == {"set", "get", "exists"}
    for result in record["results"]:
        assert result["value"] > 0
        assert result["reference_value"] > 0
