"""An experiment with GPUs in pods of the test bed."""
