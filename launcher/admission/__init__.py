"""How shim and sidecar get into pods: the injection, the webhook that asks for it, and its certificates."""
