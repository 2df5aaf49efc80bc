#!/bin/sh
# Check and time in one run, of less than ten minutes, all that only a machine with an NVIDIA GPU can show.
# PYTHON: one with PyTorch, pytest and our dependencies. MODELS: of the benchmark. LOGS: a folder for what both print.
python=${PYTHON:-python3} models=${MODELS:-124m,1.3b,resnet50,350m} logs=${LOGS:-build/on_gpu}
mkdir -p "$logs"
status=0
timeout 250 "$python" -m pytest -q -m gpu tests/e2e/test_real_gpus.py >"$logs/tests.log" 2>&1 || status=1
tail -n 15 "$logs/tests.log"
timeout 320 "$python" -m benchmarks gap --gpu --models "$models" --rounds 1 --most-s 300 >"$logs/gap.log" 2>&1 || status=1
tail -n 60 "$logs/gap.log"
exit $status
