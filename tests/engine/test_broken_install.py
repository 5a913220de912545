"""An engine whose kvtier cannot be loaded answers as one without it, and says what is wrong."""

from engines import tokens

# As an interpreter finds it that the native module was not built for.
BROKEN = "import sys\nsys.modules['tpu_sync_native'] = None\n"


def test_without_the_native_module_the_engine_serves(host, start, dense, references, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BROKEN)
    prompt = tokens(600, seed=1)
    engine = start(dense, environment={"PYTHONPATH": str(site)})
    assert engine.generate([prompt]) == references.tokens(dense, [prompt])
    assert engine.log_text().count("its compiled parts cannot be loaded") == 1
    assert "tpu_sync_native" in engine.log_text()
    assert host.sessions() == 0
