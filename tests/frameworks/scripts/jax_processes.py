"""One of two processes that meet by jax.distributed: the second word is the port, the third one its number."""

import sys

import jax

import reshape_hooks

jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))
reshape_hooks.Elastic(held={})
